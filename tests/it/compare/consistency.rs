//! Lists every inconsistency of one store: records, directories, links and data that lack their counterparts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::records::array;
use super::tar_split::rebuilt_digest;

/// Everything that is wrong with the store at `graph_root`: records without directories, links or tar-splits, and the
/// reverse; incomplete records, missing parents, images without layers or data; rests of writers; layers whose tar cannot
/// be rebuilt from tree and tar-split.
pub(crate) fn inconsistencies(graph_root: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    let layers = array(&graph_root.join("overlay-layers/layers.json"));
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let records: BTreeSet<String> = layers.iter().map(|layer| text(layer.get("id"))).collect();
    if records.len() != layers.len() {
        wrong.push("layers.json names a layer twice".to_owned());
    }
    let hex = |names: BTreeSet<String>| -> BTreeSet<String> {
        names.into_iter().filter(|name| name.len() == 64).collect()
    };
    differ(
        &mut wrong,
        "layer records",
        &records,
        "overlay/<id>",
        &hex(names(&graph_root.join("overlay"))),
    );
    let tar_splits = names(&graph_root.join("overlay-layers"))
        .iter()
        .filter_map(|name| name.strip_suffix(".tar-split.gz").map(str::to_owned))
        .collect();
    differ(&mut wrong, "layer records", &records, "tar-splits", &tar_splits);

    let links = names(&graph_root.join("overlay/l"));
    let mut linked = BTreeSet::new();
    for link in &links {
        let target = fs::read_link(graph_root.join("overlay/l").join(link)).unwrap_or_default();
        let target = target.to_string_lossy().into_owned();
        let Some(id) = target
            .strip_prefix("../")
            .and_then(|rest| rest.strip_suffix("/diff"))
        else {
            wrong.push(format!("overlay/l/{link} leads to `{target}`"));
            continue;
        };
        linked.insert(id.to_owned());
        let own = fs::read_to_string(graph_root.join("overlay").join(id).join("link")).unwrap_or_default();
        if own != *link {
            wrong.push(format!(
                "overlay/l/{link} leads to {id}, whose own link is `{own}`"
            ));
        }
    }
    differ(&mut wrong, "layer records", &records, "overlay/l", &linked);

    for layer in &layers {
        let (id, parent) = (text(layer.get("id")), text(layer.get("parent")));
        if layer
            .get("flags")
            .is_some_and(|flags| flags["incomplete"] == true)
        {
            wrong.push(format!("layer {id} is incomplete"));
        }
        if !parent.is_empty() && !records.contains(&parent) {
            wrong.push(format!("layer {id} has the parent {parent}, which is not there"));
        }
        lower(graph_root, &id, &parent, &mut wrong);
        // Containers' layers have no digest.
        let diff_digest = text(layer.get("diff-digest"));
        match rebuilt_digest(graph_root, &id) {
            Ok(digest) if digest == diff_digest || diff_digest.is_empty() => {}
            Ok(digest) => wrong.push(format!("layer {id} rebuilds as {digest}, not {diff_digest}")),
            Err(why) => wrong.push(format!("layer {id}: {why}")),
        }
    }
    images(graph_root, &records, &mut wrong);
    rests(graph_root, &mut wrong);
    wrong
}

/// As [`inconsistencies`], but for temporary files of writes that were killed: harmless, and only old ones may be removed, for
/// another writer's look the same (storage-format.md 9.5).
pub(crate) fn inconsistencies_after_kills(graph_root: &Path) -> Vec<String> {
    let mut wrong = inconsistencies(graph_root);
    wrong.retain(|line| !line.contains("/.tmp-"));
    wrong
}

/// `lower` must be the parent's link, then the parent's `lower`.
fn lower(graph_root: &Path, id: &str, parent: &str, wrong: &mut Vec<String>) {
    let read = |id: &str, name: &str| fs::read_to_string(graph_root.join("overlay").join(id).join(name)).ok();
    let expected = (!parent.is_empty()).then(|| {
        let link = format!("l/{}", read(parent, "link").unwrap_or_default());
        read(parent, "lower").map_or(link.clone(), |above| format!("{link}:{above}"))
    });
    let lower = read(id, "lower");
    if lower != expected {
        wrong.push(format!("layer {id} has the lower {lower:?}, not {expected:?}"));
    }
}

fn images(graph_root: &Path, layers: &BTreeSet<String>, wrong: &mut Vec<String>) {
    let images = array(&graph_root.join("overlay-images/images.json"));
    let mut ids = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for image in &images {
        let id = image["id"].as_str().unwrap_or_default();
        ids.insert(id.to_owned());
        if !image
            .get("layer")
            .and_then(Value::as_str)
            .is_some_and(|layer| layers.contains(layer))
        {
            wrong.push(format!("image {id} has no top layer"));
        }
        for name in image.get("names").and_then(Value::as_array).into_iter().flatten() {
            if !seen.insert(name.to_string()) {
                wrong.push(format!("two images are named {name}"));
            }
        }
        let sizes = image.get("big-data-sizes").and_then(Value::as_object);
        let total: u64 = sizes
            .into_iter()
            .flatten()
            .filter_map(|(_, size)| size.as_u64())
            .sum();
        let directory = graph_root.join("overlay-images").join(id);
        let mut stored = 0;
        for file in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            match file.metadata() {
                _ if name.starts_with(".tmp-") => {
                    wrong.push(format!("a writer left overlay-images/{id}/{name}"))
                }
                Ok(metadata) => stored += metadata.len(),
                Err(error) => wrong.push(format!("overlay-images/{id}/{name}: {error}")),
            }
        }
        if total != stored {
            wrong.push(format!(
                "image {id} has {stored} bytes of data, its record says {total}"
            ));
        }
    }
    let directories = names(&graph_root.join("overlay-images"))
        .into_iter()
        .filter(|name| name.len() == 64)
        .collect();
    differ(wrong, "image records", &ids, "overlay-images/<id>", &directories);
}

/// Files that a writer makes on its way and must not leave.
fn rests(graph_root: &Path, wrong: &mut Vec<String>) {
    for directory in ["", "overlay", "overlay-layers", "overlay-images"] {
        for name in names(&graph_root.join(directory)) {
            if name.contains("stage") || name.starts_with(".tmp-") {
                wrong.push(format!("a writer left {directory}/{name}"));
            }
        }
    }
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn differ(wrong: &mut Vec<String>, a: &str, ours: &BTreeSet<String>, b: &str, theirs: &BTreeSet<String>) {
    wrong.extend(
        ours.difference(theirs)
            .map(|id| format!("{id} is among {a} and not among {b}")),
    );
    wrong.extend(
        theirs
            .difference(ours)
            .map(|id| format!("{id} is among {b} and not among {a}")),
    );
}
