//! Writes the delta of a whole layer in one variant.

use std::io::{self, Write};
use std::iter;

use super::content::Content;
use super::content_writer::ContentWriter;
use super::error::DiffError;
use super::file_diff::{FileDiff, SectionDiff};
use super::made_delta::{MadeDelta, Variant};
use super::plan::{LayerPlan, PlannedFile, Source};
use super::section_pair::{Scratch, SectionPair};
use crate::cancel::Cancel;
use crate::delta::{Format, SourceName};
use crate::oci::Hasher;

/// Writes a delta to an empty output.
pub(super) struct LayerWriter<'a, W: Write> {
    plan: &'a LayerPlan,
    scratch: &'a Scratch<'a>,
    variant: Variant,
    writer: ContentWriter<'a, HashingWriter<W>>,
}

impl<'a, W: Write> LayerWriter<'a, W> {
    pub(super) fn new(
        plan: &'a LayerPlan,
        scratch: &'a Scratch<'a>,
        (variant, level): (Variant, i32),
        output: W,
        cancel: &'a Cancel,
    ) -> Result<Self, DiffError> {
        let output = HashingWriter {
            inner: output,
            hasher: Hasher::default(),
            size: 0,
        };
        Ok(Self {
            plan,
            scratch,
            variant,
            writer: ContentWriter::new(output, (variant.format(), level), plan.new_layer().tar(), cancel)?,
        })
    }

    /// Writes all files and what is between them.
    pub(super) fn write(mut self, diffs: &[FileDiff]) -> Result<MadeDelta, DiffError> {
        let layer = self.plan.new_layer();
        let tar = layer.content(0..layer.tar_size());
        let mut position = 0;
        for (file, diff) in self.plan.files().iter().zip(diffs) {
            self.writer.data(&tar, position..file.offset)?;
            self.file(file, diff)?;
            position = file.offset + file.size;
        }
        self.writer.data(&tar, position..tar.length())?;
        let output = self.writer.finish()?;
        Ok(MadeDelta {
            digest: output.hasher.finish(),
            size: output.size,
        })
    }

    fn file(&mut self, file: &PlannedFile, diff: &FileDiff) -> Result<(), DiffError> {
        let new = self.plan.content_of(file);
        let may_read = |source: &&Source| self.variant == Variant::Further || !source.is_further();
        let Some(source) = file.source.as_ref().filter(may_read) else {
            return self.without_source(&new, diff);
        };
        if source.is_equal {
            let copied = self.writer.delta.copy_from(&source.name, 0, file.size);
            return copied.map_err(DiffError::host("write the delta of", self.plan.new_layer().tar()));
        }
        self.changed(&new, (&source.name, &source.content()), diff)
    }

    /// There is nothing to read, so no operation names the source.
    fn without_source(&mut self, new: &Content<'_>, diff: &FileDiff) -> Result<(), DiffError> {
        let nothing = (&SourceName::file(""), &new.part(0..0));
        match (self.variant.format(), diff.reads_source()) {
            (Format::InflatedTarDiff, false) => self.changed(new, nothing, diff),
            _ => self.writer.data(new, 0..new.length()),
        }
    }

    fn changed(
        &mut self,
        new: &Content<'_>,
        (name, old): (&SourceName, &Content<'_>),
        diff: &FileDiff,
    ) -> Result<(), DiffError> {
        let mut rest = diff.matches.iter().peekable();
        let mut position = 0;
        for section in &diff.sections {
            let stream = section.pair.stream.clone();
            let before = iter::from_fn(|| rest.next_if(|found| found.new < stream.start));
            self.writer
                .write((new, position..stream.start), (name, old), before)?;
            position = stream.end;
            match self.variant.format() {
                Format::TarDiff => {
                    self.writer
                        .write((new, stream), (name, old), section.compressed.iter())?
                }
                Format::InflatedTarDiff => self.section(name, section)?,
            }
        }
        self.writer
            .write((new, position..new.length()), (name, old), rest)
    }

    fn section(&mut self, name: &SourceName, section: &SectionDiff) -> Result<(), DiffError> {
        let SectionPair {
            codec, content, old, ..
        } = &section.pair;
        let new = self.scratch.content(content.clone());
        let deflate = self.writer.delta.deflate(*codec, new.length());
        deflate.map_err(DiffError::host("write the delta of", self.plan.new_layer().tar()))?;
        match old {
            Some(old) => {
                let name = name.clone().inflated(old.stream);
                let old = self.scratch.content(old.content.clone());
                let whole = (&new, 0..new.length());
                self.writer.write(whole, (&name, &old), section.matches.iter())
            }
            None => self.writer.data(&new, 0..new.length()),
        }
    }
}

/// Hashes and counts what it writes.
struct HashingWriter<W> {
    inner: W,
    hasher: Hasher,
    size: u64,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
