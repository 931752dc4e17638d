//! Reports when each step of a run starts and how it ends; each step is a condition of the report.

use crate::exit_code::{Ending, Failure};
use crate::plan::PlanTotals;
use crate::report::{Condition, Event, Observer, Step};

use super::error::JobError;

/// Reports steps to an observer. Without one, the steps are parts of a larger step and are not reported.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a>(pub(super) Option<&'a dyn Observer>);

impl Steps<'_> {
    /// Runs a step that is one call; it returns its result and a message.
    pub(super) fn take<T>(
        self,
        step: Step,
        action: impl FnOnce() -> Result<(T, String), JobError>,
    ) -> Result<T, JobError> {
        self.start(step);
        match action() {
            Ok((result, message)) => {
                self.end(step, true, Condition::AS_EXPECTED, message);
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

    /// Reports that a step ended without a result, and that the run continues.
    pub(super) fn end_unknown(self, step: Step, reason: &'static str, message: String) {
        self.observe(Event::Warned {
            message: format!("{step:?}: {reason}: {message}"),
        });
        self.observe(Event::StepInconclusive {
            step,
            reason,
            message,
        });
    }

    /// Reports that an error ended the step and the run; returns the error. If the run was stopped, the step has not
    /// failed and stays unfinished.
    pub(super) fn ended_by(self, step: Step, error: JobError) -> JobError {
        if let Ending::Failed(failure) = error.ending() {
            self.end(step, false, failure.reason(), error.to_string());
        }
        error
    }

    /// Reports whether every requested image was in the last snapshot. `gravest` is the failure to fix first; it may be
    /// that of an operator whose images are unknown.
    pub(super) fn verified(self, totals: &PlanTotals, gravest: Option<Failure>) {
        let (wanted, present) = (totals.images_wanted, totals.images_present);
        self.start(Step::Verify);
        let failure = gravest.or((wanted != present).then_some(Failure::Incomplete));
        let message = match failure {
            Some(_) if wanted == present => {
                format!(
                    "{present} of {wanted} images are in the store, but the images of some operators are unknown"
                )
            }
            // A failed image may be present: a release image without a payload, or a damaged image.
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
