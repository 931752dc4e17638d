//! One medium: its files, how blobs are named in it, and what is wrong with it.

use std::fmt::Display;
use std::io;
use std::time::Instant;

use bytes::Bytes;

use super::answers::{Answers, SILENCE};
use super::fault::{Faults, MediumFault};
use super::layout::Layout;
use super::reading_lock::ReadingLock;
use super::tree::{Opened, Place, Tree};
use crate::oci::{Content, DiffId, Digest};

/// An opened medium.
#[derive(Debug)]
pub(super) struct Medium {
    name: String,
    tree: Tree,
    layouts: Vec<Layout>,
    faults: Faults,
    answers: Answers,
    lock: ReadingLock,
}

impl Medium {
    pub(super) fn new(name: String, tree: Tree, layouts: Vec<Layout>) -> Self {
        Self {
            name,
            tree,
            layouts,
            faults: Faults::default(),
            answers: Answers::default(),
            lock: ReadingLock::default(),
        }
    }

    /// The path as given.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn lock(&self) -> &ReadingLock {
        &self.lock
    }

    /// The file that claims to have this content. One with a fault is not found again.
    pub(super) fn blob(&self, digest: &Digest) -> Option<Place> {
        let paths = self.layouts.iter().flat_map(|layout| layout.blob_paths(digest));
        self.first_of(digest, paths)
    }

    /// The file that claims to be the layer's uncompressed tar. A layer that is stored uncompressed is a blob whose digest is
    /// the diffID.
    pub(super) fn layer_tar(&self, diff_id: DiffId) -> Option<Place> {
        let named = self
            .layouts
            .iter()
            .filter_map(|layout| layout.layer_path(diff_id));
        let tar = self.first_of(&diff_id.0, named.map(str::to_owned));
        tar.or_else(|| self.blob(&diff_id.0))
    }

    fn first_of(&self, digest: &Digest, mut paths: impl Iterator<Item = String>) -> Option<Place> {
        if self.faults.distrusts(digest) || self.faults.gave_up() {
            return None;
        }
        paths.find_map(|path| match self.answers.during(|| self.tree.find(&path)) {
            Ok(place) => place,
            Err(error) => {
                self.faults.read_failed(&error);
                self.faults
                    .distrust(*digest, format!("cannot read `{path}`: {error}"));
                None
            }
        })
    }

    /// The manifest or config with this digest, which is verified.
    pub(super) fn content(&self, digest: &Digest, limit: u64) -> Option<Content> {
        let place = self.blob(digest)?;
        match self.answers.during(|| self.tree.bytes(&place, limit)) {
            Ok(bytes) => {
                self.faults.read_worked();
                let content = Content::new(bytes.into());
                if content.digest() == *digest {
                    return Some(content);
                }
                self.distrust(
                    *digest,
                    format!("the bytes there have the digest {}", content.digest()),
                );
            }
            Err(error) => {
                self.faults.read_failed(&error);
                self.distrust(*digest, error);
            }
        }
        None
    }

    /// The digest that this tag of the repository `host/path` names here.
    pub(super) fn tagged(&self, repository: &str, tag: &str) -> Option<Digest> {
        self.layouts.iter().find_map(|layout| {
            let found = |tree: &Tree| layout.tagged(tree, repository, tag);
            self.without_error(&format!("tag `{repository}:{tag}`"), found)
        })
    }

    /// The bytes of the small file at this path, if there is one.
    pub(super) fn small_file(&self, path: &str, limit: u64) -> Option<Bytes> {
        let bytes = self.without_error(&format!("`{path}`"), |tree| tree.read(path, limit));
        bytes.map(Bytes::from)
    }

    /// The names of the files in a directory; empty if there is none.
    pub(super) fn files(&self, directory: &str) -> Vec<String> {
        self.without_error(&format!("`{directory}`"), |tree| tree.files(directory))
    }

    /// What `read` returns; nothing if it fails, which is a fault.
    fn without_error<T: Default>(&self, what: &str, read: impl FnOnce(&Tree) -> io::Result<T>) -> T {
        if self.faults.gave_up() {
            return T::default();
        }
        let result = self.answers.during(|| read(&self.tree));
        result.unwrap_or_else(|error| {
            self.faults.read_failed(&error);
            self.faults.add(format!("cannot read {what}: {error}"));
            T::default()
        })
    }

    pub(super) fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    pub(super) fn open(&self, place: &Place) -> io::Result<Opened> {
        if self.faults.gave_up() {
            return Err(io::Error::other("the medium is not asked again"));
        }
        let opened = self.answers.during(|| self.tree.open(place));
        opened.inspect_err(|error| self.faults.read_failed(error))
    }

    /// Reads from an open blob, and counts how that ends.
    pub(super) fn read(&self, read: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        let read = self.answers.during(read);
        match &read {
            Ok(_) => self.faults.read_worked(),
            Err(error) => self.faults.read_failed(error),
        }
        read
    }

    /// Gives the medium up if it is silent `now`. Returns whether it is.
    pub(super) fn give_up_if_silent(&self, now: Instant) -> bool {
        let is_silent = self.answers.are_missing(now);
        if is_silent {
            let minutes = SILENCE.as_secs() / 60;
            let why = format!("it has not answered for {minutes} minutes; it is not asked again");
            self.faults.give_up(why);
        }
        is_silent
    }

    pub(super) fn distrust(&self, digest: Digest, why: impl Display) {
        self.faults.distrust(digest, why.to_string());
    }

    pub(super) fn take_faults(&self) -> Vec<MediumFault> {
        self.faults.take(&self.name)
    }
}
