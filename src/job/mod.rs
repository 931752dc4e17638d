//! The pipeline on one screen: from the version spec to a store that holds all it asks for.
//!
//! ```text
//! spec ─→ release image, index images, additional images ─bring→ outcome
//!
//! bring:  look into the store ─→ resolve what is missing ─→ plan ─→ is there space? ─→ pull ─┐
//!              ↑   ├─ a release image, an index image? ─→ what it names is wanted too         │
//!              ├───┘                                                                         │
//!              └───────────────────────── look again: all there? ────────────────────────────┘
//! ```
//!
//! Images that name others take the same way as every other, only earlier. While a release image is on its way, what it names
//! is asked about and begun with (`advance`), once that image is nearly here, but nothing is decided by that. What is said to be present was seen in the store after the
//! last write, never remembered. One image's failure is a row of the outcome; a [`JobError`] ends the run.

mod advance;
mod config;
mod error;
mod failure;
mod foresight;
mod image_states;
mod namers;
mod os_images;
mod outcome;
mod pull;
mod reconcile;
mod resolve;
mod size_probe;
mod snapshot;
mod space;
mod status;
mod steps;
mod verify;

use std::sync::Arc;

use crate::cancel::Cancel;
use crate::catalog::PackageRequest;
use crate::image_request::{ImageRequest, Requester};
use crate::report::{Count, Event, Observer, Size, Step};
use crate::spec::{Excludes, VersionSpec};

pub use config::JobConfig;
pub use error::JobError;
use namers::Naming;
pub use os_images::OsImages;
pub use outcome::Outcome;
use reconcile::Reconciler;
use steps::Steps;

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Put everything into the store.
    Run,
    /// Put the images there that name others, and say what `Run` would do.
    Plan,
    /// Put nothing there, ask nobody, read all that is there, and say what is missing or damaged.
    Verify,
    /// Read all that is there, and put right what is missing or damaged.
    Repair,
}

impl Mode {
    /// Whether what is there is read again, and asked about only if it is damaged.
    fn reads_all(self) -> bool {
        matches!(self, Self::Verify | Self::Repair)
    }

    /// Whether all that is missing is pulled.
    fn pulls_all(self) -> bool {
        matches!(self, Self::Run | Self::Repair)
    }
}

/// Does what waits for the disk on a thread, so that the task can be stopped meanwhile.
async fn off_the_task<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, JobError> + Send + 'static,
) -> Result<T, JobError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(JobError::Panicked(panic.to_string())))
}

/// Does what `order` says, as far as `mode` goes.
///
/// # Errors
/// For trouble that is no single image's. What was committed until then stays committed.
pub async fn run(
    order: &JobConfig,
    mode: Mode,
    observer: &Arc<dyn Observer>,
    cancel: &Cancel,
) -> Result<Outcome, JobError> {
    let steps = Steps(Some(observer.as_ref()));
    tracing::debug!(
        "{}, {} at the same time",
        Count(order.max_downloads.get(), "download"),
        Count(order.max_unpacks.get(), "unpack")
    );
    for message in &order.warnings {
        observer.observe(Event::Warned {
            message: message.clone(),
        });
    }
    if let Some(at) = order.end() {
        observer.observe(Event::Deadline { at });
    }
    // From the beginning, so that whatever ends the run, the report says what it did not come to.
    for ImageRequest {
        reference,
        requesters,
    } in namers::requests(&order.spec)
    {
        if let Some(requester) = requesters.first().map(Requester::kind) {
            let (name, bytes) = (reference.to_string(), 0);
            observer.observe(Event::ImageListed {
                name,
                requester,
                bytes,
            });
        }
    }
    let (excludes, packages) = steps.take(Step::Spec, || {
        let excludes = Excludes::new(&order.spec.exclude_patterns)?;
        let packages = PackageRequest::of_lines(order.spec.packages_and_channels.iter().map(String::as_str))?;
        Ok(((excludes, packages), spec_message(&order.spec)))
    })?;
    if packages.is_empty() && !order.spec.operators_indexes.is_empty() {
        let message =
            "`operators.packagesAndChannels` is empty: of the operators only the index images are wanted";
        observer.observe(Event::Warned {
            message: message.to_owned(),
        });
    }
    let naming = Naming::new(&order.spec, excludes, packages);
    for operator in naming.operators.rows() {
        observer.observe(Event::Operator(operator));
    }
    let bringer = Reconciler::new(order, mode, naming, observer, cancel, steps).await?;
    bringer.bring().await
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
