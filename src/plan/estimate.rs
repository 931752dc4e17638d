//! How large a layer becomes in the store, guessed from how it travels: manifests do not say.

/// A real release's layers, all gzip: 57 GB unpacked from 20 GB (shared/crates.md, 2.6).
const GZIP_RATIO: (u128, u128) = (57, 20);

/// zstd at the level that build tools choose makes a layer about a tenth smaller than gzip does, so that the same bytes
/// unpack to a tenth more. Not measured on a release, for none is published so.
const ZSTD_RATIO: (u128, u128) = (63, 20);

/// Bytes that a blob of `size` bytes will take up unpacked. An estimate unless the media type is an uncompressed tar's;
/// an unknown type is taken for gzip, which nearly everything is.
pub fn unpacked_bytes(media_type: &str, size: u64) -> u64 {
    let (grown, compressed) = if media_type.ends_with("zstd") {
        ZSTD_RATIO
    } else if media_type.ends_with(".tar") {
        (1, 1)
    } else {
        GZIP_RATIO
    };
    u64::try_from(u128::from(size) * grown / compressed).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_media_types_of_docker_and_of_oci() {
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
            assert_eq!(unpacked_bytes(media_type, size), unpacked, "{media_type}");
        }
    }

    #[test]
    fn an_absurd_size_does_not_overflow() {
        assert_eq!(unpacked_bytes("+gzip", u64::MAX), u64::MAX);
    }
}
