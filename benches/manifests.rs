//! Measures the time and memory to read all manifests of a release.
//!
//! ```text
//! cargo bench --bench manifests
//! ```
//!
//! The release is 4.12.0 of `../shared/corpus`: 646 files, 10 MB, 1,002 documents. The files are listed and read one by one
//! as from a layer in the store, and are in the page cache; each figure is the best of five. Peak memory is the process's,
//! reset before the first reading.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::Instant;

use spoke_precache::release::manifests::{
    Capabilities, FILE_LIMIT, FILES_LIMIT, Inclusion, MANIFEST_DIRECTORIES, ManifestFile, PayloadManifests,
};
use spoke_precache::release::{IMAGE_REFERENCES, Payload, RELEASE_METADATA};
use spoke_precache::store::Tree;

const TIMES: usize = 5;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus/payload-4.12.0");
    if !root.exists() {
        println!("no release at {}", root.display());
        return;
    }
    let tree = Tree::of_directories(&[&root]).unwrap();
    let read = |file: &str| tree.read_file(file, FILE_LIMIT).unwrap().unwrap();
    let payload = Payload::parse(&read(IMAGE_REFERENCES), &read(RELEASE_METADATA)).unwrap();
    let cluster = Inclusion {
        profile: Some("self-managed-high-availability".to_owned()),
        feature_set: Some("Default".to_owned()),
        capabilities: Some(Capabilities::default()),
        ..Inclusion::default()
    };
    let before = memory("VmRSS");
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let (mut reading, mut evaluation) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..TIMES {
        let start = Instant::now();
        let manifests = PayloadManifests::read(files(&tree), &payload);
        reading = reading.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        let included = manifests.included(&cluster);
        evaluation = evaluation.min(start.elapsed().as_secs_f64());
        assert_eq!((included.count, included.unread.len()), (1002, 0));
    }
    println!(
        "{:.0} ms to read, {:.1} ms to evaluate; peak {:.1} MiB, {before:.1} MiB before",
        reading * 1e3,
        evaluation * 1e3,
        memory("VmHWM")
    );
}

/// The files of the image, one by one.
fn files(tree: &Tree) -> impl Iterator<Item = ManifestFile> {
    MANIFEST_DIRECTORIES.into_iter().flat_map(move |directory| {
        let entries = tree.read_directory(directory, FILES_LIMIT).unwrap();
        entries.into_iter().flatten().map(move |entry| {
            let path = format!("{directory}/{}", entry.name.to_str().unwrap());
            let content = tree.read_file(&path, FILE_LIMIT);
            ManifestFile {
                content: content.map(Option::unwrap).map_err(|error| error.to_string()),
                path,
            }
        })
    })
}

/// In MiB.
fn memory(field: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<f64>().unwrap() / 1024.0
}
