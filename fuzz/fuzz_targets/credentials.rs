//! No pull secret panics, and nothing that is secret in it is ever said.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use spoke_precache::oci::Reference;
use spoke_precache::registry::Credentials;

const REFERENCES: [&str; 5] = [
    "busybox",
    "quay.io/openshift-release-dev/ocp-release:4.16.3-x86_64",
    "example.org/repo/image",
    "localhost:5000/a",
    "[2001:db8::1]:5000/a",
];

/// Shorter ones occur in our own words.
const TELLING: usize = 12;

fuzz_target!(|text: &str| {
    let mut said = String::new();
    match Credentials::parse(Path::new("auth.json"), text) {
        Err(error) => said += &format!("{error} {error:?}"),
        Ok(credentials) => {
            said += &format!("{credentials:?}");
            for reference in REFERENCES {
                let reference: Reference = reference.parse().expect("a reference");
                match credentials.find(&reference) {
                    Err(error) => said += &format!("{error} {error:?}"),
                    Ok(found) => said += &format!("{found:?}"),
                }
            }
        }
    }
    let Ok(document) = serde_json::from_str::<Value>(text) else {
        return;
    };
    let Some(auths) = document["auths"].as_object() else {
        return;
    };
    // What is a key is no secret, and a secret may occur in one.
    let keys: String = auths.keys().cloned().collect();
    for entry in auths.values().filter_map(Value::as_object) {
        for field in ["auth", "username", "password", "identitytoken"] {
            if let Some(secret) = entry.get(field).and_then(Value::as_str)
                && secret.len() >= TELLING
                && !format!("{keys:?}").contains(secret)
            {
                assert!(!said.contains(secret), "`{secret}` is said");
            }
        }
    }
});
