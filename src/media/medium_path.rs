//! Finds media on the host that no flag names.

use std::fs;
use std::path::{Path, PathBuf};

/// The directory of the host with media, or a medium itself.
const MEDIA: &str = "var/lib/spoke-precache/media";

/// Where systems with udisks mount removable disks: `<user>/<label>`.
const REMOVABLE: &str = "run/media";

/// The file that `export` writes at the top of a medium.
const MARK: &str = "spoke-precache.json";

/// How many entries of a directory with mounts are looked at.
const MAX_ENTRIES: usize = 100;

/// The path of a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediumPath {
    /// A directory or an archive.
    pub path: PathBuf,
    /// Whether the user named it. Then it is an error if it cannot be used, otherwise a warning.
    pub is_named: bool,
}

impl MediumPath {
    /// A path that the user named.
    pub fn named(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            is_named: true,
        }
    }
}

/// The media of the host that no flag has to name: `/var/lib/spoke-precache/media`, and removable disks with an export. A path
/// that cannot be read is left out.
pub fn found(host_root: &Path) -> Vec<MediumPath> {
    // The Job's mount creates an empty directory.
    let is_empty = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    let media = [host_root.join(MEDIA)].into_iter();
    let media = media.filter(|path| path.exists() && !is_empty(path));
    let users = directories(&host_root.join(REMOVABLE));
    let disks = users.iter().flat_map(|user| directories(user));
    let exports = disks.filter(|disk| {
        let mark = fs::symlink_metadata(disk.join(MARK));
        mark.is_ok_and(|mark| mark.is_file())
    });
    let found = media.chain(exports);
    found
        .map(|path| MediumPath {
            path,
            is_named: false,
        })
        .collect()
}

/// The directories in `path`, in the order of their names. Links are not followed: below a host root they may lead out of it.
fn directories(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    let entries = entries.flatten().take(MAX_ENTRIES);
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut paths: Vec<PathBuf> = directories.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn media_of_the_host_are_found_without_a_flag() {
        let host = tempfile::tempdir().unwrap();
        let of_host = |path: &str| host.path().join(path);
        assert_eq!(found(host.path()), []);
        fs::create_dir_all(of_host("run/media/core/other")).unwrap();
        fs::create_dir_all(of_host("run/media/core/stick")).unwrap();
        fs::write(of_host("run/media/core/stick/spoke-precache.json"), "{}").unwrap();
        std::os::unix::fs::symlink(of_host("run/media/core/stick"), of_host("run/media/core/link")).unwrap();
        fs::create_dir_all(of_host("var/lib/spoke-precache/media")).unwrap();
        assert_eq!(found(host.path()).len(), 1, "an empty directory is no medium");
        fs::write(of_host("var/lib/spoke-precache/media/mirror_000001.tar"), "").unwrap();
        let path = |path| MediumPath {
            path: of_host(path),
            is_named: false,
        };
        let expected = [path("var/lib/spoke-precache/media"), path("run/media/core/stick")];
        assert_eq!(found(host.path()), expected);
    }
}
