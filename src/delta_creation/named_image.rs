//! A resolved image with its name for people, and what its labels state.

use std::sync::Arc;

use serde::Deserialize;

use crate::delta::DeltaSource;
use crate::oci::{Reference, ResolvedImage};

/// An image with its name for people.
#[derive(Clone, Debug)]
pub(super) struct NamedImage {
    /// Its tag in the payload.
    pub(super) name: String,
    /// By digest of its manifest.
    pub(super) reference: Reference,
    pub(super) image: Arc<ResolvedImage>,
}

/// The part of a config that has the labels.
#[derive(Deserialize)]
struct Config {
    config: Option<Settings>,
}

#[derive(Deserialize)]
struct Settings {
    #[serde(rename = "Labels")]
    labels: Option<Labels>,
}

#[derive(Default, Deserialize)]
struct Labels {
    /// Images of rhel-coreos have it.
    #[serde(rename = "ostree.commit")]
    ostree_commit: Option<String>,
    /// Images that OpenShift builds have it.
    #[serde(rename = "io.openshift.build.source-location")]
    source_location: Option<String>,
    /// The same in the OCI image specification.
    #[serde(rename = "org.opencontainers.image.source")]
    source: Option<String>,
}

impl NamedImage {
    /// The image as a source of deltas.
    pub(super) fn source(&self) -> DeltaSource {
        DeltaSource {
            config: self.image.config.digest(),
            ostree_commit: self.labels().ostree_commit,
        }
    }

    /// The source repository that it was built from, if its labels name it.
    pub(super) fn built_from(&self) -> Option<String> {
        let Labels {
            source_location,
            source,
            ..
        } = self.labels();
        let mut stated = [source_location, source].into_iter().flatten().map(|url| {
            let url = url.trim().trim_end_matches('/');
            url.strip_suffix(".git").unwrap_or(url).to_owned()
        });
        stated.find(|url| !url.is_empty())
    }

    fn labels(&self) -> Labels {
        let config: Option<Config> = serde_json::from_slice(self.image.config.bytes()).ok();
        let labels = config.and_then(|config| config.config?.labels);
        labels.unwrap_or_default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::oci::{Content, DiffId, Digest, Layer, LayerDescriptor};

    /// An image of these layers, built from `source`.
    pub(in super::super) fn image(name: &str, layers: &[&str], source: Option<&str>) -> NamedImage {
        let labels = source.map(|source| json!({"io.openshift.build.source-location": source}));
        labelled(name, layers, &json!(labels))
    }

    /// The diffID of a layer of [`image`].
    pub(in super::super) fn diff_id(layer: &str) -> DiffId {
        DiffId(Digest::of(layer.as_bytes()))
    }

    fn labelled(name: &str, layers: &[&str], labels: &serde_json::Value) -> NamedImage {
        let chain = layers.iter().map(|layer| {
            let blob = Digest::of(format!("blob {layer}").as_bytes());
            let descriptor = LayerDescriptor {
                blob,
                size: 1 << 20,
                media_type: "application/vnd.oci.image.layer.v1.tar+gzip".to_owned(),
            };
            (descriptor, diff_id(layer))
        });
        let config = json!({"name": name, "layers": layers, "config": {"Labels": labels}});
        let image = ResolvedImage {
            list: None,
            manifest: Content::new(format!("manifest {name} {layers:?}").into()),
            config: Content::new(config.to_string().into()),
            layers: Layer::chain(chain),
            created: None,
            signatures: Vec::new(),
        };
        NamedImage {
            name: name.to_owned(),
            reference: "localhost/a:1".parse().expect("a reference"),
            image: Arc::new(image),
        }
    }

    #[test]
    fn the_labels_name_the_source() {
        let (openshift, oci) = (
            "io.openshift.build.source-location",
            "org.opencontainers.image.source",
        );
        for (labels, source) in [
            (
                json!({openshift: "https://a/b", oci: "https://c/d"}),
                Some("https://a/b"),
            ),
            (
                json!({openshift: "", oci: "https://c/d.git"}),
                Some("https://c/d"),
            ),
            (json!({oci: "https://c/d/"}), Some("https://c/d")),
            (json!({"url": "https://a/b"}), None),
            (json!(null), None),
            (json!([1]), None),
        ] {
            assert_eq!(
                labelled("a", &[], &labels).built_from().as_deref(),
                source,
                "{labels}"
            );
        }
    }
}
