//! Lists the *namers*, the images that name other images to pull: the release image by its payload, an index image by its
//! catalog. A run pulls and reads them first, and then requests the images that they name.

pub(super) mod catalog;
pub(crate) mod operators;
pub(super) mod release;

use std::collections::HashSet;
use std::sync::Arc;

use crate::catalog::PackageRequest;
use crate::image_request::{ImageRequest, Requester};
use crate::oci::{Digest, Reference};
use crate::plan::{ExcludedImage, Plan};
use crate::release::manifests::{ReleaseManifests, UpgradeRank};
use crate::report::Step;
use crate::spec::{Excludes, VersionSpec};
use operators::Operators;
use release::Filter;

use super::image_states::ImageStates;
use super::snapshot::Snapshot;

/// Whether a round of the run is about everything that is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundScope {
    /// Only about the namers: what they name is unknown.
    Namers,
    /// About every requested image.
    Everything,
}

/// An image that names others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Namer {
    Release(Reference),
    Index(Reference),
}

impl Namer {
    pub(super) fn reference(&self) -> &Reference {
        match self {
            Self::Release(reference) | Self::Index(reference) => reference,
        }
    }

    /// The step of the run that reads it.
    pub(super) fn step(&self) -> Step {
        match self {
            Self::Release(_) => Step::Release,
            Self::Index(_) => Step::Operators,
        }
    }
}

/// What is requested so far, and which namers are not read yet.
pub(super) struct Naming {
    pub(super) filter: Filter,
    pub(super) packages: Arc<[PackageRequest]>,
    pub(super) namers: Vec<Namer>,
    pub(super) operators: Operators,
    /// In the order in which they were named; several may be for one image.
    pub(super) requests: Vec<ImageRequest>,
    pub(super) excluded: Vec<ExcludedImage>,
    /// The release's version, once its payload is read.
    pub(super) version: Option<String>,
    /// What the cluster includes of the release's manifests, once they are read.
    pub(super) manifests: Option<ReleaseManifests>,
    /// Whether the cluster is already updating to the release: then images are pulled in the order of the update.
    pub(super) is_updating: bool,
    read: HashSet<Namer>,
}

impl Naming {
    /// Starts with the images that the version spec names.
    pub(super) fn new(spec: &VersionSpec, excludes: Excludes, packages: Vec<PackageRequest>) -> Self {
        let indexes = spec.operators_indexes.iter().cloned();
        let release = spec.platform_image.iter().cloned().map(Namer::Release);
        Self {
            filter: Filter {
                excludes: Arc::new(excludes),
                only_used: None,
            },
            operators: Operators::new(&packages),
            packages: packages.into(),
            requests: requests(spec),
            namers: release.chain(indexes.map(Namer::Index)).collect(),
            excluded: Vec::new(),
            version: None,
            manifests: None,
            is_updating: false,
            read: HashSet::new(),
        }
    }

    /// Whether the namer was read, successfully or not.
    pub(super) fn is_read(&self, namer: &Namer) -> bool {
        self.read.contains(namer)
    }

    pub(super) fn mark_read(&mut self, namer: &Namer) {
        self.read.insert(namer.clone());
    }

    /// The namers that were not read yet. Some may be unavailable.
    pub(super) fn unread(&self) -> impl Iterator<Item = &Namer> {
        self.namers.iter().filter(|namer| !self.read.contains(namer))
    }

    /// The indices in the plan of release images that were not read yet.
    pub(super) fn unread_releases(&self, plan: &Plan) -> HashSet<usize> {
        let unread = self.unread().filter(|it| matches!(it, Namer::Release(_)));
        let references: HashSet<&Reference> = unread.map(Namer::reference).collect();
        let images = plan.images.iter().enumerate();
        let releases = images.filter(|(_, image)| references.contains(&image.reference));
        releases.map(|(index, _)| index).collect()
    }

    /// The requests for namers.
    pub(super) fn namer_requests(&self) -> Vec<ImageRequest> {
        let is_namer = |request: &&ImageRequest| {
            let mut namers = self.namers.iter();
            namers.any(|namer| *namer.reference() == request.reference)
        };
        self.requests.iter().filter(is_namer).cloned().collect()
    }

    /// The release image and the digest of its manifest, if that is known.
    pub(super) fn release_manifest(
        &self,
        states: &ImageStates,
        snapshot: &Snapshot,
    ) -> Option<(Reference, Digest)> {
        let release = self.namers.iter().find_map(|namer| match namer {
            Namer::Release(release) => Some(release),
            Namer::Index(_) => None,
        })?;
        let resolved = states.resolved(release).map(|image| image.manifest.digest());
        let stored = || Some(snapshot.image(release)?.signatures.manifest);
        Some((release.clone(), resolved.or_else(stored)?))
    }

    /// When the running update needs an image; `None` for all images if no update to the release runs.
    pub(super) fn rank(&self, request: &ImageRequest) -> Option<UpgradeRank> {
        let manifests = self.manifests.as_ref().filter(|_| self.is_updating)?;
        let ranks = request.requesters.iter().filter_map(|requester| match requester {
            Requester::Release { tag } => Some(manifests.upgrade_rank(tag)),
            _ => None,
        });
        ranks.min()
    }

    pub(super) fn indexes(&self) -> impl Iterator<Item = &Reference> {
        self.namers.iter().filter_map(|namer| match namer {
            Namer::Index(reference) => Some(reference),
            Namer::Release(_) => None,
        })
    }
}

/// Requests for the images that the version spec names.
pub(crate) fn requests(spec: &VersionSpec) -> Vec<ImageRequest> {
    let of = |images: &[Reference], requester: Requester| {
        let request = |image: &Reference| ImageRequest::new(image.clone(), requester.clone());
        images.iter().map(request).collect::<Vec<_>>()
    };
    [
        of(spec.platform_image.as_slice(), Requester::ReleaseImage),
        of(&spec.operators_indexes, Requester::OperatorIndex),
        of(&spec.additional_images, Requester::Additional),
    ]
    .concat()
}
