//! Searches a release's signatures, in the order of the cluster-version operator, and concludes the verdict.
//!
//! ```text
//! media, if they have any
//! --signature-store given:  these stores, and nothing else
//! else  1. signatures in ConfigMaps of the cluster
//!       2. the stores of ClusterVersion `spec.signatureStores`; if it is set, 3 is left out
//!       3. the stores of the verification ConfigMap
//! ```
//!
//! The stores of one step are searched in parallel. The first step that satisfies all keyrings ends the search. The operator
//! also gives up if it cannot list the ConfigMaps (library-go `store/serial`); here the search goes on, because a
//! missing right of the Job is no fault of the release.

use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use tokio::time::timeout;

use super::examination::Examination;
use super::inputs::Inputs;
use super::reasons::Reasons;
use super::signature_store::{Found, StoreSearch, StoreUrl};
use super::verdict::Verdict;
use crate::cancel::Cancel;
use crate::cluster_version::SignatureStore;
use crate::oci::{Digest, Reference};
use crate::registry::Registries;

/// How long the whole search may take: as long as the operator's.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// The most signatures of one release in ConfigMaps that are examined.
const CLUSTER_SIGNATURES_LIMIT: usize = 100;

/// Verifies `release`, which must be given by its digest.
pub async fn verify(
    release: &Reference,
    inputs: &Inputs,
    registries: &Registries,
    cancel: &Cancel,
) -> Verdict {
    let Some(digest) = release.digest() else {
        let message = format!(
            "the release `{release}` is not given by its digest, and a signature is for a digest\n\
             hint: give it as `{}@sha256:…`",
            release.repository()
        );
        return not_verifiable("NotByDigest", message);
    };
    let keyrings = match inputs.keyrings() {
        Ok(keyrings) => keyrings,
        Err(why) => {
            let mut reasons = Reasons::default();
            reasons.add(&format!("no keys to verify the release `{release}`: {why}"));
            reasons.hint("give the keys with `--release-keys FILE`");
            return not_verifiable("NoKeys", reasons.to_string());
        }
    };
    let mut examination = Examination::new(digest, keyrings);
    let mut search = Search {
        digest,
        examination: &mut examination,
        registries,
        cancel,
    };
    let searched = timeout(TIME_LIMIT, search.run(inputs)).await;
    if examination.is_done() {
        return Verdict::Verified {
            digest,
            reference: examination.reference.unwrap_or_default(),
            keyrings: examination.satisfied,
        };
    }
    if let Some(reason) = cancel.reason() {
        return not_verifiable(
            "Stopped",
            format!("stopped by {reason} before the release was verified"),
        );
    }
    let seconds = TIME_LIMIT.as_secs();
    let asked = searched.unwrap_or_else(|_elapsed| {
        let reasons = &mut examination.reasons;
        reasons.add(&format!(
            "the search for signatures was not finished after {seconds} s"
        ));
        Asked::Stores
    });
    let mut reasons = Reasons::default();
    let remaining = examination.remaining();
    let found = &examination.reasons;
    match (examination.is_answered, asked) {
        (true, _) => {
            reasons.add(&format!(
                "the release `{release}` has no valid signature for the keyring {remaining}: {found}"
            ));
            reasons.hint(
                "the cluster-version operator refuses this release too; check that the digest is right",
            );
            Verdict::Refused {
                message: reasons.to_string(),
            }
        }
        (false, asked) => {
            let (reason, why) = match asked {
                Asked::Stores => ("NoStoreReachable", "no signature store can be reached"),
                Asked::Nothing => ("NoSignatureStore", "there is no signature store"),
            };
            reasons.add(&format!(
                "the release `{release}` cannot be verified, because {why}: {found}"
            ));
            reasons.hint(
                "give a store that this node can reach with `--signature-store URL`, or put the signature into a ConfigMap \
                 of the cluster, as `oc-mirror` and `oc adm release mirror` do",
            );
            not_verifiable(reason, reasons.to_string())
        }
    }
}

fn not_verifiable(reason: &'static str, message: String) -> Verdict {
    Verdict::NotVerifiable { reason, message }
}

/// The search, and what it finds next.
async fn next<'s>(
    mut search: StoreSearch<'s>,
    registries: &Registries,
    cancel: &Cancel,
) -> (StoreSearch<'s>, Option<Found>) {
    let found = search.next(registries, cancel).await;
    (search, found)
}

/// Whether any store was searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Stores,
    Nothing,
}

/// A search that ends as soon as the examination is done.
struct Search<'a, 'k> {
    digest: Digest,
    examination: &'a mut Examination<'k>,
    registries: &'a Registries,
    cancel: &'a Cancel,
}

impl Search<'_, '_> {
    async fn run(&mut self, inputs: &Inputs) -> Asked {
        self.media_signatures().await;
        if self.examination.is_done() {
            return Asked::Nothing;
        }
        if !inputs.signature_stores.is_empty() {
            return self.stores(&inputs.signature_stores).await;
        }
        self.cluster_signatures(inputs);
        if self.examination.is_done() {
            return Asked::Nothing;
        }
        let version = inputs.cluster.version.as_ref().ok();
        if let Some(stores) = version.and_then(|version| version.spec.signature_stores.as_deref()) {
            return self.custom_stores(stores).await;
        }
        match &inputs.config_map {
            Ok(config_map) => self.stores(&config_map.stores).await,
            Err(why) => {
                self.examination.reasons.add(why);
                Asked::Nothing
            }
        }
    }

    /// What a medium has can verify the release. It is no answer of a store: a damaged file there refuses nothing.
    async fn media_signatures(&mut self) {
        let (digest, is_answered) = (self.digest, self.examination.is_answered);
        let read = self
            .registries
            .in_media(move |media| media.release_signatures(digest));
        for (number, signature) in read.await.into_iter().enumerate() {
            let origin = format!("signature {} on the media", number + 1);
            self.examination.examine(&signature, &origin, Timestamp::now());
            if self.examination.is_done() {
                break;
            }
        }
        self.examination.is_answered = is_answered;
    }

    /// Any suffix of a key is good: the operator begins with `-0`, oc with `-1`, and oc-mirror numbers several releases.
    fn cluster_signatures(&mut self, inputs: &Inputs) {
        let signatures = match &inputs.cluster.signatures {
            Ok(signatures) => signatures,
            Err(why) => {
                let why = format!("signatures in ConfigMaps of the cluster: {why}");
                return self.examination.reasons.add(&why);
            }
        };
        let prefix = format!("sha256-{}", self.digest.hex());
        let of_release = signatures.iter().filter(|it| it.key.starts_with(&prefix));
        for signature in of_release.take(CLUSTER_SIGNATURES_LIMIT) {
            let origin = format!("`{}` of ConfigMap `{}`", signature.key, signature.config_map);
            self.examination
                .examine(&signature.bytes, &origin, Timestamp::now());
            if self.examination.is_done() {
                return;
            }
        }
    }

    /// The stores of the ClusterVersion, which replace the others even if they have no signature.
    async fn custom_stores(&mut self, named: &[SignatureStore]) -> Asked {
        let mut stores = Vec::new();
        for store in named {
            match store.url.parse::<StoreUrl>() {
                Ok(store) => stores.push(store),
                Err(error) => self
                    .examination
                    .reasons
                    .add(&format!("`spec.signatureStores` of the ClusterVersion: {error}")),
            }
        }
        if named.is_empty() {
            let why = "`spec.signatureStores` of the ClusterVersion is an empty list";
            self.examination.reasons.add(why);
        }
        self.stores(&stores).await
    }

    /// Searches the stores in parallel.
    async fn stores(&mut self, stores: &[StoreUrl]) -> Asked {
        let (registries, cancel) = (self.registries, self.cancel);
        let searches = stores.iter().map(|store| StoreSearch::new(store, self.digest));
        let next = |search| next(search, registries, cancel);
        let mut running: FuturesUnordered<_> = searches.map(next).collect();
        while let Some((search, found)) = running.next().await {
            let examination = &mut *self.examination;
            match found {
                None => continue,
                Some(Found::Signature(bytes, url)) => examination.examine(&bytes, &url, Timestamp::now()),
                Some(Found::TooLarge(url)) => examination.refuse_too_large(&url),
                Some(Found::NoMore { url, is_answer }) => {
                    examination.is_answered |= is_answer;
                    examination.reasons.add(&format!("no signature exists at {url}"));
                }
                Some(Found::Failed(why)) => examination.reasons.add(&why),
            }
            if examination.is_done() {
                break;
            }
            running.push(next(search));
        }
        match stores {
            [] => Asked::Nothing,
            _ => Asked::Stores,
        }
    }
}
