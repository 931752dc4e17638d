//! Tests of the spool: downloads continued after a kill, a reboot or a power loss, and files changed by others.

use proptest::prelude::*;

use super::journal::{Journal, JournalRecord};
use super::*;

const TEXT: &[u8] = b"a layer's bytes as they travel";

/// Waits for a lock that a child of another test has inherited: between fork and exec it holds every lock of this process.
fn spool(dir: &tempfile::TempDir) -> Spool {
    let path = dir.path().join("spool");
    for _ in 0..1000 {
        match Spool::open(&path) {
            Err(SpoolError::Busy { .. }) => std::thread::sleep(std::time::Duration::from_millis(10)),
            opened => return opened.expect("a spool"),
        }
    }
    panic!("the lock of `{}` is held", path.display());
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn a_download_continues_in_the_next_process_and_is_verified_at_its_end() {
    let (dir, digest, size) = (dir(), Digest::of(TEXT), TEXT.len() as u64);
    let first = spool(&dir);
    let mut partial = first.partial(&digest, size).expect("a partial");
    partial.write(&TEXT[..10]).expect("space");
    let second = std::thread::spawn({
        let first = first.clone();
        move || first.partial(&digest, size).map(|partial| partial.offset())
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!second.is_finished(), "two would write at once");
    drop(partial);
    assert_eq!(second.join().expect("no panic").expect("a partial"), 10);
    drop(first);

    let second = spool(&dir);
    assert!(second.verified(&digest).expect("readable").is_none());
    let mut partial = second.partial(&digest, size).expect("a partial");
    assert_eq!(partial.offset(), 10);
    partial.write(&TEXT[10..]).expect("space");
    partial.finish().expect("the digest matches");
    drop(second);

    let third = spool(&dir);
    let blob = third.verified(&digest).expect("readable").expect("whole");
    let text = std::io::read_to_string(blob.open().expect("a file")).expect("text");
    assert_eq!(text.as_bytes(), TEXT);
    blob.remove().expect("removable");
    assert_eq!(third.list().expect("a list"), []);
}

#[test]
fn wrong_bytes_never_become_a_blob() {
    let (dir, digest, size) = (dir(), Digest::of(TEXT), TEXT.len() as u64);
    let spool = spool(&dir);
    let mut partial = spool.partial(&digest, size).expect("a partial");
    assert!(matches!(partial.write(&[0; 99]), Err(SpoolError::TooLong { .. })));
    partial.write(&[0; 3]).expect("space");
    assert!(matches!(
        partial.finish(),
        Err(SpoolError::TooShort { found: 3, .. })
    ));

    let mut partial = spool.partial(&digest, size).expect("a partial");
    partial.write(&vec![0; TEXT.len() - 3]).expect("space");
    assert!(matches!(partial.finish(), Err(SpoolError::Mismatch { .. })));
    assert_eq!(spool.list().expect("a list"), []);

    std::fs::write(spool.path().join(digest.to_string()), b"something else").expect("a file");
    assert!(spool.verified(&digest).expect("readable").is_none());
    assert_eq!(spool.list().expect("a list"), []);
}

#[test]
fn a_partial_blob_longer_than_the_manifest_states_is_restarted() {
    let (dir, digest) = (dir(), Digest::of(TEXT));
    let spool = spool(&dir);
    spool
        .partial(&digest, 99)
        .expect("a partial")
        .write(TEXT)
        .expect("space");
    assert_eq!(spool.partial(&digest, 5).expect("a partial").offset(), 0);
    let entry = spool.list().expect("a list")[0];
    assert_eq!((entry.digest, entry.bytes, entry.whole), (digest, 0, false));
    spool.remove(&digest).expect("removable");
    assert_eq!(spool.list().expect("a list"), []);
}

#[test]
fn a_second_process_is_refused() {
    let dir = dir();
    let first = spool(&dir);
    let error = Spool::open(first.path()).expect_err("the lock is held");
    assert!(
        error.to_string().starts_with("another spoke-precache is running"),
        "{error}"
    );
    assert_eq!(Spool::list_unlocked(first.path()).expect("no lock"), []);
    let none = dir.path().join("none");
    assert_eq!(Spool::list_unlocked(&none).expect("an empty one"), []);
    assert!(!none.exists());
}

/// Simulates a reboot.
fn reboot(dir: &tempfile::TempDir) {
    std::fs::write(dir.path().join("spool/lock"), "another boot\n").expect("a file");
}

fn record(bytes: &[u8], offset: usize) -> JournalRecord {
    JournalRecord {
        offset: offset as u64,
        prefix: Digest::of(&bytes[..offset]),
    }
}

/// A spool with `file` under the blob's name and `suffix`, and a journal of the blob's first bytes.
fn left_behind(blob: &[u8], file: &[u8], suffix: &str, offsets: &[usize]) -> tempfile::TempDir {
    let (dir, digest) = (dir(), Digest::of(blob));
    let spool = spool(&dir);
    let records: Vec<JournalRecord> = offsets.iter().map(|offset| record(blob, *offset)).collect();
    if !records.is_empty() {
        Journal::with(&spool.0.dir, FileNames::first(&digest), &records).expect("a journal");
    }
    std::fs::write(spool.path().join(format!("{digest}{suffix}")), file).expect("a file");
    dir
}

/// The bytes of the blob that a new run continues with.
fn continued(dir: &tempfile::TempDir, blob: &[u8]) -> Vec<u8> {
    let spool = spool(dir);
    let partial = spool
        .partial(&Digest::of(blob), blob.len() as u64)
        .expect("a partial");
    let bytes =
        std::fs::read(spool.path().join(FileNames::first(&Digest::of(blob)).partial())).expect("a file");
    assert_eq!(partial.offset(), bytes.len() as u64);
    bytes
}

fn names_in(dir: &tempfile::TempDir) -> Vec<String> {
    let items = std::fs::read_dir(dir.path().join("spool")).expect("a directory");
    let mut names: Vec<String> = items
        .map(|item| item.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name != "lock")
        .collect();
    names.sort();
    names
}

#[test]
fn after_a_kill_every_byte_is_continued_and_after_a_reboot_the_recorded_ones() {
    let blob = vec![7; 1000];
    for (offsets, rebooted, kept) in [
        (&[100, 300][..], false, 500),
        (&[100, 300], true, 300),
        (&[], false, 500),
        (&[], true, 0),
        // The file is shorter than its durable bytes, so another program has truncated it and may have changed it.
        (&[100, 600], false, 100),
        (&[100, 600], true, 100),
        (&[600], true, 0),
    ] {
        let dir = left_behind(&blob, &blob[..500], ".partial", offsets);
        if rebooted {
            reboot(&dir);
        }
        assert_eq!(continued(&dir, &blob).len(), kept, "{offsets:?} {rebooted}");
        // Bytes that are downloaded now survive a kill.
        assert_eq!(continued(&dir, &blob).len(), kept, "{offsets:?} {rebooted}");
    }
}

#[test]
fn bytes_that_changed_on_the_disk_are_cut_off_with_all_that_follow() {
    let blob: Vec<u8> = (0..1000_u32).map(|n| n as u8).collect();
    for (changed, kept) in [(50, 0), (150, 100), (299, 100), (350, 300), (450, 500)] {
        let mut file = blob[..500].to_vec();
        file[changed] ^= 1;
        let dir = left_behind(&blob, &file, ".partial", &[100, 300, 400]);
        assert_eq!(continued(&dir, &blob).len(), kept, "byte {changed}");
        let left = journal::records(&spool(&dir).0.dir, &FileNames::first(&Digest::of(&blob)));
        assert!(left.iter().all(|record| record.offset <= kept as u64), "{left:?}");
    }
}

#[test]
fn a_damaged_whole_blob_is_continued_after_its_newest_matching_record() {
    let blob = vec![7; 1000];
    let mut file = blob.clone();
    file[600..].fill(0);
    let dir = left_behind(&blob, &file, "", &[100, 500, 900]);
    reboot(&dir);
    let digest = Digest::of(&blob);
    let first = spool(&dir);
    assert!(first.verified(&digest).expect("readable").is_none());
    let mut partial = first.partial(&digest, 1000).expect("a partial");
    assert_eq!(partial.offset(), 500);
    partial.write(&blob[500..]).expect("space");
    partial.finish().expect("it matches").remove().expect("removable");
    assert_eq!(names_in(&dir), [""; 0]);

    let dir = left_behind(&blob, &file, "", &[700]);
    assert!(spool(&dir).verified(&digest).expect("readable").is_none());
    assert_eq!(names_in(&dir), [""; 0], "nothing holds");
}

#[test]
fn a_journal_without_its_blob_is_removed() {
    let blob = vec![7; 1000];
    let digest = Digest::of(&blob);
    let dir = left_behind(&blob, &blob[..500], ".partial", &[100]);
    std::fs::remove_file(dir.path().join(format!("spool/{digest}.partial"))).expect("it is there");
    spool(&dir);
    assert_eq!(names_in(&dir), [""; 0]);

    let dir = left_behind(&blob, &blob[..500], ".partial", &[100]);
    spool(&dir).remove(&digest).expect("removable");
    assert_eq!(names_in(&dir), [""; 0]);

    let dir = left_behind(&blob, &blob[..500], ".partial", &[100]);
    assert_eq!(spool(&dir).partial(&digest, 499).expect("a partial").offset(), 0);
    assert_eq!(names_in(&dir), [format!("{digest}.partial")]);

    let mut other = blob.clone();
    other[999] = 0;
    let dir = left_behind(&other, &other[..500], ".partial", &[100]);
    let spool = spool(&dir);
    let mut partial = spool.partial(&Digest::of(&other), 1000).expect("a partial");
    partial.write(&blob[500..]).expect("space");
    assert!(matches!(partial.finish(), Err(SpoolError::Mismatch { .. })));
    assert_eq!(names_in(&dir), [""; 0]);
}

#[test]
fn anything_but_a_valid_journal_under_its_name_is_ignored() {
    use std::os::unix::fs::symlink;
    let blob = vec![7; 1000];
    let digest = Digest::of(&blob);
    // A true journal, elsewhere.
    let elsewhere = left_behind(&blob, &blob, "", &[100, 300]);
    let elsewhere = elsewhere.path().join(format!("spool/{digest}.journal"));
    let other_blob = vec![8; 1000];
    for plant in [
        &(|path: &Path| symlink(&elsewhere, path).expect("a link")) as &dyn Fn(&Path),
        &|path| symlink("/dev/zero", path).expect("a link"),
        &|path| std::fs::create_dir_all(path.join("full")).expect("a directory"),
        &|path| {
            let pipe = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, path, pipe, Mode::RWXU, 0).expect("a pipe");
        },
        &|path| {
            File::create(path)
                .and_then(|file| file.set_len(1 << 40))
                .expect("a file")
        },
        &|path| std::fs::write(path, [0xff; 5000]).expect("a file"),
        &|path| {
            // Right in itself, and of another blob.
            let other = left_behind(&other_blob, &other_blob, "", &[100]);
            let name = format!("spool/{}.journal", Digest::of(&other_blob));
            std::fs::copy(other.path().join(name), path).expect("a copy");
        },
    ] {
        let dir = left_behind(&blob, &blob[..500], ".partial", &[]);
        plant(&dir.path().join(format!("spool/{digest}.journal")));
        assert_eq!(continued(&dir, &blob).len(), 500);
        reboot(&dir);
        assert_eq!(continued(&dir, &blob).len(), 0);
        spool(&dir).remove(&digest).expect("removable");
    }
    assert_eq!(std::fs::read(&elsewhere).expect("it is untouched").len(), 206);
}

/// Waits for the syncer, which acts after two seconds.
#[test]
fn a_slow_download_of_a_large_blob_gets_records() {
    let blob = vec![7; 6 << 20];
    let (dir, digest) = (dir(), Digest::of(&blob));
    let first = spool(&dir);
    let mut partial = first.partial(&digest, blob.len() as u64).expect("a partial");
    partial.write(&blob[..3 << 20]).expect("space");
    assert_eq!(names_in(&dir).len(), 1, "it is not old enough");
    let began = std::time::Instant::now();
    let mut written = 3 << 20;
    while journal::records(&first.0.dir, &FileNames::first(&digest)).is_empty() {
        assert!(began.elapsed().as_secs() < 60, "no record is made");
        std::thread::sleep(std::time::Duration::from_millis(50));
        partial.write(&blob[written..=written]).expect("space");
        written += 1;
    }
    let made = journal::records(&first.0.dir, &FileNames::first(&digest));
    assert!(made[0].offset >= 3 << 20 && made[0].prefix == Digest::of(&blob[..made[0].offset as usize]));
    // One more when it is let go.
    drop(partial);
    assert_eq!(
        journal::records(&first.0.dir, &FileNames::first(&digest))[1].offset,
        written as u64
    );
    drop(first);
    reboot(&dir);
    assert_eq!(continued(&dir, &blob).len(), written);
}

proptest! {
    /// A power loss may take any of the tail, and the journal may be overwritten arbitrarily. The continued bytes are
    /// always the blob's, and reach the newest record if the journal was not changed.
    #[test]
    fn after_a_reboot_only_correct_bytes_are_continued(
        blob in prop::collection::vec(any::<u8>(), 1..3000),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        length in any::<prop::sample::Index>(),
        zeros in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        torn in prop::option::of(any::<prop::sample::Index>()),
        tail in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut offsets: Vec<usize> = cuts.iter().map(|cut| cut.index(blob.len()) + 1).collect();
        offsets.sort_unstable();
        offsets.dedup();
        let durable = offsets.last().copied().unwrap_or(0);
        let mut file = blob[..durable + length.index(blob.len() - durable + 1)].to_vec();
        let from = durable + zeros.index(file.len() - durable + 1);
        file[from..].fill(0);
        let dir = left_behind(&blob, &file, ".partial", &offsets);
        let path = dir.path().join(format!("spool/{}.journal", Digest::of(&blob)));
        let mut journal = std::fs::read(&path).unwrap_or_default();
        let before = journal.clone();
        for (index, byte) in &damage {
            if !journal.is_empty() {
                let index = index.index(journal.len());
                journal[index] = *byte;
            }
        }
        if let Some(torn) = torn {
            journal.truncate(torn.index(journal.len() + 1));
        }
        journal.extend(&tail);
        let is_whole = journal.starts_with(&before);
        std::fs::write(&path, journal).expect("a file");
        reboot(&dir);
        let kept = continued(&dir, &blob);
        prop_assert_eq!(&kept[..], &blob[..kept.len()]);
        prop_assert!(kept.is_empty() || offsets.contains(&kept.len()));
        prop_assert!(!is_whole || kept.len() == durable);
    }
}

/// The spool's bytes of a blob, by the list.
fn bytes_in(spool: &Spool) -> u64 {
    let entries = spool.list().expect("a list");
    assert!(entries.len() <= 1, "{entries:?}");
    entries.first().map_or(0, |entry| entry.bytes)
}

/// Writes a range of the blob and drops it.
fn leave_range(spool: &Spool, blob: &[u8], range: Range<usize>) {
    let (digest, size) = (Digest::of(blob), blob.len() as u64);
    let mut range_partial = spool.range(&digest, size, range.start as u64).expect("a range");
    let begun = (range_partial.offset() - range_partial.start()) as usize;
    range_partial.write(&blob[range][begun..]).expect("space");
}

#[test]
fn a_range_is_continued_counted_and_appended_when_the_first_bytes_reach_it() {
    let blob: Vec<u8> = (0..1000_u32).map(|n| (n / 3) as u8).collect();
    let (dir, digest) = (dir(), Digest::of(&blob));
    let first = spool(&dir);
    leave_range(&first, &blob, 600..700);
    leave_range(&first, &blob, 300..400);
    assert_eq!(
        (first.range_starts(&digest), bytes_in(&first)),
        (vec![300, 600], 200)
    );
    drop(first);

    let second = spool(&dir);
    leave_range(&second, &blob, 300..600);
    let mut partial = second.partial(&digest, 1000).expect("a partial");
    partial.write(&blob[..350]).expect("space");
    assert_eq!(bytes_in(&second), 700, "what is there twice counts once");
    for from in second.range_starts(&digest) {
        partial
            .append_range(second.range(&digest, 1000, from).expect("a range"))
            .expect("space");
    }
    assert_eq!((partial.offset(), second.range_starts(&digest)), (700, vec![]));
    partial.write(&blob[700..]).expect("space");
    partial.finish().expect("it matches").remove().expect("removable");
    assert_eq!(names_in(&dir), [""; 0]);
}

#[test]
fn after_a_reboot_a_range_is_truncated_to_its_newest_record() {
    let blob: Vec<u8> = (0..1000_u32).map(|n| n as u8).collect();
    let digest = Digest::of(&blob);
    for (records, kept) in [(&[][..], 0), (&[50], 50), (&[50, 80], 80), (&[50, 300], 50)] {
        let dir = dir();
        let first = spool(&dir);
        leave_range(&first, &blob, 600..700);
        let names = FileNames {
            blob: digest,
            start: 600,
        };
        let records: Vec<JournalRecord> = records
            .iter()
            .map(|offset| record(&blob[600..], *offset))
            .collect();
        drop(Journal::with(&first.0.dir, names, &records).expect("a journal"));
        drop(first);
        reboot(&dir);
        let second = spool(&dir);
        assert_eq!(bytes_in(&second), kept, "{records:?}");
        let range_partial = second.range(&digest, 1000, 600).expect("a range");
        assert_eq!(range_partial.offset(), 600 + kept);
        assert!(matches!(range_partial.finish(), Err(SpoolError::TooShort { .. })));
        second.remove(&digest).expect("removable");
        assert_eq!((names_in(&dir), second.range_starts(&digest)), (vec![], vec![]));
    }
}

#[test]
fn a_range_of_a_whole_blob_is_removed_when_the_spool_is_opened() {
    let dir = dir();
    let first = spool(&dir);
    leave_range(&first, TEXT, 3..9);
    let mut partial = first
        .partial(&Digest::of(TEXT), TEXT.len() as u64)
        .expect("a partial");
    partial.write(TEXT).expect("space");
    partial.finish().expect("it matches");
    assert_eq!(names_in(&dir).len(), 2);
    drop(first);
    assert!(spool(&dir).range_starts(&Digest::of(TEXT)).is_empty());
    assert_eq!(names_in(&dir), [Digest::of(TEXT).to_string()]);
}
