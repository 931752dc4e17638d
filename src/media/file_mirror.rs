//! Finds the repositories of a directory that `oc image mirror --dir` or `oc adm release mirror --to-dir` wrote.
//!
//! Each repository has blobs of its own, so a blob is looked for in each of them.

use std::io;

use super::tag::names_digest;
use super::tree::Tree;
use crate::oci::{Digest, MAX_MANIFEST_SIZE};

const TOP: &str = "v2";

/// How many repositories are used; a release with its operators has a few hundred.
const MAX_REPOSITORIES: usize = 2000;

/// How many directories are read to find them.
const MAX_DIRECTORIES: usize = 10_000;

/// The repositories of such a directory, without `v2/`.
#[derive(Debug)]
pub(super) struct FileMirror(Vec<String>);

impl FileMirror {
    /// The repositories below `v2`; none if there is none.
    pub(super) fn find(tree: &Tree, warnings: &mut Vec<String>) -> io::Result<Option<Self>> {
        let mut repositories = Vec::new();
        let mut directories = vec![TOP.to_owned()];
        let mut read = 0;
        while let Some(directory) = directories.pop() {
            if read == MAX_DIRECTORIES || repositories.len() == MAX_REPOSITORIES {
                warnings.push(format!(
                    "`{TOP}` has very many repositories; only {} are used",
                    repositories.len()
                ));
                break;
            }
            read += 1;
            let children = tree.directories(&directory)?;
            for child in children {
                match child.as_str() {
                    "blobs" => repositories.extend(directory.get(TOP.len() + 1..).map(str::to_owned)),
                    "manifests" => {}
                    child => directories.push(format!("{directory}/{child}")),
                }
            }
        }
        repositories.sort_unstable();
        Ok((!repositories.is_empty()).then_some(Self(repositories)))
    }

    /// Every path that may have the blob or manifest. A manifest is stored as a blob too.
    pub(super) fn blob_paths(&self, digest: &Digest) -> Vec<String> {
        let path = |repository| format!("{TOP}/{repository}/blobs/{digest}");
        self.0.iter().map(path).collect()
    }

    /// The digest of a tag in the first of these repositories that has it, or in any if the tag names a digest.
    pub(super) fn tagged(&self, tree: &Tree, repositories: &[&str], tag: &str) -> io::Result<Option<Digest>> {
        let is_digest = names_digest(tag);
        for repository in &self.0 {
            if is_digest || repositories.contains(&repository.as_str()) {
                let manifest =
                    tree.read(&format!("{TOP}/{repository}/manifests/{tag}"), MAX_MANIFEST_SIZE)?;
                if let Some(manifest) = manifest {
                    return Ok(Some(Digest::of(&manifest)));
                }
            }
        }
        Ok(None)
    }
}
