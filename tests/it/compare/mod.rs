//! Two stores, compared to the byte (storage-format.md 12.3), and one store, checked for being whole.
//!
//! Every fact becomes a line with a name; two stores differ where their lines do. Not compared: what no two pulls have in
//! common (link ids, creation times, times of "now"), sizes of directories, the owner of `diff/` itself, and items that
//! only podman 4.3.1 writes (empty `signature-…` items and their metadata).

mod census;
mod records;
pub(crate) mod tar_split;
mod tree;

use std::collections::BTreeMap;
use std::path::Path;

pub(crate) use census::{census, census_after_kills};

/// Facts that differ between the stores at `ours` and `theirs`, readable. `ignore_tar_split_of` are layer ids.
pub(crate) fn compare(ours: &Path, theirs: &Path, ignore_tar_split_of: &[String]) -> Vec<String> {
    let ours = facts(ours);
    let theirs = facts(theirs);
    let ignored = |name: &str| {
        ignore_tar_split_of
            .iter()
            .any(|id| name.starts_with(&format!("layer {id} tar-split")))
    };
    let mut names: Vec<&String> = ours
        .keys()
        .chain(theirs.keys())
        .filter(|name| !ignored(name))
        .collect();
    names.sort();
    names.dedup();
    let mut differences = Vec::new();
    for name in names {
        let (our, their) = (ours.get(name), theirs.get(name));
        if our != their {
            let show = |line: Option<&String>| line.map_or("(nothing)", String::as_str).to_owned();
            differences.push(format!(
                "{name}\n    ours   {}\n    theirs {}",
                show(our),
                show(their)
            ));
        }
    }
    differences
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
