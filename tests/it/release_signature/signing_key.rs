//! Makes an OpenPGP key with gpg, and signs releases with it as Red Hat does.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

/// A key without a passphrase, in a keyring of its own.
pub(crate) struct SigningKey {
    home: TempDir,
}

impl SigningKey {
    /// An RSA key of `owner`; made in a second or less.
    pub(crate) fn new(owner: &str) -> Self {
        let key = Self {
            home: tempfile::tempdir().expect("a temporary directory"),
        };
        key.gpg(&["--quick-generate-key", owner, "rsa2048", "sign", "never"], b"");
        let public = key.gpg(&["--export", "--armor"], b"");
        std::fs::write(key.public(), public).expect("writing to a temporary directory");
        key
    }

    /// The file with the public key.
    pub(crate) fn public(&self) -> PathBuf {
        self.home.path().join("public.asc")
    }

    /// The text of that file.
    pub(crate) fn public_text(&self) -> String {
        std::fs::read_to_string(self.public()).expect("it was written")
    }

    /// A signed message with this body.
    pub(crate) fn sign(&self, body: &[u8]) -> Vec<u8> {
        // Few bytes even for a body that is a bomb.
        self.gpg(&["--sign", "--compress-algo", "BZIP2", "--output", "-"], body)
    }

    /// The signature of the release with this digest.
    pub(crate) fn sign_release(&self, digest: &str, version: &str) -> Vec<u8> {
        let body = json!({
            "critical": {
                "image": {"docker-manifest-digest": digest},
                "type": "atomic container signature",
                "identity": {"docker-reference": format!("quay.io/openshift-release-dev/ocp-release:{version}")},
            },
            "optional": {"creator": "a test", "timestamp": 1708999999},
        });
        self.sign(body.to_string().as_bytes())
    }

    fn gpg(&self, args: &[&str], input: &[u8]) -> Vec<u8> {
        let mut child = Command::new("/usr/bin/gpg")
            .arg("--homedir")
            .arg(self.home.path())
            .args([
                "--batch",
                "--quiet",
                "--pinentry-mode",
                "loopback",
                "--passphrase",
                "",
            ])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("gpg can be started");
        let mut stdin = child.stdin.take().expect("it is a pipe");
        stdin.write_all(input).expect("gpg reads its input to the end");
        drop(stdin);
        let done = child.wait_with_output().expect("waiting for a child");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "gpg {args:?}: {said}");
        done.stdout
    }
}

impl Drop for SigningKey {
    fn drop(&mut self) {
        // The agent ends by itself when its directory is gone; this is sooner.
        let _ = Command::new("/usr/bin/gpgconf")
            .arg("--homedir")
            .arg(self.home.path())
            .args(["--kill", "gpg-agent"])
            .status();
    }
}
