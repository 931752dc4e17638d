//! Determines what the paths of an image are, from the tars of its layers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use super::error::ExportError;
use super::output::BlobReader;
use crate::cancel::Cancel;
use crate::oci::Digest;
use crate::store::unpack::{ListedEntry, ListedKind, UnpackLimits, list};

/// How often the paths are extended by the targets of symlinks. Real catalogs have none.
const MAX_ROUNDS: usize = 8;

/// The most targets of symlinks that are read in addition; each entry is compared with each.
const MAX_TARGETS: usize = 100;

/// The most paths: ten times those of the largest catalog.
const MAX_NODES: usize = 1 << 20;

/// A layer's blob.
#[derive(Clone)]
pub(super) struct LayerBlob {
    pub(super) digest: Digest,
    pub(super) reader: BlobReader,
}

/// What a path is in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Directory,
    /// A file: the index of its layer, and where its content is in the layer's tar.
    File(usize, Range<u64>),
    Symlink(Vec<u8>),
    Other,
}

/// Some paths of an image.
#[derive(Default)]
pub(super) struct ImageNodes {
    /// With the index of the layer that each is from.
    nodes: BTreeMap<Vec<u8>, (usize, Node)>,
    /// What is read, and everything below it.
    wanted: BTreeSet<Vec<u8>>,
}

impl ImageNodes {
    /// Reads what is at or below `paths`, with or without a leading slash, and the targets of symlinks there.
    pub(super) fn read(layers: &[LayerBlob], paths: &[&str], cancel: &Cancel) -> Result<Self, ExportError> {
        let mut wanted: BTreeSet<Vec<u8>> = paths.iter().map(|path| resolved(b"", path.as_bytes())).collect();
        for round in 0.. {
            let mut nodes = Self {
                wanted,
                ..Self::default()
            };
            for (index, layer) in layers.iter().enumerate() {
                nodes.add_layer(index, layer, cancel)?;
            }
            let further = nodes.targets_elsewhere();
            if further.is_empty() || round == MAX_ROUNDS || further.len() > MAX_TARGETS {
                return Ok(nodes);
            }
            wanted = nodes.wanted;
            wanted.extend(further);
        }
        unreachable!("the last round returns")
    }

    /// The paths in their order, directories before what is in them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &Node)> {
        self.nodes.iter().map(|(path, (_, node))| (path.as_slice(), node))
    }

    /// The bytes of all files together.
    pub(super) fn bytes(&self) -> u64 {
        let sizes = self.iter().map(|(_, node)| match node {
            Node::File(_, content) => content.end - content.start,
            _ => 0,
        });
        sizes.fold(0, u64::saturating_add)
    }

    fn add_layer(&mut self, index: usize, layer: &LayerBlob, cancel: &Cancel) -> Result<(), ExportError> {
        let mut files = HashMap::new();
        let limits = UnpackLimits::for_blob(layer.reader.size());
        let listed = list(layer.reader.clone(), limits, cancel, |entry| {
            if self.nodes.len() <= MAX_NODES {
                self.add(index, entry, &mut files);
            }
        });
        let blob = layer.digest;
        listed.map_err(|source| ExportError::Layer { blob, source })?;
        match self.nodes.len() > MAX_NODES {
            true => Err(ExportError::TooManyFiles {
                blob,
                limit: MAX_NODES,
            }),
            false => Ok(()),
        }
    }

    /// Applies an entry of a layer; `files` are the files of the same layer, for hard links.
    fn add(&mut self, index: usize, entry: ListedEntry, files: &mut HashMap<Vec<u8>, Node>) {
        let ListedEntry { path, kind } = entry;
        let node = match kind {
            ListedKind::Whiteout => {
                self.remove_below(&path, index);
                self.nodes
                    .extract_if(path.clone()..=path, |_, (of, _)| *of < index)
                    .for_each(drop);
                return;
            }
            ListedKind::Opaque => return self.remove_below(&path, index),
            ListedKind::Directory => Node::Directory,
            ListedKind::File { offset, size } => {
                let node = Node::File(index, offset..offset.saturating_add(size));
                files.insert(path.clone(), node.clone());
                node
            }
            ListedKind::HardLink(target) => {
                let known = self.nodes.get(&target).map(|(_, node)| node);
                files.get(&target).or(known).cloned().unwrap_or(Node::Other)
            }
            ListedKind::Symlink(target) => Node::Symlink(target),
            ListedKind::Other => Node::Other,
        };
        if !self.is_wanted(&path) || !is_clean(&path) {
            return;
        }
        for ancestor in ancestors(&path) {
            // A directory of this layer replaces what a layer below has there.
            if let Some((of, known)) = self.nodes.get(ancestor)
                && *of < index
                && *known != Node::Directory
            {
                self.nodes.remove(ancestor);
            }
        }
        if node != Node::Directory {
            self.remove_below(&path, usize::MAX);
        }
        self.nodes.insert(path, (index, node));
    }

    /// Removes what the layers below `index` have below a path.
    fn remove_below(&mut self, path: &[u8], index: usize) {
        if path.is_empty() {
            return self.nodes.retain(|_, (of, _)| *of >= index);
        }
        // `0` is the character after `/`.
        let below = [path, b"/"].concat()..[path, b"0"].concat();
        let removed = self.nodes.extract_if(below, |_, (of, _)| *of < index);
        removed.for_each(drop);
    }

    /// Whether a path is wanted, or leads to one that is.
    fn is_wanted(&self, path: &[u8]) -> bool {
        let mut wanted = self.wanted.iter();
        wanted.any(|wanted| is_within(path, wanted) || is_within(wanted, path))
    }

    /// The targets of symlinks that were not read.
    fn targets_elsewhere(&self) -> BTreeSet<Vec<u8>> {
        let mut further = BTreeSet::new();
        for (path, node) in self.iter() {
            let Node::Symlink(target) = node else {
                continue;
            };
            let target = resolved(path, target);
            for wanted in &self.wanted {
                // A link on the way to what is wanted leads the rest of the way elsewhere, too.
                let rest = match wanted.strip_prefix(path) {
                    Some(rest) if is_within(wanted, path) => rest,
                    _ if is_within(path, wanted) => b"",
                    _ => continue,
                };
                further.insert([&target[..], rest].concat());
            }
        }
        further.retain(|path| !self.wanted.iter().any(|wanted| is_within(path, wanted)));
        further
    }
}

/// Whether `path` is `directory` or below it.
fn is_within(path: &[u8], directory: &[u8]) -> bool {
    let rest = path.strip_prefix(directory);
    directory.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// The directories that lead to a path, without the root.
fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    slashes.map(|(at, _)| &path[..at])
}

/// Whether every component is a name.
fn is_clean(path: &[u8]) -> bool {
    let mut components = path.split(|&byte| byte == b'/');
    components.all(|name| !matches!(name, b"" | b"." | b"..") && !name.contains(&0))
}

/// The path that a symlink at `path` leads to.
fn resolved(path: &[u8], target: &[u8]) -> Vec<u8> {
    let mut components: Vec<&[u8]> = path.split(|&byte| byte == b'/').collect();
    components.pop();
    if target.starts_with(b"/") {
        components.clear();
    }
    for name in target.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(components.pop()),
            name => components.push(name),
        }
    }
    components.join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(wanted: &[&str], layers: &[&[(&str, ListedKind)]]) -> ImageNodes {
        let mut nodes = ImageNodes {
            wanted: wanted.iter().map(|path| path.as_bytes().to_vec()).collect(),
            ..ImageNodes::default()
        };
        for (index, layer) in layers.iter().enumerate() {
            let mut files = HashMap::new();
            for (path, kind) in *layer {
                let (path, kind) = (path.as_bytes().to_vec(), kind.clone());
                nodes.add(index, ListedEntry { path, kind }, &mut files);
            }
        }
        nodes
    }

    fn shown(nodes: &ImageNodes) -> Vec<String> {
        let shown = nodes.iter().map(|(path, node)| {
            let path = String::from_utf8_lossy(path);
            match node {
                Node::Directory => format!("{path}/"),
                Node::File(layer, content) => format!("{path} {layer}:{}", content.start),
                Node::Symlink(target) => format!("{path} -> {}", String::from_utf8_lossy(target)),
                Node::Other => format!("{path} ?"),
            }
        });
        shown.collect()
    }

    fn file(offset: u64) -> ListedKind {
        ListedKind::File { offset, size: 1 }
    }

    #[test]
    fn layers_replace_hide_and_link_what_is_below() {
        let lower = [
            ("configs", ListedKind::Directory),
            ("configs/a", file(1)),
            ("configs/b/c", file(2)),
            ("configs/d/e", file(3)),
            ("configs/f", file(4)),
            ("other", file(5)),
        ];
        let upper = [
            ("configs/a", ListedKind::Whiteout),
            ("configs/b", ListedKind::Opaque),
            ("configs/b/new", file(6)),
            ("configs/d", ListedKind::Symlink(b"/elsewhere".to_vec())),
            ("configs/f/g", file(7)),
            ("usr/h", file(8)),
            ("configs/h", ListedKind::HardLink(b"usr/h".to_vec())),
            ("configs/../../x", file(9)),
        ];
        assert_eq!(
            shown(&nodes(&["configs"], &[&lower, &upper])),
            [
                "configs/",
                "configs/b/new 1:6",
                "configs/d -> /elsewhere",
                "configs/f/g 1:7",
                "configs/h 1:8",
            ]
        );
    }

    #[test]
    fn the_targets_of_symlinks_are_read_too() {
        let link = |target: &str| ListedKind::Symlink(target.into());
        let layer = [
            ("configs", link("opt/catalog")),
            ("opt/catalog/x", link("../shared/./x")),
        ];
        let found = nodes(&["configs/pkg"], &[&layer]);
        assert_eq!(
            found.targets_elsewhere(),
            BTreeSet::from([b"opt/catalog/pkg".to_vec()])
        );
        let found = nodes(&["configs", "opt/catalog"], &[&layer]);
        assert_eq!(
            found.targets_elsewhere(),
            BTreeSet::from([b"opt/shared/x".to_vec()])
        );
        let found = nodes(&["configs", "opt/catalog", "opt/shared/x"], &[&layer]);
        assert_eq!(found.targets_elsewhere(), BTreeSet::new());
    }
}
