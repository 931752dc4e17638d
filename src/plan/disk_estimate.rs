//! Estimates the disk space of an unpacked layer from the length of its tar.
//!
//! Where the blob does not state that length ([`super::tar_length()`]), a usual compression ratio stands in for it.

/// Measured on a real release, all gzip: 57 GB unpacked from 20 GB.
const GZIP_RATIO: (u128, u128) = (57, 20);

/// zstd at the level that build tools choose makes a layer about a tenth smaller than gzip, so the same bytes unpack to a
/// tenth more. Not measured on a release: none is published with zstd.
const ZSTD_RATIO: (u128, u128) = (63, 20);

/// Percent that file system blocks add to the bytes of a tar. Every file leaves part of its last 4 KiB block empty; its tar
/// headers go away, and an entry in the tar-split is added. The sum is about 1400 bytes for each entry on XFS and 1700 on
/// ext4, and the length of a tar does not reveal the number of entries. Measured with trees of Debian as layers, `du` of the
/// store per byte of tar on XFS and on ext4: JDK 1.001 and 1.002, `/usr/bin` 1.002, libraries 1.005 and 1.007, gcc 1.002 and 1.003, a system of
/// 440 MB 1.024 and 1.032, `python3.11` 1.043 and 1.048, synthetic layers a third of which is small files 1.080;
/// `python3/dist-packages` 1.11 and 1.14, `/usr/share` 1.19 and 1.21, its `man` 1.83 and 1.84. 4 percent is
/// within 4 % for all of these except the last three, and those are small beside the rest.
const BLOCK_OVERHEAD: u64 = 4;

/// A layer's own directory, links, record and tar-split, in bytes: 16 KiB on XFS, which stores short directories in the
/// inode, 32 KiB on ext4.
const LAYER_OVERHEAD: u64 = 24 << 10;

/// Length of a layer's tar in bytes, and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TarLength {
    /// The blob states it.
    Known(u64),
    /// The blob states it modulo 4 GiB, and it may be longer by any multiple of that.
    AtLeast(u64),
    /// Estimated with a usual compression ratio.
    Guessed(u64),
}

impl TarLength {
    /// For a blob that was not probed.
    pub(super) fn estimate(media_type: &str, size: u64) -> Self {
        match is_uncompressed(media_type) {
            true => Self::Known(size),
            false => Self::Guessed(guessed_tar_bytes(media_type, size)),
        }
    }

    /// The number to calculate with.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Known(bytes) | Self::AtLeast(bytes) | Self::Guessed(bytes) => bytes,
        }
    }
}

/// Estimated length of the tar in a blob of `size` bytes, by media type; exact for an uncompressed tar. An unknown type
/// counts as gzip, the type of nearly all layers.
pub(super) fn guessed_tar_bytes(media_type: &str, size: u64) -> u64 {
    let (unpacked, compressed) = if is_zstd(media_type) {
        ZSTD_RATIO
    } else if is_uncompressed(media_type) {
        (1, 1)
    } else {
        GZIP_RATIO
    };
    u64::try_from(u128::from(size) * unpacked / compressed).unwrap_or(u64::MAX)
}

/// Disk space in the store of a layer whose tar has so many bytes.
pub(super) fn disk_bytes(tar_bytes: u64) -> u64 {
    let blocks = u128::from(tar_bytes) * u128::from(100 + BLOCK_OVERHEAD) / 100;
    u64::try_from(blocks)
        .unwrap_or(u64::MAX)
        .saturating_add(LAYER_OVERHEAD)
}

/// Whether the media type is one of zstd.
pub(super) fn is_zstd(media_type: &str) -> bool {
    media_type.ends_with("zstd")
}

/// Whether the media type is one of an uncompressed tar.
pub(super) fn is_uncompressed(media_type: &str) -> bool {
    media_type.ends_with(".tar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_of_docker_and_of_oci_are_known() {
        let size = 20_000;
        for (media_type, unpacked) in [
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", 57_000),
            ("application/vnd.oci.image.layer.v1.tar+gzip", 57_000),
            ("application/vnd.oci.image.layer.v1.tar+zstd", 63_000),
            ("application/vnd.docker.image.rootfs.diff.tar.zstd", 63_000),
            ("application/vnd.oci.image.layer.v1.tar", 20_000),
            ("application/vnd.docker.image.rootfs.diff.tar", 20_000),
            ("", 57_000),
        ] {
            assert_eq!(guessed_tar_bytes(media_type, size), unpacked, "{media_type}");
        }
    }

    #[test]
    fn an_absurd_size_does_not_overflow() {
        assert_eq!(guessed_tar_bytes("+gzip", u64::MAX), u64::MAX);
        assert_eq!(disk_bytes(u64::MAX), u64::MAX);
        assert_eq!(disk_bytes(100_000_000), 104_000_000 + LAYER_OVERHEAD);
    }
}
