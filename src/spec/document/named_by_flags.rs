//! Defines what flags say about the objects of an input.

/// What flags name, so that the files need not, and what they ask of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedByFlags {
    /// The release image: no release is chosen from the files.
    pub release: bool,
    /// Catalogs or images.
    pub images: bool,
    /// If the cluster requests nothing, the newest recommended update is chosen.
    pub recommended: bool,
}
