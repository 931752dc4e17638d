//! Defines why a path cannot be used as a medium.

use std::io;
use std::path::{Path, PathBuf};

use crate::cancel::Stopped;

/// A path of `--blobs-from` is not usable.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    /// The file or directory has none of the known forms.
    #[error(
        "`{}` is not a medium: {found}\n\
         hint: a medium is an OCI layout (directory or tar), oc-mirror's archives `mirror_*.tar` or its cache, the storage \
         directory of a registry, a directory of `oc image mirror --dir`, of `skopeo copy … dir:` or of `podman save`, an \
         archive of `docker save`, or the spool of another node", path.display()
    )]
    Unrecognised {
        /// The path as given.
        path: PathBuf,
        /// What is there instead.
        found: String,
    },
    /// The archive is compressed, so its entries have no place in the file.
    #[error(
        "`{}` is compressed with {format}, and a compressed archive cannot be read in place\n\
         hint: decompress it first, with `{command}`", path.display()
    )]
    Compressed {
        /// The path as given.
        path: PathBuf,
        /// The name of the format.
        format: &'static str,
        /// The program that decompresses it.
        command: &'static str,
    },
    /// The path cannot be read.
    #[error("cannot read the medium `{}`: {source}", path.display())]
    Io {
        /// The path as given, or one below it.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The run was stopped while archives were indexed.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl MediaError {
    /// Adds the path to an error of the system.
    pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io {
            path: path.clone(),
            source,
        }
    }

    /// Adds what was found to the list of what is accepted.
    pub(super) fn unrecognised(path: &Path, found: impl Into<String>) -> Self {
        Self::Unrecognised {
            path: path.to_owned(),
            found: found.into(),
        }
    }
}
