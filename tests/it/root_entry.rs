//! Tests a tar entry named `/`, and what the layers above inherit of it, against podman.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde_json::Value;

use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{needs, note};
use crate::registry::Registry;
use crate::stock::tops;
use crate::test_node::TestNode;

/// Owners and modes of `diff`, `work` and `merged`, by the layer's diffID and the directory.
fn roots(world: &TestNode) -> BTreeMap<(String, &'static str), (u32, u32, u32)> {
    let records = fs::read(world.graph_root().join("overlay-layers/layers.json")).unwrap();
    let records: Value = serde_json::from_slice(&records).unwrap();
    let mut roots = BTreeMap::new();
    for record in records.as_array().unwrap() {
        let text = |name: &str| record[name].as_str().unwrap().to_owned();
        for name in ["diff", "work", "merged"] {
            let path = world.graph_root().join("overlay").join(text("id")).join(name);
            let found = fs::metadata(path).unwrap();
            let facts = (found.uid(), found.gid(), found.mode() & 0o7777);
            roots.insert((text("diff-digest"), name), facts);
        }
    }
    roots
}

#[test]
fn the_owner_of_a_literal_root_entry_is_inherited_as_since_containers_storage_1_47() {
    needs!(root(), stock());
    let layers = [
        "dir // 0751 5:6\nfile /a 0644 0:0 \"a\"",
        "file /b 0644 0:0 \"b\"",
        "dir ./ 0700 9:9\nfile /c 0644 0:0 \"c\"",
        // The mode of a base layer, as an entry.
        "dir // 0555 7:0\nfile /d 0644 0:0 \"d\"",
        "file /e 0644 0:0 \"e\"",
        "dir // 0700 0:0\nfile /f 0644 0:0 \"f\"",
        "file /g 0644 0:0 \"g\"",
    ];
    let layers = layers.map(|lines| Layer::of(lines, Compression::Gzip));
    let image = Image::build(
        "roots",
        Format::Oci,
        node_architecture(),
        layers.to_vec(),
        |_, _| {},
    );
    let registry = Registry::start();
    registry.push("roots", Some("latest"), &image);
    let name = registry.tagged("roots");
    let ours = TestNode::trusting(&[registry.host()]);
    ours.run(&["--image", &name]).exits(0);
    let found = roots(&ours);
    ours.verify(&["--image", &name]).exits(0);
    for top in tops() {
        let theirs = TestNode::trusting(&[registry.host()]);
        theirs.podman_of(&top, &["pull", "--quiet", &name]).ok();
        let version = theirs.podman_of(&top, &["--version"]).ok();
        note(&version);
        let inherits_owner = !version.contains(" 4.3.");
        for (place, theirs) in roots(&theirs) {
            let (uid, gid, mode) = found[&place];
            let has_entry = layers
                .iter()
                .position(|layer| layer.diff_id == place.0)
                .is_some_and(|number| [0, 3, 5].contains(&number));
            match inherits_owner || has_entry && place.1 == "diff" {
                true => assert_eq!((uid, gid, mode), theirs, "{place:?} of {version}"),
                // Before 1.47 the mode alone is inherited.
                false => assert_eq!((0, 0, mode), theirs, "{place:?} of {version}"),
            }
        }
        // Both read what we wrote.
        ours.podman_of(&top, &["image", "inspect", &name]).ok();
        if inherits_owner {
            ours.podman_of(&top, &["system", "check", "--quick"]).ok();
        }
    }
}
