//! Damages every field of a record that other data in the store confirms, and every part of a layer beside its tree.

use super::{Scene, layer_ids, snapshot};
use crate::image::Images;
use crate::needs::needs;
use crate::registry::Registry;
use crate::stock::tops;
use crate::test_node::TestNode;

/// A script that changes the record of the middle layer.
fn layer(change: &str) -> String {
    edit(
        "overlay-layers/layers.json",
        &format!("map(if .id == env.MIDDLE then {change} else . end)"),
    )
}

/// A script that changes the image's record.
fn image(change: &str) -> String {
    edit(
        "overlay-images/images.json",
        &format!("map(if .id == env.IMAGE then {change} else . end)"),
    )
}

fn edit(file: &str, filter: &str) -> String {
    format!("jq -c '{filter}' {file} > x; cat x > {file}; rm x")
}

#[test]
fn a_changed_field_of_a_record_is_found_and_repaired() {
    needs!(root(), stock());
    let scene = Scene::new();
    let swapped = edit(
        "overlay-layers/layers.json",
        r#"(map(select(.id == env.TOP))[0]) as $top | map(if .id == env.MIDDLE then
            ."compressed-diff-digest" = $top."compressed-diff-digest" |
            ."compressed-size" = $top."compressed-size" else . end)"#,
    );
    let blob = "its `compressed-diff-digest` differs from the image's manifest";
    let digest = "its `digest` is not the digest of one of its manifests";
    for (script, said) in [
        (
            layer(r#"."compressed-diff-digest" = "sha256:" + ("0" * 64)"#),
            blob,
        ),
        (layer(r#"."compressed-diff-digest" = "x""#), "is not a digest"),
        (swapped, blob),
        (
            layer(r#"."compressed-size" = 1"#),
            "its `compressed-size` differs",
        ),
        (
            layer(r#"del(."compressed-size")"#),
            "its `compressed-size` differs",
        ),
        (layer(r#".created = "yesterday""#), "its `created` is not a time"),
        (layer(".uidset = [7]"), "its `uidset` and `gidset`"),
        (layer(".gidset = [0]"), "its `uidset` and `gidset`"),
        (layer(r#"."diff-size" = 1"#), "the record has 1"),
        (
            layer(r#"."diff-digest" = "sha256:" + ("0" * 64)"#),
            "its diffID differs from the image's config",
        ),
        (
            layer(".parent = env.TOP"),
            "its parent differs from the image's config",
        ),
        (
            layer("del(.parent)"),
            "its parent differs from the image's config",
        ),
        (image(r#".digest = "sha256:" + ("0" * 64)"#), digest),
        (image(r#".digest = "x""#), digest),
        (image("del(.digest)"), digest),
        (image(".layer = env.MIDDLE"), "is not the one of its config"),
        (image(".layer = env.BASE"), "is not the one of its config"),
        (image(r#".layer = "0" * 64"#), "is missing or cannot be mounted"),
        (image("del(.layer)"), "its chain of layers has fewer than 3"),
        (image(r#".metadata = "x""#), "`metadata`: it does not parse"),
        (
            image(r#".metadata = "{\"signature-sizes\":[5]}""#),
            "`signatures`: its length differs",
        ),
        (image(r#".created = "x""#), "its `created` is not a time"),
        (image(r#"."big-data-names" = []"#), "its `big-data-names` lacks"),
        (
            image(r#"del(."big-data-digests")"#),
            "which differs from its record",
        ),
        (
            image(r#"."big-data-sizes".manifest = 1"#),
            "its record has 1 bytes",
        ),
    ] {
        scene.damaged_and_mended(&script, said, 7, 0);
    }
}

#[test]
fn a_missing_overlay_l_is_made_again() {
    needs!(root(), stock());
    let scene = Scene::new();
    for (script, said) in [
        ("rm -r overlay/l", "does not lead to the layer"),
        ("rm -r overlay/l; : > overlay/l", "does not lead to the layer"),
        (
            "rm -r overlay/l; : > overlay/$MIDDLE/link; rm overlay/$TOP/lower",
            "`link`: it is missing",
        ),
        (
            "rmdir overlay/$MIDDLE/merged; : > overlay/$MIDDLE/merged",
            "`merged`: it is missing or not a directory",
        ),
        (
            "rmdir overlay/$TOP/work; : > overlay/$TOP/work",
            "`work`: it is missing or not a directory",
        ),
        ("echo > overlay/$BASE/empty/x", "`empty`: it is not empty"),
    ] {
        scene.damaged_and_mended(script, said, 7, 0);
    }
    // Together with a tree that has to be unpacked anew.
    scene.damaged_and_mended("rm -r overlay/l overlay/$MIDDLE", "`link`: it is missing", 7, 1);
}

/// The requested image is repaired without the layers of other images.
#[test]
fn a_layer_field_that_names_another_image_s_layer_is_repaired_without_changing_that_layer() {
    needs!(root(), stock());
    let scene = Scene::new();
    let sister = scene.registry.tagged("sister");
    scene.ours.run(&["--image", &sister]).exits(0);
    scene.theirs.run(&["--image", &sister]).exits(0);
    let images = Images::of(super::IMAGES, &[]);
    let other = layer_ids(images.image("sister")).pop().unwrap();
    let root = scene.ours.graph_root();
    let before = snapshot(&root.join("overlay").join(&other));
    scene.damaged_and_mended(
        &image(&format!(".layer = \"{other}\"")),
        "is not the one of its config",
        7,
        0,
    );
    assert_eq!(snapshot(&root.join("overlay").join(&other)), before);
    scene.ours.verify(&["--image", &sister]).exits(0);
}

const TWO_COMPRESSIONS: &str = r#"
image first oci
layer gzip
file /a 0644 0:0 random=30000 seed=1

image second oci
layer zstd
file /a 0644 0:0 random=30000 seed=1
"#;

/// The image from which a layer was pulled is gone, and another image with the layer names another blob of the same tar.
#[test]
fn a_layer_of_another_compression_than_the_manifest_s_is_no_damage() {
    needs!(root(), stock());
    let (registry, images) = (Registry::start(), Images::of(TWO_COMPRESSIONS, &[]));
    registry.push_all(&images);
    let names = ["first", "second"].map(|name| registry.tagged(name));
    for top in tops() {
        for (brought, kept) in [(&names[0], &names[1]), (&names[1], &names[0])] {
            let world = TestNode::trusting(&[registry.host()]);
            for name in [brought, kept] {
                world.podman_of(&top, &["pull", "--quiet", name]).ok();
            }
            world.verify(&["--image", kept]).exits(0);
            world.podman_of(&top, &["rmi", brought]).ok();
            let before = snapshot(&world.graph_root());
            world.verify(&["--image", kept]).exits(0);
            world.verify(&["--repair", "--image", kept]).exits(0);
            assert_eq!(snapshot(&world.graph_root()), before, "{}", top.display());
        }
    }
}
