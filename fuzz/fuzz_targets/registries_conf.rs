//! No configuration panics or hangs, and every place to pull from is a reference.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spoke_precache::oci::Reference;
use spoke_precache::registry::{ConfText, RegistriesConf};

const REFERENCES: [&str; 6] = [
    "busybox",
    "quay.io/openshift-release-dev/ocp-release:4.16.3-x86_64",
    "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:dbcc1c35ac38df41fd2f5e4130b32ffdb93ebae8b3dbe638c23575912276fc9c",
    "sub.registry.example.com:5000/a/b/c:tag",
    "[2001:db8::1]:5000/a",
    "a.a/a",
];

fuzz_target!(|text: &str| {
    let file = ConfText {
        path: "registries.conf".into(),
        text: text.to_owned(),
    };
    let Ok(conf) = RegistriesConf::parse(&[file]) else {
        return;
    };
    for reference in REFERENCES {
        let reference: Reference = reference.parse().expect("a reference");
        let Ok(sources) = conf.pull_sources(&reference) else {
            continue;
        };
        assert!(!sources.is_empty());
        for source in sources {
            assert_eq!(source.reference.to_string().parse(), Ok(source.reference.clone()));
            assert_eq!(source.reference.digest(), reference.digest());
        }
    }
});
