//! Finds signatures in media: of images in lookaside form, and of releases in the form of the CVO's stores and of oc-mirror.
//!
//! ```text
//! lookaside/<host>/<path>@sha256=<hex>/signature-<n>            signatures of images, as a lookaside store names them
//! signature-<n>, <hex>.signature-<n>                            the same, beside an image of `dir:`
//! release-signatures/sha256=<hex>/signature-<n>                 signatures of releases, as the CVO's stores name them
//! working-dir/signatures/<version>-sha256-<hex>                 the same in oc-mirror's archives
//! config/signature-sha256-<16 digits>.json                      a ConfigMap of `oc adm release mirror --to-dir` with the same
//! ```

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde::Deserialize;

use super::medium::Medium;
use crate::oci::Digest;

/// The largest signature of an image that containers/image reads (`iolimits.MaxSignatureBodySize`).
const MAX_SIGNATURE: u64 = 4 << 20;

/// The largest signature of a release that the CVO means to read (`maxSignatureSize`, library-go).
const MAX_RELEASE_SIGNATURE: u64 = 50 << 10;

/// The last number that the CVO asks a store for (`maxSignatureSearch`, library-go).
const LAST_NUMBER: usize = 9;

/// Where oc-mirror stores signatures of releases (`release/signature.go`).
const OC_MIRROR: &str = "working-dir/signatures";

/// The largest ConfigMap that is read; the API accepts no more than 1 MiB of data.
const MAX_CONFIG_MAP: u64 = 2 << 20;

/// A ConfigMap with signatures of releases: the keys begin with `sha256-<hex>`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfigMap {
    #[serde(default)]
    binary_data: BTreeMap<String, String>,
}

/// The simple signing signature with this number, from 1, of an image in the repository `host/path`.
pub(super) fn of_image(medium: &Medium, repository: &str, manifest: &Digest, number: usize) -> Option<Bytes> {
    let stored = format!(
        "lookaside/{repository}@sha256={}/signature-{number}",
        manifest.hex()
    );
    let beside = medium
        .layouts()
        .iter()
        .flat_map(|layout| layout.signature_paths(manifest, number));
    let mut paths = [stored].into_iter().chain(beside);
    paths.find_map(|path| medium.small_file(&path, MAX_SIGNATURE))
}

/// The signatures of the release image or list with this digest.
pub(super) fn of_release(medium: &Medium, digest: &Digest) -> Vec<Bytes> {
    let hex = digest.hex();
    let numbered =
        (1..=LAST_NUMBER).map(|number| format!("release-signatures/sha256={hex}/signature-{number}"));
    let of_oc_mirror = medium
        .files(OC_MIRROR)
        .into_iter()
        .filter(|name| name.contains(&hex));
    let of_oc_mirror = of_oc_mirror.map(|name| format!("{OC_MIRROR}/{name}"));
    let paths = numbered.chain(of_oc_mirror.take(LAST_NUMBER));
    let files = paths.filter_map(|path| medium.small_file(&path, MAX_RELEASE_SIGNATURE));
    files.chain(in_config_map(medium, &hex)).collect()
}

/// The signatures that `oc adm release mirror` wrote for the cluster.
fn in_config_map(medium: &Medium, hex: &str) -> Vec<Bytes> {
    let path = format!("config/signature-sha256-{}.json", &hex[..16]);
    let file = medium.small_file(&path, MAX_CONFIG_MAP);
    let config_map = file.and_then(|file| serde_json::from_slice::<ConfigMap>(&file).ok());
    let entries = config_map
        .map(|config_map| config_map.binary_data)
        .unwrap_or_default();
    let of_release = entries.into_iter().filter(|(key, _)| {
        key.strip_prefix("sha256-")
            .is_some_and(|rest| rest.starts_with(hex))
    });
    let signatures = of_release.take(LAST_NUMBER);
    signatures
        .filter_map(|(_, value)| BASE64_STANDARD.decode(value).ok().map(Bytes::from))
        .collect()
}
