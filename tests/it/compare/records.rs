//! Prints layers.json, images.json and big data as lines, without what differs between any two pulls.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::image::sha256;

/// The array in a JSON file of the store; empty if there is no file.
pub(crate) fn array(path: &Path) -> Vec<Map<String, Value>> {
    match fs::read(path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        }
        Err(_) => Vec::new(),
    }
}

fn by_id(records: Vec<Map<String, Value>>) -> BTreeMap<String, BTreeMap<String, String>> {
    let lines = |record: Map<String, Value>| {
        record
            .into_iter()
            .map(|(key, value)| (key, sorted(value).to_string()))
            .collect()
    };
    records
        .into_iter()
        .map(|record| {
            (
                record["id"].as_str().unwrap_or_default().to_owned(),
                lines(record),
            )
        })
        .collect()
}

/// The same with every object's keys in order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(pairs.into_iter().collect())
        }
        other => other,
    }
}

/// Layer records.
pub(super) fn layers(graph_root: &Path) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut records = array(&graph_root.join("overlay-layers/layers.json"));
    for record in &mut records {
        record.remove("created");
        // Podman 4.3.1 rebuilds a layer that it has under another parent from its own copy, and then notes that copy's
        // size and no compression (storage-format.md 3).
        if !record.contains_key("compression")
            && record.get("compressed-diff-digest") != record.get("diff-digest")
        {
            record.remove("compressed-size");
        }
    }
    by_id(records)
}

/// Ids of the layers that are recorded as complete, each with its parent.
pub(super) fn complete_layers(graph_root: &Path) -> BTreeMap<String, Option<String>> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let records = array(&graph_root.join("overlay-layers/layers.json")).into_iter();
    let complete = records.filter(|it| it.get("flags").is_none_or(|flags| flags["incomplete"] != true));
    complete
        .filter_map(|it| Some((text(it.get("id"))?, text(it.get("parent")))))
        .collect()
}

/// Image records.
pub(super) fn images(graph_root: &Path) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut records = array(&graph_root.join("overlay-images/images.json"));
    for record in &mut records {
        let sizes = record.get("big-data-sizes").cloned().unwrap_or_default();
        let is_empty_signature = |name: &str| name.starts_with("signature-") && sizes[name] == 0;
        if let Some(names) = record.get_mut("big-data-names").and_then(Value::as_array_mut) {
            names.retain(|name| !name.as_str().is_some_and(is_empty_signature));
        }
        for key in ["big-data-sizes", "big-data-digests"] {
            if let Some(map) = record.get_mut(key).and_then(Value::as_object_mut) {
                map.retain(|name, _| !is_empty_signature(name));
            }
        }
        let metadata: Value = record
            .get("metadata")
            .and_then(Value::as_str)
            .map_or(json!({}), |text| {
                serde_json::from_str(text).expect("an image's metadata is JSON")
            });
        let no_signatures = metadata["signatures-sizes"].as_object().is_none_or(|sizes| {
            sizes
                .values()
                .all(|list| list.as_array().is_some_and(Vec::is_empty))
        });
        if no_signatures && metadata["signature-sizes"].is_null() {
            record.insert("metadata".to_owned(), json!("{}"));
        }
    }
    by_id(records)
}

/// Files of big data with content, by readable name.
pub(super) fn big_data(graph_root: &Path) -> BTreeMap<String, String> {
    let mut lines = BTreeMap::new();
    let Ok(entries) = fs::read_dir(graph_root.join("overlay-images")) else {
        return lines;
    };
    for image in entries {
        let image = image.expect("an entry of a directory");
        if !image.path().is_dir() {
            continue;
        }
        for file in fs::read_dir(image.path()).expect("a directory of the store can be read") {
            let file = file.expect("an entry of a directory");
            let stored = file.file_name().to_string_lossy().into_owned();
            let name = match stored.strip_prefix('=') {
                Some(encoded) => {
                    String::from_utf8_lossy(&STANDARD.decode(encoded).expect("base64")).into_owned()
                }
                None => stored,
            };
            let content = fs::read(file.path()).expect("a file of the store can be read");
            if name.starts_with("signature-") && content.is_empty() {
                continue;
            }
            let mode = {
                use std::os::unix::fs::MetadataExt as _;
                file.metadata().expect("a file's metadata").mode() & 0o7777
            };
            let key = format!("image {} data {name}", image.file_name().to_string_lossy());
            lines.insert(key, format!("{mode:o} {} {}", content.len(), sha256(&content)));
        }
    }
    lines
}
