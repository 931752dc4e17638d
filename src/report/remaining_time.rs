//! Estimates how long the remaining downloads take, also under a rate limit that depends on the time of day.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// By default the rate stays constant.
#[derive(Clone, Default)]
pub struct TimeLeft(Option<Arc<dyn Fn(u64, u64) -> Duration + Send + Sync>>);

impl TimeLeft {
    /// Estimates with `estimate`, from the remaining bytes and the current bytes per second.
    pub fn new(estimate: impl Fn(u64, u64) -> Duration + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(estimate)))
    }

    /// How long `bytes` take at `rate` bytes per second now, which must not be 0.
    pub(super) fn of(&self, bytes: u64, rate: u64) -> Duration {
        match &self.0 {
            Some(estimate) => estimate(bytes, rate),
            None => Duration::from_secs(bytes.div_ceil(rate)),
        }
    }
}

impl fmt::Debug for TimeLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeLeft").finish_non_exhaustive()
    }
}
