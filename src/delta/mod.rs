//! Makes a layer's tar from a delta and from files that the node already has.
//!
//! ```text
//! DeltaIndex ─→ DeltaArtifact ─→ LayerDelta          which deltas exist, for which images and layers      artifact
//!                                   │ a blob, downloaded and verified like any other
//!                                   ↓
//! Sources ── files of old images ─→ PatchedTar ─→ the tar of the new layer, as a stream      source, patched_tar
//! new tar, old files ── DeltaWriter ─→ a delta                                                            delta_writer
//! ```
//!
//! A delta need not be trusted: the result is a layer only if its digest is the diffID in the image's verified config.

pub mod artifact;
mod codec;
pub mod debug_sections;
mod delta_reader;
mod delta_writer;
mod format;
mod layer_delta;
mod limits;
mod opened_sources;
mod operation;
mod patch_error;
mod patched_tar;
mod source;

pub use codec::{Codec, Deflater, GoVersion, ZlibLevel, find_codec};
pub use delta_writer::DeltaWriter;
pub use format::Format;
pub use layer_delta::{DeltaOption, DeltaSource, LayerDelta, is_worthwhile};
pub use operation::{InflatedRange, MAX_PATH, Operation, SourceName};
pub use patch_error::{FormatFault, PatchError, SourceFault};
pub use patched_tar::PatchedTar;
pub use source::{ScratchFile, SourceError, SourceFile, Sources};
