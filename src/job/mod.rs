//! Runs the pipeline: from the version spec to a store that contains every requested image.
//!
//! ```text
//! spec ─→ release image, index images, additional images ─reconcile→ outcome
//!
//! reconcile:  snapshot ─→ resolve what is missing ─→ plan ─→ check the space ─→ pull ─────┐
//!                 ↑  ├─ a release or index image is in the store? request what it names   │
//!                 ├──┘                                                                    │
//!                 └───────────────── next snapshot: is everything present? ───────────────┘
//! ```
//!
//! *Namers* are the images that name other images: the release image and the index images. They are pulled like every other
//! image, but first. While a release image is being pulled, `prefetch` downloads what it names; no decision depends on that.
//! An image is reported as present only if a snapshot after the last write contains it. If one image fails, the outcome lists
//! it and the run continues; a [`JobError`] ends the run.
//!
//! | file | responsibility |
//! |---|---|
//! | `config`, `run_end`, `outcome`, `error` | input, deadlines, result and errors of a run |
//! | `reconcile/` | the rounds and their steps |
//! | `node_storage`, `snapshot` | the store and the spool, now and at one moment |
//! | `resolve`, `image_states` | resolving images at registries, and what is known about each image |
//! | `namers/` | release images and operator catalogs: images that name others |
//! | `signature_policy`, `signed_image`, `stored_signatures` | images with their signatures, checked against the node's signature policy |
//! | `release_verification` | the release's signature, verified while the release image is pulled |
//! | `media_blobs` | which blobs are on media |
//! | `deltas/` | deltas for the images to pull, whose old images the store has |
//! | `chunked_layers/` | layers in the format `zstd:chunked`, of which the store has many files |
//! | `authentication` | which manifests are authenticated, by a release or a signature |
//! | `space`, `size_probe`, `stale_blobs` | whether the plan fits, exact layer sizes, blobs to remove |
//! | `prefetch/` | downloads and unpacks for the next round while a release image is pulled |
//! | `unpacker` | the threads that unpack layers |
//! | `pull/` | from a plan to committed images |
//! | `verify`, `unrepairable` | reading every layer again, and what a repair cannot fix |
//! | `status`, `steps` | what the report shows about images and steps |
//! | `os_images`, `os_image_origin` | which operating system images an update downloads again |
//! | `release_manifests` | the manifests in a release image, and which of them the cluster includes |
//! | `used_images` | which images of the release this node uses, for `--only-used` |

mod authentication;
mod chunked_layers;
mod config;
mod deltas;
mod error;
mod image_states;
mod media_blobs;
mod namers;
mod node_storage;
mod os_image_origin;
mod os_images;
mod outcome;
mod prefetch;
mod pull;
mod reconcile;
mod release_manifests;
mod release_verification;
mod resolve;
mod run_end;
mod signature_policy;
mod signed_image;
mod size_probe;
mod snapshot;
mod space;
mod stale_blobs;
mod status;
mod steps;
mod stored_signatures;
mod unpacker;
mod unrepairable;
mod used_images;
mod verify;

use std::sync::Arc;

use crate::cancel::Cancel;
use crate::catalog::PackageRequest;
use crate::image_request::ImageRequest;
use crate::report::{Count, Event, Observer, Size, Step, Time};
use crate::spec::{Excludes, VersionSpec};

pub use config::{ClusterView, JobConfig, OnlyUsedConfig, ReleaseSignatureConfig, UpgradeConfig};
pub use deltas::DeltaLocation;
pub use error::JobError;
use namers::Naming;
pub(crate) use namers::operators::{Added, Operators};
pub(crate) use namers::requests;
pub use os_images::OsImages;
pub use outcome::Outcome;
use reconcile::Reconciler;
pub use run_end::{RunEnd, UpgradeTime};
pub use signature_policy::{PolicyFile, SignaturePolicy};
use steps::Steps;
pub use used_images::OnlyUsedReport;

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Pull everything that is missing.
    Run,
    /// Pull the images that name others, and plan what `Run` would do.
    Plan,
    /// Read every layer in the store, and report what is missing or damaged. Change nothing and ask no registry.
    Verify,
    /// Read every layer in the store, pull what is missing and repair what is damaged.
    Repair,
}

impl Mode {
    /// Whether every layer in the store is read; registries are asked only about damaged images then.
    fn reads_all(self) -> bool {
        matches!(self, Self::Verify | Self::Repair)
    }

    /// Whether every missing image is pulled.
    fn pulls_all(self) -> bool {
        matches!(self, Self::Run | Self::Repair)
    }
}

/// Runs disk work on a blocking thread, so that the calling task can be cancelled meanwhile.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, JobError> + Send + 'static,
) -> Result<T, JobError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(JobError::Panicked(panic.to_string())))
}

/// Runs the job that `config` describes.
///
/// # Errors
/// For an error that affects more than single images. Images that were committed before it stay in the store.
pub async fn run(
    config: &JobConfig,
    mode: Mode,
    observer: &Arc<dyn Observer>,
    cancel: &Cancel,
) -> Result<Outcome, JobError> {
    let steps = Steps(Some(observer.as_ref()));
    tracing::debug!(
        "{}, {} at the same time",
        Count(config.max_downloads.get(), "download"),
        Count(config.max_unpacks.get(), "unpack")
    );
    for message in &config.warnings {
        observer.observe(Event::Warned {
            message: message.clone(),
        });
    }
    if let Some((at, report)) = config.end.first() {
        let upgrade_at = config.end.upgrade.map(|upgrade| Time(upgrade.time));
        observer.observe(Event::Deadline {
            at,
            report,
            upgrade_at,
        });
    }
    // Listed first, so that the report of an interrupted run shows them as pending.
    for ImageRequest {
        reference,
        requesters,
    } in requests(&config.spec)
    {
        if let Some(requester) = requesters.first() {
            observer.observe(Event::ImageListed {
                name: reference.to_string(),
                label: requester.label(&reference),
                requester: requester.kind(),
                bytes: 0,
            });
        }
    }
    let (excludes, packages) = steps.take(Step::Spec, || {
        let excludes = Excludes::new(&config.spec.exclude_patterns)?;
        let packages =
            PackageRequest::of_lines(config.spec.packages_and_channels.iter().map(String::as_str))?;
        Ok(((excludes, packages), spec_message(&config.spec)))
    })?;
    if packages.is_empty() && !config.spec.operators_indexes.is_empty() {
        let message =
            "`operators.packagesAndChannels` is empty: only the index images of the operators are pulled";
        observer.observe(Event::Warned {
            message: message.to_owned(),
        });
    }
    let naming = Naming::new(&config.spec, excludes, packages);
    for operator in naming.operators.rows() {
        observer.observe(Event::Operator(operator));
    }
    let reconciler = Reconciler::new(config, mode, naming, observer, cancel, steps).await?;
    reconciler.reconcile().await
}

fn spec_message(spec: &VersionSpec) -> String {
    let release = match &spec.platform_image {
        Some(release) => format!("release `{release}`"),
        None => "Release index is not specified, no release".to_owned(),
    };
    format!(
        "{release}, {}, {}, {}, {}, {} required",
        Count(spec.exclude_patterns.len(), "exclude pattern"),
        Count(spec.operators_indexes.len(), "operator index"),
        Count(spec.packages_and_channels.len(), "package"),
        Count(spec.additional_images.len(), "additional image"),
        Size(spec.space_required)
    )
}
