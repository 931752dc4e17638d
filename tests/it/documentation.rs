//! Compares README.md and the pages that it links to with the program: flags, variables, exit codes, commands, paths.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory, Parser as _};
use spoke_precache::cancel::StopReason;
use spoke_precache::cli::Cli;
use spoke_precache::exit_code::{Ending, Failure};

#[path = "../../benches/compare/figures/mod.rs"]
#[allow(dead_code)]
mod figures;

/// Directories with pages. The first is that of README.md.
const DIRECTORIES: [&str; 6] = ["", "benches", "container", "fuzz", "manifests", "tests"];

/// Flags on the pages that are flags of other programs: podman, oc, cargo, buildah.
const FLAGS_OF_OTHERS: [&str; 24] = [
    "--all",
    "--all-targets",
    "--authfile",
    "--bench",
    "--dir",
    "--docker-password",
    "--docker-server",
    "--docker-username",
    "--example",
    "--field-selector",
    "--format",
    "--from-file",
    "--lib",
    "--locked",
    "--network",
    "--patch-file",
    "--privileged",
    "--release",
    "--rm",
    "--target",
    "--test",
    "--to-dir",
    "--type",
    "--volume",
];

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page, with its path below the top directory.
fn pages() -> Vec<(PathBuf, String)> {
    let mut pages = Vec::new();
    for directory in DIRECTORIES {
        for entry in fs::read_dir(top().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).unwrap();
                pages.push((path.strip_prefix(top()).unwrap().to_owned(), text));
            }
        }
    }
    assert!(pages.len() >= 10, "{} pages", pages.len());
    pages
}

/// The part of a page below a heading, up to the next heading of the same level.
fn section(page: &str, heading: &str) -> String {
    let page = fs::read_to_string(top().join(page)).unwrap();
    let level = heading.split(' ').next().unwrap_or_default();
    let (_, rest) = page
        .split_once(&format!("{heading}\n"))
        .unwrap_or_else(|| panic!("no heading `{heading}`"));
    let end = rest.find(&format!("\n{level} ")).unwrap_or(rest.len());
    rest[..end].to_owned()
}

#[test]
fn the_table_of_flags_has_every_flag_and_no_other() {
    let written: BTreeSet<String> = section("container/flags.md", "# Flags")
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|cell| cell.split('`'))
        .filter_map(|word| word.strip_prefix("--"))
        .filter_map(|flag| flag.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    // `verify` alone takes these.
    let of_verify = ["repair", "for-upgrade"].map(str::to_owned);
    let common: BTreeSet<String> = written
        .iter()
        .filter(|flag| !of_verify.contains(flag))
        .cloned()
        .collect();
    let command = Cli::command();
    let with_own_flags = |command: &&Command| !["delta", "export"].contains(&command.get_name());
    for command in command.get_subcommands().filter(with_own_flags) {
        let flags: Vec<_> = command
            .get_arguments()
            .filter(|flag| !matches!(flag.get_id().as_str(), "help" | "version"))
            .collect();
        let names: BTreeSet<String> = flags
            .iter()
            .filter_map(|flag| flag.get_long())
            .map(str::to_owned)
            .collect();
        let expected = if command.get_name() == "verify" {
            &written
        } else {
            &common
        };
        assert_eq!(*expected, names, "{}", command.get_name());
        for flag in flags {
            let name = flag.get_long().expect("every flag has a long name");
            let variable = format!("SPOKE_PRECACHE_{}", name.replace('-', "_").to_uppercase());
            assert_eq!(
                flag.get_env().expect("every flag has a variable"),
                variable.as_str()
            );
        }
    }
}

fn delta_create(command: &Command) -> &Command {
    let delta = command.find_subcommand("delta").expect("`delta` exists");
    delta.find_subcommand("create").expect("`delta create` exists")
}

#[test]
fn the_tables_of_commands_with_flags_of_their_own_have_every_flag_and_no_other() {
    let command = Cli::command();
    let export = command.find_subcommand("export").expect("`export` exists");
    for (page, heading, command) in [
        (
            "container/deltas.md",
            "## Flags of `delta create`",
            delta_create(&command),
        ),
        ("container/export.md", "## Flags of `export`", export),
    ] {
        let table = section(page, heading);
        assert_eq!(flags_in(&table), flags_of(command), "{page}");
    }
}

/// The flags in the first column of a table.
fn flags_in(table: &str) -> BTreeSet<String> {
    let cells = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let words = cells.flat_map(|cell| cell.split('`'));
    let flags = words.filter_map(|word| word.strip_prefix("--")?.split_whitespace().next());
    flags.map(str::to_owned).collect()
}

fn flags_of(command: &Command) -> BTreeSet<String> {
    let flags = command.get_arguments();
    let names = flags
        .filter_map(|flag| flag.get_long())
        .filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

#[test]
fn the_table_of_exit_codes_has_the_codes_of_the_program() {
    use Failure::*;
    let written: BTreeSet<String> = section("README.md", "## Exit codes")
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .filter(|cell| cell.starts_with(|c: char| c.is_ascii_digit()))
        .map(|cell| cell.replace("128+n", "143"))
        .collect();
    let failures = [
        Incomplete,
        Usage,
        Space,
        Credentials,
        Payload,
        Content,
        Store,
        Registry,
    ]
    .map(Ending::Failed);
    let stops = [StopReason::Deadline, StopReason::Signal(15)].map(Ending::Stopped);
    let codes = [Ending::Complete].into_iter().chain(failures).chain(stops);
    assert_eq!(written, codes.map(|ending| ending.code().to_string()).collect());
}

/// The commands in all shell blocks of a page, each on one line, without comments.
fn commands(page: &str) -> Vec<String> {
    let page = page.replace("\\\n", " ");
    // The reader inserts a digest.
    let page = page.replace("@sha256:…", &format!("@sha256:{}", "0".repeat(64)));
    let blocks = page.split("\n```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("\n```").next().unwrap_or_default().lines());
    let commands = lines.map(|line| line.split(" # ").next().unwrap_or_default().trim().to_owned());
    commands
        .filter(|command| !command.is_empty() && !command.starts_with('#'))
        .collect()
}

/// The words of a command that are for the program itself: from its name to the shell's `|` or `>`. `<(…)` is a file.
fn own_words(command: &str) -> Option<Vec<&str>> {
    let words: Vec<&str> = command.split_whitespace().collect();
    // The name of the program, or of its image.
    let start = words
        .iter()
        .position(|word| *word == "spoke-precache" || word.contains("/spoke-precache:"))?;
    if !["spoke-precache", "podman"].contains(&words[0]) {
        return None;
    }
    let mut own = Vec::new();
    for word in &words[start..] {
        match *word {
            "|" | ">" => break,
            word if word.starts_with("<(") => {
                own.push("/dev/fd/63");
                break;
            }
            word => own.push(word),
        }
    }
    Some(own)
}

#[test]
fn the_program_accepts_every_command_and_every_file_exists() {
    let (mut own, mut files) = (0, 0);
    for (page, text) in pages() {
        for command in commands(&text) {
            if let Some(words) = own_words(&command) {
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{}: {command}: {error}", page.display());
                }
                own += 1;
            }
            let is_file = |word: &&str| {
                ["manifests/", "container/", "tests/"]
                    .iter()
                    .any(|it| word.starts_with(it))
            };
            // `-o go-template-file=FILE` names a file too.
            let words = command
                .split_whitespace()
                .map(|word| word.rsplit_once('=').map_or(word, |(_, value)| value));
            for word in words.filter(is_file) {
                assert!(
                    top().join(word).exists(),
                    "{}: {command}: no `{word}`",
                    page.display()
                );
                files += 1;
            }
        }
    }
    assert!(own >= 14, "{own} commands of the program");
    assert!(files >= 10, "{files} files");
}

#[test]
fn every_flag_that_a_page_names_exists() {
    let command = Cli::command();
    let verify = command.find_subcommand("verify").expect("`verify` exists");
    let export = command.find_subcommand("export").expect("`export` exists");
    let own: BTreeSet<String> = verify
        .get_arguments()
        .chain(delta_create(&command).get_arguments())
        .chain(export.get_arguments())
        .filter_map(|flag| Some(format!("--{}", flag.get_long()?)))
        .chain(["--help".to_owned()])
        .collect();
    for (page, text) in pages() {
        if page.starts_with("fuzz") || page.starts_with("benches") {
            continue;
        }
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        for word in words.filter(|word| word.len() > 2 && word.starts_with("--") && !word.starts_with("---"))
        {
            assert!(
                own.contains(word) || FLAGS_OF_OTHERS.contains(&word),
                "{}: `{word}`",
                page.display()
            );
        }
    }
}

/// The anchor that GitHub and GitLab give to a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let text = text.replace(' ', "-");
    text.chars()
        .filter(|c| c.is_alphanumeric() || "-_".contains(*c))
        .collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut links = 0;
    for (page, text) in pages() {
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => top().join(&page),
                file => top().join(&page).parent().expect("a directory").join(file),
            };
            let linked = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{}: `{target}`: {error}", page.display()));
            let headings = linked.lines().filter(|line| line.starts_with('#'));
            let mut anchors = headings.map(anchor);
            assert!(
                heading.is_empty() || anchors.any(|it| it == heading),
                "{}: `{target}`",
                page.display()
            );
            links += 1;
        }
    }
    assert!(links >= 15, "{links} links");
}

/// `cargo bench --bench compare -- --table FILE` prints such a table.
#[test]
fn the_tables_of_figures_are_made_from_their_documents() {
    let page = fs::read_to_string(top().join("benches/README.md")).unwrap();
    let documents = page.split("<!-- ").filter_map(|part| part.split_once(" -->\n"));
    let mut tables = 0;
    for (name, rest) in documents.filter(|(name, _)| name.ends_with(".json")) {
        let document = fs::read(top().join("benches").join(name)).unwrap();
        let figures: figures::Figures = serde_json::from_slice(&document).unwrap();
        let table = figures::table::markdown(&figures);
        assert!(
            rest.starts_with(&format!("{table}\n")),
            "`{name}` gives:\n{table}"
        );
        tables += 1;
    }
    assert!(tables > 0, "no table");
}
