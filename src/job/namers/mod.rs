//! Images that name others: the release image by its payload, an index image by its catalog. They come first, and what they
//! name is wanted from then on.

pub(super) mod catalog;
pub(super) mod operators;
pub(super) mod release;

use std::collections::HashSet;
use std::sync::Arc;

use crate::catalog::PackageRequest;
use crate::image_request::{ImageRequest, Requester};
use crate::oci::Reference;
use crate::plan::ExcludedImage;
use crate::spec::{Excludes, VersionSpec};
use operators::Operators;

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
}

/// What is wanted, as far as it is known, and what has still to be read.
pub(super) struct Naming {
    pub(super) excludes: Arc<Excludes>,
    pub(super) packages: Arc<[PackageRequest]>,
    pub(super) namers: Vec<Namer>,
    pub(super) operators: Operators,
    /// In the order of their naming; several may be for one image.
    pub(super) requests: Vec<ImageRequest>,
    pub(super) excluded: Vec<ExcludedImage>,
    /// The release's, once its payload is read.
    pub(super) version: Option<String>,
    read: HashSet<Namer>,
}

impl Naming {
    /// What the version spec names by itself.
    pub(super) fn new(spec: &VersionSpec, excludes: Excludes, packages: Vec<PackageRequest>) -> Self {
        let indexes = spec.operators_indexes.iter().cloned();
        let release = spec.platform_image.iter().cloned().map(Namer::Release);
        Self {
            excludes: Arc::new(excludes),
            operators: Operators::new(&packages),
            packages: packages.into(),
            requests: requests(spec),
            namers: release.chain(indexes.map(Namer::Index)).collect(),
            excluded: Vec::new(),
            version: None,
            read: HashSet::new(),
        }
    }

    /// Whether it was read, for better or worse.
    pub(super) fn is_read(&self, namer: &Namer) -> bool {
        self.read.contains(namer)
    }

    pub(super) fn has_read(&mut self, namer: &Namer) {
        self.read.insert(namer.clone());
    }

    /// Those that were not read, whether or not they will be.
    pub(super) fn unread(&self) -> impl Iterator<Item = &Namer> {
        self.namers.iter().filter(|namer| !self.read.contains(namer))
    }

    pub(super) fn indexes(&self) -> impl Iterator<Item = &Reference> {
        self.namers.iter().filter_map(|namer| match namer {
            Namer::Index(reference) => Some(reference),
            Namer::Release(_) => None,
        })
    }
}

/// For the images that the version spec names by itself.
pub(super) fn requests(spec: &VersionSpec) -> Vec<ImageRequest> {
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
