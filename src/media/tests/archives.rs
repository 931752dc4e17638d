//! Archives of other programs, and large ones.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use super::*;

#[test]
fn archives_of_gnu_tar_are_read_in_every_format() {
    let image = Image::new();
    let directory = in_directory(&image.oci_layout());
    for format in ["gnu", "pax", "ustar", "oldgnu", "v7"] {
        for operand in [&["."][..], &["oci-layout", "index.json", "blobs"]] {
            let archives = tempfile::tempdir().unwrap();
            let path = archives.path().join("layout.tar");
            let made = Command::new("tar")
                .args(["--format", format, "-C"])
                .arg(directory.path())
                .arg("-cf")
                .arg(&path)
                .args(operand)
                .status();
            assert!(made.unwrap().success());
            assert_complete(&opened(&path), &image, format);
        }
    }
}

#[test]
fn long_names_are_found_in_gnu_and_pax_form() {
    let image = Image::new();
    let directory = format!("{}/{}", "d".repeat(150), "e".repeat(150));
    for builder in [EntryBuilder::new_gnu, EntryBuilder::new_ustar] {
        let files = image.oci_layout();
        let entries = files
            .iter()
            .map(|(path, bytes)| entry(builder(), &format!("{directory}/{path}"), bytes));
        let mut archive: Vec<u8> = entries.flatten().collect();
        archive.extend(END);
        let directory = in_file("layout.tar", &archive);
        let refused = open(directory.path().join("layout.tar")).unwrap_err();
        assert!(
            refused.to_string().contains("no file of a known form"),
            "two levels are not searched"
        );

        let short = directory.path().join("registry.tar");
        let files = image.registry("docker/registry/v2/", &"n".repeat(200));
        let entries = files.iter().map(|(path, bytes)| entry(builder(), path, bytes));
        let archive: Vec<u8> = entries.flatten().chain(END).collect();
        fs::write(&short, archive).unwrap();
        let media = opened(&short);
        assert_eq!(
            media.tagged(&format!("quay.io/{}", "n".repeat(200)), "4.16"),
            Some(image.manifest.digest())
        );
    }
}

#[test]
fn an_entry_longer_than_eight_gibibytes_is_jumped_over() {
    let image = Image::new();
    for builder in [EntryBuilder::new_gnu, EntryBuilder::new_ustar] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("layout.tar");
        let file = File::create(&path).unwrap();
        let size = (9 << 30) + 1;
        let mut large = builder();
        let large = large
            .path("blobs/sha256/large")
            .size(size)
            .unwrap()
            .finish_bytes();
        file.write_all_at(&large, 0).unwrap();
        let after = large.len() as u64 + size.next_multiple_of(512);
        file.write_all_at(&tar(&image.oci_layout()), after).unwrap();
        assert_complete(&opened(&path), &image, "after a large entry");
    }
}

#[test]
fn names_that_lead_outside_an_archive_are_no_files_of_it() {
    let image = Image::new();
    let mut files = image.oci_layout();
    let secret = Digest::of(b"secret");
    files.push((format!("../blobs/sha256/{}", secret.hex()), b"secret".to_vec()));
    files.push((
        format!("/x/../../blobs/sha256/{}", secret.hex()),
        b"secret".to_vec(),
    ));
    let archive = in_file("layout.tar", &tar(&files));
    let media = opened(archive.path().join("layout.tar"));
    assert_complete(&media, &image, "hostile names");
    assert_eq!(media.size_of(secret), None);
}
