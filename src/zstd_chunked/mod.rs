//! Makes a layer's tar from a blob in the format `zstd:chunked`, of which only those chunks are downloaded whose files
//! this node lacks.
//!
//! A blob in this format is an ordinary zstd blob. The content of every file is compressed alone, so that a range of the
//! blob is enough to read it. What the frames contain follows in skippable frames, which other programs ignore:
//!
//! ```text
//! |headers|file|headers|file chunk|file chunk|…|trailer|| 8 B |TOC|| 8 B |tar-split|| 8 B |footer|
//!         ^ offset   ^ endOffset                              └──── Metadata: one request ───┘
//! ```
//!
//! The TOC is zstd of JSON. It has an entry for each header of the tar: type, name, size, SHA-256 of the content, and the
//! position of its compressed bytes. A large file has further entries of type `chunk` with the positions of its parts;
//! `chunkType: zeros` is a part of zeros. The tar-split is zstd of the lines that [`tar_split`](crate::store::tar_split)
//! describes: every byte of the tar except the contents. Annotations of the layer in the image's manifest state where
//! both are, and the digest of the TOC (containers/storage `pkg/chunked/internal/minimal/compression.go`).
//!
//! ```text
//! Manifest ─→ Metadata ─ a request ─→ ChunkedLayer ─ the node's files ─→ ChunkedOption ─ requests ─→ ChunkedTar ─→ the tar
//! ```
//!
//! Nothing here is trusted. Each file's content is compared with its digest in the TOC, and the tar is a layer only if
//! it has the diffID in the image's verified config. So the layer is the same as one from the whole blob. podman stores
//! the layers of such downloads with flags and a TOC digest (`layers.json`: `toc-digest`, differ output in `flags`),
//! because it skips the tar; a layer that is made here has neither.

mod chunked_layer;
mod chunked_option;
mod chunked_tar;
mod error;
mod metadata;
mod section;
#[cfg(test)]
mod tests;
mod toc;

pub use chunked_layer::ChunkedLayer;
pub use chunked_option::ChunkedOption;
pub use chunked_tar::ChunkedTar;
pub use error::ChunkedError;
pub use metadata::Metadata;
pub use toc::TocFile;
