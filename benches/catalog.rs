//! Measures the time and memory to read a large operator catalog.
//!
//! ```text
//! cargo bench --bench catalog
//! ```
//!
//! Three catalogs of 640 to 890 MB in the shape of Red Hat's are written below `TMPDIR`: 350 packages with a directory each, 20 bundles in
//! each with their metadata and manifests; as `opm` renders JSON and YAML, and as a database. The benchmark requests
//! sixteen packages, the most of a DU node. The files are in the page cache; each figure is the best of three. Peak memory is
//! the process's, reset before each reading.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use spoke_precache::cancel::Cancel;
use spoke_precache::catalog::{self, CatalogLocation, PackageRequest};
use spoke_precache::store::Tree;

/// Sizes are divided by this; smaller as a test, which is built without optimisation.
const LESS: usize = if cfg!(debug_assertions) { 64 } else { 1 };
const PACKAGES: usize = 350;
const BUNDLES: usize = 20;
/// Bytes of a bundle's manifests in each catalog.
const MANIFESTS: usize = 72_000 / LESS;
/// The requested packages.
const ASKED: usize = 16;
const TIMES: usize = 3;

fn main() {
    let dir = tempfile::tempdir().unwrap();
    for (form, write) in [
        ("JSON", json_catalog as fn(&Path)),
        ("YAML", yaml_catalog),
        ("SQLite", database),
    ] {
        let root = dir.path().join(form);
        fs::create_dir(&root).unwrap();
        write(&root);
        measure(form, &root);
        fs::remove_dir_all(&root).unwrap();
    }
}

fn measure(form: &str, root: &Path) {
    let tree = Tree::of_directories(&[root]).unwrap();
    let database = root.join("database/index.db").exists();
    let place = match database {
        true => CatalogLocation::Database("/database/index.db".to_owned()),
        false => CatalogLocation::Configs("/".to_owned()),
    };
    let lines: Vec<String> = (0..ASKED)
        .map(|number| format!("operator-{}:", number * 20))
        .collect();
    let requests = PackageRequest::of_lines(lines.iter().map(String::as_str)).unwrap();
    let mut best = f64::INFINITY;
    let before = memory("VmRSS");
    fs::write("/proc/self/clear_refs", "5").unwrap();
    for _ in 0..TIMES {
        let start = Instant::now();
        let catalog = catalog::read(&tree, &place, &requests, &Cancel::default()).unwrap();
        best = best.min(start.elapsed().as_secs_f64());
        let images: usize = catalog
            .channels
            .iter()
            .map(|answer| answer.head.as_ref().unwrap().images().count())
            .sum();
        assert_eq!((catalog.channels.len(), images), (ASKED, ASKED * 11));
    }
    let bytes = size(root) as f64 / 1e6;
    println!(
        "{form:7} {bytes:4.0} MB in {best:5.2} s, {:5.0} MB/s; peak {:.1} MiB, {:.1} MiB before",
        bytes / best,
        memory("VmHWM"),
        before
    );
}

fn size(path: &Path) -> u64 {
    let metadata = fs::metadata(path).unwrap();
    match metadata.is_dir() {
        false => metadata.len(),
        true => fs::read_dir(path)
            .unwrap()
            .map(|entry| size(&entry.unwrap().path()))
            .sum(),
    }
}

/// In MiB.
fn memory(field: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse::<f64>().unwrap() / 1024.0
}

/// The documents of a package.
fn package(number: usize) -> Vec<Value> {
    let package = format!("operator-{number}");
    let name = |version: usize| format!("{package}.v1.{version}.0");
    let mut documents = vec![
        json!({"schema": "olm.package", "name": package, "defaultChannel": "stable",
        "icon": {"base64data": "aGVs".repeat(3_000 / LESS), "mediatype": "image/svg+xml"}}),
    ];
    for channel in ["stable", "candidate"] {
        let entries: Vec<Value> = (0..BUNDLES)
            .map(|version| match version {
                0 => json!({"name": name(0)}),
                _ => json!({"name": name(version), "replaces": name(version - 1), "skipRange": "<1.0.0",
                    "skips": (0..version - 1).map(name).collect::<Vec<_>>()}),
            })
            .collect();
        documents
            .push(json!({"schema": "olm.channel", "name": channel, "package": package, "entries": entries}));
    }
    for version in 0..BUNDLES {
        documents.push(json!({"schema": "olm.bundle", "name": name(version), "package": package,
            "image": format!("registry.example.com/{package}/bundle:v{version}"),
            "properties": [
                {"type": "olm.package", "value": {"packageName": package, "version": format!("1.{version}.0")}},
                {"type": "olm.csv.metadata", "value": metadata()},
            ],
            "relatedImages": (0..10).map(|image| json!({"name": format!("image-{image}"),
                "image": format!("registry.example.com/{package}/image-{image}:v{version}")})).collect::<Vec<_>>()}));
    }
    documents
}

/// Text as long as a bundle's metadata: descriptions with quotes and line breaks, lists of small objects, examples as text.
fn metadata() -> Value {
    let example =
        "{\"apiVersion\": \"example.com/v1\",\n  \"kind\": \"Thing\",\n  \"spec\": {\"size\": 3}}\n";
    let kinds = (0..MANIFESTS / 400).map(|number| {
        json!({"kind": "Thing", "name": format!("things{number}.example.com"), "version": "v1alpha1",
            "displayName": "A Thing", "description": "Things are what an operator operates. ".repeat(4)})
    });
    json!({
        "annotations": {"alm-examples": example.repeat(MANIFESTS / 4 / example.len()), "capabilities": "Deep Insights"},
        "apiServiceDefinitions": {},
        "crdDescriptions": {"owned": kinds.collect::<Vec<_>>()},
        "description": "## Words\n\nAn operator that *operates* \"things\".\n".repeat(MANIFESTS / 200),
    })
}

fn json_catalog(root: &Path) {
    catalog_files(root, "catalog.json", |document, file| {
        let mut pretty = serde_json::Serializer::with_formatter(
            file,
            serde_json::ser::PrettyFormatter::with_indent(b"    "),
        );
        serde::Serialize::serialize(document, &mut pretty).unwrap();
    });
}

fn yaml_catalog(root: &Path) {
    catalog_files(root, "catalog.yaml", |document, file| {
        file.write_all(b"---\n").unwrap();
        file.write_all(serde_saphyr::to_string(document).unwrap().as_bytes())
            .unwrap();
    });
}

fn catalog_files(root: &Path, name: &str, write: impl Fn(&Value, &mut BufWriter<File>)) {
    for number in 0..PACKAGES {
        let directory = root.join(format!("operator-{number}"));
        fs::create_dir(&directory).unwrap();
        let mut file = BufWriter::new(File::create(directory.join(name)).unwrap());
        for document in package(number) {
            write(&document, &mut file);
            file.write_all(b"\n").unwrap();
        }
        file.flush().unwrap();
    }
}

fn database(root: &Path) {
    fs::create_dir(root.join("database")).unwrap();
    let mut connection = rusqlite::Connection::open(root.join("database/index.db")).unwrap();
    let transaction = connection.transaction().unwrap();
    let schema = "
        CREATE TABLE operatorbundle (name TEXT PRIMARY KEY, csv TEXT, bundle TEXT, bundlepath TEXT, skiprange TEXT,
            version TEXT, replaces TEXT, skips TEXT, substitutesfor TEXT);
        CREATE TABLE package (name TEXT PRIMARY KEY, default_channel TEXT);
        CREATE TABLE channel (name TEXT, package_name TEXT, head_operatorbundle_name TEXT, PRIMARY KEY(name, package_name));
        CREATE TABLE channel_entry (entry_id INTEGER PRIMARY KEY, channel_name TEXT, package_name TEXT,
            operatorbundle_name TEXT, replaces INTEGER, depth INTEGER);
        CREATE TABLE related_image (image TEXT, operatorbundle_name TEXT);
        CREATE TABLE properties (type TEXT, value TEXT, operatorbundle_name TEXT, operatorbundle_version TEXT,
            operatorbundle_path TEXT);";
    transaction.execute_batch(schema).unwrap();
    let run = |text: &str, values: &[&str]| {
        transaction
            .execute(text, rusqlite::params_from_iter(values))
            .unwrap();
        transaction.last_insert_rowid()
    };
    for number in 0..PACKAGES {
        let package = format!("operator-{number}");
        run("INSERT INTO package VALUES (?, 'stable')", &[&package]);
        for channel in ["stable", "candidate"] {
            run(
                "INSERT INTO channel VALUES (?, ?, 'unused')",
                &[channel, &package],
            );
            let mut before = None;
            for version in 0..BUNDLES {
                let name = format!("{package}.v1.{version}.0");
                let depth = (BUNDLES - 1 - version).to_string();
                let text = "INSERT INTO channel_entry (channel_name, package_name, operatorbundle_name, depth) \
                            VALUES (?, ?, ?, ?)";
                let id = run(text, &[channel, &package, &name, &depth]);
                if let Some(before) = before.replace(id) {
                    let text = "UPDATE channel_entry SET replaces = CAST(? AS INTEGER) WHERE entry_id = CAST(? AS INTEGER)";
                    run(text, &[&i64::to_string(&before), &id.to_string()]);
                }
            }
        }
        for version in 0..BUNDLES {
            let name = format!("{package}.v1.{version}.0");
            let csv = json!({"kind": "ClusterServiceVersion", "spec": metadata()}).to_string();
            let image = format!("registry.example.com/{package}/bundle:v{version}");
            run(
                "INSERT INTO operatorbundle (name, csv, bundlepath, version) VALUES (?, ?, ?, '1.0.0')",
                &[&name, &csv, &image],
            );
            for image in 0..10 {
                let image = format!("registry.example.com/{package}/image-{image}:v{version}");
                run("INSERT INTO related_image VALUES (?, ?)", &[&image, &name]);
            }
        }
    }
    transaction.commit().unwrap();
}
