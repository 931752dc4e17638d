//! Chooses the instance for a platform from a manifest list or OCI index.

use oci_distribution::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, ImageIndexEntry, OCI_IMAGE_INDEX_MEDIA_TYPE, OciImageIndex,
};

use super::manifest_error::excerpt;
use super::media_type::{SCHEMA1_MEDIA_TYPE, SCHEMA1_SIGNED_MEDIA_TYPE};
use super::{Digest, ManifestError, Platform};

/// How many platforms an error names at most. The largest lists of Docker Hub have about twenty; a hostile list can have
/// thirty thousand.
const NAMED_PLATFORMS: usize = 24;

/// A manifest list or an OCI index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    instances: Vec<Instance>,
    /// containers/image falls back to an instance without platform, but not in a Docker list.
    oci: bool,
}

/// An entry of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Instance {
    digest: Digest,
    media_type: String,
    platform: Option<Platform>,
    zstd: bool,
}

impl Index {
    pub(super) fn check(index: OciImageIndex, oci: bool) -> Result<Self, ManifestError> {
        let instances = index
            .manifests
            .into_iter()
            .filter_map(|entry| Instance::read(entry).transpose());
        Ok(Self {
            instances: instances.collect::<Result<_, _>>()?,
            oci,
        })
    }

    /// The manifest for `wanted`, as containers/image chooses it (`internal/manifest/oci_index.go`): the best variant
    /// first, then zstd before gzip, then the earlier entry. Readers of the store choose again from the stored list and
    /// expect the same instance. Versions without support for zstd instances, as in podman 4.3.1, would choose the first of
    /// the two.
    pub fn choose(&self, wanted: &Platform) -> Result<Digest, ManifestError> {
        let variants = wanted.variants();
        let rank = |instance: &Instance| match &instance.platform {
            Some(platform) => {
                let same = platform.os == wanted.os && platform.architecture == wanted.architecture;
                let variant = platform.variant.as_deref().unwrap_or_default();
                variants.iter().position(|v| same && *v == variant)
            }
            None => self.oci.then_some(usize::MAX),
        };
        // `min_by_key` keeps the first of equals.
        let best = self
            .instances
            .iter()
            .filter_map(|instance| rank(instance).map(|rank| (rank, !(self.oci && instance.zstd), instance)))
            .min_by_key(|(rank, gzip, _)| (*rank, *gzip));
        match best {
            None => Err(ManifestError::NoSuchPlatform {
                wanted: wanted.to_string(),
                available: self.platforms(),
            }),
            Some((_, _, instance)) => match instance.media_type.as_str() {
                OCI_IMAGE_INDEX_MEDIA_TYPE | IMAGE_MANIFEST_LIST_MEDIA_TYPE => {
                    Err(ManifestError::NestedIndex(instance.digest))
                }
                SCHEMA1_MEDIA_TYPE | SCHEMA1_SIGNED_MEDIA_TYPE => Err(ManifestError::Schema1),
                _ => Ok(instance.digest),
            },
        }
    }

    fn platforms(&self) -> String {
        let names = self.instances.iter().map(|instance| match &instance.platform {
            Some(platform) => excerpt(&platform.to_string()),
            None => "one without platform".into(),
        });
        let more = self.instances.len().saturating_sub(NAMED_PLATFORMS);
        let mut names: Vec<String> = names.take(NAMED_PLATFORMS).collect();
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        match names.is_empty() {
            true => "none".into(),
            false => names.join(", "),
        }
    }
}

impl Instance {
    /// `None` for an attestation, which buildkit lists as `unknown/unknown`.
    fn read(entry: ImageIndexEntry) -> Result<Option<Self>, ManifestError> {
        let platform = entry.platform.map(|platform| Platform {
            os: platform.os.to_string(),
            architecture: platform.architecture.to_string(),
            variant: platform.variant.filter(|variant| !variant.is_empty()),
        });
        if platform
            .as_ref()
            .is_some_and(|platform| platform.os == "unknown" && platform.architecture == "unknown")
        {
            return Ok(None);
        }
        let zstd = entry.annotations.is_some_and(|annotations| {
            annotations
                .get("io.github.containers.compression.zstd")
                .is_some_and(|value| value == "true")
        });
        Ok(Some(Self {
            digest: entry
                .digest
                .parse()
                .map_err(|_| ManifestError::digest(&entry.digest))?,
            media_type: entry.media_type,
            platform,
            zstd,
        }))
    }
}

#[cfg(test)]
mod tests {
    use oci_distribution::manifest::OCI_IMAGE_MEDIA_TYPE;

    use crate::oci::Manifest;

    use super::*;

    fn a(fill: char) -> String {
        format!("sha256:{}", fill.to_string().repeat(64))
    }

    fn index(entries: &[(char, &str)]) -> Index {
        let entry = |(fill, more): &(char, &str)| {
            format!(
                r#"{{"mediaType":"{OCI_IMAGE_MEDIA_TYPE}","digest":"{}","size":1{more}}}"#,
                a(*fill)
            )
        };
        let entries: Vec<String> = entries.iter().map(entry).collect();
        let body = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, entries.join(","));
        match Manifest::parse(body.as_bytes(), None) {
            Ok(Manifest::Index(index)) => index,
            other => panic!("{other:?}"),
        }
    }

    fn platform(text: &str) -> Platform {
        text.parse().expect("a platform")
    }

    const V7: &str = r#","platform":{"os":"linux","architecture":"arm","variant":"v7"}"#;
    const V6: &str = r#","platform":{"os":"linux","architecture":"arm","variant":"v6"}"#;
    const AMD64: &str = r#","platform":{"os":"linux","architecture":"amd64"}"#;
    const ATTESTATION: &str = r#","platform":{"os":"unknown","architecture":"unknown"}"#;

    #[test]
    fn the_best_instance_is_chosen_and_the_error_lists_the_available_platforms() {
        let index = index(&[('0', ATTESTATION), ('6', V6), ('7', V7), ('8', AMD64)]);
        let choose = |wanted| index.choose(&platform(wanted)).map(|digest| digest.to_string());
        assert_eq!(choose("linux/amd64"), Ok(a('8')));
        assert_eq!(choose("linux/arm"), Ok(a('7')));
        assert_eq!(choose("linux/arm/v8"), Ok(a('7')));
        assert_eq!(choose("linux/arm/v6"), Ok(a('6')));
        assert_eq!(
            choose("linux/s390x").map_err(|error| error.to_string()),
            Err(
                "the list has no image for `linux/s390x`; it has: linux/arm/v6, linux/arm/v7, linux/amd64"
                    .into()
            )
        );
    }

    #[test]
    fn an_error_names_a_bounded_number_of_platforms() {
        let long = format!(
            r#","platform":{{"os":"linux","architecture":"{}"}}"#,
            "x".repeat(200)
        );
        let error = index(&vec![('1', &*long); 1000]).choose(&platform("linux/amd64"));
        let message = error.expect_err("none fits").to_string();
        assert!(message.len() < 4000, "{} bytes", message.len());
        assert!(message.ends_with(", and 976 more"), "{message}");
    }

    #[test]
    fn an_instance_without_platform_is_the_last_resort_and_zstd_is_preferred() {
        let zstd = format!(r#"{AMD64},"annotations":{{"io.github.containers.compression.zstd":"true"}}"#);
        let index = index(&[('1', ""), ('2', AMD64), ('3', &zstd), ('4', &zstd)]);
        let choose = |wanted| index.choose(&platform(wanted)).map(|digest| digest.to_string());
        assert_eq!(choose("linux/amd64"), Ok(a('3')));
        assert_eq!(choose("linux/ppc64le"), Ok(a('1')));
    }
}
