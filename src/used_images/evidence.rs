//! Decides whether the containers on a node are enough to know which images it uses.
//!
//! CRI-O removes its containers at the first start after a reboot, so they show what happened since then. The kubelet keeps one
//! ended container of each container of a pod, and removes all of a pod that is deleted: those of a Job disappear with the Job.
//! What a node uses rarely is therefore seen only if the node has been up for long enough, and not always then: images of the
//! pod templates that the API knows count as used too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use super::refusal::Refusal;

/// How long a node must be up: most CronJobs of a cluster run at least daily.
const NEEDED: Duration = Duration::from_secs(24 * 3600);

/// The run levels of operators that every cluster has; later ones may be of capabilities that are disabled.
const RUN_LEVELS: std::ops::RangeInclusive<u32> = 20..=50;

/// What is known about the containers of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// How long the node has been up. It is measured by the kernel, because the time of day may have been wrong at the start.
    pub up_for: Duration,
    /// Age of the oldest container of a pod; `None` if there is none. Younger than the start if the containers were removed
    /// meanwhile: the store was wiped, or the disk was full and the kubelet removed pods.
    pub oldest_container: Option<Duration>,
    /// Describes each container whose image is unknown.
    pub unknown_images: Vec<String>,
    /// The cluster operators that name each tag of the running release. Empty if the manifests were not read; then the share
    /// of the operators is not checked.
    pub operators: HashMap<String, Vec<OperatorOfTag>>,
}

/// A cluster operator whose manifests name a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorOfTag {
    /// The ClusterOperator.
    pub operator: String,
    /// The run level of its manifests.
    pub run_level: u32,
}

impl Evidence {
    /// Refuses if too little is known before the tags are compared.
    pub(super) fn check_age(&self) -> Result<(), Refusal> {
        let (up_for, needed) = (self.up_for, NEEDED);
        if let Some(first) = self.unknown_images.first() {
            return Err(Refusal::UnknownImages {
                count: self.unknown_images.len(),
                first: first.clone(),
            });
        }
        match self.oldest_container {
            None => Err(Refusal::NoPods),
            _ if up_for < needed => Err(Refusal::StartedRecently { up_for, needed }),
            Some(oldest) if oldest < needed => Err(Refusal::ContainersRemoved {
                oldest,
                up_for,
                needed,
            }),
            Some(_) => Ok(()),
        }
    }

    /// Refuses if few operators have run. An operator was seen if a tag that only its manifests name is used; some tags, such as
    /// `kube-rbac-proxy`, are named by nearly all operators.
    pub(super) fn check_operators(&self, used: &BTreeSet<&str>) -> Result<(), Refusal> {
        let mut is_seen: BTreeMap<&str, bool> = BTreeMap::new();
        for (tag, operators) in &self.operators {
            if let [only] = operators.as_slice()
                && RUN_LEVELS.contains(&only.run_level)
            {
                *is_seen.entry(&only.operator).or_default() |= used.contains(tag.as_str());
            }
        }
        let (seen, expected) = (is_seen.values().filter(|seen| **seen).count(), is_seen.len());
        match seen * 2 < expected {
            true => Err(Refusal::FewOperators { seen, expected }),
            false => Ok(()),
        }
    }
}
