//! Defines why it is not known which images a node uses; each says what to do.

use std::time::Duration;

use crate::report::{Count, Span};

/// Why no image can be left out as unused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// After a reboot, CRI-O forgets the containers that ended before.
    #[error(
        "the node started {} ago, and the containers that ended before are forgotten, so images that are used rarely are \
         unknown\nhint: wait until the node has been up for {}, or run without `--only-used`", Span(*up_for), Span(*needed)
    )]
    StartedRecently {
        /// Since the start.
        up_for: Duration,
        /// What is enough.
        needed: Duration,
    },
    /// Older containers were removed: the store was wiped, or CRI-O started with an empty one.
    #[error(
        "the oldest container of a pod is {} old, although the node has been up for {}: the containers were removed \
         meanwhile\nhint: wait until the containers are {} old, or run without `--only-used`", Span(*oldest), Span(*up_for), Span(*needed)
    )]
    ContainersRemoved {
        /// Age of the oldest container.
        oldest: Duration,
        /// Since the start.
        up_for: Duration,
        /// What is enough.
        needed: Duration,
    },
    /// The node runs no pods, or the store is not CRI-O's.
    #[error(
        "the store has no container of a pod\nhint: run on the node, with the graph root of CRI-O, or run without `--only-used`"
    )]
    NoPods,
    /// Some containers exist whose images are unknown.
    #[error(
        "the images of {} are unknown; the first: {first}\nhint: remove these containers if they are damaged, or run without \
         `--only-used`", Count(*count, "container")
    )]
    UnknownImages {
        /// How many.
        count: usize,
        /// Description of one.
        first: String,
    },
    /// Few operators have run, so the cluster is being installed, or something is wrong with it.
    #[error(
        "containers of only {seen} of the {expected} cluster operators of run levels 20 to 50 are on this node\nhint: check \
         the cluster's state with `oc get clusteroperators`, or run without `--only-used`"
    )]
    FewOperators {
        /// Operators with a container.
        seen: usize,
        /// Operators of the release.
        expected: usize,
    },
    /// Containers of two releases run, and those of the old one disappear one by one.
    #[error(
        "the cluster is being updated to `{to}`, so containers of two releases are on this node\nhint: wait until the update \
         is complete, or run without `--only-used`"
    )]
    Updating {
        /// The release image.
        to: String,
    },
    /// Which release runs here is unknown.
    #[error("the release that runs here is unknown: {why}\nhint: run without `--only-used`")]
    UnknownRelease {
        /// Why.
        why: String,
    },
}
