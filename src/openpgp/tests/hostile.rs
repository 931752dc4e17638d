//! Gives hostile messages and keyrings: bombs, nesting, thousands of packets, megabytes, every truncation.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::DeflateEncoder;

use pgp::types::Tag;

use super::super::packets::{Limits, Packets};
use super::super::{Keyring, KeyringError, Rules, SignatureError, verify};
use super::{corpus, then};

const RULES: [Rules; 2] = [Rules::Cvo, Rules::GnuPg];

/// A packet with a length of 4 bytes.
fn packet(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[0xc0 | tag, 255][..], &length, body].concat()
}

/// Compressed data, by ZIP.
fn compressed(inside: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(vec![1], Compression::best());
    encoder.write_all(inside).unwrap();
    packet(8, &encoder.finish().unwrap())
}

/// The one-pass signature of an unknown key.
fn one_pass() -> Vec<u8> {
    packet(4, &[3, 0, 8, 1, 1, 2, 3, 4, 5, 6, 7, 8, 1])
}

fn literal(body: &[u8]) -> Vec<u8> {
    packet(11, &[b"b\0\0\0\0\0", body].concat())
}

/// A keyring of the corpus, by both rules.
fn keyrings() -> Vec<Keyring> {
    let Some(corpus) = corpus() else { return Vec::new() };
    let file = std::fs::read(corpus.join("keys/library-go.combined.txt")).unwrap();
    RULES
        .iter()
        .map(|&rules| Keyring::parse(&file, rules).unwrap())
        .collect()
}

fn refusal(message: &[u8]) -> Option<String> {
    let mut refusals = keyrings()
        .into_iter()
        .map(|keyring| verify(message, &keyring, then()).unwrap_err().to_string());
    let refusal = refusals.next()?;
    assert_eq!(refusals.next().as_ref(), Some(&refusal), "both rules");
    Some(refusal)
}

#[track_caller]
fn assert_refused(message: &[u8], why: &str) {
    if let Some(refusal) = refusal(message) {
        assert!(refusal.contains(why), "{refusal}");
    }
}

#[test]
fn a_bomb_is_inflated_up_to_the_limit() {
    let bomb = compressed(&[one_pass(), literal(&vec![0; 64 << 20])].concat());
    assert!(bomb.len() < 100_000);
    assert_refused(&bomb, "more than 1048576 bytes");
    // Old format without a length, as gpg writes compressed data.
    assert_refused(&[&[0xa3][..], &bomb[6..]].concat(), "more than 1048576 bytes");
    assert_refused(
        &compressed(&compressed(&compressed(&bomb))),
        "more than 1048576 bytes",
    );
}

#[test]
fn compressed_data_nests_only_a_few_times() {
    let mut message = [one_pass(), literal(b"body")].concat();
    for _ in 0..8 {
        message = compressed(&message);
    }
    assert_refused(&message, "0102030405060708, which is not in the keyring");
    assert_refused(&compressed(&message), "levels of compressed data");
    for _ in 0..1000 {
        message = compressed(&message);
    }
    assert_refused(&message, "levels of compressed data");
}

#[test]
fn a_message_has_only_some_packets() {
    let markers = packet(10, b"PGP").repeat(10_000);
    assert_refused(
        &[markers, one_pass(), literal(b"body")].concat(),
        "more than 100 packets",
    );
    let many = [one_pass().repeat(1000), literal(b"body")].concat();
    assert_refused(&many, "several or nested signatures");
}

#[test]
fn a_length_that_is_not_there_allocates_nothing() {
    assert_refused(b"\xc4\xff\xff\xff\xff\xff", "is cut off");
    assert_refused(b"\xc8\xff\xff\xff\xff\xff\x01", "is cut off");
    assert_refused(b"\xcb\xfe", "is cut off");
    assert_refused(b"\x92\xff\xff\xff\xff", "is cut off");
    assert_refused(
        &[&one_pass()[..], b"\xcb\xff\xff\xff\xff\xffb"].concat(),
        "is cut off",
    );
}

#[test]
fn every_truncation_and_every_changed_byte_of_a_real_message_is_refused_or_changes_nothing() {
    let Some(corpus) = corpus() else { return };
    for name in [
        "signatures/oc-mirror-e2e.signature-1",
        "signatures/library-go.edd9824f.signature-1",
    ] {
        let message = std::fs::read(corpus.join(name)).unwrap();
        for keyring in keyrings() {
            let Ok(right) = verify(&message, &keyring, then()) else {
                assert_eq!(
                    (name, keyring.rules),
                    ("signatures/library-go.edd9824f.signature-1", Rules::GnuPg)
                );
                continue;
            };
            for length in 0..message.len() {
                // Without its last bits, a compressed packet still has everything that counts.
                if let Ok(other) = verify(&message[..length], &keyring, then()) {
                    assert_eq!(other, right, "{name}, {length} bytes");
                    assert!(length + 8 > message.len(), "{name}, {length} bytes");
                }
            }
            // One bit of each byte; all of them take a minute.
            for at in 0..message.len() {
                let mut flipped = message.clone();
                flipped[at] ^= 1 << (at % 8);
                if let Ok(other) = verify(&flipped, &keyring, then()) {
                    assert_eq!(other, right, "{name}, byte {at}");
                }
            }
        }
    }
}

#[test]
fn every_truncation_of_a_real_keyring_has_an_answer() {
    let Some(corpus) = corpus() else { return };
    let fixtures = corpus.join("policy-json/containers-image-signature-fixtures");
    let file = std::fs::read(fixtures.join("pubring.gpg")).unwrap();
    for rules in RULES {
        for length in 0..file.len() {
            let _ = Keyring::parse(&file[..length], rules);
        }
    }
}

#[test]
fn a_keyring_is_limited_in_size_and_in_signatures() {
    for rules in RULES {
        let large = vec![b'\n'; (4 << 20) + 1];
        let error = Keyring::parse(&large, rules).unwrap_err();
        assert!(matches!(error, KeyringError::TooLarge { .. }), "{error}");
        let many = packet(13, b"a").repeat(200_000);
        let error = Keyring::parse(&many, rules).unwrap_err();
        assert!(matches!(error, KeyringError::Packets(_)), "{error}");
        let blocks = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAA\n-----END PGP PUBLIC KEY BLOCK-----\n"
            .repeat(40_000);
        let error = Keyring::parse(blocks.as_bytes(), rules).unwrap_err();
        assert!(matches!(error, KeyringError::Packets(_)), "{error}");
    }
    let Some(corpus) = corpus() else { return };
    let fixtures = corpus.join("policy-json/containers-image-signature-fixtures");
    let file = std::fs::read(fixtures.join("pubring.gpg")).unwrap();
    let copies = file.repeat((4 << 20) / file.len());
    for rules in RULES {
        let error = Keyring::parse(&copies, rules).unwrap_err();
        assert!(matches!(error, KeyringError::TooManyKeys { .. }), "{error}");
    }
    // A user id and its self-signature many times below one key.
    let mut packets = Packets::new(
        &file,
        Limits {
            bytes: 4 << 20,
            packets: 100,
        },
    );
    let mut part = |tag: Tag| loop {
        let found = packets.next().unwrap().unwrap();
        if found.tag == tag {
            return packet(tag.into(), &found.body);
        }
    };
    let key = part(Tag::PublicKey);
    let user_id = [part(Tag::UserId), part(Tag::Signature)].concat();
    for rules in RULES {
        let keyring = [key.clone(), user_id.clone()].concat();
        assert_eq!(Keyring::parse(&keyring, rules).unwrap().signers().count(), 1);
        let keyring = [key.clone(), user_id.repeat(2000)].concat();
        let error = Keyring::parse(&keyring, rules).unwrap_err();
        assert!(matches!(error, KeyringError::TooManySignatures { .. }), "{error}");
    }
}

/// The body of a DSA key of 4096 bits that is not a real one, but takes longest to check.
fn dsa_key(number: u32) -> Vec<u8> {
    let mpi = |bytes: &[u8]| [&u16::try_from(bytes.len() * 8).unwrap().to_be_bytes()[..], bytes].concat();
    let p = [0xff; 512];
    let y = [&[0xaa; 508][..], &number.to_be_bytes()].concat();
    let head = [&[4][..], &number.to_be_bytes(), &[17]].concat();
    [head, mpi(&p), mpi(&[0xff; 32]), mpi(&[0xcc; 512]), mpi(&y)].concat()
}

#[test]
fn megabytes_of_expensive_keys_are_not_read() {
    let keys: Vec<u8> = (0..2600).flat_map(|number| packet(6, &dsa_key(number))).collect();
    for rules in RULES {
        let error = Keyring::parse(&keys, rules).unwrap_err();
        assert!(matches!(error, KeyringError::TooManyKeys { .. }), "{error}");
    }
}

#[test]
fn what_is_no_keyring_is_quoted_briefly() {
    let junk = "\u{ff}".repeat(10_000);
    let armor =
        format!("-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAA{junk}\n-----END PGP PUBLIC KEY BLOCK-----\n");
    for rules in RULES {
        for file in [junk.as_bytes(), armor.as_bytes()] {
            let error = Keyring::parse(file, rules).unwrap_err().to_string();
            assert!(error.len() < 300, "{error}");
        }
    }
}

#[test]
fn what_is_no_message_is_quoted_briefly() {
    for (bytes, why) in [
        (&b""[..], ": it is empty"),
        (
            b"<html>\x1b[2J<body>Not found</body></html>",
            "`<html>\\x1b[2J<body>Not `",
        ),
    ] {
        for keyring in keyrings() {
            let error = verify(bytes, &keyring, then()).unwrap_err();
            assert!(matches!(error, SignatureError::NotOpenPgp(_)));
            assert!(error.to_string().ends_with(why), "{error}");
        }
    }
}
