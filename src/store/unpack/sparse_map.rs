//! Parses the maps of sparse files in the PAX formats 0.0, 0.1 and 1.0: which fragments of the file are in the tar.
//!
//! containers/storage writes zeros into the holes. It rejects the old GNU format (type `S`).

use super::error::Fault;
use super::pax::{PaxRecords, decimal};

/// A fragment of the file whose bytes are in the tar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Fragment {
    pub(in crate::store) offset: u64,
    pub(in crate::store) length: u64,
}

/// The format of a sparse file, by the location of its map.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store) enum SparseFormat {
    /// Not sparse, or a version that Go treats as a plain file.
    Plain,
    /// In the extended header (0.0 and 0.1).
    InRecords,
    /// Before the data (1.0).
    InData,
}

const BAD: Fault = Fault::Header("malformed PAX sparse map");

impl SparseFormat {
    pub(in crate::store) fn of(records: &PaxRecords) -> Self {
        let version = (
            records.value("GNU.sparse.major"),
            records.value("GNU.sparse.minor"),
        );
        match version {
            (b"0", b"0" | b"1") => Self::InRecords,
            (b"1", b"0") => Self::InData,
            (b"", b"") if !records.value("GNU.sparse.map").is_empty() => Self::InRecords,
            _ => Self::Plain,
        }
    }
}

/// The file's real length, if the records state it.
pub(in crate::store) fn real_size(records: &PaxRecords) -> Result<Option<i64>, Fault> {
    let keys = ["GNU.sparse.size", "GNU.sparse.realsize"];
    match keys
        .map(|key| records.value(key))
        .into_iter()
        .find(|value| !value.is_empty())
    {
        Some(size) => Ok(Some(decimal(size).ok_or(BAD)?)),
        None => Ok(None),
    }
}

/// The map in the extended header.
pub(in crate::store) fn map_in_records(records: &PaxRecords) -> Result<Vec<Fragment>, Fault> {
    let count = decimal(records.value("GNU.sparse.numblocks")).ok_or(BAD)?;
    let map = records.value("GNU.sparse.map");
    let numbers: Vec<&[u8]> = match map {
        b"" => Vec::new(),
        map => map.split(|&byte| byte == b',').collect(),
    };
    if i64::try_from(numbers.len()).ok() != count.checked_mul(2) {
        return Err(BAD);
    }
    fragments(&numbers)
}

/// A map before the data: decimal lines, the first with the number of fragments, padded to whole blocks.
#[derive(Default)]
pub(in crate::store) struct MapInData {
    data: Vec<u8>,
    lines: usize,
    /// Number of lines; known after the first line.
    wanted: Option<usize>,
}

impl MapInData {
    /// Adds the next block; true when the map is complete.
    pub(in crate::store) fn push(&mut self, block: &[u8]) -> Result<bool, Fault> {
        self.data.extend_from_slice(block);
        self.lines += block.iter().filter(|&&byte| byte == b'\n').count();
        if self.wanted.is_none() && self.lines > 0 {
            let first = self.data.split(|&byte| byte == b'\n').next().and_then(decimal);
            let count = first.and_then(|count| usize::try_from(count).ok()).ok_or(BAD)?;
            let wanted = count.checked_mul(2).and_then(|lines| lines.checked_add(1));
            self.wanted = Some(wanted.ok_or(BAD)?);
        }
        Ok(self.wanted.is_some_and(|wanted| self.lines >= wanted))
    }

    /// Bytes added.
    pub(in crate::store) fn len(&self) -> usize {
        self.data.len()
    }

    /// The fragments of a complete map.
    pub(in crate::store) fn finish(self) -> Result<Vec<Fragment>, Fault> {
        let wanted = self.wanted.ok_or(BAD)?;
        let lines = self.data.split(|&byte| byte == b'\n');
        fragments(&lines.take(wanted).skip(1).collect::<Vec<_>>())
    }
}

fn fragments(numbers: &[&[u8]]) -> Result<Vec<Fragment>, Fault> {
    let number = |text: &[u8]| {
        decimal(text)
            .and_then(|number| u64::try_from(number).ok())
            .ok_or(BAD)
    };
    let fragment = |pair: &[&[u8]]| {
        let (offset, length) = (number(pair[0])?, number(pair[1])?);
        Ok(Fragment { offset, length })
    };
    numbers.chunks_exact(2).map(fragment).collect()
}

/// Checks that fragments are sorted, do not overlap, are within the file, and together have the length of the data in
/// the tar. Empty ones are dropped.
pub(in crate::store) fn check(
    mut map: Vec<Fragment>,
    size: u64,
    stored: u64,
) -> Result<Vec<Fragment>, Fault> {
    let (mut end, mut length) = (0, 0);
    for fragment in &map {
        if fragment.offset < end {
            return Err(BAD);
        }
        end = fragment.offset.checked_add(fragment.length).ok_or(BAD)?;
        length += fragment.length;
        if end > size {
            return Err(BAD);
        }
    }
    if length != stored {
        return Err(Fault::Header("the sparse map does not match the data"));
    }
    map.retain(|fragment| fragment.length > 0);
    Ok(map)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_map_before_the_data_is_read_when_it_is_complete() {
        let mut map = MapInData::default();
        assert!(!map.push(b"2\n0\n5\n1").unwrap());
        assert!(map.push(b"0\n3\n\0\0\0").unwrap());
        let map = map.finish().unwrap();
        assert_eq!(map.len(), 2);
        assert_eq!((map[1].offset, map[1].length), (10, 3));
        assert!(MapInData::default().push(b"0\n").unwrap());
        assert!(MapInData::default().push(b"-1\n").is_err());
        assert!(!MapInData::default().push(b"9223372036854775807\n").unwrap());
        let mut map = MapInData::default();
        assert!(map.push(b"1\nx\n0\n").unwrap());
        assert!(map.finish().is_err());
    }

    #[test]
    fn fragments_are_in_order_and_add_up() {
        let map = |pairs: &[(u64, u64)]| {
            let fragment = |&(offset, length)| Fragment { offset, length };
            pairs.iter().map(fragment).collect::<Vec<_>>()
        };
        assert_eq!(check(map(&[(0, 5), (7, 0), (10, 3)]), 13, 8).unwrap().len(), 2);
        assert!(check(map(&[(0, 5), (4, 3)]), 13, 8).is_err());
        assert!(check(map(&[(0, 5), (10, 3)]), 12, 8).is_err());
        assert!(check(map(&[(0, 5)]), 13, 6).is_err());
        assert!(check(map(&[(u64::MAX, 2)]), u64::MAX, 2).is_err());
    }
}
