//! Verifies and repairs extended attributes as XFS has them.

use std::process::Command;

use super::{shell, snapshot};
use crate::compare::{compare, inconsistencies};
use crate::disk_full::Disk;
use crate::image::{Image, Images};
use crate::needs::needs;
use crate::registry::Registry;
use crate::stock::tops;
use crate::test_node::TestNode;

/// `u::rw-,u:1000:rwx,g::r--,m::rwx,o::r--`, as acl(5) and the kernel have it.
const ACL: &str =
    "0x0200000001000600ffffffff02000700e803000004000400ffffffff10000700ffffffff20000400ffffffff";

fn with_acls() -> Image {
    let text = format!(
        "image acls oci\nlayer gzip\n\
         file /f 0674 0:0 \"f\" mtime=1400000000\nxattr system.posix_acl_access={ACL}\n\
         dir /d 0755 0:0 mtime=1400000000\nxattr system.posix_acl_default={ACL}\n\
         file /d/in 0640 0:0 \"in\" mtime=1400000000\n\
         layer gzip\nfile /top 0644 0:0 \"top\"\nlayer gzip\nfile /more 0644 0:0 \"more\"\n"
    );
    Images::of(&text, &[]).image("acls").clone()
}

fn on_xfs(registry: &Registry) -> (TestNode, Disk) {
    let world = TestNode::trusting(&[registry.host()]);
    let disk = Disk::mount(&world, "xfs");
    (world, disk)
}

/// XFS lists them for root by a second name.
#[test]
fn posix_acls_on_xfs_are_no_damage() {
    needs!(root(), stock(), xfs());
    let (registry, image) = (Registry::start(), with_acls());
    registry.push("acls", Some("latest"), &image);
    let args = ["--image", &registry.tagged("acls")];
    let (ours, _disk) = on_xfs(&registry);
    ours.run(&args).exits(0);
    shell(
        &ours.graph_root(),
        &image,
        "getfattr -m - overlay/$BASE/diff/f | grep trusted.SGI_ACL_FILE
         getfattr -m - overlay/$BASE/diff/d | grep trusted.SGI_ACL_DEFAULT
         getfacl -pn overlay/$BASE/diff/f | grep user:1000:rwx
         getfacl -pn overlay/$BASE/diff/d | grep default:user:1000:rwx",
    );
    for top in tops() {
        let (theirs, _disk) = on_xfs(&registry);
        theirs.podman_of(&top, &["pull", "--quiet", args[1]]).ok();
        let before = snapshot(&theirs.graph_root());
        for repair in [&[][..], &["--repair"]] {
            let verified = theirs.verify(&[&args[..], repair].concat()).exits(0);
            assert_eq!(verified.report["warnings"], serde_json::json!([]), "{verified}");
            assert_eq!(snapshot(&theirs.graph_root()), before);
        }
        let wrong = compare(&ours.graph_root(), &theirs.graph_root(), &[]);
        assert!(wrong.is_empty(), "{}:\n{}", top.display(), wrong.join("\n"));
    }
    let verified = ours.verify(&args).exits(0);
    assert_eq!(verified.report["warnings"], serde_json::json!([]), "{verified}");

    for damage in [
        "setfacl -b overlay/$BASE/diff/f",
        "setfacl -k overlay/$BASE/diff/d",
        "setfacl -m u:1000:r overlay/$BASE/diff/f",
    ] {
        shell(&ours.graph_root(), &image, damage);
        ours.verify(&args).exits(7).says("system.posix_acl_");
        let mended = ours.verify(&[&args[..], &["--repair"]].concat()).exits(0);
        assert_eq!(
            mended.stderr.matches("replaced a damaged layer").count(),
            1,
            "{mended}"
        );
        assert_eq!(inconsistencies(&ours.graph_root()), Vec::<String>::new());
    }
}

/// Their names are longer than the 64 KiB that the kernel lists. podman stores such a layer too.
#[test]
fn more_attributes_than_the_kernel_lists_are_stored_and_read() {
    needs!(root(), stock(), xfs());
    let xattrs: String = (0..8000)
        .map(|n| format!("xattr user.attribute-{n}={n}\n"))
        .collect();
    let text = format!("image many oci\nlayer gzip\nfile /f 0644 0:0 \"f\" mtime=1400000000\n{xattrs}");
    let images = Images::of(&text, &[]);
    let (registry, image) = (Registry::start(), images.image("many"));
    registry.push("many", Some("latest"), image);
    let args = ["--image", &registry.tagged("many")];
    for top in tops() {
        let (theirs, _disk) = on_xfs(&registry);
        theirs.podman_of(&top, &["pull", "--quiet", args[1]]).ok();
        theirs.verify(&args).exits(0);
    }
    let (ours, _disk) = on_xfs(&registry);
    ours.run(&args).exits(0);
    let file = ours
        .graph_root()
        .join("overlay")
        .join(&image.layers[0].diff_id[7..])
        .join("diff/f");
    let listed = Command::new("getfattr").arg(&file).output().unwrap();
    assert!(!listed.status.success(), "the kernel lists them");
    ours.verify(&args).exits(0);
    shell(
        &ours.graph_root(),
        image,
        "setfattr -n user.attribute-77 -v x overlay/$BASE/diff/f",
    );
    ours.verify(&args)
        .exits(7)
        .says("`user.attribute-77` has another value");
    ours.verify(&[&args[..], &["--repair"]].concat()).exits(0);
}

/// A file system that does not give back what was written would have every layer written again and again.
#[test]
fn a_layer_that_stays_damaged_is_written_anew_once() {
    needs!(root(), strace());
    let (registry, image) = (Registry::start(), with_acls());
    registry.push("acls", Some("latest"), &image);
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--image", &registry.tagged("acls")];
    world.run(&args).exits(0);
    let strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e"];
    let strace = [&strace[..], &["inject=llistxattr:error=EIO"]].concat();
    let repaired = world
        .start_under(&strace, "verify", &[&args[..], &["--repair"]].concat())
        .wait();
    let repaired = repaired.exits(7).says("even after it was written again");
    let written = repaired.stderr.matches("replaced a damaged layer").count();
    assert_eq!(written, image.layers.len(), "{repaired}");
    world.verify(&args).exits(0);
}
