//! Recreates a layer's tar from tar-split and files, compares it with the diffID, and reads its headers to check the
//! tree.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::damage::{Damage, DamageList};
use super::expected_tree::{ExpectedTree, FoundFile};
use super::file_comparison::FileComparison;
use super::tree_comparison;
use crate::cancel::{Cancel, Stopped};
use crate::oci::DiffId;
use crate::store::atomic_file;
use crate::store::error::{StoreError, io_error};
use crate::store::expected_layer::ExpectedLayer;
use crate::store::layers_json::LayerView;
use crate::store::layout::Layout;
use crate::store::stage::BASE_MODE;
use crate::store::tar_split::{Assembler, FileEvent, TarSplitError};
use crate::store::unpack::{
    DIRECTORY, Fault, Fragment, NameSet, TarEntry, TarEntryKind, TarReader, TarStream, UnpackError,
    UnpackLimits, WHITEOUT_PREFIX, clean, in_root, split,
};
use crate::store::unpacked_layer::Owners;

/// The most damaged files that are kept by name.
const MAX_NOTED: usize = 10_000;

/// The size of a tar block.
const BLOCK: u64 = 512;

/// What the assembler reported about files.
#[derive(Default)]
struct FileReports {
    /// Names of files whose content was read from the tree, and compared with its checksum.
    from_tree: NameSet,
    /// Files that differ from the tar-split.
    damaged: Vec<(Vec<u8>, String)>,
}

/// The layer to read.
pub(super) struct LayerReader<'a> {
    pub(super) layout: &'a Layout,
    pub(super) view: &'a LayerView,
    pub(super) expected: &'a ExpectedLayer,
    pub(super) cancel: &'a Cancel,
    /// Counts the bytes of its tar.
    pub(super) read: &'a AtomicU64,
}

/// The result of reading the tar.
struct Reading {
    /// Its diffID and length, or why it is not a tar.
    tar: Result<(DiffId, u64), String>,
    owners: Owners,
    /// It has an entry for which podman is known to write wrong tar-splits: one whose size differs from its data, or
    /// one with data and without a file in the tree.
    is_excused: bool,
    /// Damaged files without an entry.
    leftover: Vec<(Vec<u8>, String)>,
}

/// Why the tar cannot be read to its end.
enum ContentError {
    Stopped(Stopped),
    TarSplit(TarSplitError),
}

impl LayerReader<'_> {
    /// Reads the layer's tar and compares its tree. Returns a reason if the comparison is impossible although nothing
    /// is damaged.
    pub(super) fn check(&self, found: &mut DamageList) -> Result<Option<String>, StoreError> {
        let path = self.layout.layer(&self.expected.id).join("diff");
        let diff = match rustix::fs::open(&path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(diff) => Arc::new(diff),
            Err(errno) => {
                found.at(b"", format!("the layer's directory cannot be opened: {errno}"));
                return Ok(None);
            }
        };
        let tar_split = match self.open_tar_split() {
            Ok(tar_split) => tar_split,
            Err(flaw) => {
                found.add(Damage::TarSplit(flaw));
                return Ok(None);
            }
        };
        let unreadable = io_error::<Errno>("examine", &path);
        let mut expected = ExpectedTree::new(Arc::clone(&diff)).map_err(unreadable)?;
        let reading = match self.read_tar(tar_split, &diff, &mut expected) {
            Ok(reading) => reading,
            Err(ContentError::Stopped(stopped)) => return Err(stopped.into()),
            Err(ContentError::TarSplit(error)) => {
                found.add(Damage::TarSplit(error.to_string()));
                return Ok(None);
            }
        };
        let damages = expected.take_confirmed();
        let is_damaged = !reading.leftover.is_empty() || damages.iter().any(|damage| damage.is_content);
        if let Some(reason) = self.flaw_of_tar(&reading, found).filter(|_| !is_damaged) {
            // The files are intact, so the tar never had this diffID.
            if reading.is_excused || expected.has_replacements || self.ends_within_block(&reading) {
                return Ok(Some(reason));
            }
            // Files and tar-split match each other, but belong to another tar.
            found.add(Damage::TarSplit(reason));
            return Ok(None);
        }
        for (path, reason) in reading.leftover {
            found.at(&path, reason);
        }
        for damage in damages {
            found.at(&damage.path, damage.reason);
        }
        // A layer that was pulled in chunks has its tree from a table of contents; podman 5.4 loses devices and times
        // of directories in this case.
        if self.view.is_partial() {
            return Ok(None);
        }
        if expected.has_replacements {
            return Ok(Some("entries of its tar replace each other".to_owned()));
        }
        self.check_root(&path, &expected, found)?;
        tree_comparison::compare(&diff, &expected, found, self.cancel)?;
        Ok(None)
    }

    fn open_tar_split(&self) -> Result<File, String> {
        let path = self.layout.tar_split(&self.expected.id);
        match atomic_file::open(&path).and_then(|file| Ok((file.metadata()?.len(), file))) {
            // An empty file is the result of a power loss before a sync; gzip of no data has twenty bytes.
            Ok((0, _)) => Err("it is empty".to_owned()),
            Ok((_, file)) => Ok(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err("it is missing".to_owned()),
            Err(error) => Err(format!("it cannot be opened: {error}")),
        }
    }

    /// Describes why the tar does not match the diffID. If it does, compares size and owners with the record.
    fn flaw_of_tar(&self, reading: &Reading, found: &mut DamageList) -> Option<String> {
        match &reading.tar {
            Ok((diff_id, _)) if *diff_id != self.expected.diff_id => Some(format!(
                "its files and tar-split form a tar with the diffID {diff_id}"
            )),
            Ok((_, size)) => {
                let recorded = self.view.size();
                if let Some(recorded) = recorded.filter(|recorded| recorded != size) {
                    let reason = format!("its tar has {size} bytes, the record has {recorded}");
                    found.add(Damage::Record(reason));
                }
                if !self.view.is_partial() && !self.view.has_owners(&reading.owners) {
                    let reason = "its `uidset` and `gidset` are not the owners in its tar";
                    found.add(Damage::Record(reason.to_owned()));
                }
                None
            }
            Err(fault) => Some(format!("its files and tar-split do not form a tar: {fault}")),
        }
    }

    /// Podman's tar-split lacks the end of a tar that ends within a block.
    fn ends_within_block(&self, reading: &Reading) -> bool {
        match (&reading.tar, self.view.size()) {
            (Ok((_, size)), Some(recorded)) => (1..BLOCK).contains(&size.abs_diff(recorded)),
            _ => false,
        }
    }

    /// The root must have the mode of its parent's root, or 0555, unless the tar has an entry for it.
    fn check_root(
        &self,
        diff: &Path,
        expected: &ExpectedTree,
        found: &mut DamageList,
    ) -> Result<(), StoreError> {
        let mode = |path: &Path| fs::metadata(path).map(|it| it.permissions().mode() & 0o7777);
        let own = mode(diff).map_err(io_error("examine", diff))?;
        let entry = expected.of(expected.root).filter(|root| root.mode_mask != 0);
        let wanted = match (entry, self.expected.parent) {
            (Some(root), _) => root.mode,
            (None, None) => BASE_MODE,
            // A parent without a tree is reported for the parent.
            (None, Some(parent)) => mode(&self.layout.layer(&parent).join("diff")).unwrap_or(own),
        };
        if own != wanted && own != BASE_MODE {
            found.at(b"", format!("its mode is {own:04o}, not {wanted:04o}"));
        }
        Ok(())
    }

    fn read_tar(
        &self,
        tar_split: File,
        diff: &Arc<OwnedFd>,
        expected: &mut ExpectedTree,
    ) -> Result<Reading, ContentError> {
        let reports = Rc::new(RefCell::new(FileReports::default()));
        let listener = {
            let reports = Rc::clone(&reports);
            move |note: FileEvent<'_>| {
                reports.borrow_mut().add(note);
                Ok(())
            }
        };
        let (tar, read) = (Assembler::new(tar_split, Arc::clone(diff), listener), self.read);
        let (tar, limits) = (
            Counted { tar, read },
            UnpackLimits::for_blob(self.view.size().unwrap_or(0)),
        );
        let mut is_excused = false;
        let mut owners = Owners::default();
        let run = || -> Result<(DiffId, u64), UnpackError> {
            let mut entries = TarReader::new(TarStream::open(tar, limits, self.cancel)?);
            loop {
                let next = entries.next(&mut |_| Ok(()));
                is_excused |= entries.has_odd_size();
                let Some(entry) = next? else { break };
                owners.add(&entry);
                is_excused |= entry.size > 0 && !is_in_tree(&entry.clean);
                let file = expected.add(&entry);
                if entry.kind == TarEntryKind::File {
                    read_file(&mut entries, &entry, file.as_ref(), expected, &reports)?;
                }
            }
            let mut stream = entries.into_stream();
            while !stream.take(u64::MAX)?.is_empty() {}
            Ok(stream.finish())
        };
        let tar = match run() {
            Ok(read) => Ok(read),
            Err(UnpackError::Stopped(stopped)) => return Err(ContentError::Stopped(stopped)),
            // Errors of the assembler, passed through its reader.
            Err(
                UnpackError::Content {
                    fault: Fault::Compression { source, .. },
                    ..
                }
                | UnpackError::Host { source, .. },
            ) => {
                let error = source.downcast().unwrap_or_else(TarSplitError::Read);
                return Err(ContentError::TarSplit(error));
            }
            Err(error) => Err(error.to_string()),
        };
        let leftover = std::mem::take(&mut reports.borrow_mut().damaged);
        Ok(Reading {
            tar,
            owners,
            is_excused,
            leftover,
        })
    }
}

impl FileReports {
    fn add(&mut self, note: FileEvent<'_>) {
        match note {
            FileEvent::Started(name) => {
                self.from_tree.insert(&clean(name));
            }
            FileEvent::Damaged(name, error) if self.damaged.len() < MAX_NOTED => {
                let name = clean(name);
                // Only podman reads their content from the tree, if they have any.
                if is_in_tree(&name) {
                    self.damaged.push((name, reason_of(error)));
                }
            }
            FileEvent::Damaged(..) => {}
        }
    }
}

/// False for names without a file of that name: the root and whiteouts.
fn is_in_tree(clean: &[u8]) -> bool {
    let (_, base) = split(in_root(clean));
    !base.is_empty() && base != b"." && !base.starts_with(WHITEOUT_PREFIX)
}

/// Reads an entry's data. If the data is in the tar-split itself, compares the file with it.
fn read_file<R: Read>(
    entries: &mut TarReader<'_, R>,
    entry: &TarEntry,
    file: Option<&FoundFile>,
    expected: &mut ExpectedTree,
    reports: &RefCell<FileReports>,
) -> Result<(), UnpackError> {
    let same_size = file.filter(|file| u64::try_from(file.stat.st_size) == Ok(entry.size));
    let is_regular = |file: &&FoundFile| FileType::from_raw_mode(file.stat.st_mode) == FileType::RegularFile;
    let mut comparison: Option<FileComparison> = None;
    let (mut begun, mut position) = (false, 0);
    let whole = [Fragment {
        offset: 0,
        length: entry.size,
    }];
    for fragment in entry.sparse.as_deref().unwrap_or(&whole) {
        let mut left = fragment.length;
        while left > 0 {
            let chunk = entries.data(left)?;
            if chunk.is_empty() {
                break;
            }
            left -= chunk.len() as u64;
            if !begun {
                begun = true;
                if !reports.borrow().from_tree.contains(&entry.clean) {
                    comparison = same_size.filter(is_regular).map(FileComparison::of);
                }
            }
            if let Some(comparison) = &mut comparison {
                comparison.hole(fragment.offset.saturating_sub(position));
                position = position.max(fragment.offset);
                comparison.bytes(chunk);
                position += chunk.len() as u64;
            }
        }
    }
    if let Some(mut comparison) = comparison {
        comparison.hole(entry.size.saturating_sub(position));
        if let Some(reason) = comparison.flaw {
            expected.add_content_damage(entry, reason, file);
        }
    }
    let mut reports = reports.borrow_mut();
    if let Some(at) = reports.damaged.iter().position(|(name, _)| *name == entry.clean) {
        let (_, reason) = reports.damaged.swap_remove(at);
        expected.add_content_damage(entry, reason, file);
    }
    Ok(())
}

fn reason_of(error: TarSplitError) -> String {
    match error {
        TarSplitError::File { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            "it is missing".to_owned()
        }
        TarSplitError::File { source, .. } => format!("it cannot be read: {source}"),
        TarSplitError::Differs { reason, .. } => format!("its content differs from the tar: {reason}"),
        error => error.to_string(),
    }
}

/// Counts the bytes that pass.
struct Counted<'a, R> {
    tar: R,
    read: &'a AtomicU64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.tar.read(out)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
