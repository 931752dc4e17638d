//! Checks that a layer's `link`, `lower` and `l/<link>` lead to the right layers and that its empty directories
//! exist.

use std::fs;
use std::io::ErrorKind;

use super::damage::Damage;
use crate::oci::LayerId;
use crate::store::error::{StoreError, io_error};
use crate::store::expected_layer::ExpectedLayer;
use crate::store::inventory::Inventory;
use crate::store::layer_dir;
use crate::store::layers_json::LayerTable;
use crate::store::layout::Layout;

pub(super) fn check(inventory: &Inventory, layer: &ExpectedLayer) -> Result<Vec<Damage>, StoreError> {
    let layout = &inventory.at(layer.location).layout;
    let mut found = Vec::new();
    let mut wrong = |part: &'static str, reason: String| found.push(Damage::Links { file: part, reason });
    let dir = layout.layer(&layer.id);
    match layer_dir::link(layout, &layer.id)? {
        None => wrong("link", "it is missing or has no valid link name".to_owned()),
        Some(link) if !layer_dir::is_linked(layout, &link, &layer.id)? => {
            wrong("l/<link>", format!("`l/{link}` does not lead to the layer"));
        }
        Some(_) => {}
    }
    if let Some(parent) = layer.parent {
        if let Some(reason) = flaw_of_lower(inventory, layout, &layer.id, parent)? {
            wrong("lower", reason);
        }
    } else if layer_dir::exists(&dir.join("lower"))? {
        wrong("lower", "a base layer has none".to_owned());
    }
    // Mounts create and remove `merged`.
    let dirs: &[&'static str] = match (layer.parent, layer_dir::exists(&dir.join("merged"))?) {
        (None, true) => &["work", "empty", "merged"],
        (None, false) => &["work", "empty"],
        (Some(_), true) => &["work", "merged"],
        (Some(_), false) => &["work"],
    };
    for name in dirs {
        if !layer_dir::is_dir(&dir.join(name))? {
            wrong(name, "it is missing or not a directory".to_owned());
        }
    }
    if layer.parent.is_none() && layer_dir::has_files(&dir.join("empty"))? {
        wrong(
            "empty",
            "it is not empty, and containers see its content".to_owned(),
        );
    }
    Ok(found)
}

/// Each name in `lower` must lead to the layer that the records have at this position, nearest parent first.
fn flaw_of_lower(
    inventory: &Inventory,
    layout: &Layout,
    id: &LayerId,
    parent: LayerId,
) -> Result<Option<String>, StoreError> {
    let Some(lower) = layer_dir::lower(layout, id)? else {
        return Ok(Some("it is missing or names no layer".to_owned()));
    };
    let (mut names, mut next) = (lower.split(':'), Some(parent));
    while let Some(below) = next {
        let Some(name) = names.next() else {
            return Ok(Some(format!("it does not name layer {below}")));
        };
        let leads_there = match name.strip_prefix("l/") {
            None => false,
            Some(link) => inventory.location_by_link(link, &below)?.is_some(),
        };
        if !leads_there {
            return Ok(Some(format!("it names another layer where {below} should be")));
        }
        next = inventory.parent_of(&below);
    }
    Ok(names
        .next()
        .map(|_| "it names more layers than are below".to_owned()))
}

/// The link name that a layer has, or must get again because other layers use it. Needs the layers lock.
pub(in crate::store) fn true_link(
    layout: &Layout,
    table: &LayerTable,
    id: &LayerId,
) -> Result<String, StoreError> {
    let own = layer_dir::link(layout, id)?;
    if let Some(own) = &own
        && layer_dir::is_linked(layout, own, id)?
    {
        return Ok(own.clone());
    }
    // A child's `lower` names its parent, and every mount of the child uses this name.
    let text = id.to_string();
    for child in table.views().filter(|view| view.parent() == Some(&text)) {
        let Some(child) = LayerId::from_hex(&child.id) else {
            continue;
        };
        let lower = layer_dir::lower(layout, &child)?.unwrap_or_default();
        let first = lower.split(':').next().and_then(|first| first.strip_prefix("l/"));
        if let Some(link) = first.filter(|link| layer_dir::is_link_name(link))
            && layer_dir::is_free(layout, link, id)?
        {
            return Ok(link.to_owned());
        }
    }
    let links = layout.links();
    let entries = match fs::read_dir(&links) {
        Ok(entries) => Some(entries),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
        Err(error) => return Err(io_error("list", &links)(error)),
    };
    for entry in entries.into_iter().flatten() {
        let name = entry.map_err(io_error("list", &links))?.file_name();
        if let Some(link) = name.to_str().filter(|link| layer_dir::is_link_name(link))
            && layer_dir::is_linked(layout, link, id)?
        {
            return Ok(link.to_owned());
        }
    }
    match own {
        Some(own) if layer_dir::is_free(layout, &own, id)? => Ok(own),
        _ => Ok(layer_dir::new_link()),
    }
}
