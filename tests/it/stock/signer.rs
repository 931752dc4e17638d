//! Signs images with skopeo: with a GnuPG key into a lookaside store, with a sigstore key into the registry.

use super::{Answer, TestNode};

/// A file of registries.d: where tools read and write the signatures of every registry.
const REGISTRIES_D: &str = "default-docker:
  lookaside: file:///var/lib/containers/sigstore
  use-sigstore-attachments: true
";

/// Ends the agent that gpg has started, so that no process stays.
const WITHOUT_AGENT: &str = r#""$@"; code=$?; gpgconf --kill all; exit $code"#;

const USER: &str = "signer@example.com";

/// A node with keys, whose tools read and write signatures.
pub(crate) struct Signer<'n> {
    node: &'n TestNode,
}

impl<'n> Signer<'n> {
    /// Makes the keys.
    pub(crate) fn on(node: &'n TestNode) -> Self {
        let signer = Self { node };
        node.write("etc/containers/registries.d/signatures.yaml", REGISTRIES_D);
        std::fs::create_dir(node.out("gpg")).expect("a directory for keys");
        std::fs::write(node.out("passphrase"), "").expect("writing a file of the world");
        let key = [
            "gpg",
            "--batch",
            "--quiet",
            "--pinentry-mode",
            "loopback",
            "--passphrase",
            "",
        ];
        signer
            .tool(
                &[
                    &key[..],
                    &["--quick-generate-key", USER, "rsa2048", "sign", "never"],
                ]
                .concat(),
            )
            .ok();
        let [prefix, passphrase] =
            ["sigstore", "passphrase"].map(|name| node.out(name).display().to_string());
        let key = ["skopeo", "generate-sigstore-key", "--output-prefix", &prefix];
        signer
            .tool(&[&key[..], &["--passphrase-file", &passphrase]].concat())
            .ok();
        let parameters =
            format!("privateKeyFile: {prefix}.private\nprivateKeyPassphraseFile: {passphrase}\n");
        std::fs::write(node.out("sigstore.yaml"), parameters).expect("writing a file of the world");
        signer
    }

    /// Copies an image, or all of a list, from one registry to another and signs it with both keys.
    pub(crate) fn copy(&self, from: &str, to: &str) {
        let parameters = self.node.out("sigstore.yaml").display().to_string();
        let (from, to) = (format!("docker://{from}"), format!("docker://{to}"));
        let copy = [
            "skopeo",
            "--insecure-policy",
            "copy",
            "--quiet",
            "--all",
            "--preserve-digests",
        ];
        let sign = ["--sign-by", USER, "--sign-by-sigstore", &parameters];
        self.tool(&[&copy[..], &sign, &[&from, &to]].concat()).ok();
    }

    fn tool(&self, command: &[&str]) -> Answer {
        let home = format!("GNUPGHOME={}", self.node.out("gpg").display());
        let wrapped = ["env", &home, "sh", "-c", WITHOUT_AGENT, "sh"];
        self.node.tool("pull", &[&wrapped, command].concat())
    }
}
