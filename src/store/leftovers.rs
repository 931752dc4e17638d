//! Removes what killed programs left in the store: stages, and temporary files next to the records.
//!
//! A stage is dead if its lock is free (`stage_dir.rs`). A temporary file of a record is dead if it is old while we
//! hold the lock of its directory, because every live writer holds that lock. The locks are tried without waiting:
//! another program may hold one for minutes, and these files cost a few kilobytes.

use std::fs;
use std::path::{Path, PathBuf};

use super::store::Store;
use super::{atomic_file, lock, stage_dir};

impl Store {
    /// Stages of dead runs with the bytes that each takes on the disk: [`Store::remove_leftovers`] would remove them.
    pub fn dead_stages(&self) -> Vec<(PathBuf, u64)> {
        stage_dir::dead(self.layout.root())
    }

    /// Removes the leftovers of dead programs, ours and others'. Failures are logged as warnings, and a directory
    /// with a busy lock is left to a later run.
    pub fn remove_leftovers(&self) {
        self.remove_dead_stages();
        let (layers, images) = (self.layout.layers(), self.layout.images());
        under_lock(&layers.join("layers.lock"), || {
            atomic_file::sweep(&layers, "layers.json");
        });
        under_lock(&images.join("images.lock"), || {
            atomic_file::sweep(&images, "images.json");
            for image in fs::read_dir(&images).into_iter().flatten().flatten() {
                if image.file_type().is_ok_and(|kind| kind.is_dir()) {
                    atomic_file::sweep_all(&image.path());
                }
            }
        });
    }
}

fn under_lock(path: &Path, work: impl FnOnce()) {
    // Without a store there is nothing to remove.
    if !path.exists() {
        return;
    }
    match lock::try_exclusive(path) {
        Ok(Some(_lock)) => work(),
        Ok(None) => {
            tracing::debug!(lock = %path.display(), "another program holds the lock, leaving its files to a later run")
        }
        Err(error) => tracing::warn!("cannot remove files of dead programs: {error}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::store::StorageConf;
    use crate::write_back::WriteQueue;

    #[test]
    fn leftovers_of_dead_programs_are_removed_and_files_of_live_ones_stay() {
        if let Err(why) = crate::notice::root() {
            return crate::notice::skip(&why);
        }
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &StorageConf::parse("").unwrap()).unwrap();
        store.create_if_missing().unwrap();
        let image = store.layout.images().join("a".repeat(64));
        fs::create_dir(&image).unwrap();
        let dead = [
            store.layout.layers().join(".tmp-layers.json1"),
            store.layout.images().join(".tmp-images.json2"),
            image.join(".tmp-=bWFuaWZlc3Q3"),
            image.join(".tmp-manifest4"),
        ];
        let old = SystemTime::now() - Duration::from_secs(2 * 3600);
        let make = |path: &PathBuf| File::create(path).unwrap().set_modified(old).unwrap();
        dead.iter().for_each(make);
        let young = image.join(".tmp-manifest5");
        File::create(&young).unwrap();
        make(&image.join("manifest"));
        let stage = store.stage(&WriteQueue::off()).unwrap();
        for lock in ["overlay-layers/layers.lock", "overlay-images/images.lock"] {
            File::create(dir.path().join(lock)).unwrap();
        }

        let busy = lock::try_exclusive(&store.layout.images().join("images.lock")).unwrap();
        store.remove_leftovers();
        let exists = |path: &PathBuf| path.exists();
        assert_eq!(dead.each_ref().map(exists), [false, true, true, true]);
        drop(busy);
        store.remove_leftovers();
        assert!(dead.iter().all(|path| !path.exists()));
        assert!(young.exists(), "a young temporary file is removed");
        assert!(image.join("manifest").exists(), "a manifest is removed");
        let stages = || {
            let names = fs::read_dir(dir.path()).unwrap().flatten();
            names
                .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b".spoke"))
                .count()
        };
        assert_eq!(stages(), 1, "the stage of a live run");
        drop(stage);
        assert_eq!(stages(), 0);
    }
}
