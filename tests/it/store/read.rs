//! Reads files from an image's layers without mounting it, and compares them with a mount.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use spoke_precache::oci::LayerId;

use super::{put, resolved, store};
use crate::image::{Image, Images};
use crate::needs::needs;
use crate::test_node::TestNode;

fn image() -> Image {
    let text = r#"image read oci
        layer gzip
        dir     /etc 0755 0:0
        file    /etc/file 0644 0:0 "base\n"
        file    /etc/gone 0644 0:0 "gone\n"
        file    /opt/data/hidden 0644 0:0 "x\n"
        file    /usr/lib/z 0644 0:0 "lib\n"
        symlink /lib -> usr/lib
        file    /was-dir/inside 0644 0:0 "x\n"
        layer gzip
        whiteout /etc/gone
        opaque  /opt/data
        file    /opt/data/new 0644 0:0 "new\n"
        file    /etc/file 0644 0:0 "changed\n"
        symlink /etc/absolute -> /etc/file
        symlink /etc/loop -> ../etc/absolute
        file    /was-dir 0644 0:0 "now a file\n"
        layer gzip
        file    /release-manifests/image-references 0644 7:8 "{}\n"
        file    /opt/data/newer 0644 0:0 "newer\n""#;
    Images::of(text, &[]).images.remove(0)
}

#[test]
fn files_are_read_through_whiteouts_opaque_directories_and_symlinks() {
    needs!(root());
    let (world, image) = (TestNode::trusting(&[]), image());
    let store = store(&world);
    put(&store, &image, None, "localhost/a:1");
    let chain = resolved(&image, None).layer_ids();
    for (path, expected) in [
        ("release-manifests/image-references", Some("{}\n")),
        ("/etc/file", Some("changed\n")),
        ("etc/gone", None),
        ("opt/data/hidden", None),
        ("opt/data/new", Some("new\n")),
        ("lib/z", Some("lib\n")),
        ("lib/../lib/z", Some("lib\n")),
        ("../../usr/lib/z", Some("lib\n")),
        ("etc/absolute", Some("changed\n")),
        ("etc/loop", Some("changed\n")),
        ("etc/file/x", None),
        ("was-dir/inside", None),
        ("nothing/at/all", None),
    ] {
        let read = store.tree(&chain).unwrap().read_file(path, 100).unwrap();
        let read = read.map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(read.as_deref(), expected, "{path}");
    }
    for (path, limit, expected) in [
        ("etc", 100, "a directory"),
        ("etc/file", 3, "8 bytes, more than 3"),
        ("", 1, "a directory"),
    ] {
        let refused = store
            .tree(&chain)
            .unwrap()
            .read_file(path, limit)
            .unwrap_err()
            .to_string();
        assert!(refused.contains(expected), "{path}: {refused}");
    }

    let mounted = mounted(&world, &chain);
    let files = files(&mounted);
    assert_eq!(files.len(), 6, "{files:?}");
    for path in files {
        let kernel = fs::read(&path).unwrap();
        let inside = path.strip_prefix(&mounted).unwrap().to_str().unwrap();
        assert_eq!(
            store.tree(&chain).unwrap().read_file(inside, 100).unwrap(),
            Some(kernel),
            "{inside}"
        );
    }
    unmount(&mounted, UnmountFlags::DETACH).unwrap();
}

/// The layers as the kernel puts them together; unmounted with the world if a test fails.
pub(super) fn mounted(world: &TestNode, chain: &[LayerId]) -> PathBuf {
    let target = world.out("mounted");
    fs::create_dir(&target).unwrap();
    let diff = |id: &LayerId| {
        world
            .graph_root()
            .join(format!("overlay/{id}/diff"))
            .display()
            .to_string()
    };
    // Topmost first.
    let lower: Vec<String> = chain.iter().rev().map(diff).collect();
    let options = std::ffi::CString::new(format!("lowerdir={}", lower.join(":"))).unwrap();
    mount(
        "overlay",
        &target,
        "overlay",
        MountFlags::RDONLY,
        options.as_c_str(),
    )
    .unwrap();
    target
}

/// Regular files below `directory`.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files.extend(self::files(&entry.path()));
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    files
}
