//! No keyring and no message panics, hangs or fills the memory, and a body is returned only with the key that signed it.
//!
//! The input is a keyring or a message, or both with `\n--\n` between them.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use spoke_precache::openpgp::{Keyring, Rules, verify};

const BOUNDARY: &[u8] = b"\n--\n";

/// A body is smaller than what is inflated.
const MAX_BODY: usize = 1 << 20;

/// A real keyring, so that messages have a known key.
static FILE: LazyLock<Option<Vec<u8>>> =
    LazyLock::new(|| std::fs::read("../shared/corpus/keys/library-go.combined.txt").ok());

fuzz_target!(|input: &[u8]| {
    let now = "2026-11-22T12:00:00Z".parse().expect("a time");
    let at = input
        .windows(BOUNDARY.len())
        .position(|window| window == BOUNDARY);
    let (file, message) = match at {
        Some(at) => (&input[..at], &input[at + BOUNDARY.len()..]),
        None => (input, input),
    };
    for rules in [Rules::Cvo, Rules::GnuPg] {
        let real = FILE.as_ref().map(|file| Keyring::parse(file, rules));
        let keyrings = [Some(Keyring::parse(file, rules)), real];
        for keyring in keyrings.into_iter().flatten() {
            let keyring = match keyring {
                Ok(keyring) => keyring,
                Err(error) => {
                    assert!(error.to_string().len() < 1000, "{error}");
                    continue;
                }
            };
            match verify(message, &keyring, now) {
                Ok(message) => {
                    assert!(message.body.len() <= MAX_BODY);
                    assert!(keyring.signers().any(|signer| *signer == message.signer));
                }
                Err(error) => assert!(error.to_string().len() < 1000, "{error}"),
            }
        }
    }
});
