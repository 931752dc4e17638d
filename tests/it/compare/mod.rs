//! Compares two stores byte by byte (storage-format.md 12.3), and checks one store for consistency.
//!
//! Every fact becomes a line with a name; two stores differ where their lines do. Not compared: what no two pulls have in
//! common (link ids, creation times, times of "now"), sizes of directories, the owner of `diff/` itself, and items that
//! only podman 4.3.1 writes (empty `signature-…` items and their metadata).

mod consistency;
mod records;
pub(crate) mod tar_split;
pub(crate) mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub(crate) use consistency::{inconsistencies, inconsistencies_after_kills};
pub(crate) use records::array as record_array;

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

/// What is wrong in a store that has a part of what is in the store at `whole`: a layer that is recorded as complete, or an
/// image, differs from the one there, or an image lacks a layer. What is not recorded does not count.
pub(crate) fn compare_part(part: &Path, whole: &Path) -> Vec<String> {
    let layers = records::complete_layers(part);
    let images = records::images(part);
    let mut wrong: Vec<String> = Vec::new();
    for (id, image) in &images {
        let mut next = image.get("layer").map(|text| text.trim_matches('"').to_owned());
        while let Some(layer) = next {
            let Some(parent) = layers.get(&layer) else {
                wrong.push(format!("image {id} is there and its layer {layer} is not"));
                break;
            };
            next = parent.clone();
        }
    }
    let is_counted = |name: &str| {
        let mut words = name.split(' ');
        match (words.next(), words.next()) {
            (Some("layer"), Some(id)) => layers.contains_key(id),
            (_, Some(id)) => images.contains_key(id),
            _ => true,
        }
    };
    let [part, whole] = [part, whole].map(|root| {
        let mut facts = facts(root);
        facts.retain(|name, _| is_counted(name));
        facts
    });
    wrong.extend(differences(&part, &whole));
    wrong
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
