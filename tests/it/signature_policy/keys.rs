//! Makes OpenPGP keys with gpg and sigstore keys with skopeo and openssl, and signs with them.
//!
//! ```text
//! DIR/NAME.gpg          OpenPGP keyrings: a (RSA), b (EdDSA, armored), nist (ECDSA), subkey, expired, revoked,
//!                       short (its signatures have expired), all (every key)
//! DIR/NAME.pub          sigstore keys: one and two (ECDSA, made by skopeo), rsa, ed25519; rekor is a log's key
//! DIR/private/          their private keys, and the home directories of gpg
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::WITHOUT_AGENTS;
use crate::stock::top;
use crate::test_node::TestNode;

/// Every OpenPGP key.
pub(super) const ALL: &[&str] = &["a", "b", "nist", "subkey", "expired", "short", "revoked"];

/// Arguments: the directory of keys, and the OpenPGP keys to make. In the homes `expired` and `short` gpg believes that it is
/// 2020.
const MAKE: &str = r#"
set -e
keys=$1 private=$1/private
shift
in_home() {
  directory=$private/$1
  shift
  gpg --homedir "$directory" --batch --quiet --no-tty --pinentry-mode loopback --passphrase '' "$@"
}
fingerprint() { in_home "$1" --with-colons --list-keys "$2" | awk -F: '$1 == "fpr" { print $10; exit }'; }
mkdir -p -m 700 "$private/now" "$private/expired" "$private/short" "$private/revoking"
echo 'faked-system-time 20200102T030405' >"$private/expired/gpg.conf"
printf 'faked-system-time 20200102T030405\ndefault-sig-expire 1d\n' >"$private/short/gpg.conf"
for name in "$@"; do
  home=now algorithm=rsa2048 usage=sign expires=never armor=
  case $name in
    b) algorithm=ed25519 armor=--armor ;;
    nist) algorithm=nistp256 ;;
    subkey) usage=cert ;;
    expired) home=expired expires=1y ;;
    short) home=short ;;
  esac
  signer=$home user=$name@signer.test
  in_home $signer --quick-gen-key $user $algorithm $usage $expires
  key=$(fingerprint $signer $user)
  echo $signer $user $key >>"$private/list"
  holder=$signer
  case $name in
    subkey) in_home $signer --quick-add-key "$key" rsa2048 sign never ;;
    revoked)
      holder=revoking
      in_home $signer --export $user | in_home $holder --import
      sed 's/^:-----BEGIN/-----BEGIN/' "$private/$signer/openpgp-revocs.d/$key.rev" | in_home $holder --import
      ;;
  esac
  in_home $holder $armor --export $user >"$keys/$name.gpg"
  in_home $holder --export $user >>"$keys/all.gpg"
done
for name in one two; do
  skopeo generate-sigstore-key --output-prefix "$private/$name" --passphrase-file /dev/null >/dev/null
  mv "$private/$name.pub" "$keys"
done
"#;

/// An OpenPGP key that can sign.
struct Signer {
    /// The home directory of gpg, `now`.
    home: String,
    /// `a@signer.test`
    user: String,
    fingerprint: String,
}

/// The keys, and the node on which the tools run that sign with them.
pub(super) struct Keys {
    workshop: TestNode,
    dir: PathBuf,
    signers: Vec<Signer>,
}

impl Keys {
    /// Makes sigstore keys and these OpenPGP keys in a directory of `workshop`.
    pub(super) fn make(workshop: TestNode, openpgp: &[&str]) -> Self {
        let dir = workshop.out("keys");
        fs::create_dir_all(dir.join("private")).expect("creating a directory");
        let mut keys = Self {
            workshop,
            dir,
            signers: Vec::new(),
        };
        keys.tool(&[&["sh", "-c", MAKE, "sh", text(&keys.dir)], openpgp].concat());
        let list = fs::read_to_string(keys.dir.join("private/list")).unwrap_or_default();
        keys.signers = list.lines().map(Signer::of).collect();
        for (name, algorithm) in [
            ("rsa", "-algorithm RSA -pkeyopt rsa_keygen_bits:2048"),
            ("ed25519", "-algorithm ED25519"),
            ("rekor", "-algorithm EC -pkeyopt ec_paramgen_curve:P-256"),
        ] {
            let (private, public) = (keys.private(name), keys.dir.join(format!("{name}.pub")));
            openssl(&format!("genpkey {algorithm} -out {private}"));
            openssl(&format!("pkey -in {private} -pubout -out {}", public.display()));
        }
        fs::write(keys.dir.join("garbage.pub"), "no key\n").expect("writing a file");
        fs::write(keys.dir.join("garbage.gpg"), "no key\n").expect("writing a file");
        keys
    }

    /// Copies the public keys to where `node` has them: `/etc/containers/keys`.
    pub(super) fn give_to(&self, node: &TestNode) {
        let to = node.host().join("etc/containers/keys");
        fs::create_dir_all(&to).expect("creating a directory of the node");
        for file in fs::read_dir(&self.dir).expect("the directory of keys").flatten() {
            if file.path().is_file() {
                fs::copy(file.path(), to.join(file.file_name())).expect("copying a key");
            }
        }
    }

    /// The content of a public key, `a.gpg` or `one.pub`.
    pub(super) fn public(&self, file: &str) -> Vec<u8> {
        fs::read(self.dir.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// The path of a private sigstore key. Its passphrase is empty.
    pub(super) fn private(&self, name: &str) -> String {
        let ending = if matches!(name, "one" | "two") {
            "private"
        } else {
            "pem"
        };
        text(&self.dir.join(format!("private/{name}.{ending}"))).to_owned()
    }

    /// The fingerprint of an OpenPGP key, and `GNUPGHOME=…` for a tool that signs with it.
    pub(super) fn signer(&self, name: &str) -> (&str, String) {
        let user = format!("{name}@signer.test");
        let signer = self.signers.iter().find(|signer| signer.user == user);
        let signer = signer.unwrap_or_else(|| panic!("no key `{name}`"));
        let home = self.dir.join("private").join(&signer.home);
        (&signer.fingerprint, format!("GNUPGHOME={}", home.display()))
    }

    /// Runs a tool of the Debian under test.
    #[track_caller]
    pub(super) fn tool(&self, command: &[&str]) {
        let command = [&WITHOUT_AGENTS, command].concat();
        let output = self.workshop.tool_command(&top(), "pull", &command).output();
        let output = output.expect("`timeout` can be started");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {message}");
    }

    /// A path for files that the tools see too.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.workshop.out(name)
    }

    /// An OpenPGP message with this body, signed by `name`.
    pub(super) fn openpgp_message(&self, name: &str, body: &str) -> Vec<u8> {
        let (fingerprint, home) = self.signer(name);
        let [plain, signed] = ["private/body", "private/message"].map(|file| self.dir.join(file));
        fs::write(&plain, body).expect("writing a file");
        let sign = [
            "gpg",
            "--batch",
            "--yes",
            "--no-tty",
            "--local-user",
            fingerprint,
            "--output",
        ];
        self.tool(
            &[
                &["env", &home],
                &sign[..],
                &[text(&signed), "--sign", text(&plain)],
            ]
            .concat(),
        );
        fs::read(signed).expect("gpg writes it")
    }

    /// A signature of `payload` by openssl: PKCS #1 v1.5 for `rsa`, ASN.1 for `rekor`, both of the SHA-256; pure `ed25519`.
    pub(super) fn raw_signature(&self, name: &str, payload: &[u8]) -> Vec<u8> {
        let [plain, signed] = ["private/payload", "private/signature"].map(|file| self.dir.join(file));
        fs::write(&plain, payload).expect("writing a file");
        let (key, plain, out) = (self.private(name), text(&plain), text(&signed));
        openssl(&match name {
            "ed25519" => format!("pkeyutl -sign -rawin -inkey {key} -in {plain} -out {out}"),
            _ => format!("dgst -sha256 -sign {key} -out {out} {plain}"),
        });
        fs::read(signed).expect("openssl writes it")
    }
}

impl Signer {
    fn of(line: &str) -> Self {
        let mut words = line.split(' ').map(str::to_owned);
        let mut next = || words.next().unwrap_or_else(|| panic!("three words: {line}"));
        Self {
            home: next(),
            user: next(),
            fingerprint: next(),
        }
    }
}

fn openssl(arguments: &str) {
    let output = Command::new("/usr/bin/openssl")
        .args(arguments.split(' '))
        .output();
    let output = output.expect("openssl can be started");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {arguments}: {message}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of a node are UTF-8")
}
