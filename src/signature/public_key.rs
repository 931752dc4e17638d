//! Reads a public key from PEM and verifies sigstore signatures with it.
//!
//! sigstore `pkg/cryptoutils/publickey.go` and `pkg/signature/verifier.go`: the first PEM block counts, and the kind of key
//! decides the algorithm. Everything is hashed with SHA-256; Ed25519 signs the payload itself.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P521_SHA256_ASN1, ED25519, ParsedPublicKey,
    RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, VerificationAlgorithm,
};

use super::shown;
use crate::oci::go_json;

/// The algorithms with their names in messages. Go also verifies with RSA keys of 1024 bits and with P-224; the latter is
/// refused here.
const ALGORITHMS: [(&str, &dyn VerificationAlgorithm); 5] = [
    ("RSA", &RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY),
    ("ECDSA P-256", &ECDSA_P256_SHA256_ASN1),
    ("ECDSA P-384", &ECDSA_P384_SHA256_ASN1),
    ("ECDSA P-521", &ECDSA_P521_SHA256_ASN1),
    ("Ed25519", &ED25519),
];

/// Why a file is not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PublicKeyError {
    #[error("PEM decoding failed")]
    Pem,
    #[error("unknown Public key PEM file type: `{0}`. Are you passing the correct public key?")]
    Label(String),
    #[error(
        "it is not an RSA key of 1024 to 8192 bits, an ECDSA key on P-256, P-384 or P-521, or an Ed25519 key"
    )]
    Kind,
}

/// A public key with its algorithm.
#[derive(Debug)]
pub(super) struct PublicKey {
    /// In messages: `ECDSA P-256`.
    pub(super) algorithm: &'static str,
    key: ParsedPublicKey,
}

impl PublicKey {
    /// Parses the first PEM block of `bytes`.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, PublicKeyError> {
        let (label, der) = first_pem_block(bytes).ok_or(PublicKeyError::Pem)?;
        let is_pkcs1 = match label.as_str() {
            "PUBLIC KEY" => false,
            "RSA PUBLIC KEY" => true,
            _ => return Err(PublicKeyError::Label(shown(&label))),
        };
        // The library also accepts PKCS #1 and bare points where sigstore expects a SubjectPublicKeyInfo.
        if is_pkcs1 == is_subject_public_key_info(&der) {
            return Err(PublicKeyError::Kind);
        }
        let algorithms = ALGORITHMS
            .into_iter()
            .take(if is_pkcs1 { 1 } else { ALGORITHMS.len() });
        let mut keys = algorithms.filter_map(|(algorithm, verification)| {
            let key = ParsedPublicKey::new(verification, &der).ok()?;
            Some(Self { algorithm, key })
        });
        keys.next().ok_or(PublicKeyError::Kind)
    }

    /// Whether `signature` is one of this key over `message`.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.key.verify_sig(message, signature).is_ok()
    }
}

/// Whether the first element of the outer sequence is a sequence, as in RFC 5280; PKCS #1 has an integer there.
fn is_subject_public_key_info(der: &[u8]) -> bool {
    const SEQUENCE: u8 = 0x30;
    let content = match der {
        [SEQUENCE, 0..0x80, ..] => 2,
        [SEQUENCE, length, ..] => 2 + usize::from(length & 0x7f),
        _ => return false,
    };
    der.get(content) == Some(&SEQUENCE)
}

/// The label and the content of the first block that is complete, as Go's `pem.Decode` finds it.
fn first_pem_block(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let mut block: Option<(&str, Vec<u8>)> = None;
    for line in bytes.split(|byte| *byte == b'\n') {
        // A line that is no text belongs to no block.
        let line = std::str::from_utf8(line).unwrap_or_default().trim_end();
        if let Some(label) = between(line, "-----BEGIN ") {
            block = Some((label, Vec::new()));
        } else if let Some(label) = between(line, "-----END ") {
            let complete = block.take().filter(|(begin, _)| *begin == label);
            let content = complete.and_then(|(_, base64)| go_json::decode_base64(&base64));
            if let Some(content) = content {
                return Some((label.to_owned(), content));
            }
        } else if let Some((_, base64)) = &mut block {
            let is_header = base64.is_empty() && line.contains(':');
            if !is_header {
                base64.extend(line.bytes().filter(|byte| !byte.is_ascii_whitespace()));
            }
        }
    }
    None
}

fn between<'a>(line: &'a str, begin: &str) -> Option<&'a str> {
    line.strip_prefix(begin)?.strip_suffix("-----")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// Runs openssl in a directory and returns whether it succeeded.
    fn openssl(directory: &Path, arguments: &str) -> bool {
        let mut command = Command::new("openssl");
        command.current_dir(directory).args(arguments.split(' '));
        command.output().is_ok_and(|output| output.status.success())
    }

    #[test]
    fn signatures_of_openssl_verify_with_every_kind_of_key() {
        let directory = tempfile::tempdir().expect("a directory");
        let directory = directory.path();
        if !openssl(directory, "version") {
            return crate::notice::skip("no openssl");
        }
        let message = b"payload";
        std::fs::write(directory.join("message"), message).expect("a file");
        let read = |name: &str| std::fs::read(directory.join(name)).expect(name);
        for (kind, options) in [
            ("RSA", "RSA -pkeyopt rsa_keygen_bits:2048"),
            ("ECDSA P-256", "EC -pkeyopt ec_paramgen_curve:P-256"),
            ("ECDSA P-384", "EC -pkeyopt ec_paramgen_curve:P-384"),
            ("ECDSA P-521", "EC -pkeyopt ec_paramgen_curve:P-521"),
            ("Ed25519", "ED25519"),
        ] {
            assert!(openssl(
                directory,
                &format!("genpkey -out key -algorithm {options}")
            ));
            assert!(openssl(directory, "pkey -in key -pubout -out key.pub"));
            assert!(openssl(
                directory,
                match kind {
                    "Ed25519" => "pkeyutl -sign -inkey key -rawin -in message -out signature",
                    _ => "dgst -sha256 -sign key -out signature message",
                }
            ));
            let key = PublicKey::parse(&read("key.pub")).expect(kind);
            let mut signature = read("signature");
            assert_eq!(key.algorithm, kind);
            assert!(key.verifies(message, &signature), "{kind}");
            assert!(!key.verifies(b"payloae", &signature), "{kind}");
            *signature.last_mut().expect("bytes") ^= 1;
            assert!(!key.verifies(message, &signature), "{kind}");
            let private = PublicKey::parse(&read("key")).expect_err("a private key");
            assert_eq!(private, PublicKeyError::Label("PRIVATE KEY".to_owned()));
        }
        assert!(openssl(
            directory,
            "genpkey -out key -algorithm RSA -pkeyopt rsa_keygen_bits:2048"
        ));
        assert!(openssl(directory, "rsa -in key -RSAPublicKey_out -out key.pub"));
        assert!(openssl(
            directory,
            "dgst -sha256 -sign key -out signature message"
        ));
        let pkcs1 = String::from_utf8(read("key.pub")).expect("PEM");
        let key = PublicKey::parse(pkcs1.as_bytes()).expect("PKCS #1");
        assert!(key.verifies(message, &read("signature")));
        let mislabelled = pkcs1.replace("RSA PUBLIC", "PUBLIC");
        assert!(PublicKey::parse(mislabelled.as_bytes()).is_err());
    }

    #[test]
    fn the_first_complete_block_counts() {
        let block =
            |label: &str, base64: &str| format!("-----BEGIN {label}-----\n{base64}\n-----END {label}-----\n");
        for (text, expected) in [
            (block("A", "YQ=="), Some("a")),
            (
                format!("comment\n{}{}", block("A", "YQ=="), block("A", "Yg==")),
                Some("a"),
            ),
            (block("A", "YQ==").replace('\n', "\r\n"), Some("a")),
            (block("A", "Comment: x\n\nY Q\n=="), Some("a")),
            (format!("-----BEGIN A-----\n{}", block("A", "Yg==")), Some("b")),
            (format!("{}{}", block("A", "*"), block("A", "Yg==")), Some("b")),
            (block("A", "YQ==").replace("END A", "END B"), None),
            ("-----BEGIN A-----\nYQ==".to_owned(), None),
            (String::new(), None),
        ] {
            let found = first_pem_block(text.as_bytes()).map(|(_, content)| content);
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{text}");
        }
    }
}
