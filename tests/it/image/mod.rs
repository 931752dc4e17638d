//! Makes images from readable text: layers, configs, manifests, lists.
//!
//! ```text
//! image zoo/whiteouts docker [arch=arm64] [config=text]   docker: schema 2, oci: OCI; `config=` into its labels
//! layer gzip                                      gzip, zstd or none; the lines of [`layer`] follow
//! file /a 0644 0:0 "a"
//! layer zstd
//! whiteout /a
//! layer again                                     the layer above once more
//!
//! list zoo/multi docker zoo/arm zoo/amd           docker: a manifest list, oci: an index; of images above
//! ```
//!
//! Everything is deterministic: the same text gives the same digests on every machine. Nothing of the product is used,
//! for these bytes are what it is tested with.

pub(crate) mod layer;
pub(crate) mod operator;
pub(crate) mod release;
pub(crate) mod samples;
mod sparse;
pub(crate) mod tar;
mod token;

use std::io::{Read as _, Write};

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::Digest as _;

use token::tokens;

const CREATED: &str = "2024-05-06T07:08:09.123456789Z";

/// Schema 2 or OCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Docker,
    Oci,
}

/// How a layer's tar travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstd,
    None,
}

/// A layer as a registry holds it, and the truth about its tar.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) compression: Compression,
    /// As it travels.
    pub(crate) blob: Bytes,
    /// Digest of `blob`, or a false one for the manifest.
    pub(crate) digest: String,
    /// Length of `blob`, or a false one for the manifest.
    pub(crate) size: u64,
    /// Digest of the tar, or a false one for the config.
    pub(crate) diff_id: String,
}

impl Layer {
    /// A layer from the lines of [`layer`].
    pub(crate) fn of(text: &str, compression: Compression) -> Self {
        Self::of_tar(&layer::tar_of(text, &[]), compression)
    }

    /// A layer from a tar.
    pub(crate) fn of_tar(tar: &[u8], compression: Compression) -> Self {
        let blob = match compression {
            Compression::Gzip => gzip(tar),
            Compression::Zstd => zstd::encode_all(tar, 3).expect("compressing in memory"),
            Compression::None => tar.to_vec(),
        };
        Self::of_blob(blob.into(), sha256(tar), compression)
    }

    /// A layer from bytes as they travel; `diff_id` is believed.
    pub(crate) fn of_blob(blob: Bytes, diff_id: String, compression: Compression) -> Self {
        Self {
            compression,
            digest: sha256(&blob),
            size: blob.len() as u64,
            blob,
            diff_id,
        }
    }

    /// Its tar.
    pub(crate) fn tar(&self) -> Vec<u8> {
        let mut tar = Vec::new();
        match self.compression {
            Compression::Gzip => flate2::read::MultiGzDecoder::new(&self.blob[..]).read_to_end(&mut tar),
            Compression::Zstd => {
                zstd::Decoder::new(&self.blob[..]).and_then(|mut zstd| zstd.read_to_end(&mut tar))
            }
            Compression::None => (&self.blob[..]).read_to_end(&mut tar),
        }
        .expect("a layer of a fixture decompresses");
        tar
    }

    fn media_type(&self, format: Format) -> &'static str {
        match (format, self.compression) {
            // Schema 2 has no media type of its own for zstd; builders write gzip's, readers detect it from the bytes.
            (Format::Docker, Compression::Gzip | Compression::Zstd) => {
                "application/vnd.docker.image.rootfs.diff.tar.gzip"
            }
            (Format::Docker, Compression::None) => "application/vnd.docker.image.rootfs.diff.tar",
            (Format::Oci, Compression::Gzip) => "application/vnd.oci.image.layer.v1.tar+gzip",
            (Format::Oci, Compression::Zstd) => "application/vnd.oci.image.layer.v1.tar+zstd",
            (Format::Oci, Compression::None) => "application/vnd.oci.image.layer.v1.tar",
        }
    }
}

/// An image as a registry holds it.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) name: String,
    pub(crate) architecture: String,
    pub(crate) media_type: String,
    pub(crate) manifest: Bytes,
    pub(crate) config: Bytes,
    /// Base layer first.
    pub(crate) layers: Vec<Layer>,
}

impl Image {
    /// Config and manifest for `layers`. `edit` may change both before they are serialised: (config, manifest); the
    /// manifest then names the config as edited.
    pub(crate) fn build(
        name: &str,
        format: Format,
        architecture: &str,
        layers: Vec<Layer>,
        edit: impl Fn(&mut Value, &mut Value),
    ) -> Self {
        let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
        let history: Vec<Value> = layers
            .iter()
            .map(|_| json!({"created": CREATED, "created_by": "a fixture"}))
            .collect();
        let mut config = json!({
            "architecture": architecture,
            "os": "linux",
            "created": CREATED,
            "config": {"Env": ["PATH=/bin"], "Cmd": ["/bin/hello"], "Labels": {"name": name}},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
            "history": history,
        });
        let (media_type, config_type) = match format {
            Format::Docker => (
                "application/vnd.docker.distribution.manifest.v2+json",
                "application/vnd.docker.container.image.v1+json",
            ),
            Format::Oci => (
                "application/vnd.oci.image.manifest.v1+json",
                "application/vnd.oci.image.config.v1+json",
            ),
        };
        let described: Vec<Value> = layers
            .iter()
            .map(|layer| {
                json!({"mediaType": layer.media_type(format), "size": layer.size, "digest": layer.digest})
            })
            .collect();
        let mut manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": {"mediaType": config_type, "size": 0, "digest": ""},
            "layers": described,
        });
        edit(&mut config, &mut manifest);
        let config = Bytes::from(config.to_string());
        manifest["config"]["size"] = config.len().into();
        manifest["config"]["digest"] = sha256(&config).into();
        Self {
            name: name.to_owned(),
            architecture: architecture.to_owned(),
            media_type: manifest["mediaType"].as_str().unwrap_or(media_type).to_owned(),
            // Pretty, as Docker writes it: who re-serialises it changes its digest.
            manifest: serde_json::to_vec_pretty(&manifest)
                .expect("a value serialises")
                .into(),
            config,
            layers,
        }
    }

    /// Digest of the manifest.
    pub(crate) fn digest(&self) -> String {
        sha256(&self.manifest)
    }

    /// Hexadecimal digest of the config: the image's id in a store.
    pub(crate) fn id(&self) -> String {
        sha256(&self.config)["sha256:".len()..].to_owned()
    }
}

/// A manifest list or index.
#[derive(Clone, Debug)]
pub(crate) struct List {
    pub(crate) name: String,
    pub(crate) media_type: &'static str,
    pub(crate) bytes: Bytes,
    pub(crate) instances: Vec<Image>,
}

impl List {
    /// A list (or index) of `instances`, in this order.
    pub(crate) fn build(name: &str, format: Format, instances: Vec<Image>) -> Self {
        let media_type = match format {
            Format::Docker => "application/vnd.docker.distribution.manifest.list.v2+json",
            Format::Oci => "application/vnd.oci.image.index.v1+json",
        };
        let manifests: Vec<Value> = instances
            .iter()
            .map(|image| {
                json!({
                    "mediaType": image.media_type,
                    "size": image.manifest.len(),
                    "digest": image.digest(),
                    "platform": {"architecture": image.architecture, "os": "linux"},
                })
            })
            .collect();
        let list = json!({"schemaVersion": 2, "mediaType": media_type, "manifests": manifests});
        let bytes = serde_json::to_vec_pretty(&list)
            .expect("a value serialises")
            .into();
        Self {
            name: name.to_owned(),
            media_type,
            bytes,
            instances,
        }
    }

    /// Digest of the list itself.
    pub(crate) fn digest(&self) -> String {
        sha256(&self.bytes)
    }
}

/// What a fixture text describes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Images {
    pub(crate) images: Vec<Image>,
    pub(crate) lists: Vec<List>,
}

impl Images {
    /// Reads a fixture text; `named` are contents for `bytes=NAME`.
    pub(crate) fn of(text: &str, named: &[(&str, &[u8])]) -> Self {
        let mut all = Self::default();
        let mut open: Option<OpenImage> = None;
        for line in text.lines() {
            let words = tokens(line);
            let verb = words
                .first()
                .filter(|word| !word.quoted)
                .map(|word| word.text().to_owned());
            match verb.as_deref() {
                Some("image") => {
                    all.images.extend(open.take().map(|image| image.close(named)));
                    open = Some(OpenImage::new(&words[1..]));
                }
                Some("layer") => open
                    .as_mut()
                    .expect("an `image` line above")
                    .layers
                    .push((words[1].text().to_owned(), String::new())),
                Some("list") => {
                    all.images.extend(open.take().map(|image| image.close(named)));
                    let instances = words[3..]
                        .iter()
                        .map(|name| all.image(name.text()).clone())
                        .collect();
                    all.lists
                        .push(List::build(words[1].text(), format(words[2].text()), instances));
                }
                Some(_) => {
                    let image = open.as_mut().expect("an `image` line above");
                    let (_, lines) = image.layers.last_mut().expect("a `layer` line above");
                    lines.push_str(line);
                    lines.push('\n');
                }
                None => {}
            }
        }
        all.images.extend(open.map(|image| image.close(named)));
        all
    }

    /// The image of that name.
    pub(crate) fn image(&self, name: &str) -> &Image {
        self.images
            .iter()
            .find(|image| image.name == name)
            .unwrap_or_else(|| panic!("no image `{name}`"))
    }

    /// The list of that name.
    pub(crate) fn list(&self, name: &str) -> &List {
        self.lists
            .iter()
            .find(|list| list.name == name)
            .unwrap_or_else(|| panic!("no list `{name}`"))
    }
}

/// An image whose text is still being read.
struct OpenImage {
    name: String,
    format: Format,
    architecture: String,
    /// How it is compressed, and its lines.
    layers: Vec<(String, String)>,
}

impl OpenImage {
    fn new(words: &[token::Token]) -> Self {
        let mut image = Self {
            name: words[0].text().to_owned(),
            format: format(words[1].text()),
            architecture: node_architecture().to_owned(),
            layers: Vec::new(),
        };
        for word in &words[2..] {
            match word.pair() {
                Some(("arch", value)) => {
                    image.architecture = String::from_utf8(value.to_vec()).expect("an architecture");
                }
                _ => panic!("`{}` is no option of an image", word.text()),
            }
        }
        image
    }

    fn close(self, named: &[(&str, &[u8])]) -> Image {
        let mut layers: Vec<Layer> = Vec::new();
        for (compression, text) in &self.layers {
            let compression = match compression.as_str() {
                "again" => {
                    layers.push(layers.last().expect("a layer above `layer again`").clone());
                    continue;
                }
                "gzip" => Compression::Gzip,
                "zstd" => Compression::Zstd,
                "none" => Compression::None,
                other => panic!("`{other}` is no compression"),
            };
            layers.push(Layer::of_tar(&layer::tar_of(text, named), compression));
        }
        Image::build(&self.name, self.format, &self.architecture, layers, |_, _| {})
    }
}

fn format(word: &str) -> Format {
    match word {
        "docker" => Format::Docker,
        "oci" => Format::Oci,
        other => panic!("`{other}` is no image format"),
    }
}

/// Go's name for the architecture that the tests run on.
pub(crate) fn node_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `sha256:<hex>` of `bytes`.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let hash = sha2::Sha256::digest(bytes);
    hash.iter()
        .fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// One gzip member without a time.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), flate2::Compression::new(6));
    encoder
        .write_all(bytes)
        .and_then(|()| encoder.finish())
        .expect("compressing in memory")
}
