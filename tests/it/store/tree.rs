//! Reads directories from an image's layers without mounting it, and compares them with a mount.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};
use spoke_precache::store::{FileKind, Node, Tree};

use super::read::mounted;
use super::{put, resolved, store};
use crate::image::Images;
use crate::needs::needs;
use crate::test_node::TestNode;

/// Images of random layers, and how many layers each has.
const IMAGES: u32 = 12;
const LAYERS: u32 = 4;

/// More than any directory here has.
const LIMIT: usize = 1_000;

#[test]
fn every_directory_is_what_the_kernel_mounts() {
    needs!(root());
    for seed in 0..IMAGES {
        let text = layers(seed);
        let image = Images::of(&text, &[]).images.remove(0);
        let world = TestNode::trusting(&[]);
        let store = store(&world);
        put(&store, &image, None, "localhost/a:1");
        let chain = resolved(&image, None).layer_ids();
        let ours = walk(&store.tree(&chain).unwrap(), Path::new("/"));
        let mount = mounted(&world, &chain);
        let theirs = kernels(&mount, &mount);
        unmount(&mount, UnmountFlags::DETACH).unwrap();
        assert_eq!(ours, theirs, "seed {seed}:\n{text}");
        assert!(ours.len() > 5, "{text}");
    }
}

/// Random layers over few names, so that they meet: files, directories, symlinks, devices, whiteouts, opaque directories.
fn layers(seed: u32) -> String {
    let mut state = u64::from(seed) + 1;
    let mut next = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut text = "image random oci\n".to_owned();
    // What the base has, so that there is something to hide.
    let base = ["a/b/f", "a/c/f", "b/a/f", "b/c/f", "c/f"];
    text += "layer gzip\ndir /a/b 0755 0:0\ndir /a/c 0755 0:0\ndir /b/a 0755 0:0\ndir /b/c 0755 0:0\ndir /c 0755 0:0\n";
    for file in base {
        let _ = writeln!(text, "file /{file} 0644 0:0 \"base\"");
    }
    for layer in 1..LAYERS {
        text += "layer gzip\n";
        let mut used = Vec::new();
        for _ in 0..6 {
            let depth = 1 + next(3);
            let names: Vec<&str> = (0..depth)
                .map(|_| ["a", "b", "c", "f"][next(4) as usize])
                .collect();
            let path = names.join("/");
            // One entry a name and layer, and nothing below a file.
            let meets = |other: &String| {
                *other == path
                    || other.starts_with(&format!("{path}/"))
                    || path.starts_with(&format!("{other}/"))
            };
            if used.iter().any(meets) {
                continue;
            }
            let _ = match next(7) {
                0 | 1 => writeln!(text, "file /{path} 0644 0:0 \"{layer}\""),
                2 => writeln!(text, "whiteout /{path}"),
                3 => writeln!(
                    text,
                    "dir /{path} 0755 0:0\nopaque /{path}\nfile /{path}/new 0644 0:0 \"{layer}\""
                ),
                4 => writeln!(text, "symlink /{path} -> /a"),
                5 => writeln!(text, "dir /{path} 0755 0:0"),
                _ => writeln!(text, "char /{path} 1:3 0666"),
            };
            used.push(path);
        }
    }
    text
}

/// Everything below `directory`, with what it is and what a file holds.
fn walk(tree: &Tree, directory: &Path) -> BTreeMap<PathBuf, String> {
    let Some(Node::Directory(open)) = tree.open(directory).unwrap() else {
        panic!("{} is no directory", directory.display())
    };
    let mut found = BTreeMap::new();
    for entry in open.entries(directory, LIMIT).unwrap() {
        let path = directory.join(&entry.name);
        let what = match entry.kind {
            FileKind::Directory => {
                found.extend(walk(tree, &path));
                "directory".to_owned()
            }
            FileKind::Symlink => "symlink".to_owned(),
            FileKind::Other => "other".to_owned(),
            FileKind::File => match tree.open(&path).unwrap() {
                Some(Node::File(file)) => std::io::read_to_string(file).unwrap(),
                other => panic!("{}: {other:?}", path.display()),
            },
        };
        found.insert(path, what);
    }
    found
}

/// The same of a mounted directory.
fn kernels(root: &Path, directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        // The kernel lists a whiteout that has nothing to hide, and finds nothing under its name.
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        let kind = metadata.file_type();
        let what = if kind.is_dir() {
            found.extend(kernels(root, &path));
            "directory".to_owned()
        } else if kind.is_symlink() {
            "symlink".to_owned()
        } else if kind.is_file() {
            fs::read_to_string(&path).unwrap()
        } else {
            "other".to_owned()
        };
        found.insert(Path::new("/").join(path.strip_prefix(root).unwrap()), what);
    }
    found
}

#[test]
fn a_directory_of_too_many_names_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in 0..10 {
        fs::write(dir.path().join(name.to_string()), "").unwrap();
    }
    let tree = Tree::of_directories(&[dir.path(), dir.path()]).unwrap();
    let Some(Node::Directory(root)) = tree.open(Path::new("")).unwrap() else {
        panic!("no root")
    };
    assert_eq!(root.entries(Path::new("/"), 10).unwrap().len(), 10);
    let refused = root.entries(Path::new("/"), 9).unwrap_err().to_string();
    assert_eq!(
        refused,
        "cannot read `/` from the image: it has more than 9 entries"
    );
}

#[test]
fn a_directory_is_listed_as_the_layers_leave_it() {
    needs!(root());
    let text = "image manifests oci
layer gzip
dir /manifests 0755 0:0
file /manifests/b.yaml 0644 0:0 \"b\"
dir /release-manifests 0755 0:0
file /release-manifests/old.yaml 0644 0:0 \"old\"
file /release-manifests/same.yaml 0644 0:0 \"below\"
dir /other 0755 0:0
file /other/hidden 0644 0:0 \"hidden\"
layer gzip
file /manifests/a.yaml 0644 0:0 \"a\"
whiteout /release-manifests/old.yaml
file /release-manifests/same.yaml 0644 0:0 \"above\"
symlink /release-manifests/link.yaml -> ../manifests/a.yaml
dir /other 0755 0:0
opaque /other
file /other/new 0644 0:0 \"new\"
";
    let image = Images::of(text, &[]).images.remove(0);
    let world = TestNode::trusting(&[]);
    let store = store(&world);
    put(&store, &image, None, "localhost/a:1");
    let tree = store.tree(&resolved(&image, None).layer_ids()).unwrap();
    let names = |path: &str| -> Vec<String> {
        let entries = tree.read_directory(path, LIMIT).unwrap().unwrap();
        let names = entries.into_iter().map(|entry| entry.name.into_string().unwrap());
        names.collect()
    };
    assert_eq!(names("manifests"), ["a.yaml", "b.yaml"]);
    assert_eq!(names("/release-manifests"), ["link.yaml", "same.yaml"]);
    assert_eq!(names("other"), ["new"]);
    let above = tree.read_file("release-manifests/same.yaml", 100).unwrap();
    assert_eq!(above.as_deref(), Some(b"above".as_slice()));
    let linked = tree.read_file("release-manifests/link.yaml", 100).unwrap();
    assert_eq!(linked.as_deref(), Some(b"a".as_slice()));

    assert_eq!(tree.read_directory("none", LIMIT).unwrap(), None);
    let refused = |path: &str, limit| tree.read_directory(path, limit).unwrap_err().to_string();
    assert_eq!(
        refused("manifests", 1),
        "cannot read `manifests` from the image: it has more than 1 entries"
    );
    assert_eq!(
        refused("manifests/a.yaml", LIMIT),
        "cannot read `manifests/a.yaml` from the image: it is a regular file, not a directory"
    );
}
