//! The oracle: `podman pull` of an image with one layer.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use spoke_precache::oci::Digest;

/// A store that podman writes.
pub struct Stock {
    dir: tempfile::TempDir,
}

const NAME: &str = "layout";

/// podman keeps a cache and its locks in fixed places, and mounts the store on itself: all that stays in a mount
/// name space of its own, away from the machine's containers.
const PODMAN_ALONE: &str = r#"
    for place in /var/lib /var/tmp /run; do mount -t tmpfs none $place || exit 1; done
    exec podman "$@"
"#;

/// A layer as podman unpacked it.
pub struct Layer {
    pub diff: PathBuf,
    pub tar_split: Vec<u8>,
    tar_split_path: PathBuf,
    image: String,
    pub record: serde_json::Value,
}

impl Stock {
    /// `None`, said loudly, without podman or root. On CI that is a failure.
    pub fn find() -> Option<Self> {
        let podman = Command::new("podman").arg("--version").output();
        let found = podman.is_ok_and(|output| output.status.success());
        if found && rustix::process::geteuid().is_root() {
            static COUNT: AtomicUsize = AtomicUsize::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            // podman makes the image's name of the path, and names have no capitals.
            let prefix = format!("spoke-unpack-{}-{count}", std::process::id());
            let dir = tempfile::Builder::new().prefix(&prefix).rand_bytes(0).tempdir();
            let dir = dir.expect("temporary directory");
            return Some(Self { dir });
        }
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "CI needs podman and root"
        );
        eprintln!("SKIPPED: comparing with podman needs podman and root");
        None
    }

    /// Has podman pull an image whose only layer is `blob`, of this media type, and `tar` uncompressed.
    pub fn pull(&self, blob: &[u8], media_type: &str, tar: &[u8]) -> Result<Layer, String> {
        let layout = self.dir.path().join(NAME);
        let _ = fs::remove_dir_all(&layout);
        let blobs = layout.join("blobs/sha256");
        fs::create_dir_all(&blobs).expect("mkdir");
        let put = |bytes: &[u8]| {
            let digest = Digest::of(bytes);
            fs::write(blobs.join(digest.hex()), bytes).expect("write");
            digest
        };
        let layer = put(blob);
        let diff_id = Digest::of(tar);
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        })
        .to_string();
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                       "digest": put(config.as_bytes()), "size": config.len()},
            "layers": [{"mediaType": media_type, "digest": layer, "size": blob.len()}],
        })
        .to_string();
        let index = serde_json::json!({
            "schemaVersion": 2,
            "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json",
                           "digest": put(manifest.as_bytes()), "size": manifest.len(),
                           "annotations": {"org.opencontainers.image.ref.name": "t"}}],
        });
        fs::write(layout.join("index.json"), index.to_string()).expect("write");
        fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("write");
        let root = self.dir.path().join("root");
        let source = format!("oci:{}:t", layout.display());
        let output = self
            .podman()
            .args(["pull", "-q", &source])
            .output()
            .expect("podman runs");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let id = diff_id.hex();
        let layers = fs::read(root.join("overlay-layers/layers.json")).expect("layers.json");
        let layers: Vec<serde_json::Value> = serde_json::from_slice(&layers).expect("layers.json");
        let record = layers
            .into_iter()
            .find(|layer| layer["id"] == *id)
            .expect("the layer's record");
        let tar_split_path = root.join("overlay-layers").join(format!("{id}.tar-split.gz"));
        Ok(Layer {
            diff: root.join("overlay").join(&id).join("diff"),
            tar_split: fs::read(&tar_split_path).expect("tar-split"),
            tar_split_path,
            image: String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            record,
        })
    }
}

impl Stock {
    /// Has podman save the image of a layer, with this tar-split for its layer.
    pub fn save_with(&self, layer: &Layer, tar_split: &[u8]) -> Result<(), String> {
        fs::write(&layer.tar_split_path, tar_split).expect("write");
        let archive = self.dir.path().join("saved.tar");
        let _ = fs::remove_file(&archive);
        let mut podman = self.podman();
        let output = podman
            .args(["save", "-q", "-o"])
            .arg(&archive)
            .arg(&layer.image)
            .output()
            .expect("podman runs");
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    fn podman(&self) -> Command {
        let mut podman = Command::new("unshare");
        podman.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            PODMAN_ALONE,
            "podman",
        ]);
        podman.arg("--root").arg(self.dir.path().join("root"));
        podman.arg("--runroot").arg(self.dir.path().join("runroot"));
        podman.args(["--storage-driver", "overlay"]);
        podman
    }
}
