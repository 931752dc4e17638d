//! Tests that the image has the licences of every linked crate and of the C libraries.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::image_build::{Built, tools};
use crate::needs::skip;
use crate::test_node::product;

/// Directories of crates whose code is in the product: it names the lines where it may panic.
fn linked() -> BTreeSet<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cargo"));
    let bytes = fs::read(product()).unwrap();
    let texts = bytes.split(|byte| !byte.is_ascii_graphic());
    let texts = texts.filter_map(|text| str::from_utf8(text).ok());
    // Texts are laid end to end.
    let paths = texts.flat_map(|text| text.split("/registry/src/").skip(1));
    let dirs = paths.filter_map(|path| {
        let (end, _) = path.match_indices('/').nth(1)?;
        Some(home.join("registry/src").join(&path[..end]))
    });
    dirs.collect()
}

/// The copyright lines in a crate's own licence files.
fn copyrights(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_licence = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().to_uppercase();
        path.is_file() && (name.starts_with("LICENSE") || name.starts_with("NOTICE"))
    };
    let texts = files
        .filter(is_licence)
        .map(|path| fs::read_to_string(path).unwrap());
    let lines: Vec<String> = texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let says_whose = |line: &String| line.trim_start().starts_with("Copyright ");
    lines
        .into_iter()
        .filter(says_whose)
        .map(|line| line.trim_end().to_owned())
        .collect()
}

#[test]
fn every_crate_of_the_binary_has_its_licence_in_the_image() {
    if let Err(why) = tools() {
        return skip(&why);
    }
    let (built, dir) = (Built::new(), tempfile::tempdir().unwrap());
    let root = dir.path().join("root");
    built.unpack(&root);
    let text = fs::read_to_string(root.join("licenses/THIRD-PARTY.txt")).unwrap();
    let lines: BTreeSet<&str> = text.lines().collect();
    // `name version (licence): file`
    let named = lines.iter().filter_map(|line| line.split_once(" ("));
    let named: BTreeSet<String> = named.map(|(name, _)| name.replace(' ', "-")).collect();
    let crates = linked();
    assert!(crates.len() > 50, "{crates:?}");
    for dir in crates {
        let name = dir.file_name().unwrap().to_str().unwrap();
        assert!(named.contains(name), "{name}");
        for line in copyrights(&dir) {
            assert!(lines.contains(line.as_str()), "{name}: {line}");
        }
    }
    // What crates bundle, and what the linker adds.
    for said in [
        "aws-lc/LICENSE",
        "zstd/LICENSE",
        "May you do good and not evil.",
        "glibc (LGPL-2.1-or-later): ",
        "libgcc (GPL-3.0-or-later WITH GCC-exception-3.1): ",
        "GNU LESSER GENERAL PUBLIC LICENSE",
    ] {
        assert!(text.contains(said), "{said}");
    }
    let library = fs::read_to_string(root.join("licenses/RUST-STANDARD-LIBRARY.html")).unwrap();
    assert!(library.contains("The Rust Standard Library is dual-licensed"));
}

/// The script, in a project with one dependency of this licence, which has no text of it.
fn licences_of(licence: &str, dir: &Path) -> Output {
    let write = |path: &str, text: &str| {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("container/licenses");
    write("src/lib.rs", "");
    write("bare/src/lib.rs", "");
    write(
        "Cargo.toml",
        "[package]\nname = \"whole\"\nversion = \"1.0.0\"\n[dependencies]\nbare = {path = \"bare\"}\n",
    );
    let bare = "[package]\nname = \"bare\"\nversion = \"2.0.0\"\nauthors = [\"A. Writer\"]\nlicense = ";
    write("bare/Cargo.toml", &format!("{bare}\"{licence}\"\n"));
    write("container/licenses", "");
    fs::copy(script, dir.join("container/licenses")).unwrap();
    let locked = Command::new(env!("CARGO"))
        .args(["generate-lockfile", "--offline"])
        .current_dir(dir)
        .status();
    assert!(locked.unwrap().success());
    Command::new(dir.join("container/licenses"))
        .arg(dir.join("out"))
        .output()
        .unwrap()
}

#[test]
fn a_crate_without_a_text_gets_that_of_its_licence_or_stops_the_build() {
    if let Err(why) = tools() {
        return skip(&why);
    }
    let dir = tempfile::tempdir().unwrap();
    let output = licences_of("MIT", dir.path());
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(dir.path().join("out/THIRD-PARTY.txt")).unwrap();
    let (_, of_bare) = text.split_once("bare 2.0.0 (MIT): MIT\n").expect("its name");
    let own = of_bare.split("=".repeat(80).as_str()).nth(1).unwrap();
    assert!(own.contains("Copyright (c) A. Writer"), "{own}");
    assert!(
        own.contains("Permission is hereby granted, free of charge"),
        "{own}"
    );

    let dir = tempfile::tempdir().unwrap();
    let output = licences_of("LicenseRef-Odd", dir.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("bare 2.0.0 (LicenseRef-Odd): no file of a licence"),
        "{said}"
    );
    assert!(!dir.path().join("out").exists());
}
