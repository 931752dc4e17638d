//! How long the rest takes, where that is not the bytes by the rate: a limit may go by the time of day.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// By default the rate stays as it is.
#[derive(Clone, Default)]
pub struct TimeLeft(Option<Arc<dyn Fn(u64, u64) -> Duration + Send + Sync>>);

impl TimeLeft {
    /// How long it takes is for `lasts` to say, from the bytes that are left and the bytes that come in a second now.
    pub fn new(lasts: impl Fn(u64, u64) -> Duration + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(lasts)))
    }

    /// How long `bytes` take if now `rate` come in a second, which is not 0.
    pub(super) fn of(&self, bytes: u64, rate: u64) -> Duration {
        match &self.0 {
            Some(lasts) => lasts(bytes, rate),
            None => Duration::from_secs(bytes.div_ceil(rate)),
        }
    }
}

impl fmt::Debug for TimeLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeLeft").finish_non_exhaustive()
    }
}
