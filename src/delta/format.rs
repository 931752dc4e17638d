//! Defines the two formats of a layer's delta and their media types.

/// The format of a layer's delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// `tardf1` of containers/tar-diff, which other programs apply too.
    TarDiff,
    /// `tardf1` with operations that inflate ranges of sources and deflate parts of the output.
    InflatedTarDiff,
}

impl Format {
    /// The media type of the blob.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::TarDiff => "application/vnd.tar-diff",
            Self::InflatedTarDiff => "application/vnd.spoke-precache.inflated-tar-diff.v1",
        }
    }

    /// The format of a blob with this media type.
    pub fn of_media_type(media_type: &str) -> Option<Self> {
        [Self::TarDiff, Self::InflatedTarDiff]
            .into_iter()
            .find(|format| format.media_type() == media_type)
    }

    /// The first bytes of the blob; a zstd stream of operations follows.
    pub fn header(self) -> &'static [u8; 8] {
        match self {
            Self::TarDiff => b"tardf1\n\0",
            Self::InflatedTarDiff => b"itrdf1\n\0",
        }
    }
}
