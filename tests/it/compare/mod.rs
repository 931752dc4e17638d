//! Two stores, compared to the byte (storage-format.md 12.3), and one store, checked for being whole.
//!
//! Every fact becomes a line with a name; two stores differ where their lines do. Not compared: what no two pulls have in
//! common (link ids, creation times, times of "now"), sizes of directories, the owner of `diff/` itself, and items that
//! only podman 4.3.1 writes (empty `signature-…` items and their metadata).

mod census;
mod records;
pub(crate) mod tar_split;
pub(crate) mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub(crate) use census::{census, census_after_kills};

/// Facts that differ between the stores at `ours` and `theirs`, readable. `ignore_tar_split_of` are layer ids.
pub(crate) fn compare(ours: &Path, theirs: &Path, ignore_tar_split_of: &[String]) -> Vec<String> {
    let facts = |root| {
        let mut facts = facts(root);
        for id in ignore_tar_split_of {
            facts.retain(|name, _| !name.starts_with(&format!("layer {id} tar-split")));
        }
        facts
    };
    differences(&facts(ours), &facts(theirs))
}

/// Lines that differ, each with what both have.
pub(crate) fn differences(ours: &BTreeMap<String, String>, theirs: &BTreeMap<String, String>) -> Vec<String> {
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let show = |line: Option<&String>| line.map_or("(nothing)", String::as_str).to_owned();
    names
        .into_iter()
        .filter(|name| ours.get(*name) != theirs.get(*name))
        .map(|name| {
            let (our, their) = (show(ours.get(name)), show(theirs.get(name)));
            format!("{name}\n    ours   {our}\n    theirs {their}")
        })
        .collect()
}

/// Everything that is compared.
fn facts(graph_root: &Path) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let layers = records::layers(graph_root);
    for (id, record) in &layers {
        for (key, value) in record {
            facts.insert(format!("layer {id} record {key}"), value.clone());
        }
        let directory = graph_root.join("overlay").join(id);
        for (path, line) in tree::lines(&directory) {
            facts.insert(format!("layer {id} tree {path}"), line);
        }
        for (position, line) in tar_split::lines(graph_root, id).into_iter().enumerate() {
            facts.insert(format!("layer {id} tar-split {position:05}"), line);
        }
    }
    for (id, record) in records::images(graph_root) {
        for (key, value) in record {
            facts.insert(format!("image {id} record {key}"), value);
        }
    }
    facts.extend(records::big_data(graph_root));
    facts
}
