//! No pattern panics, hangs or fills memory, neither when it is compiled nor when it is matched.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spoke_precache::spec::Excludes;

const PULLSPEC: &str = "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:dbcc1c35ac38df41fd2f5e4130b32ffdb93ebae8b3dbe638c23575912276fc9c";

fuzz_target!(|text: &str| {
    let patterns: Vec<String> = text.lines().map(str::to_owned).collect();
    if let Ok(excludes) = Excludes::new(&patterns) {
        let _ = excludes.hits("aws-ebs-csi-driver-operator", PULLSPEC);
    }
});
