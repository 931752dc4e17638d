//! Reads the sample images of `samples.txt`, and lists what is known about some of them.

use super::Images;

/// Images whose tar-split stock tools write wrongly, so that their own `save` fails ("Digest did not match",
/// storage-format.md section 5): everything but the tar-split is compared, and ours must save and check clean.
pub(crate) const STOCK_TAR_SPLIT_IS_WRONG: [&str; 6] = [
    "zoo/sparse-0.0",
    "zoo/sparse-0.1",
    "zoo/sparse-1.0",
    "zoo/sized-link",
    "zoo/dot-dot",
    "zoo/symlinked-parents",
];

/// Podman 4.3.1 leaves out this image's attribute without a value; 5.4 keeps it, as we do.
pub(crate) const EMPTY_XATTR: &str = "zoo/empty-xattr";

/// The zoo's images. `hello` is a static program for `/bin/hello`; any bytes will do where none is run.
pub(crate) fn sample_images(hello: &[u8]) -> Images {
    Images::of(include_str!("samples.txt"), &[("hello", hello)])
}
