//! Finds files in a tar, or in several that are parts of one, by an index of their headers. Nothing is unpacked.
//!
//! The index has the names that a lookup can ask for: at most [`MAX_FILES`] names with [`MAX_NAME_BYTES`] bytes, about 50 MiB
//! of memory. The links of a registry to layers and manifests, which are most of the files of an oc-mirror archive, are not
//! needed: a digest gives a blob's path.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};

use super::error::MediaError;
use super::tar_headers::{TarHeaders, TarItem};
use crate::cancel::{Cancel, Stopped};

/// How many files of a medium are indexed; an archive with thirty releases has half of that.
const MAX_FILES: usize = 200_000;

/// How long their names may be together.
const MAX_NAME_BYTES: usize = 24 << 20;

/// How many links are followed; `docker save` writes one for each layer that images share.
const MAX_LINKS: usize = 20_000;

/// How many damaged places of an archive are named.
const MAX_NAMED: usize = 20;

/// Formats that are often put around a tar: the first bytes, the name, and the program that removes it.
const COMPRESSED: [(&[u8], &str, &str); 4] = [
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"BZh", "bzip2", "bunzip2"),
];

/// The files of one archive or of all its parts.
#[derive(Debug, Default)]
pub(super) struct Archive {
    parts: Vec<Arc<File>>,
    /// Names without `./`; a later part replaces an earlier one.
    files: BTreeMap<Box<str>, Span>,
    name_bytes: usize,
    /// The directory that is looked into: empty, or ends with a slash.
    top: String,
}

/// Where a file's data is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    part: usize,
    pub(super) start: u64,
    pub(super) size: u64,
}

/// What is damaged in one archive: the first [`MAX_NAMED`] places, and how many others.
#[derive(Debug, Default)]
struct Damages {
    named: Vec<String>,
    others: usize,
}

impl Damages {
    fn push(&mut self, damage: String) {
        match self.named.len() < MAX_NAMED {
            true => self.named.push(damage),
            false => self.others += 1,
        }
    }

    fn into_lines(self) -> impl Iterator<Item = String> {
        let others = (self.others > 0).then(|| format!("{} more places are damaged", self.others));
        self.named.into_iter().chain(others)
    }
}

/// A link in the archive: the name, and the name that it leads to.
type Links = Vec<(String, String)>;

impl Archive {
    /// Indexes the archives at these paths. Adds what is damaged to `warnings`.
    pub(super) fn open(
        paths: &[PathBuf],
        cancel: &Cancel,
        warnings: &mut Vec<String>,
    ) -> Result<Self, MediaError> {
        let mut archive = Self::default();
        let mut links = Links::new();
        let mut unusable = None;
        for path in paths {
            let mut damages = Damages::default();
            match archive.add(path, &mut links, &mut damages, cancel) {
                Ok(()) => {}
                Err(error @ MediaError::Stopped(_)) => return Err(error),
                Err(error) => warnings.extend(unusable.replace(error).map(|error| error.to_string())),
            }
            let named = damages.into_lines();
            warnings.extend(named.map(|damage| format!("`{}`: {damage}", path.display())));
        }
        match unusable {
            Some(error) if archive.parts.is_empty() => return Err(error),
            unusable => warnings.extend(unusable.map(|error| error.to_string())),
        }
        for (name, target) in links {
            if let Some(span) = archive.files.get(target.as_str()).copied() {
                archive.files.entry(name.into()).or_insert(span);
            }
        }
        Ok(archive)
    }

    /// Adds a part.
    fn add(
        &mut self,
        path: &Path,
        links: &mut Links,
        damages: &mut Damages,
        cancel: &Cancel,
    ) -> Result<(), MediaError> {
        let (file, size) = open_file(path)?;
        let mut headers = TarHeaders::new(&file, size);
        let is_named_tar = path.extension().is_some_and(|extension| extension == "tar");
        if !is_named_tar && !headers.begins_with_header() {
            return Err(MediaError::unrecognised(path, "the file is not a tar archive"));
        }
        self.index(headers, links, damages, cancel)?;
        self.parts.push(Arc::new(file));
        Ok(())
    }

    fn index(
        &mut self,
        mut headers: TarHeaders<'_>,
        links: &mut Links,
        damages: &mut Damages,
        cancel: &Cancel,
    ) -> Result<(), Stopped> {
        while let Some(item) = headers.next(cancel)? {
            match item {
                TarItem::Damage(why) => damages.push(why),
                TarItem::File { name, start, size } => {
                    let Some(name) = useful(&name) else {
                        continue;
                    };
                    self.name_bytes += name.len();
                    if self.files.len() == MAX_FILES || self.name_bytes > MAX_NAME_BYTES {
                        damages.push("it has too many files; only the first ones are used".to_owned());
                        return Ok(());
                    }
                    let part = self.parts.len();
                    self.files.insert(name.into(), Span { part, start, size });
                }
                TarItem::Link {
                    name,
                    target,
                    is_symbolic,
                } => {
                    let target = match is_symbolic {
                        true => [directory_of(&name), &target].concat(),
                        false => target,
                    };
                    if let (Some(name), Some(target)) = (useful(&name), useful(&target))
                        && links.len() < MAX_LINKS
                        && self.name_bytes <= MAX_NAME_BYTES
                    {
                        self.name_bytes += name.len() + target.len();
                        links.push((name, target));
                    }
                }
            }
        }
        Ok(())
    }

    /// The file at this path.
    pub(super) fn find(&self, path: &str) -> Option<Span> {
        self.files.get(format!("{}{path}", self.top).as_str()).copied()
    }

    /// The open archive that has these bytes.
    pub(super) fn file(&self, span: Span) -> Arc<File> {
        self.parts[span.part].clone()
    }

    /// The names in a directory, empty for the top.
    pub(super) fn entries(&self, path: &str) -> Vec<(String, FileType)> {
        let prefix = match path {
            "" => self.top.clone(),
            path => format!("{}{path}/", self.top),
        };
        let mut entries = Vec::new();
        let mut from: String = prefix.clone();
        while let Some(name) = self.first_below(&prefix, &from) {
            match name.split_once('/') {
                None => {
                    entries.push((name.to_owned(), FileType::RegularFile));
                    from = format!("{prefix}{name}\0");
                }
                Some((directory, _)) => {
                    entries.push((directory.to_owned(), FileType::Directory));
                    // `0` is the character after the slash.
                    from = format!("{prefix}{directory}0");
                }
            }
        }
        entries
    }

    /// Whether a file is below this directory.
    pub(super) fn has_directory(&self, path: &str) -> bool {
        let prefix = format!("{}{path}/", self.top);
        self.first_below(&prefix, &prefix).is_some()
    }

    /// The first name from `from` on that begins with `prefix`, without it.
    fn first_below(&self, prefix: &str, from: &str) -> Option<&str> {
        let bounds = (Bound::Included(from), Bound::Unbounded);
        let (name, _) = self.files.range::<str, _>(bounds).next()?;
        name.strip_prefix(prefix)
    }

    /// Looks into the only directory at the top. False if there is another entry.
    pub(super) fn enter_directory(&mut self) -> bool {
        match self.entries("").as_slice() {
            [(name, FileType::Directory)] => {
                self.top.push_str(name);
                self.top.push('/');
                true
            }
            _ => false,
        }
    }
}

fn open_file(path: &Path) -> Result<(File, u64), MediaError> {
    let at = MediaError::at(path);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| at(error.into()))?;
    let file = File::from(file);
    let metadata = file.metadata().map_err(&at)?;
    if !metadata.is_file() {
        return Err(MediaError::unrecognised(path, "it is not a regular file"));
    }
    let mut first = [0; 8];
    let read = std::os::unix::fs::FileExt::read_at(&file, &mut first, 0).map_err(&at)?;
    for (magic, format, command) in COMPRESSED {
        if first[..read].starts_with(magic) {
            return Err(MediaError::Compressed {
                path: path.to_owned(),
                format,
                command,
            });
        }
    }
    Ok((file, metadata.len()))
}

/// The name in the form in which it is looked up; none if it never is. `..` leads nowhere.
fn useful(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?;
    let mut clean: Vec<&str> = Vec::new();
    for component in name.split('/') {
        match component {
            "" | "." => {}
            ".." => drop(clean.pop()?),
            component => clean.push(component),
        }
    }
    let is_link_of_registry = |pair: &[&str]| matches!(pair, [_, "_layers"] | ["_manifests", "revisions"]);
    if clean.is_empty() || clean.windows(2).any(is_link_of_registry) {
        return None;
    }
    Some(clean.join("/"))
}

/// The part of a name before its last component, with the slash.
fn directory_of(name: &[u8]) -> &[u8] {
    let end = name
        .iter()
        .rposition(|&byte| byte == b'/')
        .map_or(0, |slash| slash + 1);
    &name[..end]
}
