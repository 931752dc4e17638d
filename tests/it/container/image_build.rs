//! Builds the image with `container/build` and unpacks it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::needs::{self, leave_out, skip};
use crate::test_node::product;

/// buildah with no image to pull takes two seconds.
const PATIENCE: &str = "120";

/// An image in its archive.
pub(super) struct Built {
    dir: TempDir,
    /// The output of the script.
    pub(super) said: String,
}

/// The binary without debug information, as a release build is: a sixth of the bytes to compress. It lies beside what
/// cargo built, for nobody removes what a static variable holds.
fn stripped() -> &'static Path {
    static STRIPPED: OnceLock<PathBuf> = OnceLock::new();
    STRIPPED.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (path, new) = (
            dir.join("spoke-precache"),
            dir.join(format!("spoke-precache.{}", std::process::id())),
        );
        let status = Command::new("strip").arg("-o").arg(&new).arg(product()).status();
        assert!(status.expect("`strip` comes with binutils").success());
        // Another run of the tests may be using the one before.
        fs::rename(&new, &path).expect("renaming");
        path
    })
}

/// Whether the product needs nothing but a kernel. If not, `what` is not tested, which is said: it belongs to the run of
/// the tests whose `SPOKE_PRODUCT` is what is shipped, and there it is missed.
pub(super) fn is_static(what: &str) -> bool {
    let is_static = libraries().is_empty();
    match std::env::var_os("SPOKE_PRODUCT") {
        _ if is_static => {}
        None => leave_out(&format!("{what}: it takes a static build as SPOKE_PRODUCT")),
        Some(product) => skip(&format!("{what}: `{}` needs libraries", product.display())),
    }
    is_static
}

/// The loader and libraries that it needs, by their paths on this machine.
fn libraries() -> Vec<PathBuf> {
    let output = Command::new("ldd")
        .arg(product())
        .output()
        .expect("`ldd` is there");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    words.map(PathBuf::from).collect()
}

/// The script that is tested.
pub(super) fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("container/build")
}

impl Built {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let output = Command::new("timeout")
            // Without a network, so that nothing can be fetched.
            .args(["--signal=KILL", PATIENCE, "unshare", "--net"])
            .arg(script())
            .arg(stripped())
            .arg(dir.path().join("image.tar"))
            .env("ANY_BINARY", "1")
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .env("TMPDIR", dir.path())
            .output()
            .expect("the script can be started");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let left = fs::read_dir(dir.path()).expect("the directory").count();
        assert_eq!(left, 1, "the script leaves something behind");
        Self { dir, said }
    }

    pub(super) fn archive(&self) -> PathBuf {
        self.dir.path().join("image.tar")
    }

    fn file(&self, path: &str) -> Vec<u8> {
        let output = Command::new("tar")
            .args(["--extract", "--to-stdout", "--file"])
            .arg(self.archive())
            .arg(path)
            .output()
            .expect("`tar` is there");
        assert!(output.status.success(), "no `{path}` in the archive");
        output.stdout
    }

    fn blob(&self, descriptor: &Value) -> Vec<u8> {
        let digest = descriptor["digest"].as_str().expect("a digest");
        self.file(&format!("./blobs/{}", digest.replace(':', "/")))
    }

    fn json(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).expect("JSON")
    }

    fn manifest(&self) -> Value {
        let index = Self::json(&self.file("./index.json"));
        Self::json(&self.blob(&index["manifests"][0]))
    }

    pub(super) fn config(&self) -> Value {
        Self::json(&self.blob(&self.manifest()["config"]))
    }

    /// Bytes of its layers as they cross a link.
    pub(super) fn compressed(&self) -> u64 {
        let manifest = self.manifest();
        let layers = manifest["layers"].as_array().expect("layers");
        layers.iter().filter_map(|layer| layer["size"].as_u64()).sum()
    }

    /// Its one layer, unpacked to `root`.
    pub(super) fn unpack(&self, root: &Path) {
        let manifest = self.manifest();
        let layers = manifest["layers"].as_array().expect("layers");
        assert_eq!(layers.len(), 1, "{manifest}");
        fs::create_dir_all(root).expect("a directory");
        let layer = self.dir.path().join("layer");
        fs::write(&layer, self.blob(&layers[0])).expect("writing");
        let status = Command::new("tar")
            .args(["--extract", "--gzip", "--preserve-permissions", "--file"])
            .arg(&layer)
            .arg("--directory")
            .arg(root)
            .status();
        assert!(status.expect("`tar` is there").success());
        fs::remove_file(layer).expect("removing");
    }

    /// The same, able to be started there.
    pub(super) fn unpack_to_start(&self, root: &Path) {
        self.unpack(root);
        for library in libraries() {
            let place = root.join(library.strip_prefix("/").expect("an absolute path"));
            fs::create_dir_all(place.parent().expect("a directory")).expect("a directory");
            fs::copy(&library, place).expect("copying a library");
        }
    }
}

/// buildah and what the script needs beside it.
pub(super) fn tools() -> Result<(), String> {
    needs::root()?;
    for tool in ["buildah", "jq", "strip", "ldd"] {
        if !Path::new("/usr/bin").join(tool).exists() {
            return Err(format!("`{tool}` is not installed"));
        }
    }
    Ok(())
}
