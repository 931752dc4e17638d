//! What a reboot does to the spool.
//!
//! What a killed process wrote is in the page cache, and whoever comes next in the same boot reads it. After a reboot,
//! which may have been a power loss, only what was synced is there for certain. The file `lock` bears the id of the boot
//! in which the spool was used last; if that is not this boot, every blob that was begun is cut off after its newest
//! record before anybody counts on its bytes. Whole blobs stay, for their digest tells.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, FileType, OFlags};

use super::file_names::FileNames;
use super::{Name, Shared, SpoolError, journal};

/// The kernel's name for this boot, 36 characters and a newline: `random(4)`. In a container it is the host's.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// No boot id is longer.
const LONGEST: usize = 64;

impl Shared {
    /// Cuts off what may not have reached the disk before a reboot, and removes journals that belong to nothing.
    pub(super) fn recover(&self) -> Result<(), SpoolError> {
        let boot = std::fs::read(BOOT_ID).unwrap_or_default();
        let is_same_boot = !boot.is_empty() && last_boot(&self.lock) == boot;
        let (mut wholes, mut parts) = (HashSet::new(), HashSet::new());
        for (name, _) in super::files(&self.dir, &self.path)? {
            match name {
                Name::Whole(blob) => drop(wholes.insert(blob)),
                Name::Part(stem) => drop(parts.insert(stem)),
            }
        }
        for stem in &parts {
            if stem.from > 0 && wholes.contains(&stem.blob) {
                self.remove_part(stem)?;
                continue;
            }
            if stem.from > 0 {
                self.pieces().insert(*stem);
            }
            if !is_same_boot {
                self.cut_to_record(stem)?;
            }
        }
        for name in super::names(&self.dir, &self.path)? {
            let is_of_nothing = |stem: FileNames| {
                let is_of_whole = stem.from == 0 && wholes.contains(&stem.blob);
                !is_of_whole && !parts.contains(&stem)
            };
            if FileNames::of_journal(&name).is_some_and(is_of_nothing) {
                self.unlink_if_possible(&name);
            }
        }
        // Only now, for a run that is killed while it cuts has to cut again.
        if !is_same_boot && let Err(error) = set_last_boot(&self.lock, &boot) {
            tracing::warn!("the next run will not know that there was no reboot since: {error}");
        }
        Ok(())
    }

    /// Its bytes are hashed later, when it is continued.
    fn cut_to_record(&self, stem: &FileNames) -> Result<(), SpoolError> {
        let name = stem.partial();
        // What is no regular file is left to whoever wants the blob, and is told of it.
        let stat = rustix::fs::statat(&self.dir, &name, AtFlags::SYMLINK_NOFOLLOW);
        let is_file = stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        if !is_file {
            return Ok(());
        }
        let Some(file) = self.open(&name, OFlags::WRONLY)? else {
            return Ok(());
        };
        let length = self.regular_size(&file, &name)?;
        let records = journal::records(self, stem);
        let known = records.iter().map(|record| record.offset);
        let durable = known.filter(|offset| *offset <= length).max().unwrap_or(0);
        if durable < length {
            let (was, is) = (length, durable);
            let blob = stem.blob;
            tracing::info!("blob {blob}: {is} of {was} bytes in the spool are kept after a reboot");
        }
        match durable {
            0 => self.remove_part(stem),
            _ => file.set_len(durable).map_err(self.at(&name)),
        }
    }
}

/// Whatever the file says, also nothing.
fn last_boot(lock: &File) -> Vec<u8> {
    let mut text = vec![0; LONGEST];
    let length = lock.read_at(&mut text, 0).unwrap_or(0);
    text.truncate(length);
    text
}

fn set_last_boot(lock: &File, boot: &[u8]) -> std::io::Result<()> {
    lock.write_all_at(boot, 0)?;
    lock.set_len(boot.len() as u64)
}
