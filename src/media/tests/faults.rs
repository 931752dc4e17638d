//! What is wrong with a medium is named once, and never trusted.

use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::symlink;

use rustix::fs::{CWD, FileType, Mode};

use super::*;
use crate::media::fault::Faults;

/// The messages of all faults.
fn faults(media: &Media) -> Vec<String> {
    media.take_faults().iter().map(ToString::to_string).collect()
}

#[test]
fn wrong_bytes_are_a_fault_once_and_the_next_medium_is_asked() {
    let image = Image::new();
    let mut files = image.oci_layout();
    let (path, bytes) = &mut files[2];
    assert_eq!(*path, format!("blobs/sha256/{}", image.manifest.digest().hex()));
    bytes[0] ^= 1;
    let wrong = Digest::of(bytes);
    let (first, second) = (in_directory(&files), in_directory(&image.oci_layout()));
    let paths = [first.path(), second.path()].map(MediumPath::named);
    let (media, _) = Media::open(&paths, &Cancel::default()).unwrap();
    for _ in 0..2 {
        assert_eq!(
            media.content(image.manifest.digest(), LIMIT),
            Some(image.manifest.clone())
        );
    }
    let name = first.path().display();
    let digest = image.manifest.digest();
    let expected = format!("medium `{name}`: `{digest}`: the bytes there have the digest {wrong}");
    assert_eq!(faults(&media), [expected]);
    assert_eq!(faults(&media), [""; 0]);
    assert_eq!(media.blobs(digest).len(), 1);

    let blobs = media.blobs(image.blob());
    assert_eq!(blobs.len(), 2);
    blobs[0].distrust("its digest is wrong");
    blobs[0].distrust("its digest is wrong");
    assert_eq!(media.blobs(image.blob()).len(), 1);
    assert_eq!(faults(&media).len(), 1);
}

#[test]
fn a_manifest_that_is_too_long_is_not_read() {
    let image = Image::new();
    let directory = in_directory(&image.oci_layout());
    let media = opened(directory.path());
    assert_eq!(media.content(image.blob(), 1000), None);
    assert!(faults(&media)[0].ends_with("it has 400000 bytes, and at most 1000 are read"));
}

#[test]
fn only_regular_files_inside_the_medium_are_opened() {
    let image = Image::new();
    let outside = in_directory(&vec![("secret".to_owned(), b"secret".to_vec())]);
    let directory = in_directory(&image.oci_layout());
    let blob = |name: &str| {
        directory
            .path()
            .join("blobs/sha256")
            .join(Digest::of(name.as_bytes()).hex())
    };
    symlink(outside.path().join("secret"), blob("absolute")).unwrap();
    symlink("../../../../../../../etc/passwd", blob("relative")).unwrap();
    symlink("/dev/zero", blob("device")).unwrap();
    symlink(blob("circle"), blob("circle")).unwrap();
    fs::create_dir(blob("directory")).unwrap();
    rustix::fs::mknodat(CWD, blob("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let media = opened(directory.path());
    for name in ["absolute", "relative", "device", "circle", "directory", "pipe"] {
        let digest = Digest::of(name.as_bytes());
        assert_eq!(media.content(digest, LIMIT), None, "{name}");
        assert_eq!(media.blobs(digest).len(), 0, "{name}");
    }
    assert_complete(&media, &image, "beside hostile links");
}

#[test]
fn what_is_no_medium_is_refused_with_a_list_of_what_is_one() {
    let files = vec![
        ("notes".to_owned(), b"nothing".to_vec()),
        ("empty/x".to_owned(), Vec::new()),
    ];
    let directory = in_directory(&files);
    for path in ["", "notes", "empty", "missing"] {
        let path = directory.path().join(path);
        let message = open(&path).unwrap_err().to_string();
        assert!(message.contains(&path.display().to_string()), "{message}");
        let is_missing = message.starts_with("cannot read");
        assert!(
            is_missing || message.contains("\nhint: a medium is an OCI layout"),
            "{message}"
        );
    }
    let found = MediumPath {
        path: directory.path().to_owned(),
        is_named: false,
    };
    let (media, warnings) = Media::open(&[found], &Cancel::default()).unwrap();
    assert!(media.is_empty());
    assert_eq!(warnings.len(), 1);
}

#[test]
fn a_compressed_archive_is_refused_with_the_program_that_helps() {
    for (magic, program) in [
        (&b"\x1f\x8b\x08\0\0\0\0\0"[..], "gunzip"),
        (b"\x28\xb5\x2f\xfd\0", "zstd -d"),
    ] {
        let directory = in_file("layout.tar", magic);
        let message = open(directory.path().join("layout.tar")).unwrap_err().to_string();
        assert!(
            message.contains(&format!("hint: decompress it first, with `{program}`")),
            "{message}"
        );
    }
}

#[test]
fn a_part_that_cannot_be_used_costs_only_itself() {
    let image = Image::new();
    let directory = in_file(
        "mirror_000001.tar",
        &tar(&image.registry("docker/registry/v2/", "a/b")),
    );
    fs::write(directory.path().join("mirror_000002.tar"), b"\x1f\x8b\x08\0").unwrap();
    let (media, warnings) = open(directory.path()).unwrap();
    assert_complete(&media, &image, "one part");
    assert!(
        warnings[0].contains("mirror_000002.tar` is compressed with gzip"),
        "{warnings:?}"
    );
}

#[test]
fn a_reader_has_exactly_the_bytes_of_its_blob() {
    let image = Image::new();
    let archive = in_file("layout.tar", &tar(&image.oci_layout()));
    let media = opened(archive.path().join("layout.tar"));
    let blob = media.blobs(image.blob()).remove(0);
    let mut reader = blob.open().unwrap();
    let mut rest = Vec::new();
    assert_eq!(
        reader.seek(SeekFrom::End(-10)).unwrap(),
        image.layer.len() as u64 - 10
    );
    reader.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, image.layer[image.layer.len() - 10..]);
    reader.seek(SeekFrom::Start(u64::MAX)).unwrap();
    assert_eq!(reader.read(&mut [0; 10]).unwrap(), 0);
    let mut first = [0; 4];
    reader.rewind().unwrap();
    reader.read_exact(&mut first).unwrap();
    assert_eq!(first, image.layer[..4]);
}

#[test]
fn a_blob_that_becomes_shorter_is_an_error_of_reading() {
    let image = Image::new();
    let path = format!("blobs/sha256/{}", image.blob().hex());
    let directory = in_directory(&image.oci_layout());
    let media = opened(directory.path());
    let blob = media.blobs(image.blob()).remove(0);
    let mut reader = blob.open().unwrap();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(directory.path().join(path))
        .unwrap();
    file.set_len(1000).unwrap();
    let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the file ends 399000 bytes before the end of the blob"
    );
    drop(reader);
    let error = blob.open().unwrap_err();
    assert_eq!(
        error.to_string(),
        "its length has changed from 400000 to 1000 bytes"
    );
}

#[test]
fn a_medium_that_fails_every_read_is_given_up() {
    let faults = Faults::default();
    let failed = || faults.read_failed(&std::io::Error::from_raw_os_error(libc::EIO));
    for _ in 0..7 {
        failed();
    }
    faults.read_failed(&std::io::Error::other("too long"));
    assert!(!faults.gave_up());
    faults.read_worked();
    for _ in 0..7 {
        failed();
    }
    assert!(!faults.gave_up(), "a read worked in between");
    for _ in 0..2 {
        failed();
    }
    faults.read_worked();
    assert!(faults.gave_up());
    let messages: Vec<String> = faults.take("stick").iter().map(ToString::to_string).collect();
    let expected = "medium `stick`: 8 reads in a row failed, the last with `Input/output error (os error 5)`; it is not asked again";
    assert_eq!(messages, [expected]);
    faults.give_up("it was given up before".to_owned());
    assert_eq!(faults.take("stick"), []);
}

#[test]
fn a_medium_without_an_answer_is_given_up_and_named_once() {
    let faults = Faults::default();
    for _ in 0..2 {
        faults.give_up("no answer".to_owned());
    }
    faults.read_worked();
    assert!(faults.gave_up());
    let messages: Vec<String> = faults.take("share").iter().map(ToString::to_string).collect();
    assert_eq!(messages, ["medium `share`: no answer"]);
}

#[test]
fn a_medium_that_is_named_twice_is_asked_once() {
    let image = Image::new();
    let directory = in_directory(&image.oci_layout());
    let again = directory.path().join("blobs/..");
    let paths = [directory.path().to_owned(), again].map(MediumPath::named);
    let (media, _) = Media::open(&paths, &Cancel::default()).unwrap();
    assert_eq!(media.blobs(image.blob()).len(), 1);
}
