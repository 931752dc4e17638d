//! Pulls images from local media that other programs wrote, and compares the stores with podman's pull of the same images.
//!
//! [`Source`] has the images in a registry and makes media of them in every [`kind`]. A run gets the media with
//! `--blobs-from`; the registry's log shows what it asked for all the same.

mod faults;
mod kind;
mod kinds;
mod no_requests;
mod oc_mirror;
mod partial;
mod unplugged;

use std::path::{Path, PathBuf};

use crate::compare::{compare_part, inconsistencies};
use crate::image::Images;
use crate::registry::Registry;
use crate::registry::log::Access;
use crate::test_node::{Run, TestNode};

pub(crate) use kind::Kind;

/// Images in a registry, a node whose tools copy them to media, and the node where podman pulled them.
pub(crate) struct Source {
    pub(crate) registry: Registry,
    pub(crate) images: Images,
    /// The media are among its results.
    tools: TestNode,
    theirs: TestNode,
}

impl Source {
    /// The images and lists of this text, as [`Images::of`] reads it.
    pub(crate) fn of(text: &str) -> Self {
        let (registry, images) = (Registry::start(), Images::of(text, &[]));
        registry.push_all(&images);
        let [tools, theirs] = [(); 2].map(|()| TestNode::trusting(&[registry.host()]));
        let source = Self {
            registry,
            images,
            tools,
            theirs,
        };
        for reference in source.references() {
            source.theirs.podman_pull(&reference);
        }
        source.registry.clear_log();
        source
    }

    /// Names of what a node of this architecture pulls: images that are in no list, and lists.
    pub(crate) fn names(&self) -> Vec<&str> {
        let lists = &self.images.lists;
        let is_listed = |name: &str| {
            let mut instances = lists.iter().flat_map(|list| &list.instances);
            instances.any(|image| image.name == name)
        };
        let alone = self.images.images.iter().map(|image| image.name.as_str());
        let lists = lists.iter().map(|list| list.name.as_str());
        alone.filter(|name| !is_listed(name)).chain(lists).collect()
    }

    /// The image or list of this name by digest.
    pub(crate) fn reference(&self, name: &str) -> String {
        let list = self.images.lists.iter().find(|list| list.name == name);
        let digest = list.map_or_else(|| self.images.image(name).digest(), |list| list.digest());
        self.registry.at(name, &digest)
    }

    /// All of [`Self::names`] by digest.
    pub(crate) fn references(&self) -> Vec<String> {
        self.names().iter().map(|name| self.reference(name)).collect()
    }

    /// A node without images that trusts the registry.
    pub(crate) fn node(&self) -> TestNode {
        TestNode::trusting(&[self.registry.host()])
    }

    /// A directory for a medium of this name, empty.
    pub(crate) fn place(&self, name: &str) -> PathBuf {
        let place = self.tools.out(name);
        std::fs::create_dir_all(&place).expect("a directory for a medium");
        place
    }

    /// What is wrong with the store of `node`, which may have a part of the images.
    pub(crate) fn differences(&self, node: &TestNode) -> Vec<String> {
        let mut wrong = compare_part(&node.graph_root(), &self.theirs.graph_root());
        wrong.extend(inconsistencies(&node.graph_root()));
        wrong
    }

    /// Runs on `node` for these references with these media. The registry's log then has the requests of this run.
    pub(crate) fn run(&self, node: &TestNode, media: &[PathBuf], references: &[String]) -> Run {
        self.registry.clear_log();
        let media = media.iter().flat_map(|path| ["--blobs-from", utf8(path)]);
        let images = references.iter().flat_map(|reference| ["--image", reference]);
        node.run(&media.chain(images).collect::<Vec<_>>())
    }

    /// A run on a new node that pulls all these references, and pulls them right.
    #[track_caller]
    pub(crate) fn pulls(&self, media: &[PathBuf], references: &[String]) -> Run {
        let node = self.node();
        let run = self.run(&node, media, references).exits(0);
        assert_eq!(run.images("pulled").len(), references.len(), "{run}");
        let mut wrong = self.differences(&node);
        // Of a layer that was made from a tar, nothing is recorded about the blob that the manifest lists.
        let fields = ["compressed-diff-digest", "compressed-size", "compression"];
        let is_missing = |line: &String| {
            line.contains("ours   (nothing)")
                && fields
                    .iter()
                    .any(|field| line.contains(&format!(" record {field}\n")))
        };
        wrong.retain(|line| !is_missing(line));
        assert!(wrong.is_empty(), "{}\n{run}", wrong.join("\n"));
        run
    }

    /// Digests of the manifests, configs and layers that the last run requested, sorted.
    pub(crate) fn requested(&self) -> Vec<String> {
        Self::digests(self.registry.log())
    }

    /// Of the layers alone.
    pub(crate) fn requested_layers(&self) -> Vec<String> {
        Self::digests(self.registry.layer_requests())
    }

    fn digests(requests: Vec<Access>) -> Vec<String> {
        let digests = requests
            .into_iter()
            .filter_map(|access| Some(access.path.rsplit_once('/')?.1.to_owned()));
        let mut digests: Vec<String> = digests.collect();
        digests.sort();
        digests.dedup();
        digests
    }
}

/// Paths of tests are UTF-8.
pub(crate) fn utf8(path: &Path) -> &str {
    path.to_str().expect("a path of a test is UTF-8")
}
