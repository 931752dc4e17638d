//! Writes new content as operations that make it from old content.

use std::io::{self, Write};
use std::iter;
use std::ops::Range;
use std::path::Path;

use super::content::{CHUNK, Content};
use super::error::DiffError;
use super::match_list::{Match, MatchList};
use crate::cancel::Cancel;
use crate::delta::{DeltaWriter, Format, SourceName};

/// At least this many equal bytes are copied, although that ends the addition around them: shorter runs of zeros take fewer
/// bytes than three operations.
const MIN_COPY: usize = 64;

/// The level of zstd for estimates.
const ESTIMATE_LEVEL: i32 = 3;

/// A delta that is written from contents.
pub(super) struct ContentWriter<'a, W: Write> {
    pub(super) delta: DeltaWriter<W>,
    /// What it is for, for messages.
    path: &'a Path,
    cancel: &'a Cancel,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl<'a, W: Write> ContentWriter<'a, W> {
    pub(super) fn new(
        output: W,
        (format, level): (Format, i32),
        path: &'a Path,
        cancel: &'a Cancel,
    ) -> Result<Self, DiffError> {
        let delta = DeltaWriter::new(output, format, level);
        Ok(Self {
            delta: delta.map_err(DiffError::host("write the delta of", path))?,
            path,
            cancel,
            old: Vec::new(),
            new: Vec::new(),
        })
    }

    /// The output continues with a range of `new`. The matches are in this range, and their source is `old`.
    pub(super) fn write(
        &mut self,
        (new, range): (&Content<'_>, Range<u64>),
        (source, old): (&SourceName, &Content<'_>),
        matches: impl Iterator<Item = Match>,
    ) -> Result<(), DiffError> {
        let mut position = range.start;
        for found in matches {
            self.data(new, position..found.new)?;
            self.matched(new, (source, old), found)?;
            position = found.new + found.length;
        }
        self.data(new, position..range.end)
    }

    /// The output continues with a range of `new`, as data.
    pub(super) fn data(&mut self, new: &Content<'_>, range: Range<u64>) -> Result<(), DiffError> {
        let Self {
            delta, path, cancel, ..
        } = self;
        new.chunks(range, |chunk| {
            cancel.check()?;
            delta
                .data(chunk)
                .map_err(DiffError::host("write the delta of", path))
        })
    }

    fn matched(
        &mut self,
        new: &Content<'_>,
        (source, old): (&SourceName, &Content<'_>),
        mut found: Match,
    ) -> Result<(), DiffError> {
        while found.length > 0 {
            self.cancel.check()?;
            let length = usize::try_from(found.length).map_or(CHUNK, |length| length.min(CHUNK));
            self.old.resize(length, 0);
            self.new.resize(length, 0);
            old.read(found.old, &mut self.old)?;
            new.read(found.new, &mut self.new)?;
            for (new, old) in self.new.iter_mut().zip(&self.old) {
                *new = new.wrapping_sub(*old);
            }
            for run in runs(&self.new) {
                let (is_copy, range) = run;
                let offset = found.old + range.start as u64;
                let written = if is_copy {
                    self.delta.copy_from(source, offset, range.len() as u64)
                } else {
                    self.delta.add_from(source, offset, &self.new[range])
                };
                written.map_err(DiffError::host("write the delta of", self.path))?;
            }
            let length = length as u64;
            found = Match {
                old: found.old + length,
                new: found.new + length,
                length: found.length - length,
            };
        }
        Ok(())
    }

    /// Completes the delta.
    pub(super) fn finish(self) -> Result<W, DiffError> {
        self.delta
            .finish()
            .map_err(DiffError::host("write the delta of", self.path))
    }
}

/// Divides differences into ranges that are copied (true) and ranges that are added.
fn runs(differences: &[u8]) -> impl Iterator<Item = (bool, Range<usize>)> {
    let mut position = 0;
    let mut copy: Option<Range<usize>> = None;
    iter::from_fn(move || {
        if let Some(copy) = copy.take() {
            return Some((true, copy));
        }
        let start = position;
        let mut zeros = start;
        while position < differences.len() {
            if differences[position] != 0 {
                if position - zeros >= MIN_COPY {
                    break;
                }
                zeros = position + 1;
            }
            position += 1;
        }
        // A whole range of zeros is copied, however short.
        let is_copy = position - zeros >= MIN_COPY || zeros == start;
        let add = start..if is_copy { zeros } else { position };
        if is_copy && position > zeros {
            copy = Some(zeros..position);
        }
        match add.is_empty() {
            true => copy.take().map(|copy| (true, copy)),
            false => Some((false, add)),
        }
    })
}

/// The size of a delta of `new`, compressed quickly.
pub(super) fn encoded_size(
    new: &Content<'_>,
    old: &Content<'_>,
    matches: &MatchList,
    cancel: &Cancel,
) -> Result<u64, DiffError> {
    let mut writer = ContentWriter::new(Counter(0), (Format::TarDiff, ESTIMATE_LEVEL), new.path(), cancel)?;
    let source = SourceName::file("estimate");
    writer.write((new, 0..new.length()), (&source, old), matches.iter())?;
    Ok(writer.finish()?.0)
}

struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_equal_ranges_are_copied_and_short_ones_added() {
        let zeros = |count| vec![0; count];
        let cases = [
            (zeros(3), vec![(true, 0..3)]),
            (vec![1, 0, 2], vec![(false, 0..3)]),
            (
                [vec![1], zeros(MIN_COPY), vec![2]].concat(),
                vec![
                    (false, 0..1),
                    (true, 1..1 + MIN_COPY),
                    (false, 1 + MIN_COPY..2 + MIN_COPY),
                ],
            ),
            (
                [zeros(MIN_COPY - 1), vec![2], zeros(9)].concat(),
                vec![(false, 0..MIN_COPY + 9)],
            ),
            (
                [zeros(MIN_COPY), vec![2], zeros(MIN_COPY)].concat(),
                vec![
                    (true, 0..MIN_COPY),
                    (false, MIN_COPY..MIN_COPY + 1),
                    (true, MIN_COPY + 1..2 * MIN_COPY + 1),
                ],
            ),
            (vec![], vec![]),
        ];
        for (differences, expected) in cases {
            assert_eq!(
                runs(&differences).collect::<Vec<_>>(),
                expected,
                "{differences:?}"
            );
        }
    }
}
