//! Unpacks malicious layers that escape their directory or are too large. `Ours` checks the sentinel.

use std::fs::File;
use std::os::fd::AsFd;

use spoke_precache::cancel::{Cancel, StopReason};
use spoke_precache::store::unpack::{UnpackError, UnpackLimits, unpack};
use spoke_precache::write_back::WriteQueue;

use super::differential::{Same, compare};
use super::entries::*;
use super::own_unpack::Ours;
use super::podman_unpack::Podman;
use crate::compare::tree;
use crate::image::gzip;
use crate::image::tar::{Entry, entry};
use crate::needs::needs;

#[test]
fn nothing_gets_out() {
    needs!(root());
    let outs = [
        "/",
        "..",
        "../..",
        "../../..",
        "/proc/self/root",
        "/proc/self/cwd/..",
        "a/../../..",
        "/proc/1/root",
    ];
    for out in outs {
        // From the layer's directory the sentinel is `../sentinel`.
        for way in ["sentinel", "../sentinel", "diff/../../sentinel"] {
            let through = format!("l/{way}");
            for attempt in [
                vec![symlink("l", out), file(&through, "gotcha")],
                vec![symlink("l", out), dir(&through)],
                vec![symlink("l", out), symlink(&through, "/etc")],
                vec![symlink("l", out), hard_link("h", &through).mode(0)],
                vec![symlink("l", out), hard_link(&through, "l")],
                vec![symlink("l", out), file(format!("l/.wh.{way}"), "")],
                vec![
                    symlink("l", out),
                    file("l/.wh.sentinel", ""),
                    file("l/../.wh.sentinel", ""),
                ],
                vec![symlink("l", out), file("l/.wh..wh..opq", "")],
                vec![symlink("l", out), dir("l/x").mode(0), dir("/l").mode(0).mtime(1)],
                vec![
                    symlink("l", out),
                    entry(b'6', &through),
                    entry(b'3', format!("{through}2")),
                ],
                vec![file(format!("{out}/{way}"), "gotcha")],
                vec![hard_link("h", format!("{out}/{way}")).mode(0)],
                vec![
                    dir("d"),
                    symlink("d/l", out),
                    symlink("m", "d/l"),
                    file(format!("m/{way}"), "gotcha"),
                ],
                vec![
                    dir("d/e"),
                    symlink("/d", out),
                    file(format!("d/{way}"), "gotcha"),
                    file("d", ""),
                ],
                vec![
                    symlink("l", &through),
                    file("l", "over the link"),
                    symlink("/l", out),
                    dir("../l"),
                ],
            ] {
                let tar = tar(attempt);
                if let Ok(ours) = Ours::unpack(&tar) {
                    assert_eq!(ours.assemble(), tar);
                }
            }
        }
    }
}

#[test]
fn hard_links_find_nothing_outside() {
    needs!(root());
    for target in [
        "../sentinel",
        "/../sentinel",
        "l/sentinel",
        "l/../sentinel",
        "../../etc/passwd",
        "/etc/passwd",
    ] {
        let result = Ours::unpack(&tar([symlink("l", ".."), hard_link("h", target)]));
        assert!(matches!(result, Err(UnpackError::Content { .. })), "{target}");
    }
}

#[test]
fn every_limit_holds_and_its_error_has_the_number() {
    needs!(root());
    let limits = UnpackLimits {
        bytes: 1 << 20,
        budget: None,
        ceiling: u64::MAX,
        entries: 50,
        record: 2000,
        path: 100,
        depth: 10,
        directory_names: 300,
        is_compressible: true,
    };
    let sparse = |size: &str| {
        let sparse = file("s", "a")
            .pax("GNU.sparse.size", size)
            .pax("GNU.sparse.numblocks", "1");
        tar([sparse.pax("GNU.sparse.map", "0,1")])
    };
    let map = |count: &str| {
        let data = [count.as_bytes(), b"\n", &b"1\n".repeat(5000)].concat();
        tar([file("s", data)
            .pax("GNU.sparse.major", "1")
            .pax("GNU.sparse.minor", "0")])
    };
    let many = |count: usize| (0..count).map(|n| file(format!("f{n}"), ""));
    for (what, blob) in [
        (
            "uncompressed bytes: 1",
            gzip(&tar([file("zeros", vec![0; 2 << 20])])),
        ),
        (
            "uncompressed bytes: 1",
            zstd::encode_all(&vec![0; 50 << 20][..], 3).unwrap(),
        ),
        ("uncompressed bytes: 1", [tar([]), vec![0; 2 << 20]].concat()),
        ("uncompressed bytes: 9223372036854", sparse("9223372036854775807")),
        ("50 tar headers: 51", tar(many(51))),
        ("50 tar headers: 51", tar((0..51).map(|_| gnu_long(b'L', "x")))),
        (
            "2000 bytes in an extended header: 2",
            tar([file("a", "").pax("comment", vec![b'x'; 2000])]),
        ),
        (
            "2000 bytes in an extended header: 1000000",
            file("a", "").with_type(b'x').size(1_000_000).bytes(),
        ),
        (
            "2000 bytes in an extended header: 8589934591",
            file("a", "").with_type(b'L').size(0o77777777777).bytes(),
        ),
        ("2000 bytes in a sparse map: 2048", map("5000")),
        ("100 bytes in a path: 101", tar([file("x".repeat(100), "")])),
        (
            "10 directories in a path: 11",
            tar([file("x/".repeat(10) + "y", "")]),
        ),
        (
            "300 bytes in names of directories: 320",
            tar((0..9).map(|n| dir("d".repeat(39) + &n.to_string()))),
        ),
    ] {
        let error = Ours::unpack_within(&blob, limits).err().expect(what);
        assert!(matches!(error, UnpackError::Limit { .. }), "{what}: {error}");
        assert!(error.to_string().contains(what), "{what}: {error}");
        assert!(error.is_content());
    }
    assert!(Ours::unpack_within(&tar(many(50)), limits).is_ok());
}

/// ext4 has space for 4 KiB of attributes in an inode and otherwise returns `ENOSPC`; it accepts 65,000 links to one.
#[test]
fn what_a_file_system_cannot_hold_is_the_layers_fault_and_no_full_disk() {
    needs!(root());
    let large = "x".repeat(60_000);
    let attributes = vec![
        file("f", "").xattr("user.x", &large).xattr("user.y", &large),
        dir("d").xattr("trusted.x", &large),
        entry(b'6', "p").xattr("trusted.x", &large),
        symlink("l", "f").xattr("trusted.x", &large),
    ];
    let mut layers: Vec<_> = attributes.into_iter().map(|entry| vec![entry]).collect();
    if crate::needs::long() {
        let mut links = vec![file("f", "a")];
        links.extend((0..65_001).map(|number| hard_link(format!("l{number}"), "f")));
        layers.push(links);
    }
    for layer in layers {
        // Other file systems hold more.
        if let Err(error) = Ours::unpack(&tar(layer)) {
            assert!(error.is_content(), "{error}");
        }
    }
}

#[test]
fn a_bomb_stops_at_its_limit() {
    needs!(root());
    // A megabyte of gzip, made of members of a megabyte of zeros each.
    let member = gzip(&[0; 1 << 20]);
    let limits = UnpackLimits {
        bytes: 64 << 20,
        ..UnpackLimits::for_blob(0)
    };
    let error = Ours::unpack_within(&member.repeat(1000), limits)
        .err()
        .expect("an error");
    assert!(
        matches!(error, UnpackError::Limit { max, .. } if max == 64 << 20),
        "{error}"
    );
}

#[test]
fn a_cut_layer_is_judged_as_podman_judges_it() {
    needs!(root(), stock());
    let podman = Podman::new();
    let whole = tar([
        dir("d"),
        file("d/a", "x".repeat(700)).xattr("user.x", "y".repeat(600)),
        gnu_long(b'L', "long".repeat(200)),
        hard_link("short", "d/a"),
        file("s", [&b"1\n0\n5\n"[..], &[0; 506], b"abcde"].concat())
            .pax("GNU.sparse.major", "1")
            .pax("GNU.sparse.minor", "0")
            .pax("GNU.sparse.size", "9"),
        file("last", "z"),
    ]);
    let cuts = (0..=whole.len())
        .step_by(512)
        .chain([1, 511, 513, 1025, whole.len() - 1]);
    let mut differences = Vec::new();
    for cut in cuts {
        differences.extend(compare(
            &podman,
            &format!("cut at {cut}"),
            &whole[..cut],
            Same::Tree,
        ));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    for cut in (0..whole.len()).step_by(13) {
        if let Ok(ours) = Ours::unpack(&whole[..cut]) {
            assert_eq!(ours.assemble(), &whole[..cut], "cut at {cut}");
        }
    }
}

#[test]
fn a_stop_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let diff = File::open(dir.path()).unwrap();
    let cancel = Cancel::default();
    cancel.stop(StopReason::Deadline);
    let blob = std::io::Cursor::new(tar([file("a", "1")]));
    let split = tempfile::tempfile().unwrap();
    let result = unpack(
        blob,
        diff.as_fd(),
        &split,
        UnpackLimits::for_blob(0),
        &WriteQueue::off(),
        &cancel,
    );
    assert!(matches!(result, Err(UnpackError::Stopped(_))), "{result:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_full_disk_is_the_hosts_fault() {
    needs!(root());
    let dir = tempfile::tempdir().unwrap();
    rustix::mount::mount(
        "none",
        dir.path(),
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        c"size=64k",
    )
    .unwrap();
    let full = |entry: Entry| {
        let diff = File::open(dir.path()).unwrap();
        let split = tempfile::tempfile().unwrap();
        let blob = std::io::Cursor::new(tar([entry]));
        unpack(
            blob,
            diff.as_fd(),
            &split,
            UnpackLimits::for_blob(0),
            &WriteQueue::off(),
            &Cancel::default(),
        )
    };
    let result = full(file("big", vec![1; 1 << 20]));
    rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    let error = result.unwrap_err();
    assert!(error.is_no_space() && !error.is_content(), "{error}");
    assert!(error.to_string().starts_with("cannot write `big`"), "{error}");
}

#[test]
fn the_umask_changes_nothing() {
    needs!(root());
    // SAFETY: no memory is involved. Once this thread has a file system context of its own, its umask is its own.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0);
    for umask in [0, 0o022, 0o077, 0o777] {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
        let ours = Ours::unpack(&tar([
            dir("d").mode(0o777),
            file("d/f", "").mode(0o666),
            entry(b'6', "p").mode(0o622),
            file("i/f", "").mode(0o4751),
        ]));
        let tree = tree::below(&ours.unwrap().diff());
        for (name, start) in [
            ("d", "dir 0777"),
            ("d/f", "file 0666"),
            ("p", "fifo 0622"),
            ("i", "dir 0755"),
            ("i/f", "file 4751"),
        ] {
            assert!(
                tree[name].starts_with(start),
                "{umask:o}: {name} is {}",
                tree[name]
            );
        }
    }
}
