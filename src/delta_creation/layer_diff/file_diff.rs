//! Compares every changed file of a layer with its source, in parallel.
//!
//! ```text
//! prepare    the debug sections that can be made again, with their contents in a scratch file
//! compare    what is outside of them, as one text; each section's content; each job on its own
//! ```

use std::ops::Range;

use super::comparison::{self, compare, compare_ends};
use super::content::Content;
use super::content_writer::encoded_size;
use super::error::DiffError;
use super::match_list::MatchList;
use super::plan::{LayerPlan, PlannedFile, Source};
use super::section_pair::{self, OldSection, Scratch, SectionPair};
use super::shared_blocks::has_shared_blocks;
use super::{DiffParams, workers};
use crate::cancel::Cancel;

/// How a file is made from its source.
#[derive(Debug, Default)]
pub(super) struct FileDiff {
    /// Matches outside of the sections, by positions in the files.
    pub(super) matches: MatchList,
    pub(super) sections: Vec<SectionDiff>,
}

/// How a debug section is made from the old one.
#[derive(Debug)]
pub(super) struct SectionDiff {
    pub(super) pair: SectionPair,
    /// Matches of the contents.
    pub(super) matches: MatchList,
    /// Matches of the zlib streams, by positions in the files, for the format that does not inflate.
    pub(super) compressed: MatchList,
}

impl FileDiff {
    /// Whether any operation reads the source.
    pub(super) fn reads_source(&self) -> bool {
        let matched = |section: &SectionDiff| !section.matches.is_empty() || !section.compressed.is_empty();
        !self.matches.is_empty() || self.sections.iter().any(matched)
    }
}

/// The first bytes of an ELF file.
const ELF_MAGIC: &[u8] = b"\x7fELF";

/// Content of which this share remains after compression is compressed already.
const INCOMPRESSIBLE_PERCENT: u64 = 97;

/// What one thread compares.
enum Job {
    /// What is outside of the sections of the file with this index.
    Rest(usize),
    /// A section of a file.
    Section(usize, usize),
}

/// The differences of all files of `plan`, in their order.
pub(super) fn diff_files(
    plan: &LayerPlan,
    scratch: &Scratch<'_>,
    params: DiffParams,
    cancel: &Cancel,
) -> Result<Vec<FileDiff>, DiffError> {
    let (files, limits) = (plan.files(), (params.threads, params.memory));
    let sections = workers::run(files, limits, PlannedFile::examination_memory, |file| {
        if file.examination_memory() > params.memory {
            return Ok(Vec::new());
        }
        prepare(plan, file, scratch, cancel)
    })?;
    let layer = Layer {
        plan,
        scratch,
        sections: &sections,
        memory: params.memory,
        cancel,
    };
    let jobs: Vec<Job> = (0..files.len()).flat_map(|index| layer.jobs(index)).collect();
    let results = workers::run(&jobs, limits, |job| layer.cost(job), |job| layer.compare(job))?;
    let mut diffs: Vec<FileDiff> = files.iter().map(|_| FileDiff::default()).collect();
    let mut pairs: Vec<_> = sections.into_iter().map(Vec::into_iter).collect();
    for (job, Compared { matches, compressed }) in jobs.into_iter().zip(results) {
        match job {
            Job::Rest(file) => diffs[file].matches = matches,
            Job::Section(file, _) => {
                diffs[file]
                    .sections
                    .extend(pairs[file].next().map(|pair| SectionDiff {
                        pair,
                        matches,
                        compressed,
                    }))
            }
        }
    }
    Ok(diffs)
}

/// Finds the sections of a changed or new ELF file.
fn prepare(
    plan: &LayerPlan,
    file: &PlannedFile,
    scratch: &Scratch<'_>,
    cancel: &Cancel,
) -> Result<Vec<SectionPair>, DiffError> {
    cancel.check()?;
    if file.examination_memory() == 0 {
        return Ok(Vec::new());
    }
    let new = plan.content_of(file);
    if new.read_range(0..ELF_MAGIC.len() as u64)? != ELF_MAGIC {
        return Ok(Vec::new());
    }
    let new = new.read_range(0..new.length())?;
    let old = match &file.source {
        Some(source) => source.content().read_range(0..source.size)?,
        None => Vec::new(),
    };
    section_pair::find(&new, &old, scratch, cancel)
}

/// The result of a job.
#[derive(Default)]
struct Compared {
    matches: MatchList,
    compressed: MatchList,
}

/// Everything that the jobs of a layer share.
struct Layer<'a> {
    plan: &'a LayerPlan,
    scratch: &'a Scratch<'a>,
    /// The sections of each file.
    sections: &'a [Vec<SectionPair>],
    memory: u64,
    cancel: &'a Cancel,
}

impl Layer<'_> {
    fn jobs(&self, index: usize) -> impl Iterator<Item = Job> + use<> {
        let is_changed = self.plan.files()[index]
            .source
            .as_ref()
            .is_some_and(|source| !source.is_equal);
        let sections = 0..self.sections[index].len();
        let rest = is_changed.then_some(Job::Rest(index));
        rest.into_iter()
            .chain(sections.map(move |section| Job::Section(index, section)))
    }

    fn cost(&self, job: &Job) -> u64 {
        let needed = match *job {
            Job::Rest(file) => self.plan.files()[file].comparison_memory(),
            Job::Section(file, section) => {
                let length = |range: &Range<u64>| range.end - range.start;
                let pair = &self.sections[file][section];
                let old = pair.old.as_ref().map_or(0, |old| length(&old.content));
                comparison::memory_needed(old, length(&pair.content))
            }
        };
        needed.min(self.memory)
    }

    fn compare(&self, job: &Job) -> Result<Compared, DiffError> {
        match *job {
            Job::Rest(index) => match &self.plan.files()[index].source {
                Some(source) => self.compare_rest(index, source),
                None => Ok(Compared::default()),
            },
            Job::Section(index, section) => {
                let pair = &self.sections[index][section];
                match (&pair.old, &self.plan.files()[index].source) {
                    (Some(old), Some(source)) => self.compare_section(index, pair, old, source),
                    _ => Ok(Compared::default()),
                }
            }
        }
    }

    fn compare_rest(&self, index: usize, source: &Source) -> Result<Compared, DiffError> {
        let file = &self.plan.files()[index];
        let sections = &self.sections[index];
        let new = self
            .plan
            .content_of(file)
            .without(sections.iter().map(|pair| pair.stream.clone()));
        let old_streams = sections.iter().filter_map(|pair| Some(pair.old.as_ref()?.stream));
        let mut old_streams: Vec<_> = old_streams.map(|at| at.offset..at.offset + at.length).collect();
        old_streams.sort_by_key(|range| range.start);
        let old = source.content().without(old_streams);
        let found = self.worthwhile(&old, &new)?;
        let matches = Content::in_files(&found, (&old, source.offset), (&new, file.offset));
        let compressed = MatchList::default();
        Ok(Compared { matches, compressed })
    }

    fn compare_section(
        &self,
        index: usize,
        pair: &SectionPair,
        old: &OldSection,
        source: &Source,
    ) -> Result<Compared, DiffError> {
        let content = |range: &Range<u64>| self.scratch.content(range.clone());
        let matches = self.worthwhile(&content(&old.content), &content(&pair.content))?;
        let file = &self.plan.files()[index];
        let new_stream = self.plan.content_of(file).part(pair.stream.clone());
        let old_stream = source
            .content()
            .part(old.stream.offset..old.stream.offset + old.stream.length);
        let found = compare_ends(&old_stream, &new_stream, self.cancel)?;
        let compressed = Content::in_files(&found, (&old_stream, source.offset), (&new_stream, file.offset));
        Ok(Compared { matches, compressed })
    }

    /// The matches, if with them the new content takes fewer bytes than without.
    fn worthwhile(&self, old: &Content<'_>, new: &Content<'_>) -> Result<MatchList, DiffError> {
        let as_data = encoded_size(new, old, &MatchList::default(), self.cancel)?;
        let is_compressed = as_data > new.length() / 100 * INCOMPRESSIBLE_PERCENT;
        let matches = if is_compressed && !has_shared_blocks(old, new, self.cancel)? {
            compare_ends(old, new, self.cancel)?
        } else {
            compare(old, new, self.memory, self.cancel)?
        };
        let with_matches = encoded_size(new, old, &matches, self.cancel)?;
        Ok(if with_matches < as_data {
            matches
        } else {
            MatchList::default()
        })
    }
}
