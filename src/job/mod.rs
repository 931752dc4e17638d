//! The pipeline on one screen: from the version spec to a store that holds all it asks for.
//!
//! ```text
//! spec ─→ release image ─bring→ payload ─select→ requests ─bring→ outcome
//!
//! bring:  look into the store ─→ resolve what is missing ─→ plan ─→ is there space? ─→ pull ─┐
//!              ↑─────────────────────── look again: all there? ───────────────────────────┘
//! ```
//!
//! The release image takes the same way as every other. What is said to be present was seen in the store after the
//! last write, never remembered. One image's failure is a row of the outcome; a [`JobError`] ends the run.

mod board;
mod bringer;
mod error;
mod examiner;
mod failure;
mod inquiry;
mod knowledge;
mod mender;
mod order;
mod outcome;
mod puller;
mod queue;
mod release;
mod room;
mod sight;
mod steps;
mod teller;

use std::sync::Arc;

use crate::cancel::Cancel;
use crate::report::{Event, Observer, Size, Step};
use crate::sources::{ImageRequest, Source, dedupe};
use crate::spec::{Excludes, VersionSpec};

use bringer::{Bringer, Scope};
pub use error::JobError;
pub use order::Order;
pub use outcome::Outcome;
use steps::Steps;

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Put everything into the store.
    Run,
    /// Put the release image there, and say what `Run` would do.
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
    order: &Order,
    mode: Mode,
    observer: &Arc<dyn Observer>,
    cancel: &Cancel,
) -> Result<Outcome, JobError> {
    let steps = Steps(Some(observer.as_ref()));
    for message in &order.warnings {
        observer.observe(Event::Warned {
            message: message.clone(),
        });
    }
    let excludes = steps.take(Step::Spec, || {
        let excludes = Excludes::new(&order.spec.exclude_patterns)?;
        Ok((excludes, spec_message(&order.spec)))
    })?;
    let mut bringer = Bringer::new(order, mode, observer, cancel, steps)?;
    let mut requests = Vec::new();
    let mut excluded = Vec::new();
    if let Some(release) = &order.spec.platform_image {
        requests.push(ImageRequest::new(release.clone(), Source::ReleaseImage));
        steps.start(Step::Release);
        match bringer.release(release, &excludes).await {
            Ok(Some((payload, selection))) => {
                let named = payload.tags.len();
                excluded = release::excluded(&payload, &selection);
                let left_out = excluded.len();
                let message = format!(
                    "release {} names {named} images, {left_out} of them are excluded",
                    payload.version
                );
                steps.end(Step::Release, true, "PayloadRead", message);
                for message in selection.warnings {
                    observer.observe(Event::Warned { message });
                }
                for note in &selection.notes {
                    tracing::info!("{note}");
                }
                requests.extend(selection.wanted);
            }
            // It is a row like any other; the additional images do not depend on it.
            Ok(None) => {
                if let Some(reason) = bringer.failure_of(release) {
                    steps.end(
                        Step::Release,
                        false,
                        reason.failure.reason(),
                        reason.message.clone(),
                    );
                }
            }
            Err(error) => return Err(steps.ended_by(Step::Release, error)),
        }
    } else {
        steps.end(
            Step::Release,
            true,
            "NotSpecified",
            "no release is asked for".to_owned(),
        );
    }
    let additional = order.spec.additional_images.iter().cloned();
    requests.extend(additional.map(|reference| ImageRequest::new(reference, Source::Additional)));
    let brought = bringer
        .bring(&dedupe(requests), &excluded, Scope::Everything)
        .await?;
    Ok(bringer.outcome(brought))
}

fn spec_message(spec: &VersionSpec) -> String {
    let release = match &spec.platform_image {
        Some(release) => format!("release `{release}`"),
        None => "Release index is not specified, no release".to_owned(),
    };
    format!(
        "{release}, {} exclude patterns, {} additional images, {} required",
        spec.exclude_patterns.len(),
        spec.additional_images.len(),
        Size(spec.space_required)
    )
}
