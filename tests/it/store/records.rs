//! Tests the records of images: names that move, records of other programs, how an image is found.

use std::fs;

use serde_json::{Value, json};
use spoke_precache::oci::{Digest, Platform, Reference};

use super::{put, store};
use crate::compare::inconsistencies;
use crate::image::samples::sample_images;
use crate::needs::needs;
use crate::test_node::TestNode;

const FILES: [&str; 2] = ["overlay-layers/layers.json", "overlay-images/images.json"];

#[test]
fn names_move_and_what_others_wrote_stays() {
    needs!(root(), stock());
    let world = TestNode::trusting(&[]);
    let (store, images) = (store(&world), sample_images(b"no program"));
    let (first, second) = (images.image("zoo/whiteouts"), images.image("zoo/links"));
    put(&store, first, None, "localhost/a:1");
    let records = |file: &str| -> Vec<Value> {
        serde_json::from_slice(&fs::read(world.graph_root().join(file)).unwrap()).unwrap()
    };
    // A field that no version of containers/storage has yet.
    for file in FILES {
        let mut all = records(file);
        all[0]["novel"] = json!({"deep": [1.5, null]});
        fs::write(world.graph_root().join(file), serde_json::to_vec(&all).unwrap()).unwrap();
    }
    let layer = records(FILES[0])[0].clone();
    put(&store, second, None, "localhost/a:1");
    assert_eq!(records(FILES[0])[0], layer);
    let image = &records(FILES[1])[0];
    assert_eq!(image["novel"], json!({"deep": [1.5, null]}));
    assert_eq!(image["names"], Value::Null);
    assert_eq!(image["names-history"], json!(["localhost/a:1"]));
    let id = world
        .podman(&["images", "--no-trunc", "--quiet", "localhost/a:1"])
        .ok();
    assert_eq!(id, format!("sha256:{}", second.id()));
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}

#[test]
fn what_is_stored_is_not_written_again() {
    needs!(root());
    let world = TestNode::trusting(&[]);
    let (store, images) = (store(&world), sample_images(b"no program"));
    put(&store, images.image("zoo/whiteouts"), None, "localhost/a:1");
    let modified = || {
        FILES.map(|file| {
            fs::metadata(world.graph_root().join(file))
                .unwrap()
                .modified()
                .unwrap()
        })
    };
    let before = modified();
    put(&store, images.image("zoo/whiteouts"), None, "localhost/a:1");
    assert_eq!(modified(), before);
}

/// As CRI-O resolves an image (storage-format.md 8).
#[test]
fn an_image_is_found_by_name_and_by_any_digest_in_its_repository() {
    needs!(root());
    let world = TestNode::trusting(&[]);
    let (store, images) = (store(&world), sample_images(b"no program"));
    let (list, image) = (images.list("zoo/multi"), images.image("zoo/multi-amd64"));
    put(&store, image, Some(list), "localhost/r/list:1");
    let inventory = store.inventory().unwrap();
    let find = |name: &str, platform: &str| {
        let (name, platform): (Reference, Platform) = (name.parse().unwrap(), platform.parse().unwrap());
        inventory.find(&name, &platform).unwrap().is_some()
    };
    let (by_list, by_instance) = (list.digest(), image.digest());
    for (name, platform, is_there) in [
        ("localhost/r/list:1", "linux/amd64", true),
        ("localhost/r/list:2", "linux/amd64", false),
        (&format!("localhost/r/list@{by_list}"), "linux/amd64", true),
        (&format!("localhost/r/list@{by_instance}"), "linux/amd64", true),
        (&format!("localhost/r/list@{by_list}"), "linux/s390x", false),
        (&format!("localhost/r/other@{by_list}"), "linux/amd64", false),
    ] {
        assert_eq!(find(name, platform), is_there, "{name} {platform}");
    }
    let digest: Digest = by_list.parse().unwrap();
    assert_eq!(inventory.content(&digest).unwrap().unwrap().bytes(), &list.bytes);
}
