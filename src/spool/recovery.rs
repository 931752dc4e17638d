//! Truncates partial blobs to their newest journal record after a reboot or a power loss.
//!
//! A reboot is detected when the spool is opened.
//!
//! The bytes of a killed process are in the page cache, and the next process of the same boot reads them. After a
//! reboot, which may have been a power loss, only synced bytes are certain. The file `lock` contains the id of the
//! boot in which the spool was used last. If this is another boot, every partial blob is truncated to its newest
//! record before its bytes are used. Whole blobs stay, because their digest is verified anyway.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, FileType, OFlags};

use super::directory::{self, BlobFile};
use super::error::SpoolError;
use super::file_names::FileNames;
use super::journal;
use super::state::SpoolState;

/// The kernel's id of this boot, 36 characters and a newline (`random(4)`). A container sees the id of the host.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The most bytes of a boot id that are read.
const BOOT_ID_LIMIT: usize = 64;

/// Removes bytes that may not have reached the disk before a reboot, and journals without a blob.
pub(super) fn recover(spool: &SpoolState) -> Result<(), SpoolError> {
    let dir = &spool.dir;
    let boot = std::fs::read(BOOT_ID).unwrap_or_default();
    let is_same_boot = !boot.is_empty() && last_boot(&spool.lock) == boot;
    let (mut wholes, mut ranges) = (HashSet::new(), HashSet::new());
    for (file, _) in directory::blob_files(&dir.fd, &dir.path)? {
        match file {
            BlobFile::Whole(blob) => drop(wholes.insert(blob)),
            BlobFile::Range(names) => drop(ranges.insert(names)),
        }
    }
    for names in &ranges {
        if names.start > 0 && wholes.contains(&names.blob) {
            spool.remove_range(names)?;
            continue;
        }
        if names.start > 0 {
            spool.ranges().insert(*names);
        }
        if !is_same_boot {
            truncate_to_record(spool, names)?;
        }
    }
    for name in directory::names(&dir.fd, &dir.path)? {
        let has_no_blob = |names: FileNames| {
            let is_of_whole = names.start == 0 && wholes.contains(&names.blob);
            !is_of_whole && !ranges.contains(&names)
        };
        if FileNames::of_journal(&name).is_some_and(has_no_blob) {
            dir.unlink_if_possible(&name);
        }
    }
    // Last, because a run that is killed before this point has to truncate again.
    if !is_same_boot && let Err(error) = set_last_boot(&spool.lock, &boot) {
        tracing::warn!("cannot record the boot id, the next run will assume a reboot: {error}");
    }
    Ok(())
}

/// Truncates a range to its newest record. Its bytes are hashed later, when it is continued.
fn truncate_to_record(spool: &SpoolState, names: &FileNames) -> Result<(), SpoolError> {
    let (dir, name) = (&spool.dir, names.partial());
    // Anything but a regular file is left for the download of that blob, which reports it.
    let stat = rustix::fs::statat(&dir.fd, &name, AtFlags::SYMLINK_NOFOLLOW);
    let is_file = stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
    if !is_file {
        return Ok(());
    }
    let Some(file) = dir.open(&name, OFlags::WRONLY)? else {
        return Ok(());
    };
    let length = dir.regular_size(&file, &name)?;
    let records = journal::records(dir, names);
    let offsets = records.iter().map(|record| record.offset);
    let durable = offsets.filter(|offset| *offset <= length).max().unwrap_or(0);
    if durable < length {
        let blob = names.blob;
        tracing::info!("blob {blob}: keeping {durable} of {length} bytes in the spool after a reboot");
    }
    match durable {
        0 => spool.remove_range(names),
        _ => file.set_len(durable).map_err(dir.error_at(&name)),
    }
}

/// The content of the lock file, whatever it is; it may be empty.
fn last_boot(lock: &File) -> Vec<u8> {
    let mut text = vec![0; BOOT_ID_LIMIT];
    let length = lock.read_at(&mut text, 0).unwrap_or(0);
    text.truncate(length);
    text
}

fn set_last_boot(lock: &File, boot: &[u8]) -> std::io::Result<()> {
    lock.write_all_at(boot, 0)?;
    lock.set_len(boot.len() as u64)
}
