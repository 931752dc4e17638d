//! The helpers themselves: podman pulls from the fake registry, and the comparison sees what it must.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::compare::{census, compare};
use crate::image::zoo::{STOCK_TAR_SPLIT_IS_WRONG, zoo};
use crate::needs::needs;
use crate::registry::Registry;
use crate::world::World;

#[test]
fn two_pulls_of_the_zoo_by_podman_are_equal_and_wrong_where_we_say_so() {
    needs!(root(), stock());
    let registry = Registry::start();
    let images = zoo(b"no program");
    registry.push_all(&images);
    let (a, b) = (World::trusting(&[registry.host()]), World::trusting(&[registry.host()]));
    for image in &images.images {
        for world in [&a, &b] {
            world.podman_pull(&registry.tagged(&image.name));
        }
    }
    let differences = compare(&a.graph_root(), &b.graph_root(), &[]);
    assert!(differences.is_empty(), "{}", differences.join("\n"));

    for image in &images.images {
        let file = a.out("saved");
        let name = registry.tagged(&image.name);
        let saved = a.podman(&["save", "--quiet", "--format=oci-archive", "-o", file.to_str().unwrap(), &name]);
        let wrong = STOCK_TAR_SPLIT_IS_WRONG.contains(&image.name.as_str());
        assert_eq!(saved.is_ok(), !wrong, "{}: {saved}", image.name);
        let _ = fs::remove_file(file);
    }
    let bad_layers: Vec<String> = census(&a.graph_root());
    assert!(bad_layers.len() <= STOCK_TAR_SPLIT_IS_WRONG.len(), "{}", bad_layers.join("\n"));
}

#[test]
fn a_planted_difference_is_found() {
    needs!(root(), stock());
    let registry = Registry::start();
    let images = zoo(b"no program");
    registry.push_all(&images);
    let name = registry.tagged("zoo/base");
    let (a, b) = (World::trusting(&[registry.host()]), World::trusting(&[registry.host()]));
    a.podman_pull(&name);
    b.podman_pull(&name);
    let [id] = &fs::read_dir(a.graph_root().join("overlay"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.len() == 64)
        .collect::<Vec<_>>()[..]
    else {
        panic!("one layer");
    };
    let diff = a.graph_root().join("overlay").join(id).join("diff");
    fs::set_permissions(diff.join("etc/motd"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(diff.join("bin/hello")).unwrap();
    fs::remove_file(a.graph_root().join("overlay-layers").join(format!("{id}.tar-split.gz"))).unwrap();

    let found = compare(&a.graph_root(), &b.graph_root(), &[]).join("\n");
    for what in ["tree etc/motd", "tree bin/hello", "tar-split 00000"] {
        assert!(found.contains(&format!("layer {id} {what}")), "{what} is not in:\n{found}");
    }
    assert!(census(&b.graph_root()).is_empty());
    assert!(!census(&a.graph_root()).is_empty());
}
