//! Reads the headers of a tar and jumps over the data between them.
//!
//! What is damaged costs only itself: after a header that is none, the next 512-byte block with a checksum that matches is
//! looked for, and the entries from there on are found. tar-core parses the headers, GNU's and PAX's long names and large sizes
//! included.

use std::fs::File;

use tar_core::parse::{Limits, ParseEvent, ParsedEntry, Parser};
use tar_core::{EntryType, Header};

use super::tar_window::TarWindow;
use crate::cancel::{Cancel, Stopped};

const BLOCK: usize = 512;

/// The longest name.
const MAX_NAME: u32 = 4096;

/// How many bytes of a name a message has.
const SHOWN: usize = 200;

/// How many headers are read. Each costs a read of the disk at worst.
const MAX_HEADERS: usize = 2_000_000;

/// How many bytes are searched for a header in one archive: five minutes at 30 MB/s.
const MAX_SEARCHED: u64 = 8 << 30;

/// How often a header is looked for in one archive.
const MAX_GAPS: usize = 200;

/// How many reads may fail in one archive. Some disks try each for half a minute.
const MAX_FAILED_READS: usize = 20;

/// How far is skipped after a read that failed: a page, which is what the kernel reads at least.
const PAGE: u64 = 4096;

/// One thing in a tar.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TarItem {
    /// A complete regular file.
    File { name: Vec<u8>, start: u64, size: u64 },
    /// A hard link or a symbolic link.
    Link {
        name: Vec<u8>,
        target: Vec<u8>,
        is_symbolic: bool,
    },
    /// What is lost, for a person.
    Damage(String),
}

/// The headers of one tar, in order.
pub(super) struct TarHeaders<'a> {
    window: TarWindow<'a>,
    /// The next header.
    position: u64,
    headers: usize,
    gaps: usize,
    searched: u64,
    failed_reads: usize,
    is_done: bool,
}

/// What is at a position.
enum Parsed {
    Item {
        item: Option<TarItem>,
        next: u64,
    },
    /// Two blocks of zeros.
    End {
        next: u64,
    },
    /// The file ends here, without an end mark.
    Eof,
    Garbage(String),
}

/// The end of a search for a header.
enum Search {
    Found(u64),
    /// The rest of the archive has none; true if only zeros were read.
    Nothing {
        is_zero: bool,
    },
    /// The search was given up at this position.
    GivenUp(u64),
}

impl<'a> TarHeaders<'a> {
    pub(super) fn new(file: &'a File, size: u64) -> Self {
        Self {
            window: TarWindow::new(file, size),
            position: 0,
            headers: 0,
            gaps: 0,
            searched: 0,
            failed_reads: 0,
            is_done: false,
        }
    }

    /// Whether the archive begins with a header.
    pub(super) fn begins_with_header(&mut self) -> bool {
        let first = self.window.bytes(0, BLOCK);
        first.is_ok_and(|bytes| bytes.first_chunk().is_some_and(is_header))
    }

    /// The next item; none after the last.
    pub(super) fn next(&mut self, cancel: &Cancel) -> Result<Option<TarItem>, Stopped> {
        while !self.is_done {
            cancel.check()?;
            let from = self.position;
            if self.headers == MAX_HEADERS {
                self.is_done = true;
                let why =
                    format!("it has more than {MAX_HEADERS} entries; what follows byte {from} is not used");
                return Ok(Some(TarItem::Damage(why)));
            }
            self.headers += 1;
            let damage = match self.parse() {
                Parsed::Item { item, next } => {
                    self.position = next;
                    // What is missing at the end was named.
                    self.is_done = matches!(item, Some(TarItem::Damage(_))) && next >= self.window.size();
                    match item {
                        Some(item) => return Ok(Some(item)),
                        None => continue,
                    }
                }
                Parsed::Eof => {
                    self.is_done = true;
                    "it has no end mark, so it may be cut".to_owned()
                }
                // An end mark in the middle is a hole: blocks that were not written.
                Parsed::End { next } => match self.search(next, cancel)? {
                    Search::Nothing { is_zero: true } => {
                        self.is_done = true;
                        continue;
                    }
                    end => self.gap(from, "zeros", end),
                },
                Parsed::Garbage(why) => {
                    let end = self.search(from + BLOCK as u64, cancel)?;
                    self.gap(from, &why, end)
                }
            };
            return Ok(Some(TarItem::Damage(damage)));
        }
        Ok(None)
    }

    /// Continues after a gap, and describes it.
    fn gap(&mut self, from: u64, why: &str, end: Search) -> String {
        match end {
            Search::Found(to) => {
                self.position = to;
                format!("bytes {from} to {to} are damaged ({why}); the entries there are lost")
            }
            Search::Nothing { .. } => {
                self.is_done = true;
                format!("it is damaged from byte {from} on ({why}); the entries from there on are lost")
            }
            Search::GivenUp(at) => {
                self.is_done = true;
                format!(
                    "it is damaged from byte {from} on ({why}), and no entry was found up to byte {at}; what follows is not used"
                )
            }
        }
    }

    /// Looks for the next header from `from` on.
    fn search(&mut self, from: u64, cancel: &Cancel) -> Result<Search, Stopped> {
        self.gaps += 1;
        let (mut at, mut is_zero) = (from, true);
        while at < self.window.size() {
            cancel.check()?;
            if self.gaps > MAX_GAPS || self.searched > MAX_SEARCHED || self.failed_reads > MAX_FAILED_READS {
                return Ok(Search::GivenUp(at));
            }
            let Ok(bytes) = self.window.bytes(at, BLOCK) else {
                self.failed_reads += 1;
                is_zero = false;
                at = (at / PAGE + 1) * PAGE;
                continue;
            };
            let mut blocks = bytes.chunks_exact(BLOCK);
            let mut searched = 0;
            let mut is_found = false;
            for block in &mut blocks {
                is_found = block.first_chunk().is_some_and(is_header);
                if is_found {
                    break;
                }
                is_zero &= block.iter().all(|&byte| byte == 0);
                searched += BLOCK as u64;
            }
            if is_found {
                return Ok(Search::Found(at + searched));
            }
            if searched == 0 {
                // Less than a block is left.
                break;
            }
            at += searched;
            self.searched += searched;
        }
        Ok(Search::Nothing { is_zero })
    }

    /// Parses the header at the position, with the extended headers before it.
    fn parse(&mut self) -> Parsed {
        let (at, size) = (self.position, self.window.size());
        let mut needed = BLOCK;
        loop {
            let bytes = match self.window.bytes(at, needed) {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.failed_reads += 1;
                    return Parsed::Garbage(error.to_string());
                }
            };
            if bytes.is_empty() {
                return Parsed::Eof;
            }
            let mut parser = Parser::new(Limits {
                max_path_len: Some(MAX_NAME),
                ..Limits::default()
            });
            parser.set_allow_empty_path(true);
            parser.set_ignore_pax_errors(true);
            return match parser.parse(bytes) {
                Ok(ParseEvent::NeedData { min_bytes }) if min_bytes > bytes.len() => {
                    if bytes.len() < needed {
                        return ends_in_header(bytes);
                    }
                    needed = min_bytes;
                    continue;
                }
                Ok(ParseEvent::NeedData { .. }) | Err(_) => Parsed::Garbage("no valid header".to_owned()),
                Ok(ParseEvent::Entry { consumed, entry }) => item(&entry, at + consumed as u64, size),
                Ok(ParseEvent::SparseEntry { consumed, entry, .. }) => sparse(&entry, at + consumed as u64),
                Ok(ParseEvent::GlobalExtensions { consumed, .. }) => Parsed::Item {
                    item: None,
                    next: at + consumed as u64,
                },
                Ok(ParseEvent::End { consumed }) => Parsed::End {
                    next: at + consumed as u64,
                },
            };
        }
    }
}

/// The archive ends in the bytes of a header, or in its end mark.
fn ends_in_header(bytes: &[u8]) -> Parsed {
    match bytes.iter().all(|&byte| byte == 0) {
        true => Parsed::End { next: u64::MAX },
        false => Parsed::Garbage("it ends within a header".to_owned()),
    }
}

fn item(entry: &ParsedEntry<'_>, start: u64, archive_size: u64) -> Parsed {
    let name = entry.path.to_vec();
    let is_symbolic = entry.entry_type.is_symlink();
    if is_symbolic || entry.entry_type.is_hard_link() {
        let target = entry.link_target.as_deref().unwrap_or_default().to_vec();
        let item = TarItem::Link {
            name,
            target,
            is_symbolic,
        };
        return Parsed::Item {
            item: Some(item),
            next: start,
        };
    }
    // As in Go's `archive/tar`, data follows every other kind but these, whatever size their headers have.
    if matches!(
        entry.entry_type,
        EntryType::Directory | EntryType::Char | EntryType::Block | EntryType::Fifo
    ) {
        return Parsed::Item {
            item: None,
            next: start,
        };
    }
    let size = entry.size;
    let next = size
        .checked_next_multiple_of(BLOCK as u64)
        .and_then(|padded| start.checked_add(padded));
    let left = archive_size.saturating_sub(start);
    let item = match entry.entry_type.is_file() || entry.entry_type.is_contiguous() {
        _ if left < size => Some(TarItem::Damage(format!(
            "it ends within `{}`, of which it has {left} of {size} bytes",
            shown(&name)
        ))),
        true => Some(TarItem::File { name, start, size }),
        false => None,
    };
    Parsed::Item {
        item,
        next: next.unwrap_or(u64::MAX),
    }
}

fn sparse(entry: &ParsedEntry<'_>, start: u64) -> Parsed {
    let next = entry
        .size
        .checked_next_multiple_of(BLOCK as u64)
        .and_then(|padded| start.checked_add(padded));
    let why = format!(
        "`{}` is stored as a sparse file, which is not read",
        shown(&entry.path)
    );
    Parsed::Item {
        item: Some(TarItem::Damage(why)),
        next: next.unwrap_or(u64::MAX),
    }
}

/// A name for a message; names may be as long as a page.
fn shown(name: &[u8]) -> String {
    match name.get(..SHOWN) {
        Some(beginning) if name.len() > SHOWN => format!("{}…", beginning.escape_ascii()),
        _ => name.escape_ascii().to_string(),
    }
}

/// Whether the block is a header of a tar that is not older than 1988, with a checksum that matches.
fn is_header(block: &[u8; BLOCK]) -> bool {
    let header = Header::from_bytes(block);
    (header.is_ustar() || header.is_gnu()) && header.verify_checksum().is_ok()
}
