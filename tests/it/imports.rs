//! Reads the imports and the forbidden calls of every source file: who may import whom, no circles, and what no file does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Top-level modules in the direction of imports: a module imports only those of earlier rows. Modules of one row do not
/// import each other.
const RANKS: [&[&str]; 14] = [
    &[
        "oci",
        "cancel",
        "priority",
        "scratch_file",
        "work_directory",
        "openpgp",
    ],
    &["cluster_version", "write_back"],
    &["report", "spec", "spool", "signature", "delta", "media"],
    &["http", "run_history"],
    &["registry", "store", "cluster"],
    &["fetch", "cache_status", "oci_layout", "zstd_chunked"],
    &["image_request"],
    &["catalog", "release"],
    &["plan", "release_signature", "delta_creation", "used_images"],
    &["preflight", "upgrade_readiness"],
    &["exit_code"],
    &["job"],
    &["pinning", "export"],
    &[
        "settings",
        "cli",
        "entrypoint",
        "signals",
        "open_files",
        "allocator",
        "exit_handler",
        "logging",
        "session",
        "spec_command",
        "status_command",
        "delta_command",
        "export_command",
        "standalone",
        "main",
    ],
];

/// Texts that only the code of these modules contains; an empty list means that no module does.
const ONLY_IN: [(&str, &[&str]); 6] = [
    ("std::env::var", &["settings"]),
    ("env::args", &["main", "settings"]),
    ("std::env::set", &[]),
    ("process::Command", &[]),
    ("process::exit", &["exit_handler", "main"]),
    ("posix_spawn", &[]),
];

/// Modules without a runtime: threads call them, and their tests need none.
const WITHOUT_TOKIO: [&str; 14] = [
    "store",
    "spool",
    "plan",
    "spec",
    "cluster_version",
    "oci",
    "report",
    "openpgp",
    "signature",
    "delta",
    "media",
    "run_history",
    "cache_status",
    "zstd_chunked",
];

/// Segments of a path: `["crate", "oci", "Digest"]`.
type Segments = Vec<String>;

/// A source file without its comments and tests.
struct SourceFile {
    /// Below `src/`.
    path: String,
    /// `["store", "layer_dir"]`; `mod.rs` is its directory.
    module: Segments,
    code: String,
}

impl SourceFile {
    fn top_level(&self) -> &str {
        &self.module[0]
    }
}

/// All files of `src/` except `lib.rs`, which only lists the modules, and the files of tests.
fn source_files() -> Vec<SourceFile> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
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
            if inside.ends_with(".rs") && !is_test && inside != "lib.rs" {
                files.push(source_file(inside, &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn source_file(path: String, text: &str) -> SourceFile {
    let mut module = segments(&path.trim_end_matches(".rs").replace('/', "::"));
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    let until_tests = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = until_tests
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    SourceFile {
        path,
        module,
        code: lines.collect::<Vec<_>>().join("\n"),
    }
}

fn segments(path: &str) -> Segments {
    path.split("::").map(str::to_owned).collect()
}

/// Reads one path or group such as `a::{b, c as d}` from the start of `text`; adds each path of it with the name it gets.
/// Returns what follows.
fn read_paths<'a>(text: &'a str, before: &[String], found: &mut Vec<(Segments, String)>) -> &'a str {
    let mut rest = text.trim_start();
    if let Some(group) = rest.strip_prefix('{') {
        rest = group;
        while !rest.trim_start().is_empty() && !rest.trim_start().starts_with('}') {
            rest = read_paths(rest, before, found).trim_start();
            rest = match rest.strip_prefix(',') {
                Some(next) => next,
                None => break,
            };
        }
        return rest.trim_start().strip_prefix('}').unwrap_or(rest);
    }
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let word = &rest[..rest.find(|letter| !is_word(letter)).unwrap_or(rest.len())];
    rest = &rest[word.len()..];
    let mut path = before.to_vec();
    // The empty word is a `*`, or `::<T>` behind a path.
    if !word.is_empty() {
        path.push(word.to_owned());
        if let Some(below) = rest.strip_prefix("::") {
            return read_paths(below, &path, found);
        }
    }
    let mut name = path.last().cloned().unwrap_or_default();
    if let Some(alias) = rest.strip_prefix(" as ") {
        let end = alias.find(|letter| !is_word(letter)).unwrap_or(alias.len());
        name = alias[..end].to_owned();
        rest = &alias[end..];
    }
    found.push((path, name));
    rest
}

/// The path from the crate's root, for a path as the code of `module` has it; none if it begins with another crate.
fn absolute(module: &[String], path: &[String], modules: &BTreeSet<Segments>) -> Option<Segments> {
    let child = |first: &String| [module, std::slice::from_ref(first)].concat();
    let mut absolute = match path.first()?.as_str() {
        "crate" | "spoke_precache" => Vec::new(),
        "super" | "self" => module.to_vec(),
        _ if modules.contains(&child(path.first()?)) => module.to_vec(),
        _ => return None,
    };
    for segment in path {
        match segment.as_str() {
            "crate" | "spoke_precache" | "self" => {}
            "super" => drop(absolute.pop()),
            name => absolute.push(name.to_owned()),
        }
    }
    Some(absolute)
}

/// Every path that the code names from the crate's root or from its own module, in `use` or elsewhere.
fn named_paths(file: &SourceFile, modules: &BTreeSet<Segments>) -> Vec<Segments> {
    let mut found = Vec::new();
    for root in ["crate::", "spoke_precache::", "super::", "self::"] {
        for (at, _) in file.code.match_indices(root) {
            let before = file.code[..at].chars().next_back();
            if before.is_none_or(|letter| !letter.is_alphanumeric() && letter != '_' && letter != ':') {
                read_paths(&file.code[at..], &[], &mut found);
            }
        }
    }
    found
        .iter()
        .filter_map(|(path, _)| absolute(&file.module, path, modules))
        .collect()
}

/// The names that a file takes over by `use`, each with its path: other files may reach them through this one.
fn reexports(file: &SourceFile, modules: &BTreeSet<Segments>) -> BTreeMap<Segments, Segments> {
    let mut found = Vec::new();
    for (at, _) in file.code.match_indices("use ") {
        let line = file.code[..at].rsplit('\n').next().unwrap_or_default();
        if line.is_empty() || line.starts_with("pub") {
            read_paths(&file.code[at + "use ".len()..], &[], &mut found);
        }
    }
    let named = found.into_iter().filter_map(|(path, name)| {
        let target = absolute(&file.module, &path, modules)?;
        Some(([file.module.clone(), vec![name]].concat(), target))
    });
    named.collect()
}

/// The module whose file defines what `path` names, behind all re-exports.
fn defining_module(
    path: &[String],
    modules: &BTreeSet<Segments>,
    reexports: &BTreeMap<Segments, Segments>,
) -> Option<Segments> {
    let mut path = path.to_vec();
    // No item is passed on more often; a re-export of itself ends here too.
    for _ in 0..8 {
        let length = (1..=path.len())
            .rev()
            .find(|&length| modules.contains(&path[..length]))?;
        let target = path.get(..=length).and_then(|item| reexports.get(item));
        match target {
            Some(target) => path = [target, &path[length + 1..]].concat(),
            None => return Some(path[..length].to_vec()),
        }
    }
    None
}

/// Which modules each module imports from, a module and those inside it excepted.
fn imports(files: &[SourceFile]) -> BTreeMap<Segments, BTreeSet<Segments>> {
    let modules: BTreeSet<Segments> = files.iter().map(|file| file.module.clone()).collect();
    let reexports = files.iter().flat_map(|file| reexports(file, &modules)).collect();
    let of = |file: &SourceFile| {
        let paths = named_paths(file, &modules);
        let defining = paths
            .iter()
            .filter_map(|path| defining_module(path, &modules, &reexports));
        let others = defining
            .filter(|other| !other.starts_with(&file.module) && !file.module.starts_with(other.as_slice()));
        (file.module.clone(), others.collect())
    };
    files.iter().map(of).collect()
}

/// Groups of modules each of which imports from every other one of its group, directly or through others.
fn circles(imports: &BTreeMap<Segments, BTreeSet<Segments>>) -> BTreeSet<BTreeSet<String>> {
    let reachable = |from: &Segments| {
        let mut reached = BTreeSet::new();
        let mut left: Vec<&Segments> = imports[from].iter().collect();
        while let Some(module) = left.pop() {
            if reached.insert(module) {
                left.extend(imports.get(module).into_iter().flatten());
            }
        }
        reached
    };
    let reached: BTreeMap<&Segments, BTreeSet<&Segments>> =
        imports.keys().map(|module| (module, reachable(module))).collect();
    let circle = |module: &&Segments| {
        let both = reached[module]
            .iter()
            .filter(|other| reached.get(**other).is_some_and(|back| back.contains(*module)));
        both.map(|other| other.join("::")).collect::<BTreeSet<String>>()
    };
    reached
        .keys()
        .map(circle)
        .filter(|circle| !circle.is_empty())
        .collect()
}

#[test]
fn imports_point_downwards() {
    let rank = |module: &str| RANKS.iter().position(|modules| modules.contains(&module));
    let files = source_files();
    let modules = files.iter().map(|file| file.module.clone()).collect();
    let mut wrong = BTreeSet::new();
    for file in &files {
        let Some(own) = rank(file.top_level()) else {
            wrong.insert(format!("module `{}` has no rank", file.top_level()));
            continue;
        };
        for path in named_paths(file, &modules) {
            let Some(name) = path.first().filter(|name| *name != file.top_level()) else {
                continue;
            };
            let problem = match rank(name) {
                Some(other) if other < own => continue,
                // The modules of the last row start the process, and `main` joins them.
                Some(_) if own == RANKS.len() - 1 => continue,
                Some(_) => "which is not below it",
                None => "which has no rank",
            };
            wrong.insert(format!("{} imports `{name}`, {problem}", file.path));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let circles = circles(&imports(&source_files()));
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn modules_without_a_runtime_do_not_name_one() {
    for file in source_files() {
        let is_async = ["tokio", "async fn", ".await"]
            .iter()
            .any(|text| file.code.contains(text));
        assert!(
            !is_async || !WITHOUT_TOKIO.contains(&file.top_level()),
            "{} names tokio or is async",
            file.path
        );
    }
}

#[test]
fn forbidden_calls_are_absent() {
    for file in source_files() {
        for (text, allowed) in ONLY_IN {
            assert!(
                !file.code.contains(text) || allowed.contains(&file.top_level()),
                "{} contains `{text}`",
                file.path
            );
        }
    }
}

fn example(files: &[(&str, &str)]) -> Vec<SourceFile> {
    let read = |&(path, text): &(&str, &str)| source_file(path.to_owned(), text);
    files.iter().map(read).collect()
}

#[test]
fn a_circle_is_found_behind_groups_aliases_and_re_exports() {
    let files = example(&[
        (
            "a/mod.rs",
            "mod b;\nmod c;\npub(super) use b::{B as Named, other};\nuse c::C;",
        ),
        (
            "a/b.rs",
            "use super::C;\nuse std::fmt::Write;\nuse crate::{z::{self, Z}, y};",
        ),
        ("a/c.rs", "fn f() { crate::a::Named::<u8>::new() } // crate::y::Y"),
        (
            "y.rs",
            "use crate::a;\n#[cfg(test)]\nmod tests { use crate::z::Z; }",
        ),
        ("z.rs", "use std::fmt;"),
    ]);
    let imports = imports(&files);
    let of = |module: &str| -> Vec<String> {
        imports[&segments(module)]
            .iter()
            .map(|other| other.join("::"))
            .collect()
    };
    assert_eq!(of("a"), [""; 0], "a module and its children are no circle");
    assert_eq!(of("a::b"), ["a::c", "y", "z"]);
    assert_eq!(of("a::c"), ["a::b"]);
    assert_eq!(of("y"), ["a"]);
    let expected = BTreeSet::from(["a::b".to_owned(), "a::c".to_owned()]);
    assert_eq!(circles(&imports), BTreeSet::from([expected]));
}

#[test]
fn a_path_is_read_from_the_module_that_has_it() {
    let files = example(&[
        (
            "store/lock.rs",
            "super::stage::x; super::super::plan::x; super::super::super::x",
        ),
        (
            "main.rs",
            "use spoke_precache::exit_code::{Ending};\nlet x = cli::parse();",
        ),
    ]);
    let named = |file: &SourceFile| -> Vec<String> {
        let paths = named_paths(file, &BTreeSet::new());
        paths.iter().map(|path| path.join("::")).collect()
    };
    assert_eq!(named(&files[0]), ["store::stage::x", "plan::x", "x"]);
    assert_eq!(named(&files[1]), ["exit_code::Ending"]);
}
