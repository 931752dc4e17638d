//! Pre-pulls the images of an OpenShift upgrade into a node's CRI-O store.
//!
//! # Data flow
//!
//! ```text
//! VersionSpec ─→ release image ─→ Payload ─select─→ ImageRequest* ─┐                  settings, spec, catalog, release
//!      ├───────→ index images ──→ Catalog ─heads──→ ImageRequest* ─┤
//!      └───────→ additional images ───────────────→ ImageRequest* ─┤
//!                                                        ┌─────────┘
//!                  Registries::resolve → ResolvedImage* ─┤                            registry
//!                  Store::inventory ───→ Inventory ──────┤                            store
//!       old images, registries ─────→ DeltaOption* ──────┴─Plan::build→ Plan          job, delta, plan
//!                                                                        │
//!        free space below the kubelet's threshold? no: exit code 3 ──────┤            preflight
//!                                                                        ↓
//!   Plan.blobs[i] ─fetch→ VerifiedBlob ─unpack→ StagedLayer ─commit_layers, commit_image→ image in the store
//!                 fetch, spool  │        store::unpack           store                      │
//!                               └─ of a delta: PatchedTar, the tar from old images          │      delta
//!   next Inventory: is every image present? ←───────────────────────────────────────────────┘
//!        └─→ Outcome ─→ Report, exit code                                             job, report, exit_code
//! ```
//!
//! Every arrow is one function, and every type proves that the step before it succeeded. A
//! [`VerifiedBlob`](spool::VerifiedBlob) exists only if its digest matches. A [`StagedLayer`](store::StagedLayer) removes
//! itself unless it is committed. A [`Plan`](plan::Plan) is a printable value: `plan` shows what `run` would do. Release and
//! index images, which name other images, are pulled like every other image, only earlier. [`job`] shows the pipeline on one
//! screen.
//!
//! The release's signature is verified while the release image is pulled. If it is refused, the payload is not read. An image's
//! signatures are evaluated when the image is resolved. If the node's policy refuses them, the image is not pulled.
//!
//! A layer is made from a delta if the node has the old image's files. Whatever is wrong with a delta or with these files, the
//! layer's blob is downloaded instead. [`delta_creation`] creates deltas on the hub, without a store.
//!
//! `verify` takes an inventory and reads every layer in it. `verify --repair` works like `run`, but treats damaged layers as
//! missing and replaces them.
//!
//! # Modules
//!
//! A module imports only from modules above it; `tests/it/imports.rs` checks that.
//!
//! | module | what it does |
//! |---|---|
//! | [`oci`] | references, digests, manifests and configs, with their raw bytes beside the parsed values; platform selection |
//! | [`cancel`] | one cancellation signal with its reason |
//! | [`priority`] | CPU and disk priority, because the node has other work |
//! | [`write_back`] | starts writing pages to the disk before a sync needs them |
//! | [`scratch_file`] | scratch files, which no kill leaves behind |
//! | [`openpgp`] | OpenPGP keyrings and signed messages, by the rules of the cluster-version operator and of GnuPG |
//! | [`report`] | events; log lines and progress bars; the report file and the termination message |
//! | [`spec`] | the version spec as keys and as documents, and its exclude patterns |
//! | [`spool`] | downloaded blobs on disk by digest, complete or partial |
//! | [`delta`] | the formats of deltas, and applying them: how a layer's tar is made from files that the node has |
//! | [`signature`] | the signature policy (`policy.json`), simple signing and sigstore signatures, and how the store keeps them |
//! | [`http`] | client defaults, backoff, `Retry-After` and causes of failures, for registries and the cluster's API |
//! | [`registry`] | registries.conf, credentials, certificates, proxies, DNS, rate limit; requests and their one retry loop |
//! | [`store`] | containers/storage: locks, layers, images, staging, unpacking, commit, check, repair |
//! | [`cluster`] | the cluster's API: threshold, proxy, certificate authorities, deadline, release keys; annotations, events, pinned images |
//! | [`fetch`] | downloads many blobs into the spool, a bounded number at a time, each once |
//! | [`image_request`] | one image to pull, and its requesters |
//! | [`catalog`], [`release`] | the images that an operator catalog and a release payload name |
//! | [`release_signature`] | whether a release is signed, with the keys and the signature stores of the cluster-version operator |
//! | [`delta_creation`] | creates deltas on the hub, from one release to the next |
//! | [`plan`] | what a run has to do, decided once |
//! | [`preflight`] | whether the plan fits below the kubelet's image garbage collection threshold |
//! | [`exit_code`] | the one exit code for all failures |
//! | [`job`] | the pipeline |
//! | [`pinning`] | keeps the images in the store after the run |
//! | [`cli`], [`settings`] | the flags as typed; flags, environment and host files as resolved |
//! | [`entrypoint`], [`signals`], [`open_files`], [`allocator`] | the names by which the program is started; the signals that stop it; how many files it may open; how it frees memory |
//!
//! # Invariants
//!
//! - [`plan`], [`spec`], [`oci`], [`openpgp`] and [`signature`] do no I/O, read no clock and start no tasks or threads.
//! - [`store`], [`spool`], [`plan`], [`spec`], [`oci`], [`report`], [`openpgp`], [`signature`] and [`delta`] do not depend on an async
//!   runtime. Sockets belong to tasks; hashing, unpacking and the store belong to threads; a bounded channel connects them.
//! - [`registry`] does not know what a release is; [`release`] and [`catalog`] do not know the store's layout on disk.
//! - Only [`store`] writes below the graph root, only [`settings`] reads the environment, only [`exit_code`] chooses an exit
//!   code, and only `main` exits.
//! - A blob is unpacked only after its digest matches. A manifest is stored as the bytes that the registry sent.
//! - Nothing that a refused release names is requested. The keys that verify a release never come from that release. An image
//!   is stored only if the node's signature policy accepts it.
//! - Nothing is visible in the store before it is complete: another program sees the old or the new state, even after
//!   `kill -9` or a power loss. No lock is held during a download or while a layer is unpacked.
//! - A delta never makes an image fail, unless the disk has no space for the whole blob instead. No layer is stored from a
//!   delta without the diffID of the image's config. [`delta`] opens files only through [`delta::Sources`].
//! - An image is reported as present only if the inventory after the last write contains it. A run that left an image out does
//!   not exit with 0.
//! - No input from the network or the disk causes a panic, unbounded memory use, a hang, or a write outside its directory.
//!   Logs, errors and reports contain no secrets.
//! - No run fails because of the cluster's API, and only the start of a run waits for it, for a bounded time.
//! - No other program is executed: no podman, no skopeo, no shell.

pub mod allocator;
pub mod cancel;
pub mod catalog;
pub mod cli;
pub mod cluster;
pub mod delta;
pub mod delta_creation;
pub mod entrypoint;
pub mod exit_code;
pub mod fetch;
pub mod http;
pub mod image_request;
pub mod job;
pub mod oci;
pub mod open_files;
pub mod openpgp;
pub mod pinning;
pub mod plan;
pub mod preflight;
pub mod priority;
pub mod registry;
pub mod release;
pub mod release_signature;
pub mod report;
pub mod scratch_file;
pub mod settings;
pub mod signals;
pub mod signature;
pub mod spec;
pub mod spool;
pub mod store;
pub mod write_back;

#[cfg(test)]
#[path = "../tests/it/notice.rs"]
mod notice;
