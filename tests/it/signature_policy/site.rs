//! Publishes signed images: docker-registry with sigstore attachments, and nginx with lookaside signatures.
//!
//! ```text
//!   registry in this process ─skopeo copy─→ nginx at HOST ─→ docker-registry
//!                                             ├ /v2/REPO        images and attachments
//!                                             └ /lookaside/REPO@sha256=…/signature-N
//! ```
//!
//! A node requests `images.example.test/REPO:1`, which its registries.conf maps to `HOST/REPO:1`, or
//! `mirrored.example.test/REPO:1`, whose mirror is `HOST/mirror/REPO:1`.

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::keys::Keys;
use super::server::Server;
use crate::image::{Compression, Format, Image, Images, Layer, List, node_architecture, sha256};
use crate::registry::Registry;
use crate::stock::docker_registry::DockerRegistry;
use crate::test_node::TestNode;

/// The media type of a sigstore signature's payload.
pub(super) const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
const REKOR_BUNDLE: &str = "dev.sigstore.cosign/bundle";

/// One layer of an attachment: a sigstore signature.
pub(super) struct Attached {
    pub(super) mime_type: &'static str,
    pub(super) payload: String,
    pub(super) annotations: Value,
}

/// Where skopeo reads and writes signatures while it signs.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Lookaside,
    Attachment,
    /// Both; skopeo then writes the sigstore signature into both.
    Everywhere,
}

/// The servers, the keys, and the registry that images come from.
pub(super) struct Site {
    server: Server,
    pub(super) keys: Keys,
    source: Registry,
    _docker: DockerRegistry,
}

/// The name by which nodes request `repository`.
pub(super) fn name(repository: &str) -> String {
    format!("images.example.test/{repository}:1")
}

/// An image whose only file names its repository, so that no two share anything.
fn image(repository: &str, architecture: &str) -> Image {
    let text = format!(
        "image {repository} oci arch={architecture}\nlayer gzip\nfile /{architecture} 0644 0:0 \"{repository}\"\n"
    );
    Images::of(&text, &[]).images.remove(0)
}

impl Site {
    /// With these OpenPGP keys, see [`Keys`].
    pub(super) fn new(openpgp: &[&str]) -> Self {
        let (source, docker) = (Registry::start(), DockerRegistry::start());
        let workshop = TestNode::trusting(&[]);
        let lookaside = workshop.out("lookaside");
        fs::create_dir(&lookaside).expect("creating a directory");
        let server = Server::start(&lookaside, &docker.host());
        let hosts = [source.host(), server.host().to_owned()].map(|host| insecure(&host, &host));
        workshop.write("etc/containers/registries.conf", &hosts.concat());
        for (place, attachments, has_lookaside) in [
            ("Lookaside", false, true),
            ("Attachment", true, false),
            ("Everywhere", true, true),
        ] {
            let mut settings = format!(
                "docker:\n  {}:\n    use-sigstore-attachments: {attachments}\n",
                server.host()
            );
            if has_lookaside {
                settings += &format!(
                    "    lookaside: http://{}/lookaside\n    lookaside-staging: file://{}\n",
                    server.host(),
                    lookaside.display()
                );
            }
            workshop.write(&format!("etc/containers/{place}/site.yaml"), &settings);
        }
        let keys = Keys::make(workshop, openpgp);
        Self {
            server,
            keys,
            source,
            _docker: docker,
        }
    }

    /// `127.0.0.1:port` of nginx.
    pub(super) fn host(&self) -> &str {
        self.server.host()
    }

    /// What was requested of nginx so far.
    pub(super) fn requests(&self) -> Vec<String> {
        self.server.requests()
    }

    /// Publishes an image without signatures.
    pub(super) fn push(&self, repository: &str) -> Image {
        let image = image(repository, node_architecture());
        self.source.push(repository, Some("1"), &image);
        self.copy_from_source(repository, "1", &[]);
        image
    }

    /// Publishes a list without signatures, whose first instance is for nodes.
    pub(super) fn push_list(&self, repository: &str) -> List {
        let instances = [node_architecture(), "s390x"].map(|architecture| image(repository, architecture));
        let list = List::build(repository, Format::Oci, instances.into());
        self.source.push_list(repository, Some("1"), &list);
        self.copy_from_source(repository, "1", &["--all"]);
        list
    }

    fn copy_from_source(&self, repository: &str, tag: &str, options: &[&str]) {
        let [from, to] =
            [&self.source.host(), self.host()].map(|host| format!("docker://{host}/{repository}:{tag}"));
        let copy = [
            "skopeo",
            "--insecure-policy",
            "copy",
            "--quiet",
            "--preserve-digests",
        ];
        self.keys.tool(&[&copy[..], options, &[&from, &to]].concat());
    }

    /// Signs `HOST/target` as `identity` with an OpenPGP key; earlier lookaside signatures stay before the new one.
    pub(super) fn sign_by_gpg(&self, key: &str, target: &str, identity: &str, options: &[&str]) {
        let (fingerprint, home) = self.keys.signer(key);
        let sign = ["--sign-by", fingerprint];
        self.sign(
            Place::Lookaside,
            &home,
            target,
            identity,
            &[&sign[..], options].concat(),
        );
    }

    /// Signs `HOST/target` as `identity` with a sigstore key made by skopeo.
    pub(super) fn sign_by_sigstore(
        &self,
        key: &str,
        place: Place,
        target: &str,
        identity: &str,
        options: &[&str],
    ) {
        let private = self.keys.private(key);
        let sign = [
            "--sign-by-sigstore-private-key",
            &private,
            "--sign-passphrase-file",
            "/dev/null",
        ];
        self.sign(place, "A=a", target, identity, &[&sign[..], options].concat());
    }

    fn sign(&self, place: Place, environment: &str, target: &str, identity: &str, options: &[&str]) {
        let settings = match place {
            Place::Lookaside => "/etc/containers/Lookaside",
            Place::Attachment => "/etc/containers/Attachment",
            Place::Everywhere => "/etc/containers/Everywhere",
        };
        let image = format!("docker://{}/{target}", self.host());
        let skopeo = [
            "env",
            environment,
            "skopeo",
            "--insecure-policy",
            "--registries.d",
            settings,
            "copy",
        ];
        let ends = ["--quiet", "--sign-identity", identity, &image, &image];
        self.keys.tool(&[&skopeo[..], options, &ends].concat());
    }

    /// The directory of the lookaside signatures of a manifest.
    pub(super) fn lookaside(&self, repository: &str, digest: &str) -> PathBuf {
        let directory = format!("{repository}@{}", digest.replace(':', "="));
        self.keys.path("lookaside").join(directory)
    }

    /// Stores any bytes as the lookaside signature number `number` of a manifest.
    pub(super) fn put_lookaside(&self, repository: &str, digest: &str, number: usize, bytes: &[u8]) {
        let directory = self.lookaside(repository, digest);
        fs::create_dir_all(&directory).expect("creating a directory");
        fs::write(directory.join(format!("signature-{number}")), bytes).expect("writing a signature");
    }

    /// Publishes sigstore signatures of a manifest.
    pub(super) fn attach(&self, repository: &str, digest: &str, format: Format, attached: &[Attached]) {
        let manifest = attachment(repository, format, attached);
        let tag = format!("{}.sig", digest.replace(':', "-"));
        self.source.push(repository, Some(&tag), &manifest);
        self.copy_from_source(repository, &tag, &[]);
    }

    /// A node with a policy, which finds all images and their signatures.
    pub(super) fn node(&self, policy: &str) -> TestNode {
        let (node, host) = (TestNode::trusting(&[]), self.host());
        node.write("etc/containers/policy.json", policy);
        // Nothing listens at port 1: the image is found at the mirror or not at all.
        let mirrored = insecure("mirrored.example.test", "127.0.0.1:1")
            + &format!("[[registry.mirror]]\nlocation = \"{host}/mirror\"\ninsecure = true\n\n");
        let registries = [
            insecure(host, host),
            insecure("images.example.test", host),
            mirrored,
        ];
        node.write("etc/containers/registries.conf", &registries.concat());
        node.write(
            "etc/containers/registries.d/site.yaml",
            &format!(
                "docker:\n  {host}:\n    lookaside: http://{host}/lookaside\n    use-sigstore-attachments: true\n  \
                 {host}/file:\n    lookaside: file:///etc/containers/lookaside\n  \
                 {host}/old:\n    sigstore: http://{host}/old-lookaside\n  \
                 {host}/unread:\n    lookaside: http://{host}/nothing\n    use-sigstore-attachments: false\n"
            ),
        );
        self.keys.give_to(&node);
        let from = self.keys.path("lookaside/file");
        for directory in fs::read_dir(from).into_iter().flatten().flatten() {
            let to = format!(
                "etc/containers/lookaside/file/{}",
                directory.file_name().to_string_lossy()
            );
            for file in fs::read_dir(directory.path()).expect("a directory").flatten() {
                let to = node.host().join(&to);
                fs::create_dir_all(&to).expect("creating a directory");
                fs::copy(file.path(), to.join(file.file_name())).expect("copying a signature");
            }
        }
        node
    }
}

impl Attached {
    /// A signature by a key of openssl.
    pub(super) fn signed(keys: &Keys, key: &str, digest: &str, identity: &str) -> Self {
        let payload = payload("cosign container image signature", digest, identity);
        let signature = STANDARD.encode(keys.raw_signature(key, payload.as_bytes()));
        Self {
            mime_type: SIMPLE_SIGNING,
            payload,
            annotations: json!({ SIGNATURE: signature }),
        }
    }

    /// Adds the entry of a Rekor log for a signature by the key whose public half is `file`.
    pub(super) fn logged(mut self, keys: &Keys, file: &str) -> Self {
        let hash = sha256(self.payload.as_bytes());
        let body = json!({"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": {
            "data": {"hash": {"algorithm": "sha256", "value": hash["sha256:".len()..]}},
            "signature": {
                "content": self.annotations[SIGNATURE],
                "publicKey": {"content": STANDARD.encode(keys.public(file))},
            },
        }});
        // The signed bytes are canonical JSON: keys in order, no spaces.
        let entry = json!({
            "body": STANDARD.encode(body.to_string()),
            "integratedTime": 1_700_000_000,
            "logID": "c0d23d6ad406973f9559f3ba2d1ca01f84147d8ffc5b8445c224f98b9591801d",
            "logIndex": 1,
        });
        let signed = STANDARD.encode(keys.raw_signature("rekor", entry.to_string().as_bytes()));
        let bundle = json!({"SignedEntryTimestamp": signed, "Payload": entry});
        self.annotations[REKOR_BUNDLE] = bundle.to_string().into();
        self
    }
}

/// An image manifest whose layers are sigstore signatures.
pub(super) fn attachment(repository: &str, format: Format, attached: &[Attached]) -> Image {
    let layers = attached.iter().map(|it| {
        let blob = it.payload.clone().into_bytes();
        let digest = sha256(&blob);
        Layer::of_blob(blob.into(), digest, Compression::None)
    });
    Image::build(repository, format, "", layers.collect(), |_, manifest| {
        for (index, it) in attached.iter().enumerate() {
            manifest["layers"][index]["mediaType"] = it.mime_type.into();
            manifest["layers"][index]["annotations"] = it.annotations.clone();
        }
    })
}

/// What a signature signs: that an image with this digest has this name.
pub(super) fn payload(kind: &str, digest: &str, identity: &str) -> String {
    let critical = json!({
        "identity": {"docker-reference": identity},
        "image": {"docker-manifest-digest": digest},
        "type": kind,
    });
    json!({"critical": critical, "optional": {}}).to_string()
}

fn insecure(prefix: &str, location: &str) -> String {
    format!("[[registry]]\nprefix = \"{prefix}\"\nlocation = \"{location}\"\ninsecure = true\n\n")
}
