//! Finds out whether the cluster is already updating to the release that is being pulled.

use super::Reconciler;
use crate::job::Mode;
use crate::job::namers::Namer;
use crate::job::snapshot::Snapshot;
use crate::oci::Reference;

impl Reconciler<'_> {
    /// Whether the cluster is already updating to this release image, so that it pulls the same images at the same time.
    pub(super) fn is_updating_to(&self, release: &Reference, snapshot: &Snapshot) -> bool {
        let Ok(version) = &self.config.cluster.version else {
            return false;
        };
        // The ClusterVersion may name the manifest list, or the manifest of the node's architecture.
        let resolved = self.states.resolved(release);
        let stored = self.naming.release_manifest(&self.states, snapshot);
        let digests = [
            release.digest(),
            resolved.map(|image| image.digest()),
            stored.map(|(_, digest)| digest),
        ];
        let mut digests = digests.into_iter().flatten();
        self.mode != Mode::Verify && digests.any(|digest| version.is_updating_to(&digest))
    }

    /// Whether the cluster is already updating to a release image that was not read yet.
    pub(super) fn is_updating_to_unread(&self, snapshot: &Snapshot) -> bool {
        self.naming.unread().any(|namer| match namer {
            Namer::Release(release) => self.is_updating_to(release, snapshot),
            Namer::Index(_) => false,
        })
    }
}
