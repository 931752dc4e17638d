//! Pulls from media whose disk fails, or that somebody unplugs: what was read stays, and the registry sends only the rest.

use std::fs;
use std::path::{Path, PathBuf};

use super::faults::{IMAGES, fails_without_registry, large};
use super::{Kind, Source, utf8};
use crate::failing_filesystem::Failing;
use crate::needs::needs;
use crate::registry::faults::Fault;

/// Where the large layer cannot be read: one page.
const DAMAGED: u64 = 2_000_000;
const PAGE: u64 = 4096;

/// What a read error may cost of the bytes before it: what is read ahead.
const READ_AHEAD: u64 = 1 << 20;

/// Shows what is in `dir` through a disk that fails on command.
fn on_failing_disk(dir: &Path) -> Failing {
    let backing = dir.with_extension("backing");
    fs::rename(dir, &backing).unwrap();
    Failing::mount(&backing, dir)
}

/// A layout and a tar of it on disks that fail, and where the large layer begins in its file.
fn media_on_failing_disks(source: &Source) -> [(PathBuf, Failing, String, u64); 2] {
    let hex = large(source)["sha256:".len()..].to_owned();
    let layout = source.media(Kind::SkopeoOci, &source.names()).remove(0);
    let blobs = on_failing_disk(&layout.join("blobs/sha256"));
    let tar = source.media(Kind::OciTar, &source.names()).remove(0);
    let bytes = fs::read(&tar).unwrap();
    let blob = &source.images.image("site/first").layers[1].blob;
    let begin = bytes
        .windows(PAGE as usize)
        .position(|window| *window == blob[..PAGE as usize]);
    let dir = source.place("tars");
    fs::rename(&tar, dir.join("layout.tar")).unwrap();
    let disk = on_failing_disk(&dir);
    let begin = begin.expect("the layer is in the tar") as u64;
    [
        (layout, blobs, hex, 0),
        (dir.join("layout.tar"), disk, "layout.tar".into(), begin),
    ]
}

#[test]
fn a_read_error_costs_the_rest_of_the_blob() {
    needs!(root(), stock(), fuse());
    let source = Source::of(IMAGES);
    for (medium, disk, file, begin) in media_on_failing_disks(&source) {
        let at = begin + DAMAGED;
        disk.damage(&file, at..at + PAGE);
        let media = [medium];
        let run = source.pulls(&media, &source.references());
        assert_eq!(source.requested_layers(), [large(&source)], "{run}");
        let sent: u64 = source
            .registry
            .layer_requests()
            .iter()
            .map(|access| access.sent())
            .sum();
        let blob = &source.images.image("site/first").layers[1];
        assert!(
            sent <= blob.size - DAMAGED + READ_AHEAD,
            "{sent} bytes were sent: {run}"
        );
        run.says(utf8(&media[0])).says(&large(&source));
        fails_without_registry(&source, &media, &[large(&source)]);
        assert!(disk.end_faults() > 0, "nothing failed");
    }
}

/// Pulls without a registry. The page cache may have what the disk does not show any more, so a run may succeed.
fn fails_or_is_whole(source: &Source, media: &[PathBuf]) {
    source.registry.fault(Fault::on("/v2/").status(404));
    let node = source.node();
    let run = source.run(&node, media, &source.references());
    source.registry.end_faults();
    let is_whole = run.images("pulled").len() == source.references().len();
    assert_eq!(run.code == 0, is_whole, "{run}");
    let wrong = source.differences(&node);
    assert!(wrong.is_empty(), "{}\n{run}", wrong.join("\n"));
}

#[test]
fn media_that_are_unplugged_in_the_middle_leave_the_rest_to_the_registry() {
    needs!(root(), stock(), fuse());
    let source = Source::of(IMAGES);
    for (medium, disk, ..) in media_on_failing_disks(&source) {
        let media = [medium];
        let mut without_requests = 0;
        for reads in [5, 8, 12, 20, 30] {
            disk.unplug_after(reads);
            let run = source.pulls(&media, &source.references());
            let requested = source.requested();
            // A read that fails may be one that the kernel makes ahead, of bytes that nobody needs.
            let has_failed = disk.end_faults() > 0;
            if requested.is_empty() {
                without_requests += 1;
                continue;
            }
            assert!(has_failed, "{requested:?}\n{run}");
            run.says(utf8(&media[0]));
            disk.unplug_after(reads);
            fails_or_is_whole(&source, &media);
            disk.end_faults();
        }
        assert!(without_requests < 5, "no run was cut off from its medium");
    }
}
