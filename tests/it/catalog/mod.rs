//! Tests operator catalogs: the answers equal those of operator-registry, for every form and every split into files.

mod bugs;
mod corpus;
mod database;
mod file_based;
mod graphs;
mod hostile;
mod image;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use spoke_precache::cancel::Cancel;
use spoke_precache::catalog::{self, Catalog, CatalogError, CatalogLocation, Head, PackageRequest};
use spoke_precache::store::Tree;
use tempfile::TempDir;

/// A directory with these files, by their paths.
fn directory(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

/// Reads the file-based catalog in `directory`, with nothing above it.
fn read(directory: &Path, lines: &[&str]) -> Result<Catalog, CatalogError> {
    let tree = Tree::of_directories(&[directory]).unwrap();
    let requests = PackageRequest::of_lines(lines.iter().copied()).unwrap();
    let place = CatalogLocation::Configs("/".to_owned());
    catalog::read(&tree, &place, &requests, &Cancel::default())
}

/// The same for files that are given.
fn read_files(files: &[(&str, &str)], lines: &[&str]) -> Result<Catalog, CatalogError> {
    read(directory(files).path(), lines)
}

/// The only answer.
fn only(catalog: Result<Catalog, CatalogError>) -> Result<Head, CatalogError> {
    let mut answers = catalog?.channels;
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0).head
}

/// Reads the database at `path`.
fn read_database(path: &Path, lines: &[&str]) -> Result<Catalog, CatalogError> {
    let tree = Tree::of_directories(&[path.parent().unwrap()]).unwrap();
    let requests = PackageRequest::of_lines(lines.iter().copied()).unwrap();
    let place = CatalogLocation::Database(path.file_name().unwrap().to_str().unwrap().to_owned());
    catalog::read(&tree, &place, &requests, &Cancel::default())
}

/// Normalised names of all images.
fn images(head: &Head) -> BTreeSet<String> {
    head.images().map(ToString::to_string).collect()
}

fn normalised<'a>(images: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let parse = |image: &str| {
        image
            .parse::<spoke_precache::oci::Reference>()
            .unwrap()
            .to_string()
    };
    images.into_iter().map(parse).collect()
}
