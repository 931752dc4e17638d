//! Chooses the exit code from the failures of a run; no other module does. Which failure an error is, is decided where it
//! occurs: for registries in `registry::error`, for a run in `job::error`.
//!
//! ```text
//!   0  every requested image is in the store, verified
//!   1  some images are missing after retries
//!   2  the arguments or the version spec are unusable
//!   3  not enough disk space
//!   4  a registry or a proxy refused the credentials
//!   5  a release, a catalog or an image is not as expected: payload, package, pattern, platform, manifest, layer's tar
//!   6  content did not match its digest or diffID at any mirror, or a signature is missing or wrong
//!   7  containers/storage is unusable
//!   8  a registry does not have an image, or its certificate or a rule forbids the request
//! 124  deadline         128+n  signal n         in both cases another run continues
//! 124  the upgrade begins, or nothing that is missing can be whole before
//! ```

use std::time::Duration;

use crate::cancel::StopReason;
use crate::registry::Kind;
use crate::report::{Phase, Span, WriteError};

/// A SIGTERM this close to the Job's deadline counts as the deadline. The Job's controller counts whole seconds and may be
/// late or, with another clock, early.
const NEAR: Duration = Duration::from_secs(10);

/// Why a run, or one of its images, failed. If there are several failures, the first in the order of declaration
/// determines the exit code: the user must correct that one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// Arguments or version spec; ends the run before any other failure is possible.
    Usage,
    /// containers/storage is damaged, has another driver or is locked.
    Store,
    /// Not enough disk space, before or during the run.
    Space,
    /// A registry refused the credentials, or they cannot be read.
    Credentials,
    /// Content did not match its digest or diffID.
    Content,
    /// A signature is missing or wrong, or the signature policy rejects an image.
    Signature,
    /// A release, a catalog, an image or a pattern is not as expected.
    Payload,
    /// A registry does not have an image, or its certificate, registries.conf or a proxy forbids the request.
    Registry,
    /// An image could not be pulled in this run.
    Incomplete,
}

impl Failure {
    /// The exit code of a run whose first failure this is.
    pub fn code(self) -> u8 {
        match self {
            Self::Incomplete => 1,
            Self::Usage => 2,
            Self::Space => 3,
            Self::Credentials => 4,
            Self::Payload => 5,
            Self::Content | Self::Signature => 6,
            Self::Store => 7,
            Self::Registry => 8,
        }
    }

    /// The reason of a condition, in CamelCase.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Usage => "InvalidSpec",
            Self::Store => "StoreUnusable",
            Self::Space => "NotEnoughSpace",
            Self::Credentials => "CredentialsRefused",
            Self::Content => "ContentMismatch",
            Self::Signature => "SignatureRefused",
            Self::Payload => "UnexpectedContent",
            Self::Registry => "RegistryUnusable",
            Self::Incomplete => "ImagesMissing",
        }
    }
}

impl From<Kind> for Failure {
    /// What the kind of a registry's error means for the exit code.
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Unauthorized => Self::Credentials,
            Kind::DigestMismatch => Self::Content,
            Kind::NoSuchPlatform | Kind::Malformed => Self::Payload,
            Kind::NoSpace => Self::Space,
            Kind::Local => Self::Store,
            Kind::Refused | Kind::NotFound => Self::Registry,
            Kind::Stopped | Kind::Network => Self::Incomplete,
        }
    }
}

impl Failure {
    /// The failure of a report that cannot be written, if the disk is the cause and not the path.
    pub fn of_report(error: &WriteError) -> Option<Self> {
        match error {
            error if error.is_no_space() => Some(Self::Space),
            error if error.is_broken_disk() => Some(Self::Store),
            _ => None,
        }
    }

    /// What it means and what to do, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Incomplete => "some images are missing; another run may pull them",
            Self::Usage => "the arguments or the version spec are unusable; correct what the message names",
            Self::Space => "there is not enough disk space; downloaded data is kept",
            Self::Credentials => {
                "a registry or a proxy refused the credentials, or they are unreadable; correct the pull secret or the proxy's URL"
            }
            Self::Payload => {
                "a release, a catalog, an image or a pattern is not as expected; another run will not help"
            }
            Self::Content => {
                "at every mirror the content differs from its digest or diffID; repair the mirror, or the image"
            }
            Self::Signature => {
                "a signature is missing or wrong, or the signature policy rejects an image; follow the message"
            }
            Self::Registry => {
                "a registry does not have an image, or its certificate or a rule forbids the request; follow the hint"
            }
            Self::Store => {
                "the store, or another part of the host, is damaged or unusable; follow the message"
            }
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every requested image is in the store.
    Complete,
    /// Something is missing; this is the most important failure.
    Failed(Failure),
    /// Stopped early; completed work stays.
    Stopped(StopReason),
}

impl Ending {
    /// The ending of a run with these failures; without failures, success.
    pub fn of(failures: impl IntoIterator<Item = Failure>) -> Self {
        failures.into_iter().min().map_or(Self::Complete, Self::Failed)
    }

    /// What the exit code means, for people; `left` as in [`Self::stop_cause`].
    pub fn meaning(self, left: Option<Duration>) -> String {
        match (self, self.stop_cause(left)) {
            (Self::Stopped(StopReason::Upgrade(_)), Some((_, why))) => {
                format!("{why}; CRI-O pulls them during the upgrade")
            }
            (_, Some((_, why))) => format!("{why}; another run continues from here"),
            (Self::Failed(failure), None) => failure.meaning().to_owned(),
            (Self::Complete | Self::Stopped(_), None) => "every requested image is in the store".to_owned(),
        }
    }

    /// What stopped the run early, if anything did. `left` is the time until the Job's deadline, if that is known. The kubelet
    /// sends the same signal at the Job's deadline, to a deleted pod and to an evicted pod.
    pub fn stop_cause(self, left: Option<Duration>) -> Option<(Phase, String)> {
        let Self::Stopped(reason) = self else {
            return None;
        };
        let interrupted = |why: String| (Phase::Interrupted, why);
        Some(match (reason, left) {
            (StopReason::Deadline, _) => (Phase::Timeout, format!("stopped by {reason}")),
            (StopReason::Upgrade(at), _) => (
                Phase::Timeout,
                format!("the missing images cannot be complete before the upgrade begins at {at}"),
            ),
            (StopReason::Signal(libc::SIGTERM), Some(left)) if left < NEAR => {
                (Phase::Timeout, format!("stopped by the Job's deadline, {reason}"))
            }
            (StopReason::Signal(libc::SIGTERM), Some(left)) => interrupted(format!(
                "terminated {} before its deadline: the pod was deleted or evicted",
                Span(left)
            )),
            (StopReason::Signal(libc::SIGTERM), None) => interrupted(format!(
                "terminated by {reason}; in a pod, that means the Job's deadline, a deletion or an eviction"
            )),
            (StopReason::Signal(_) | StopReason::FatalError, _) => {
                interrupted(format!("interrupted by {reason}"))
            }
        })
    }

    /// The process's exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Complete => 0,
            Self::Failed(failure) => failure.code(),
            Self::Stopped(StopReason::Deadline | StopReason::Upgrade(_)) => 124,
            // The run ends with that error and not with this reason, so this code is never used.
            Self::Stopped(StopReason::FatalError) => Failure::Incomplete.code(),
            Self::Stopped(StopReason::Signal(signal)) => {
                128_u8.saturating_add(u8::try_from(signal).unwrap_or(0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn the_most_important_failure_determines_the_code() {
        use Failure::*;
        assert_eq!(Ending::of([]).code(), 0);
        assert_eq!(Ending::of([Incomplete]).code(), 1);
        let mut failures = vec![
            Incomplete,
            Registry,
            Payload,
            Signature,
            Content,
            Credentials,
            Space,
            Store,
        ];
        for code in [7, 3, 4, 6, 6, 5, 8, 1] {
            assert_eq!(Ending::of(failures.iter().copied()).code(), code);
            failures.pop();
        }
    }

    #[test]
    fn each_code_has_advice() {
        use Failure::*;
        for (failure, code, advice) in [
            (Incomplete, 1, "another run may pull them"),
            (Usage, 2, "correct what the message names"),
            (Space, 3, "downloaded data is kept"),
            (Credentials, 4, "correct the pull secret or the proxy's URL"),
            (Payload, 5, "another run will not help"),
            (Content, 6, "repair the mirror, or the image"),
            (Signature, 6, "follow the message"),
            (Store, 7, "follow the message"),
            (Registry, 8, "follow the hint"),
        ] {
            let ending = Ending::Failed(failure);
            assert_eq!(ending.code(), code);
            assert!(ending.meaning(None).ends_with(advice), "{}", ending.meaning(None));
        }
        for (reason, code) in [(StopReason::Deadline, 124), (StopReason::Signal(15), 143)] {
            let ending = Ending::Stopped(reason);
            assert_eq!(ending.code(), code);
            assert!(ending.meaning(None).ends_with("another run continues from here"));
        }
    }

    #[test]
    fn the_causes_of_a_stop_are_distinguished_where_possible() {
        let minutes = |number: u64| Some(Duration::from_secs(60 * number));
        for (reason, left, phase, why) in [
            (
                StopReason::Deadline,
                None,
                Phase::Timeout,
                "stopped by the deadline",
            ),
            (
                StopReason::Signal(15),
                minutes(0),
                Phase::Timeout,
                "stopped by the Job's deadline, signal 15",
            ),
            (
                StopReason::Signal(15),
                minutes(90),
                Phase::Interrupted,
                "terminated 1 h 30 min before its deadline: the pod was deleted or evicted",
            ),
            (
                StopReason::Signal(15),
                None,
                Phase::Interrupted,
                "terminated by signal 15; in a pod, that means the Job's deadline, a deletion or an eviction",
            ),
            (
                StopReason::Signal(2),
                minutes(0),
                Phase::Interrupted,
                "interrupted by signal 2",
            ),
        ] {
            let ending = Ending::Stopped(reason);
            assert_eq!(ending.stop_cause(left), Some((phase, why.to_owned())));
            assert_eq!(
                ending.meaning(left),
                format!("{why}; another run continues from here")
            );
        }
        assert_eq!(Ending::Failed(Failure::Space).stop_cause(minutes(0)), None);
    }

    #[test]
    fn the_begin_of_the_upgrade_is_a_deadline_that_says_what_is_next() {
        let at = Timestamp::from_second(1_793_000_000).expect("a time");
        let ending = Ending::Stopped(StopReason::Upgrade(at));
        assert_eq!(ending.code(), 124);
        assert_eq!(
            ending.meaning(None),
            "the missing images cannot be complete before the upgrade begins at 2026-10-26T07:33:20Z; \
             CRI-O pulls them during the upgrade"
        );
    }

    #[test]
    fn a_signal_adds_128() {
        assert_eq!(Ending::Stopped(StopReason::Signal(15)).code(), 143);
        assert_eq!(Ending::Stopped(StopReason::Deadline).code(), 124);
    }
}
