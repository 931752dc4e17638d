//! Pre-pulls the images of an OpenShift upgrade into a node's CRI-O store.
//!
//! # Data flow
//!
//! ```text
//! files, flags, ClusterVersion, UpgradeConfig ─→ VersionSpec                           settings, spec, cluster_version
//!      ┌────────────────────────────────────────────┘
//!      ├───────→ release image ─→ Payload ─select─→ ImageRequest* ─┐                  release, used_images, catalog
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
//!               ├─→ RunRecord in the history ─→ CacheStatus, for `status`              run_history, cache_status
//!               └─→ NodeFacts ─→ UpgradeReport, for `verify --for-upgrade`             upgrade_readiness
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
//! What a medium has is not requested: manifests and signatures are read there, and blobs are copied from there into the spool,
//! where their digests are checked like those of downloads.
//!
//! A layer is copied from another one in the store if that has the same content, or made from a delta if the node has the old
//! image's files. Otherwise only some ranges of a blob in the format `zstd:chunked` are downloaded if the node has many of its
//! files. Whatever is wrong with such a [source](plan::LayerSource), the layer's blob is downloaded instead. [`delta_creation`]
//! creates deltas on the hub, without a store. [`export`] writes the images of a version spec to a medium, also without a store.
//!
//! `verify` takes an inventory and reads every layer in it. `verify --repair` works like `run`, but treats damaged layers as
//! missing and replaces them. `verify --for-upgrade` also judges whether an upgrade finds every image. `status` reads only the
//! history and the store.
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
//! | [`write_back`] | writes files to the disk in small portions, so that syncs are short |
//! | [`scratch_file`] | scratch files, which no kill leaves behind |
//! | [`work_directory`] | the work directory of a command that needs no store |
//! | [`openpgp`] | OpenPGP keyrings and signed messages, by the rules of the cluster-version operator and of GnuPG |
//! | [`cluster_version`] | the ClusterVersion: what a cluster runs, what is on offer, and what it is asked to install |
//! | [`report`] | events; log lines and progress bars; the report file and the termination message |
//! | [`spec`] | the version spec as keys and as documents, and its exclude patterns |
//! | [`spool`] | downloaded blobs on disk by digest, complete or partial |
//! | [`media`] | local media that are asked before the network: OCI layouts, archives of oc-mirror, storage of registries |
//! | [`delta`] | the formats of deltas, and applying them: how a layer's tar is made from files that the node has |
//! | [`signature`] | the signature policy (`policy.json`), simple signing and sigstore signatures, and how the store keeps them |
//! | [`run_history`] | the last runs, in a file of the spool's directory |
//! | [`http`] | client defaults, backoff, `Retry-After` and causes of failures, for registries and the cluster's API |
//! | [`registry`] | registries.conf, credentials, certificates, proxies, DNS, rate limit; requests and their one retry loop |
//! | [`store`] | containers/storage: locks, layers, images, staging, unpacking, commit, check, repair |
//! | [`zstd_chunked`] | how a layer's tar is made from chunks of its blob and from files that the node has |
//! | [`cluster`] | the cluster's API: threshold, proxy, certificate authorities, deadline, release keys, requested release, profile, pod templates; annotations, events, pinned images |
//! | [`cache_status`] | what the store lacks now of what the last run requested |
//! | [`fetch`] | downloads many blobs into the spool, a bounded number at a time, each once |
//! | [`oci_layout`] | a directory as an OCI image layout |
//! | [`image_request`] | one image to pull, and its requesters |
//! | [`catalog`], [`release`] | the images that an operator catalog and a release payload name, and the manifests that use them |
//! | [`used_images`] | the images of the running release that this node uses, and which of a new release it needs then |
//! | [`release_signature`] | whether a release is signed, with the keys and the signature stores of the cluster-version operator |
//! | [`delta_creation`] | creates deltas on the hub, from one release to the next |
//! | [`plan`] | what a run has to do, decided once |
//! | [`preflight`] | whether the plan fits below the kubelet's image garbage collection threshold |
//! | [`upgrade_readiness`] | whether an upgrade finds its images in the store, and what may still cause pulls |
//! | [`exit_code`] | the one exit code for all failures |
//! | [`job`] | the pipeline |
//! | [`export`] | writes what a version spec needs as an OCI layout, without a store, for `--blobs-from` |
//! | [`pinning`] | keeps the images in the store after the run |
//! | [`cli`], [`settings`] | the flags as typed; flags, environment and host files as resolved |
//! | [`entrypoint`], [`signals`], [`open_files`], [`allocator`] | the names by which the program is started; the signals that stop it; how many files it may open; how it frees memory |
//!
//! # Invariants
//!
//! - [`plan`], [`spec`], [`cluster_version`], [`oci`], [`openpgp`], [`signature`], [`used_images`] and
//!   [`upgrade_readiness`] do no I/O, read no clock and start no tasks or threads.
//! - [`store`], [`spool`], [`plan`], [`spec`], [`cluster_version`], [`oci`], [`report`], [`openpgp`], [`signature`],
//!   [`delta`], [`zstd_chunked`], [`media`], [`run_history`] and [`cache_status`] do not depend on an async runtime. Sockets
//!   belong to tasks; hashing, unpacking and the store belong to threads; a bounded channel connects them.
//! - [`registry`] does not know what a release is; [`release`] and [`catalog`] do not know the store's layout on disk.
//! - Only [`store`] writes below the graph root, only [`settings`] reads the environment, only [`exit_code`] chooses an exit
//!   code, and only `main` exits.
//! - A blob is unpacked only after its digest matches. A manifest is stored as the bytes that the registry sent.
//! - Nothing that a refused release names is requested. The keys that verify a release never come from that release. An image
//!   is stored only if the node's signature policy accepts it.
//! - Nothing is visible in the store before it is complete: another program sees the old or the new state, even after
//!   `kill -9` or a power loss. No lock is held during a download or while a layer is unpacked.
//! - Nothing in a medium is trusted: what it has is verified like what a registry sends. A damaged medium never makes a run
//!   fail. [`media`] reads only, and never outside the medium.
//! - A source of a layer never makes an image fail, unless the disk has no space for the whole blob instead. No layer is stored
//!   from a source without the diffID of the image's config. [`delta`] and [`zstd_chunked`] open files only through
//!   [`delta::Sources`].
//! - The history of runs is never the reason why a run fails.
//! - An image is reported as present only if the inventory after the last write contains it. A run that left an image out does
//!   not exit with 0.
//! - No input from the network or the disk causes a panic, unbounded memory use, a hang, or a write outside its directory.
//!   Logs, errors and reports contain no secrets.
//! - No run fails because of the cluster's API, except with `--from-cluster`, where the release comes from the API. Only the
//!   start of a run waits for it, for a bounded time.
//! - No other program is executed: no podman, no skopeo, no shell.

pub mod allocator;
pub mod cache_status;
pub mod cancel;
pub mod catalog;
pub mod cli;
pub mod cluster;
pub mod cluster_version;
pub mod delta;
pub mod delta_creation;
pub mod entrypoint;
pub mod exit_code;
pub mod export;
pub mod fetch;
pub mod http;
pub mod image_request;
pub mod job;
pub mod media;
pub mod oci;
pub mod oci_layout;
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
pub mod run_history;
pub mod scratch_file;
pub mod settings;
pub mod signals;
pub mod signature;
pub mod spec;
pub mod spool;
pub mod store;
pub mod upgrade_readiness;
pub mod used_images;
pub mod work_directory;
pub mod write_back;
pub mod zstd_chunked;

#[cfg(test)]
#[path = "../tests/it/notice.rs"]
mod notice;
