//! Makes keys and messages with gpg and compares our verdict with that of gpg.

use std::fs;
use std::io::Write as _;

use std::process::{Command, Output, Stdio};

use jiff::Timestamp;
use tempfile::TempDir;

use super::super::{Keyring, Rules, verify};
use crate::notice;

const BODY: &str = "{\"critical\":{}}\nsecond line\n";

/// A gpg home directory of its own.
struct Gpg {
    home: TempDir,
}

impl Drop for Gpg {
    fn drop(&mut self) {
        let home = self.home.path();
        let _ = Command::new("gpgconf")
            .arg("--homedir")
            .arg(home)
            .args(["--kill", "all"])
            .status();
    }
}

impl Gpg {
    fn new() -> Option<Self> {
        if Command::new("gpg").arg("--version").output().is_err() {
            notice::skip("gpg is not there");
            return None;
        }
        let home = tempfile::Builder::new().prefix("gpg").tempdir().unwrap();
        Some(Self { home })
    }

    fn run(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new("gpg")
            .arg("--homedir")
            .arg(self.home.path())
            .args([
                "--batch",
                "--no-tty",
                "--yes",
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
            .unwrap();
        // gpg may refuse before it reads its input.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    /// The output of a command that must succeed.
    fn make(&self, args: &[&str], input: &[u8]) -> Vec<u8> {
        let output = self.run(args, input);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    }

    /// Makes a key; returns its fingerprint.
    fn key(&self, name: &str, algorithm: &str, usage: &str, options: &[&str]) -> String {
        let generate = [options, &["--quick-gen-key", name, algorithm, usage, "never"]].concat();
        self.make(&generate, b"");
        self.fingerprint(name)
    }

    fn fingerprint(&self, name: &str) -> String {
        let listing = self.make(&["--with-colons", "--list-keys", &format!("={name}")], b"");
        let listing = String::from_utf8(listing).unwrap();
        let line = listing.lines().find(|line| line.starts_with("fpr")).unwrap();
        line.split(':').nth(9).unwrap().to_owned()
    }

    fn export(&self, name: &str) -> Vec<u8> {
        self.make(&["--export", &format!("={name}")], b"")
    }

    fn sign(&self, name: &str, options: &[&str]) -> Vec<u8> {
        let name = format!("={name}");
        let args = [options, &["-u", &name, "--sign"]].concat();
        self.make(&args, BODY.as_bytes())
    }

    /// Revokes a key with the certificate that gpg made with the key.
    fn revoke(&self, fingerprint: &str) {
        let path = self
            .home
            .path()
            .join(format!("openpgp-revocs.d/{fingerprint}.rev"));
        let text = fs::read_to_string(path)
            .unwrap()
            .replace(":-----BEGIN", "-----BEGIN");
        self.make(&["--import"], text.as_bytes());
    }
}

/// The verdict that containers/image derives from gpg's status: one signature, and nothing wrong with it or its key.
fn accepted_by_gpg(message: &[u8], keyrings: &[&[u8]]) -> bool {
    let gpg = Gpg::new().unwrap();
    for keyring in keyrings {
        gpg.run(&["--import"], keyring);
    }
    let output = gpg.run(
        &["--status-fd", "1", "--trust-model", "always", "--verify"],
        message,
    );
    let status = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = status
        .lines()
        .filter_map(|line| line.strip_prefix("[GNUPG:] ")?.split(' ').next());
    let count = |word: &str| words.clone().filter(|other| *other == word).count();
    let bad = ["BADSIG", "ERRSIG", "EXPSIG", "EXPKEYSIG", "REVKEYSIG"];
    let is_bad = bad.iter().any(|word| count(word) > 0);
    output.status.success() && count("NEWSIG") == 1 && count("GOODSIG") == 1 && !is_bad
}

fn accepted(message: &[u8], keyrings: &[&[u8]], rules: Rules) -> Result<(), String> {
    let keyring = Keyring::parse_all(keyrings, rules).map_err(|error| format!("keyring: {error}"))?;
    let message = verify(message, &keyring, Timestamp::now()).map_err(|error| error.to_string())?;
    assert_eq!(String::from_utf8(message.body).unwrap().replace('\r', ""), BODY);
    Ok(())
}

/// Compares the three verdicts. `cvo` is the verdict by the source of golang.org/x/crypto/openpgp.
#[track_caller]
fn compare(what: &str, message: &[u8], keyrings: &[&[u8]], expected: [bool; 2]) {
    let [by_gpg, by_cvo] = expected;
    assert_eq!(accepted_by_gpg(message, keyrings), by_gpg, "gpg: {what}");
    let verdict = accepted(message, keyrings, Rules::GnuPg);
    assert_eq!(verdict.is_ok(), by_gpg, "{what}: {verdict:?}");
    let verdict = accepted(message, keyrings, Rules::Cvo);
    assert_eq!(verdict.is_ok(), by_cvo, "{what}, CVO: {verdict:?}");
}

const BOTH: [bool; 2] = [true, true];
const NEITHER: [bool; 2] = [false, false];
const ONLY_GPG: [bool; 2] = [true, false];
const ONLY_CVO: [bool; 2] = [false, true];

#[test]
fn every_algorithm_has_the_verdict_of_gpg() {
    let Some(gpg) = Gpg::new() else { return };
    for (algorithm, expected) in [
        ("rsa2048", BOTH),
        ("rsa4096", BOTH),
        ("dsa2048", BOTH),
        ("nistp256", BOTH),
        ("nistp384", BOTH),
        ("nistp521", BOTH),
        ("ed25519", ONLY_GPG),
    ] {
        gpg.key(algorithm, algorithm, "sign", &[]);
        compare(
            algorithm,
            &gpg.sign(algorithm, &[]),
            &[&gpg.export(algorithm)],
            expected,
        );
    }
}

#[test]
fn every_form_of_a_message_has_the_verdict_of_gpg() {
    let Some(gpg) = Gpg::new() else { return };
    gpg.key("a", "rsa2048", "sign", &[]);
    gpg.key("b", "rsa2048", "sign", &[]);
    gpg.key("stranger", "rsa2048", "sign", &[]);
    gpg.make(
        &[
            "--quick-add-key",
            &gpg.fingerprint("a"),
            "rsa2048",
            "encrypt",
            "never",
        ],
        b"",
    );
    let keyring = gpg.make(&["--export", "=a", "=b"], b"");
    let armored = gpg.make(&["--armor", "--export", "=a", "=b"], b"");
    for (what, options, expected) in [
        ("plain", &[][..], BOTH),
        ("not compressed", &["--compress-algo", "none"], BOTH),
        ("ZIP", &["--compress-algo", "zip"], BOTH),
        ("ZLIB", &["--compress-algo", "zlib"], BOTH),
        ("BZip2", &["--compress-algo", "bzip2"], BOTH),
        ("text mode", &["--textmode"], BOTH),
        ("a name", &["--set-filename", "some name"], BOTH),
        ("SHA-1", &["--digest-algo", "SHA1"], BOTH),
        ("SHA-224", &["--digest-algo", "SHA224"], BOTH),
        ("SHA-384", &["--digest-algo", "SHA384"], BOTH),
        ("RIPEMD-160", &["--digest-algo", "RIPEMD160"], ONLY_GPG),
        ("MD5", &["--digest-algo", "MD5"], NEITHER),
        ("two signers", &["-u", "=b"], NEITHER),
        ("a signer that is missing", &["-u", "=stranger"], NEITHER),
        (
            "a critical notation",
            &["--sig-notation", "!a@example.org=b"],
            NEITHER,
        ),
        ("a notation", &["--sig-notation", "a@example.org=b"], BOTH),
        ("a signature that expires", &["--default-sig-expire", "1y"], BOTH),
    ] {
        let message = gpg.sign("a", options);
        compare(what, &message, &[&keyring], expected);
        compare(what, &message, &[&armored], expected);
    }
    compare("no message", b"", &[&keyring], NEITHER);
    let body = BODY.as_bytes();
    compare("not signed", &gpg.make(&["--store"], body), &[&keyring], NEITHER);
    compare(
        "detached",
        &gpg.make(&["-u", "=a", "--detach-sign"], body),
        &[&keyring],
        NEITHER,
    );
    let encrypted = gpg.make(
        &[
            "-u",
            "=a",
            "-r",
            "=a",
            "--trust-model",
            "always",
            "--encrypt",
            "--sign",
        ],
        body,
    );
    compare("encrypted", &encrypted, &[&keyring], NEITHER);
    let stranger = gpg.sign("stranger", &[]);
    compare("a stranger", &stranger, &[&keyring], NEITHER);
    compare(
        "no longer a stranger",
        &stranger,
        &[&gpg.export("stranger")],
        BOTH,
    );
    compare(
        "two keyrings",
        &stranger,
        &[&keyring, &gpg.export("stranger")],
        BOTH,
    );
}

#[test]
fn every_state_of_a_key_has_the_verdict_of_gpg() {
    let Some(gpg) = Gpg::new() else { return };
    let then = &["--faked-system-time", "20200101T000000!"][..];
    let later = &["--faked-system-time", "20200201T000000!"][..];

    gpg.make(
        &[then, &["--quick-gen-key", "expired", "rsa2048", "sign", "1y"]].concat(),
        b"",
    );
    let message = gpg.sign("expired", later);
    compare("an expired key", &message, &[&gpg.export("expired")], ONLY_CVO);
    let renewed = gpg.fingerprint("expired");
    gpg.make(&["--quick-set-expire", &renewed, "0"], b"");
    compare("a renewed key", &message, &[&gpg.export("expired")], BOTH);

    let expires = ["--default-sig-expire", "1d"];
    let message = gpg.sign("expired", &[later, &expires].concat());
    compare(
        "an expired signature",
        &message,
        &[&gpg.export("expired")],
        NEITHER,
    );

    let revoked = gpg.key("revoked", "rsa2048", "sign", &[]);
    let message = gpg.sign("revoked", &[]);
    let before = gpg.export("revoked");
    compare("not yet revoked", &message, &[&before], BOTH);
    gpg.revoke(&revoked);
    compare("revoked", &message, &[&gpg.export("revoked")], NEITHER);
    compare(
        "revoked by one of two files",
        &message,
        &[&before, &gpg.export("revoked")],
        ONLY_CVO,
    );

    let certifier = gpg.key("certifier", "rsa2048", "cert", &[]);
    gpg.make(&["--quick-add-key", &certifier, "rsa2048", "sign", "never"], b"");
    let message = gpg.sign("certifier", &[]);
    compare("a subkey", &message, &[&gpg.export("certifier")], BOTH);
    gpg.revoke(&certifier);
    compare(
        "a subkey of a revoked key",
        &message,
        &[&gpg.export("certifier")],
        NEITHER,
    );

    let parent = gpg.key("parent", "rsa2048", "cert", then);
    gpg.make(
        &[then, &["--quick-add-key", &parent, "rsa2048", "sign", "1y"]].concat(),
        b"",
    );
    let message = gpg.sign("parent", later);
    compare("an expired subkey", &message, &[&gpg.export("parent")], ONLY_CVO);

    gpg.make(
        &[then, &["--quick-gen-key", "old", "rsa2048", "cert", "1y"]].concat(),
        b"",
    );
    gpg.make(
        &[
            then,
            &[
                "--quick-add-key",
                &gpg.fingerprint("old"),
                "rsa2048",
                "sign",
                "never",
            ],
        ]
        .concat(),
        b"",
    );
    let message = gpg.sign("old", later);
    compare(
        "a subkey of an expired key",
        &message,
        &[&gpg.export("old")],
        ONLY_CVO,
    );

    let mixed = gpg.key("mixed", "rsa2048", "sign", &[]);
    gpg.make(&["--quick-add-key", &mixed, "cv25519", "encrypt", "never"], b"");
    let message = gpg.sign("mixed", &[]);
    compare(
        "a subkey that Go does not know",
        &message,
        &[&gpg.export("mixed")],
        ONLY_GPG,
    );

    let named = gpg.key("named", "rsa2048", "sign", &[]);
    gpg.make(&["--quick-add-uid", &named, "other"], b"");
    gpg.make(&["--quick-revoke-uid", &named, "other"], b"");
    compare(
        "a revoked user id",
        &gpg.sign("named", &[]),
        &[&gpg.export("named")],
        BOTH,
    );

    gpg.key("early", "rsa2048", "sign", &[]);
    let message = gpg.sign(
        "early",
        &[
            "--faked-system-time",
            "20200101T000000!",
            "--ignore-time-conflict",
            "--ignore-valid-from",
        ],
    );
    compare(
        "a signature older than its key",
        &message,
        &[&gpg.export("early")],
        ONLY_CVO,
    );
    let message = gpg.sign("early", &["--faked-system-time", "20500101T000000!"]);
    compare(
        "a signature of the future",
        &message,
        &[&gpg.export("early")],
        BOTH,
    );
}

#[test]
fn armor_of_several_blocks_has_the_verdict_of_gpg() {
    let Some(gpg) = Gpg::new() else { return };
    gpg.key("first", "rsa2048", "sign", &[]);
    gpg.key("second", "rsa2048", "sign", &[]);
    let armor = |name: &str| gpg.make(&["--armor", "--export", &format!("={name}")], b"");
    let both = [
        b"some text\n".to_vec(),
        armor("first"),
        b"\n".to_vec(),
        armor("second"),
    ]
    .concat();
    compare("the first block", &gpg.sign("first", &[]), &[&both], BOTH);
    compare("the second block", &gpg.sign("second", &[]), &[&both], ONLY_GPG);
    let message = gpg.sign("first", &[]);
    let crlf = String::from_utf8(armor("first")).unwrap().replace('\n', "\r\n");
    compare("CR LF", &message, &[crlf.as_bytes()], BOTH);
    let text = String::from_utf8(armor("first")).unwrap();
    let checksum = text.lines().rfind(|line| line.starts_with('=')).unwrap();
    compare(
        "no checksum",
        &message,
        &[text.replace(checksum, "").as_bytes()],
        BOTH,
    );
    compare(
        "a wrong checksum",
        &message,
        &[text.replace(checksum, "=AAAA").as_bytes()],
        NEITHER,
    );
}
