//! Compares layers unpacked by podman and by the program.

use serde_json::Value;

use super::entries::*;
use super::own_unpack::Ours;
use super::podman_unpack::Podman;
use super::reread::flaw;
use crate::compare::tar_split::joined;
use crate::compare::{differences, tree};
use crate::image::tar::{Entry, entry, pax_records};
use crate::image::{Compression, Layer, gzip, sha256};
use crate::needs::needs;

/// How far a case is to agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Same {
    /// Tree and tar-split.
    All,
    /// The tree; podman's own tar-split cannot be read back, but ours can, by podman.
    Tree,
}

pub(super) fn compare(podman: &Podman, name: &str, tar: &[u8], same: Same) -> Vec<String> {
    compare_layer(podman, name, &Layer::of_tar(tar, Compression::None), tar, same)
}

pub(super) fn compare_layer(
    podman: &Podman,
    name: &str,
    layer: &Layer,
    tar: &[u8],
    same: Same,
) -> Vec<String> {
    let theirs = podman.pull(layer);
    let ours = Ours::unpack(&layer.blob);
    let mut found = Vec::new();
    match (&theirs, &ours) {
        (Err(_), Err(_)) => {}
        (Ok(_), Err(ours)) => found.push(format!("podman accepts, we do not: {ours}")),
        (Err(theirs), Ok(_)) => found.push(format!("we accept, podman does not: {theirs}")),
        (Ok(theirs), Ok(ours)) => {
            found.extend(differences(
                &tree::below(&ours.diff()),
                &tree::below(&theirs.diff),
            ));
            let (our_root, their_root) = (tree::root(&ours.diff()), tree::root(&theirs.diff));
            if our_root != their_root {
                found.push(format!("the root is {our_root}, podman's {their_root}"));
            }
            if ours.assemble() != tar {
                found.push("the tar is not put together again".to_owned());
            }
            let flawed = flaw(&ours.diff(), &ours.tar_split, tar);
            found.extend(flawed.map(|flaw| format!("our layer: {flaw}")));
            // Podman's as well, if its tar-split is right.
            let flaw = flaw(&theirs.diff, &theirs.tar_split, tar);
            let is_false = |flaw: &String| same == Same::All || !flaw.starts_with("Unproven");
            found.extend(
                flaw.filter(is_false)
                    .map(|flaw| format!("podman's layer: {flaw}")),
            );
            match same {
                Same::All if joined(&ours.tar_split) != joined(&theirs.tar_split) => {
                    let (ours, theirs) = (joined(&ours.tar_split), joined(&theirs.tar_split));
                    found.push(format!("tar-split {ours:?}\n    podman {theirs:?}"));
                }
                Same::All => {}
                Same::Tree => {
                    let saved = podman.save_with(theirs, &ours.tar_split);
                    found.extend(saved.err().map(|error| format!("podman cannot save: {error}")));
                }
            }
            let ids = |key: &str| -> Vec<u64> {
                let ids = theirs.record[key].as_array().cloned().unwrap_or_default();
                ids.iter().filter_map(Value::as_u64).collect()
            };
            let facts = &ours.facts;
            let uids: Vec<u64> = facts.owners.uids.iter().map(|&id| id.into()).collect();
            let gids: Vec<u64> = facts.owners.gids.iter().map(|&id| id.into()).collect();
            let number = |key: &str| theirs.record[key].as_u64().unwrap_or(0);
            let recorded = (
                (ids("uidset"), ids("gidset")),
                (number("diff-size"), number("compression")),
            );
            let facts = ((uids, gids), (facts.diff_size, facts.compression as u64));
            if facts != recorded {
                found.push(format!("facts {facts:?}, podman's record {recorded:?}"));
            }
        }
    }
    found.into_iter().map(|line| format!("{name}: {line}")).collect()
}

#[test]
fn the_zoo() {
    needs!(root(), stock());
    let podman = Podman::new();
    let mut found = Vec::new();
    for (name, same, tar) in sample_images() {
        found.extend(compare(&podman, name, &tar, same));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn sample_images() -> Vec<(&'static str, Same, Vec<u8>)> {
    use Same::{All, Tree};
    let long = "n".repeat(150);
    let deep = ["d".repeat(60), "e".repeat(60), "f".repeat(60)].join("/");
    vec![
        ("empty", All, tar([])),
        ("no bytes", All, Vec::new()),
        ("one block of zeros", All, vec![0; 512]),
        ("no end", All, file("a", "1").bytes()),
        ("cut in the padding", Tree, file("a", "1").bytes()[..600].to_vec()),
        ("trailing bytes", All, [tar([file("a", "1")]), b"trailing".repeat(1000)].concat()),
        ("ten kilobytes of end", All, [tar([file("a", "1")]), vec![0; 9216]].concat()),
        ("plain", All, tar([
            dir("./").mode(0o700).owner(7, 8),
            dir("bin/").mode(0o1777),
            file("bin/sh", "shell").mode(0o4755),
            file("bin/wall", "w").mode(0o2755).owner(0, 5),
            file("bin/mine", "m").mode(0o6711).owner(1000, 1001),
            file("empty", "").mode(0),
            symlink("bin/bash", "sh"),
            symlink("bin/abs", "/bin/sh").owner(3, 4),
            hard_link("bin/hard", "bin/sh").mode(0o755),
            file("./dot/./x", "x"),
        ])),
        ("root entry `/`", All, tar([dir("/").mode(0o751).owner(5, 6), file("/a", "1"), file("b", "2")])),
        ("root entry `..`", All, tar([dir("..").mode(0o750), file("b", "2")])),
        ("a file named `.`", Tree, tar([file(".", "data"), file("b", "2")])),
        ("a file without a name", Tree, tar([file("", "data"), file("b", "2")])),
        ("implicit parents", All, tar([file("a/b/c/d", "1"), dir("a/b").mode(0o711).mtime(5), file("a/x", "")])),
        ("implicit in setgid", All, tar([dir("g").mode(0o2775).owner(0, 50), file("g/h/i/f", "1"), file("g/f", "2"), symlink("g/l", "f"), dir("g/d"), entry(b'6', "g/p")])),
        ("whiteouts", All, tar([
            dir("d"), file("d/.wh.gone", "").owner(3, 4), file("d/.wh..wh..opq", ""), file("x/.wh..wh..opq", ""),
            file(".wh.file", ""), dir(".wh.dir/"), file("d/.wh..wh.plnk", ""),
        ])),
        ("whiteout of what is there", All, tar([file("a", "1"), file(".wh.a", "")])),
        ("whiteout, then the file", All, tar([file(".wh.a", ""), file("a", "1")])),
        ("whiteout, then the directory", All, tar([file(".wh.a", ""), dir("a"), file("a/b", "")])),
        ("whiteout below a whiteout", All, tar([file(".wh.a", ""), file("a/.wh.b", ""), file("z", "1")])),
        ("opaque below a whiteout", All, tar([file(".wh.a", ""), file("a/.wh..wh..opq", ""), file("z", "1")])),
        ("file below a file", All, tar([file("a", ""), file("a/b", "")])),
        ("whiteout two below a file", All, tar([file("a", ""), file("a/b/.wh.c", "")])),
        ("whiteout with data", Tree, tar([file(".wh.a", "some data"), file("b", "2")])),
        ("whiteout of nothing", All, tar([file(".wh.", "")])),
        ("whiteout of nothing below", All, tar([file("a/.wh.", "")])),
        ("whiteout of dot", All, tar([file("a/.wh..", "")])),
        ("whiteout of dot dot", All, tar([file("a/.wh...", "")])),
        ("whiteout of three dots", All, tar([file("a/.wh....", "")])),
        ("opaque root", All, tar([file(".wh..wh..opq", "")])),
        ("whiteout of another type", All, tar([entry(b'7', ".wh.a"), symlink(".wh.b", "x"), hard_link(".wh.c", "nowhere"), entry(b'3', ".wh.d")])),
        ("whiteout through a link", All, tar([dir("usr/lib"), symlink("lib", "usr/lib"), file("lib/.wh.x", ""), file("lib/.wh..wh..opq", "")])),
        ("symlinked parents", Tree, tar([
            dir("usr"), dir("usr/lib").mtime(77), symlink("lib", "usr/lib"), file("lib/x", "data"),
            dir("lib/y").mtime(99), symlink("abs", "/usr/lib"), file("abs/z", "data"), symlink("up", "../../../usr"),
            file("up/lib/u", "data"), hard_link("h", "lib/x"), hard_link("lib/h2", "abs/z"),
        ])),
        ("a directory over a link", Tree, tar([dir("usr/lib"), symlink("lib", "usr/lib"), dir("lib/sub"), dir("/lib"), file("lib/x", "1")])),
        ("a dangling link as parent", All, tar([symlink("l", "nowhere"), file("l/x", "1")])),
        ("a dangling link above the parent", All, tar([symlink("l", "nowhere"), file("l/m/x", "1")])),
        ("a loop as parent", All, tar([symlink("l", "l"), file("l/x", "1")])),
        ("an empty link", All, tar([symlink("l", "")])),
        ("dot dot names", Tree, tar([file("../a", "1"), file("b/../c", "2"), file("d/../../e", "3"), dir("../../f").mtime(5)])),
        ("absolute names", All, tar([file("/a", "1"), dir("/b"), file("//b//c", "2")])),
        ("names that begin with dots", All, tar([dir("..data"), file("..data/x", "1"), file("..y", "2"), file("/...", "3")])),
        ("absolute dot dot names", Tree, tar([file("/../a", "1"), file("//b/../../c", "2"), dir("/../d"), file("/d/../e", "3")])),
        ("hard links", All, tar([
            file("a", "1").mode(0o600), hard_link("b", "/a").mode(0o4711).owner(9, 9).mtime(55), hard_link("c", "../b"),
            symlink("s", "a").mtime(44), hard_link("t", "s").mode(0o600).mtime(33), entry(b'6', "p"), hard_link("q", "p").mode(0o620),
            hard_link("n/m", "a"),
        ])),
        ("a hard link to nothing", All, tar([hard_link("b", "a")])),
        ("a hard link to a directory", All, tar([dir("a"), hard_link("b", "a")])),
        ("a hard link to the root", All, tar([hard_link("b", "")])),
        ("a hard link to itself", All, tar([file("a", "1"), hard_link("/a", "a")])),
        ("a hard link outside", All, tar([symlink("l", "/"), hard_link("b", "l/etc/passwd")])),
        ("a hard link with a size", Tree, tar([file("a", "12345"), hard_link("b", "a").size(5), dir("d").size(4096), symlink("s", "a").size(1)])),
        ("hard link, xattrs", All, tar([file("a", "1"), hard_link("b", "a").xattr("user.x", "y")])),
        ("devices", All, tar([
            entry(b'3', "null").mode(0o666).device(1, 3), entry(b'4', "disk").mode(0o660).device(8, 17).owner(0, 6),
            entry(b'6', "pipe").mode(0o4622), entry(b'3', "big").device(4095, 0o7777777), entry(b'3', "white").mode(0),
        ])),
        ("device numbers too large", All, tar([entry(b'3', "a").device(4096 + 5, 1)])),
        ("xattrs", All, tar([
            file("f", "1").mode(0o4755).owner(5, 5)
                .xattr("user.empty-not", "x").xattr("user.\u{e4}", b"\xff\x00\n")
                .xattr("security.capability", b"\x01\0\0\x02\0\x04\0\x0a\0\0\0\0\0\0\0\0\x0a\0\0\0")
                .xattr("trusted.overlay.opaque", "n").xattr("security.selinux", "label").xattr("nonsense", "x")
                .xattr("security.ima", b"\x03\x04").pax("LIBARCHIVE.xattr.user.l", "Zm9v"),
            dir("d").xattr("user.d", "1").xattr("trusted.x", "\n"),
            symlink("s", "f").xattr("trusted.on.link", "1"),
            entry(b'6', "p").xattr("trusted.on.pipe", "1"),
            entry(b'3', "c").device(1, 3).xattr("security.on.device", "1"),
            file("acl", "").mode(0o640).xattr("system.posix_acl_access", b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\x05\0\0\0\x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff"),
        ])),
        ("user xattr on a link", All, tar([symlink("s", "f").xattr("user.on.link", "1")])),
        ("xattr too large", All, tar([file("f", "1").xattr("user.x", vec![b'x'; 70_000])])),
        ("xattr without a name", All, tar([file("f", "1").xattr("", "x")])),
        ("broken capability", All, tar([file("f", "1").xattr("security.capability", "x")])),
        ("pax times", All, tar([
            file("a", "").pax("mtime", "1234567890.123456789").pax("atime", "1.5").pax("ctime", "3"),
            file("b", "").pax("mtime", "-5.25"), file("c", "").pax("mtime", "99999999999"), file("d", "").mtime(-5).gnu(),
            symlink("s", "x").pax("mtime", "-5.25"), dir("e").pax("mtime", "-1"), dir("f").pax("mtime", "7.000000001").pax("atime", "8"),
            entry(b'6', "p").pax("mtime", "-3"), symlink("t", "x").pax("mtime", "5.5"),
        ])),
        ("pax time in words", All, tar([file("a", "").pax("mtime", "now")])),
        ("pax names", All, tar([
            file("short", "1").pax("path", format!("{deep}/{long}")), symlink("l", "x").pax("linkpath", format!("{deep}/{long}")),
            file("ids", "2").pax("uid", "3000000").pax("gid", "4000000000").pax("uname", "nobody"),
            file("size", "123456").size(0).pax("size", "6"), file("nl", "3").pax("path", "with\nnew\nline"),
            file("odd", "4").pax("path", "a<b>&\"c\"\\d\u{1}\t\u{2028}e\u{7f}\u{e4}"),
        ])),
        ("pax ids overflow", All, tar([file("a", "1").pax("uid", "4294967297").pax("gid", "-1")])),
        ("pax id is no number", All, tar([file("a", "1").pax("uid", "x")])),
        ("negative pax size", All, tar([file("a", "1").pax("size", "-1")])),
        ("base-256", All, tar([file("a", "1").owner(3_000_000, 4_000_000_000), file("b", "").mtime(-7), file("c", "").mtime(1 << 40)].map(Entry::gnu))),
        ("negative size", All, tar([file("a", "").patch(124, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")])),
        ("names that are not UTF-8", All, tar([file(b"a\xff\xfe", "1"), dir(b"d\xe4/"), file(b"d\xe4/f", "2"), symlink(b"l\xff", b"\xfe")])),
        ("gnu names", All, tar([
            gnu_long(b'L', format!("{deep}/{long}")), file("short", "1").gnu(),
            gnu_long(b'K', format!("{deep}/{long}")), gnu_long(b'L', "other"), symlink("l", "x").gnu(),
        ])),
        ("prefix", All, tar([file("name", "1").patch(345, "pre/fix"), file("f", "").patch(345, "star").patch(508, b"tar\0")])),
        ("v7", All, tar([file("a", "1").v7(), entry(0, "d/").v7(), entry(0, "f"), file("slash/", "2")])),
        ("global header", All, tar([
            entry(b'g', "GlobalHead.0.0/x").pax("comment", "hello"), file("a", "1"),
            entry(b'g', "g2").pax("path", "named/by/record").pax("mtime", "5"),
        ])),
        ("two global headers", All, tar([entry(b'g', "g"), file("a", "1"), entry(b'g', "g")])),
        ("global header over a directory", Tree, tar([file("a/b", "1"), entry(b'g', "a"), file("c", "2")])),
        ("global header without a place", All, tar([file("a", ""), entry(b'g', "a/g")])),
        ("pending records before a global header", All, tar([file("x", pax_records(&[("path".into(), "lost".into())])).with_type(b'x'), entry(b'g', "g"), file("a", "1")])),
        ("sparse 0.1", Tree, tar([
            file("s", "abcde").pax("GNU.sparse.size", "20").pax("GNU.sparse.numblocks", "2").pax("GNU.sparse.name", "real").pax("GNU.sparse.map", "2,3,10,2"),
            file("t", "1"),
        ])),
        ("sparse 0.0", Tree, tar([
            file("s", "abcde").pax("GNU.sparse.size", "20").pax("GNU.sparse.numblocks", "2")
                .pax("GNU.sparse.offset", "2").pax("GNU.sparse.numbytes", "3").pax("GNU.sparse.offset", "10").pax("GNU.sparse.numbytes", "2"),
            file("t", "1"),
        ])),
        ("sparse 1.0", Tree, tar([
            file("s", [&b"2\n2\n3\n100000\n2\n"[..], &[0; 512 - 15], b"abcde"].concat())
                .pax("GNU.sparse.major", "1").pax("GNU.sparse.minor", "0").pax("GNU.sparse.realsize", "200000").pax("GNU.sparse.name", "real"),
            file("t", "1"),
        ])),
        ("sparse of a later version", Tree, tar([file("s", "abc").pax("GNU.sparse.major", "2").pax("GNU.sparse.minor", "0")])),
        ("sparse, too little data", All, tar([file("s", "abcd").pax("GNU.sparse.size", "20").pax("GNU.sparse.numblocks", "1").pax("GNU.sparse.map", "2,5")])),
        ("sparse, too much data", All, tar([file("s", "abcdefgh").pax("GNU.sparse.size", "20").pax("GNU.sparse.numblocks", "1").pax("GNU.sparse.map", "2,5")])),
        ("sparse directory", All, tar([dir("s").pax("GNU.sparse.size", "20").pax("GNU.sparse.numblocks", "1").pax("GNU.sparse.map", "2,5")])),
        ("old sparse", All, tar([entry(b'S', "s").gnu()])),
        ("contiguous", All, tar([file("s", "1").with_type(b'7')])),
        ("unknown type", All, tar([file("s", "1").with_type(b'Z')])),
        ("duplicate", All, tar([file("a", "1"), file("./a", "2")])),
        ("duplicate directory", All, tar([dir("a"), dir("a/")])),
        ("the same by two names", Tree, tar([file("a", "first"), file("/a", "second"), file("b", "3")])),
        ("replaced through a link", Tree, tar([dir("usr"), file("usr/x", "first"), hard_link("h", "usr/x"), symlink("l", "usr"), file("l/x", "second")])),
        ("a file over a tree", Tree, tar([file("a/b/c", "1"), file("a/d", "2"), file("a", "3")])),
        ("a directory lost", All, tar([dir("a/b"), file("a/d", "2"), file("a", "3")])),
        ("a directory merged", All, tar([file("a/b", "1"), dir("a").mode(0o700).owner(1, 2).mtime(5), dir("/a").mode(0o711).mtime(6)])),
        ("a directory over a file", Tree, tar([file("a", "1"), dir("/a"), file("a/b", "2")])),
        ("a directory becomes a link", Tree, tar([dir("t").mtime(3), dir("a").mtime(5), symlink("/a", "t")])),
        ("a name too long", All, tar([file("a", "").pax("path", "x".repeat(256))])),
        ("a path too long", All, tar([file("a", "").pax("path", "x/".repeat(2100))])),
        ("a long path", All, tar([file("a", "1").pax("path", format!("{}y", "x/".repeat(1900)))])),
        ("a link too long", All, tar([symlink("a", "").pax("linkpath", "x".repeat(4096))])),
        ("a record with NUL", All, tar([file("a", "").pax("path", b"a\0b")])),
        ("bad checksum", All, tar([file("a", "").patch(148, b"0000001\0")])),
        ("bad mode", All, tar([file("a", "").patch(100, b"rw-r--r-")])),
        ("one zero block between", All, [file("a", "1").bytes(), vec![0; 512], tar([file("b", "2")])].concat()),
        ("giant pax", All, tar([file("a", "").pax("comment", vec![b'x'; (1 << 20) + 1])])),
        ("many owners", All, tar((0..300).map(|n| file(format!("f{n}"), "").owner(n, 1000 - n)))),
    ]
}

#[test]
fn compressions() {
    needs!(root(), stock());
    let podman = Podman::new();
    let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 3).unwrap();
    let (oci_gzip, oci_zstd) = (Compression::Gzip, Compression::Zstd);
    let skippable = [&b"\x50\x2a\x4d\x18\x04\0\0\0"[..], b"skip"].concat();
    type Compress<'a> = Box<dyn Fn(&[u8]) -> Vec<u8> + 'a>;
    let cases: Vec<(&str, Compression, Compress<'_>)> = vec![
        ("gzip", oci_gzip, Box::new(gzip)),
        (
            "gzip members",
            oci_gzip,
            Box::new(|tar| [gzip(&tar[..50_000]), gzip(&tar[50_000..])].concat()),
        ),
        (
            "gzip and garbage",
            oci_gzip,
            Box::new(|tar| [gzip(tar), b"garbage".to_vec()].concat()),
        ),
        (
            "gzip and zeros",
            oci_gzip,
            Box::new(|tar| [gzip(tar), vec![0; 100]].concat()),
        ),
        ("gzip cut", oci_gzip, Box::new(|tar| gzip(tar)[..300].to_vec())),
        (
            "gzip without its sum",
            oci_gzip,
            Box::new(|tar| {
                let all = gzip(tar);
                all[..all.len() - 8].to_vec()
            }),
        ),
        (
            "gzip with a wrong sum",
            oci_gzip,
            Box::new(|tar| {
                let mut all = gzip(tar);
                let at = all.len() - 8;
                all[at] ^= 1;
                all
            }),
        ),
        ("zstd", oci_zstd, Box::new(zstd)),
        (
            "zstd frames",
            oci_zstd,
            Box::new(|tar| {
                [
                    zstd(&tar[..50_000]),
                    skippable.clone(),
                    zstd(&tar[50_000..]),
                    skippable.clone(),
                ]
                .concat()
            }),
        ),
        (
            "zstd and garbage",
            oci_zstd,
            Box::new(|tar| [zstd(tar), b"garbage".to_vec()].concat()),
        ),
        ("zstd cut", oci_zstd, Box::new(|tar| zstd(tar)[..30].to_vec())),
        ("gzip by another name", oci_zstd, Box::new(gzip)),
    ];
    let mut found = Vec::new();
    for (name, compression, compress) in cases {
        // Every case has a layer of its own, or podman would re-use the first.
        let tar = tar([file("a", name.repeat(10_000)), file("b", "2")]);
        let layer = Layer::of_blob(compress(&tar).into(), sha256(&tar), compression);
        found.extend(compare_layer(&podman, name, &layer, &tar, Same::All));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
