//! Makes a small OpenShift release: a release image whose payload names component images by digest.
//!
//! The pull specs hold the registry's address, so a release is built for one registry.

use serde_json::{Value, json};

use super::{Compression, Format, Image, Layer, layer, node_architecture};

/// Path of the release image inside its registry.
pub(crate) const RELEASE: &str = "ocp/release";
/// Path of all components inside their registry; only their digests differ, as in real releases.
pub(crate) const COMPONENTS: &str = "ocp/components";
/// The component that [`EXCLUDE`] matches.
pub(crate) const EXCLUDED: &str = "aws-ebs-csi-driver";
/// An exclude pattern in the form that administrators write.
pub(crate) const EXCLUDE: &str = "aws";

/// Names, and how many layers each has of its own above the shared ones.
const NAMES: [(&str, usize); 7] = [
    ("cluster-version-operator", 1),
    ("etcd", 1),
    ("hyperkube", 2),
    ("machine-config-operator", 1),
    ("oauth-server", 1),
    ("pod", 0),
    (EXCLUDED, 1),
];

/// A release image and its components.
pub(crate) struct Release {
    pub(crate) release: Image,
    /// Name of the tag in image-references, and the image.
    pub(crate) components: Vec<(&'static str, Image)>,
    /// `host:port` of the registry that the pull specs name.
    pub(crate) registry: String,
}

impl Release {
    /// A release for the registry at `registry` (`host:port`). `layer_size` is the number of incompressible bytes in
    /// each layer: a few thousand for a test, millions for a demonstration.
    pub(crate) fn build(registry: &str, layer_size: usize) -> Self {
        let base = Layer::of(&files("base", layer_size, 1), Compression::Gzip);
        let middle = Layer::of(&files("runtime", layer_size, 2), Compression::Gzip);
        let components: Vec<(&'static str, Image)> = NAMES
            .iter()
            .zip(3..)
            .map(|((name, own), seed)| {
                let mut layers = vec![base.clone(), middle.clone()];
                layers.extend((0..*own).map(|n| {
                    let lines = files(&format!("{name}-{n}"), layer_size, seed * 10 + n as u64);
                    Layer::of(&lines, Compression::Gzip)
                }));
                (
                    *name,
                    Image::build(name, Format::Docker, node_architecture(), layers, |_, _| {}),
                )
            })
            .collect();
        let pull_specs = components
            .iter()
            .map(|(name, image)| (*name, pull_spec(registry, image)));
        let references = image_references(pull_specs);
        let release = release_image(&base, &references.to_string());
        Self {
            release,
            components,
            registry: registry.to_owned(),
        }
    }

    /// `host:port/ocp/release@sha256:…`
    pub(crate) fn by_digest(&self) -> String {
        format!("{}/{RELEASE}@{}", self.registry, self.release.digest())
    }

    /// `host:port/ocp/release:4.99.0`
    pub(crate) fn by_tag(&self) -> String {
        format!("{}/{RELEASE}:4.99.0", self.registry)
    }

    /// The pull spec of the component `name`.
    pub(crate) fn component(&self, name: &str) -> String {
        let (_, image) = self
            .components
            .iter()
            .find(|(known, _)| *known == name)
            .expect("a component's name");
        pull_spec(&self.registry, image)
    }
}

fn pull_spec(registry: &str, image: &Image) -> String {
    format!("{registry}/{COMPONENTS}@{}", image.digest())
}

/// The payload file `image-references`, as `oc adm release new` writes it.
pub(crate) fn image_references<'a>(pull_specs: impl Iterator<Item = (&'a str, String)>) -> Value {
    let tags: Vec<Value> = pull_specs
        .map(|(name, pull_spec)| {
            json!({
                "name": name,
                "annotations": {"io.openshift.build.commit.ref": ""},
                "from": {"kind": "DockerImage", "name": pull_spec},
                "generation": null,
                "importPolicy": {},
                "referencePolicy": {"type": ""},
            })
        })
        .collect();
    json!({
        "kind": "ImageStream",
        "apiVersion": "image.openshift.io/v1",
        "metadata": {"name": "4.99.0", "creationTimestamp": "2024-05-06T07:08:09Z"},
        "spec": {"lookupPolicy": {"local": false}, "tags": tags},
        "status": {"dockerImageRepository": ""},
    })
}

/// The image that holds the payload. Its lower layers hold an older payload, whited out, written anew and hidden by an
/// opaque directory, so that only a reader who applies layers rightly finds the one on top.
pub(crate) fn release_image(base: &Layer, references: &str) -> Image {
    release_image_of("4.99.0", base, references)
}

/// The same of another version.
pub(crate) fn release_image_of(version: &str, base: &Layer, references: &str) -> Image {
    release_image_with(version, base, references, &[])
}

/// The same with manifests: the name and the content of each file.
pub(crate) fn release_image_with(
    version: &str,
    base: &Layer,
    references: &str,
    manifests: &[(String, String)],
) -> Image {
    let metadata =
        json!({"kind": "cincinnati-metadata-v0", "version": version, "previous": [], "metadata": {}});
    let old = r#"
        dir  /release-manifests 0755 0:0
        file /release-manifests/image-references 0644 0:0 "{\"kind\": \"an older payload, which must not be read\"}"
        file /release-manifests/0000_00_gone.yaml 0644 0:0 "gone"
    "#;
    let gone = "whiteout /release-manifests/image-references\nwhiteout /release-manifests/0000_00_gone.yaml";
    let metadata = metadata.to_string();
    let payload = [("image-references", references), ("release-metadata", &metadata)];
    let manifests = manifests
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()));
    let files: Vec<(&str, &str)> = payload.into_iter().chain(manifests).collect();
    let mut new = "dir /release-manifests 0755 0:0\nopaque /release-manifests\n".to_owned();
    for (name, _) in &files {
        new += &format!("file /release-manifests/{name} 0644 0:0 bytes={name}\n");
    }
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, text)| (*name, text.as_bytes()))
        .collect();
    let top = layer::tar_of(&new, &files);
    let layers = vec![
        base.clone(),
        Layer::of(old, Compression::Gzip),
        Layer::of(gone, Compression::Gzip),
        Layer::of_tar(&top, Compression::Gzip),
    ];
    Image::build(
        "release",
        Format::Docker,
        node_architecture(),
        layers,
        |config, _| {
            config["config"]["Labels"]["io.openshift.release"] = version.into();
        },
    )
}

/// A directory with one large file and a few small ones.
fn files(name: &str, size: usize, seed: u64) -> String {
    let mut lines = format!("dir /{name} 0755 0:0\nfile /{name}/data 0644 0:0 random={size} seed={seed}\n");
    for n in 0..5 {
        lines.push_str(&format!("file /{name}/{n} 0644 {n}:0 \"{name} {n}\"\n"));
    }
    lines
}
