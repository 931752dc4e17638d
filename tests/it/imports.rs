//! The direction of imports, and the promises of absence, read out of `src/` (design.md, section 2).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Who may import whom: only what stands further left. Modules of one rank do not know each other.
const RANKS: [&[&str]; 12] = [
    &["oci", "cancel", "priority", "write_back"],
    &["report", "spec", "spool"],
    &["registry", "store", "cluster"],
    &["fetch"],
    &["image_request"],
    &["catalog", "release"],
    &["plan"],
    &["preflight"],
    &["exit_code"],
    &["job"],
    &["pinning"],
    &["settings", "cli", "entrypoint", "signals", "exit_handler", "main"],
];

/// Texts that may appear in the code of these modules alone; an empty list means in none.
const ONLY_IN: [(&str, &[&str]); 6] = [
    ("std::env::var", &["settings"]),
    ("env::args", &["main", "settings"]),
    ("std::env::set", &[]),
    ("process::Command", &[]),
    ("process::exit", &["exit_handler", "main"]),
    ("posix_spawn", &[]),
];

/// Modules without a runtime: they are called from threads and tested without one.
const WITHOUT_TOKIO: [&str; 6] = ["store", "spool", "plan", "spec", "oci", "report"];

/// Code of each top-level module, without comments and tests: (file, code).
fn modules() -> BTreeMap<String, Vec<(String, String)>> {
    let mut modules: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut directories = vec![source.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let inside = path.strip_prefix(&source).unwrap().to_str().unwrap().to_owned();
            let is_test = inside.ends_with("/tests.rs") || inside.contains("/tests/");
            if !inside.ends_with(".rs") || is_test {
                continue;
            }
            let module = inside
                .split('/')
                .next()
                .unwrap()
                .trim_end_matches(".rs")
                .to_owned();
            modules
                .entry(module)
                .or_default()
                .push((inside, code(&fs::read_to_string(&path).unwrap())));
        }
    }
    modules
}

/// Without comments, and without the test module that ends a file.
fn code(text: &str) -> String {
    let until_tests = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = until_tests
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn rank(module: &str) -> Option<usize> {
    RANKS.iter().position(|modules| modules.contains(&module))
}

/// Top-level modules that the code of `file` names: `crate::x`, `crate::{x, y::z}`, `spoke_precache::x` in `main.rs`, and
/// as many `super::` as lead out of its own module.
fn imported(file: &str, code: &str) -> Vec<String> {
    let mut names = Vec::new();
    let depth = file.split('/').filter(|part| *part != "mod.rs").count();
    for root in ["crate::", "spoke_precache::", &"super::".repeat(depth)] {
        for (at, _) in code.match_indices(root) {
            let rest = &code[at + root.len()..];
            match rest.strip_prefix('{') {
                None => names.push(word(rest)),
                Some(group) => {
                    let mut depth = 0;
                    let mut first = true;
                    for (at, letter) in group.char_indices() {
                        if first && !letter.is_whitespace() && depth == 0 {
                            names.push(word(&group[at..]));
                            first = false;
                        }
                        match letter {
                            '{' => depth += 1,
                            '}' if depth == 0 => break,
                            '}' => depth -= 1,
                            ',' if depth == 0 => first = true,
                            _ => {}
                        }
                    }
                }
            }
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn word(text: &str) -> String {
    text.chars()
        .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
        .collect()
}

#[test]
fn imports_point_downwards() {
    let mut wrong = Vec::new();
    for (module, files) in modules() {
        if module == "lib" {
            continue;
        }
        let Some(own) = rank(&module) else {
            wrong.push(format!("module `{module}` has no rank"));
            continue;
        };
        for (file, code) in files {
            for name in imported(&file, &code).iter().filter(|name| **name != module) {
                match rank(name) {
                    Some(other) if other < own => {}
                    // The edge of the process is one rank, and `main` puts it together.
                    Some(_) if own == RANKS.len() - 1 => {}
                    Some(_) => wrong.push(format!("{file} imports `{name}`, which is not below it")),
                    None => wrong.push(format!("{file} imports `{name}`, which has no rank")),
                }
            }
        }
    }
    wrong.dedup();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_blocking_half_does_not_know_the_runtime() {
    for (module, files) in modules() {
        for (file, code) in files {
            let named = code.contains("tokio") || code.contains("async fn") || code.contains(".await");
            assert!(
                !named || !WITHOUT_TOKIO.contains(&module.as_str()),
                "{file} names tokio or is async"
            );
        }
    }
}

#[test]
fn what_is_promised_to_be_absent_is_absent() {
    for (module, files) in modules() {
        for (file, code) in files {
            for (text, allowed) in ONLY_IN {
                assert!(
                    !code.contains(text) || allowed.contains(&module.as_str()),
                    "{file} says `{text}`"
                );
            }
        }
    }
}

#[test]
fn groups_of_imports_are_understood() {
    let code = "use crate::{oci::{Digest, DiffId}, store};\nuse crate::plan::Plan;\ncrate::exit::code();";
    assert_eq!(imported("store/mod.rs", "super::plan::x"), ["plan"]);
    assert_eq!(
        imported("store/lock.rs", "super::stage::x; super::super::plan::x"),
        ["plan"]
    );
    assert_eq!(imported("job.rs", code), ["oci", "store", "plan", "exit"]);
}
