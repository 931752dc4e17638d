//! Which instance of a manifest list a reader of the store takes. Containers/image decides the same way
//! (`pkg/platform`: `WantedPlatforms`), so that we call an image present exactly when CRI-O finds it.

use serde::Deserialize;

use crate::oci::{Digest, Platform};

#[derive(Deserialize)]
struct List {
    manifests: Option<Vec<Instance>>,
}

#[derive(Deserialize)]
struct Instance {
    digest: String,
    platform: Option<InstancePlatform>,
}

#[derive(Deserialize)]
struct InstancePlatform {
    os: Option<String>,
    architecture: Option<String>,
    variant: Option<String>,
}

/// What a stored manifest is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of one image.
    Single,
    /// A list or index; the instance for the platform, if it has one.
    List(Option<Digest>),
}

/// Tells a list from a manifest and chooses from it. What does not parse is nobody's list.
pub(super) fn choose(manifest: &[u8], platform: &Platform) -> Kind {
    let Some(instances) = serde_json::from_slice::<List>(manifest)
        .ok()
        .and_then(|list| list.manifests)
    else {
        return Kind::Single;
    };
    let same = |theirs: &Option<String>, ours: &str| theirs.as_deref() == Some(ours);
    for variant in variants(platform) {
        let chosen = instances.iter().find(|instance| {
            instance.platform.as_ref().is_some_and(|theirs| {
                same(&theirs.os, &platform.os)
                    && same(&theirs.architecture, &platform.architecture)
                    && theirs.variant.as_deref().unwrap_or_default() == variant
            })
        });
        if let Some(chosen) = chosen {
            return Kind::List(chosen.digest.parse().ok());
        }
    }
    // An OCI index may leave the platform out.
    let any = instances.iter().find(|instance| instance.platform.is_none());
    Kind::List(any.and_then(|any| any.digest.parse().ok()))
}

/// The variants that fit, the best first. On arm64 the variant `v8` is every machine's.
fn variants(platform: &Platform) -> Vec<&str> {
    match (&platform.variant, platform.architecture.as_str()) {
        (Some(variant), _) => vec![variant, ""],
        (None, "arm64") => vec!["v8", ""],
        (None, _) => vec![""],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instance_is_the_one_that_containers_image_takes() {
        let digest = |text: &str| Digest::of(text.as_bytes());
        let list = format!(
            r#"{{"manifests":[{{"digest":"{}","platform":{{"os":"linux","architecture":"arm64"}}}},
            {{"digest":"{}","platform":{{"os":"linux","architecture":"arm64","variant":"v8"}}}},
            {{"digest":"{}","platform":{{"os":"linux","architecture":"amd64"}}}}]}}"#,
            digest("arm64"),
            digest("v8"),
            digest("amd64")
        );
        for (platform, expected) in [
            ("linux/amd64", Some(digest("amd64"))),
            ("linux/arm64", Some(digest("v8"))),
            ("linux/amd64/v3", Some(digest("amd64"))),
            ("linux/s390x", None),
        ] {
            let platform = platform.parse().expect("a platform of the table above");
            assert_eq!(
                choose(list.as_bytes(), &platform),
                Kind::List(expected),
                "{platform}"
            );
        }
        let platform = Platform::of_this_node();
        assert_eq!(choose(br#"{"layers":[]}"#, &platform), Kind::Single);
        assert_eq!(choose(b"garbage", &platform), Kind::Single);
        let index = format!(r#"{{"manifests":[{{"digest":"{}"}}]}}"#, digest("any"));
        assert_eq!(
            choose(index.as_bytes(), &platform),
            Kind::List(Some(digest("any")))
        );
    }
}
