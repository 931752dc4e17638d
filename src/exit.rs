//! From what went wrong to the number that the process leaves with; nobody else chooses one.
//!
//! ```text
//!   0  every requested image is in the store, verified
//!   1  some images are missing after retries
//!   2  arguments or version spec unusable
//!   3  not enough disk space
//!   4  a registry refused the credentials
//!   5  a release or catalog is not as expected: payload, package, pattern, platform, manifest
//!   6  content did not match its digest or diffID at any mirror
//!   7  containers/storage cannot be used
//! 124  deadline         128+n  signal n         in both cases a later run goes on
//! ```

use crate::cancel::StopReason;
use crate::report::WriteError;

/// Why a run, or one of its images, failed; the declaration's order is the order of precedence when there are
/// several: what a user has to mend first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failure {
    /// Arguments or version spec; ends the run before anything else can fail.
    Usage,
    /// containers/storage is corrupt, foreign or locked away.
    Store,
    /// Disk space, foreseen or met.
    Space,
    /// A registry refused the credentials, or they cannot be read.
    Credentials,
    /// Content did not match its digest or diffID.
    Content,
    /// A release, a catalog, an image or a pattern is not as expected.
    Payload,
    /// An image could not be had, for the time being.
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
            Self::Content => 6,
            Self::Store => 7,
        }
    }

    /// What a user is to think of it: the reason of a condition, in CamelCase.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Usage => "InvalidSpec",
            Self::Store => "StoreUnusable",
            Self::Space => "NotEnoughSpace",
            Self::Credentials => "CredentialsRefused",
            Self::Content => "ContentMismatch",
            Self::Payload => "UnexpectedContent",
            Self::Incomplete => "ImagesMissing",
        }
    }
}

impl Failure {
    /// What it means that the report cannot be written, if the disk is to blame and not the path.
    pub fn of_report(error: &WriteError) -> Option<Self> {
        match error {
            error if error.is_no_space() => Some(Self::Space),
            error if error.is_broken_disk() => Some(Self::Store),
            _ => None,
        }
    }

    /// For people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Incomplete => "some images are missing; another run may get them",
            Self::Usage => "the arguments or the version spec cannot be used",
            Self::Space => "there is not enough disk space",
            Self::Credentials => "a registry refused the credentials, or they cannot be read",
            Self::Payload => {
                "a release, a catalog, an image or a pattern is not as expected; another run will not help"
            }
            Self::Content => "content did not match its digest at any mirror",
            Self::Store => "the store, or another part of the host, is damaged or cannot be used",
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Everything is there.
    Complete,
    /// Something is missing, and this is the first reason.
    Failed(Failure),
    /// Cut off; what was done stays done.
    Stopped(StopReason),
}

impl Ending {
    /// The ending of a run with these failures, none being success.
    pub fn of(failures: impl IntoIterator<Item = Failure>) -> Self {
        failures.into_iter().min().map_or(Self::Complete, Self::Failed)
    }

    /// What the exit code means, for people.
    pub fn meaning(self) -> String {
        match self {
            Self::Complete => "every requested image is in the store".to_owned(),
            Self::Failed(failure) => failure.meaning().to_owned(),
            Self::Stopped(reason) => format!("stopped by {reason}; a later run goes on from here"),
        }
    }

    /// The process's exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Complete => 0,
            Self::Failed(failure) => failure.code(),
            Self::Stopped(StopReason::Deadline) => 124,
            // The run ends with that trouble and not with this, so nobody sees it.
            Self::Stopped(StopReason::Trouble) => Failure::Incomplete.code(),
            Self::Stopped(StopReason::Signal(signal)) => {
                128_u8.saturating_add(u8::try_from(signal).unwrap_or(0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_several_counts() {
        use Failure::*;
        assert_eq!(Ending::of([]).code(), 0);
        assert_eq!(Ending::of([Incomplete]).code(), 1);
        let mut failures = vec![Incomplete, Payload, Content, Credentials, Space, Store];
        for code in [7, 3, 4, 6, 5, 1] {
            assert_eq!(Ending::of(failures.iter().copied()).code(), code);
            failures.pop();
        }
    }

    #[test]
    fn a_signal_adds_128() {
        assert_eq!(Ending::Stopped(StopReason::Signal(15)).code(), 143);
        assert_eq!(Ending::Stopped(StopReason::Deadline).code(), 124);
    }
}
