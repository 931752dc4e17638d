//! Says which step begins and how it ends; each becomes a condition of the report.

use crate::exit_code::{Ending, Failure};
use crate::plan::Totals;
use crate::report::{Event, Observer, Step};

use super::error::JobError;

/// Tells an observer about steps, or nobody, when they are part of a larger one.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a>(pub(super) Option<&'a dyn Observer>);

impl Steps<'_> {
    /// A step that is one call: it returns its result and a sentence about it.
    pub(super) fn take<T>(
        self,
        step: Step,
        action: impl FnOnce() -> Result<(T, String), JobError>,
    ) -> Result<T, JobError> {
        self.start(step);
        match action() {
            Ok((result, message)) => {
                self.end(step, true, "Done", message);
                Ok(result)
            }
            Err(error) => Err(self.ended_by(step, error)),
        }
    }

    pub(super) fn start(self, step: Step) {
        self.observe(Event::StepStarted(step));
    }

    pub(super) fn end(self, step: Step, ok: bool, reason: &'static str, message: String) {
        self.observe(Event::StepEnded {
            step,
            ok,
            reason,
            message,
        });
    }

    /// The step fails with an error that ends the run; gives the error back. To be stopped is no failure: the step
    /// stays unfinished.
    pub(super) fn ended_by(self, step: Step, error: JobError) -> JobError {
        if let Ending::Failed(failure) = error.ending() {
            self.end(step, false, failure.reason(), error.to_string());
        }
        error
    }

    /// Whether all that was wanted is there, as the store was seen last. `gravest` may be of an operator whose images nobody
    /// knows.
    pub(super) fn verified(self, totals: &Totals, gravest: Option<Failure>) {
        let (wanted, present) = (totals.images_wanted, totals.images_present);
        self.start(Step::Verify);
        let failure = gravest.or((wanted != present).then_some(Failure::Incomplete));
        let message = match failure {
            Some(_) if wanted == present => {
                format!(
                    "{present} of {wanted} images are in the store, but not every operator's images are known"
                )
            }
            // One that failed may be there: a release image without a payload, one that is damaged.
            Some(_) => format!("{present} of {wanted} images are in the store and as expected"),
            None => format!("{present} of {wanted} images are in the store"),
        };
        let reason = failure.map_or("AllPresent", Failure::reason);
        self.end(Step::Verify, failure.is_none(), reason, message);
    }

    fn observe(self, event: Event) {
        if let Some(observer) = self.0 {
            observer.observe(event);
        }
    }
}
