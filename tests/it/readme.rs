//! The README's tables say what the program does: flags, environment, exit codes. Its commands are ones that it takes.

use std::collections::BTreeSet;
use std::path::Path;

use clap::{CommandFactory, Parser as _};
use spoke_precache::cancel::StopReason;
use spoke_precache::cli::Cli;
use spoke_precache::exit_code::{Ending, Failure};

fn section(title: &str) -> String {
    let readme = include_str!("../../README.md");
    let start = readme
        .find(&format!("\n## {title}\n"))
        .expect("the README has the section");
    let rest = &readme[start + 4..];
    rest[..rest.find("\n## ").unwrap_or(rest.len())].to_owned()
}

#[test]
fn the_table_of_flags_has_every_flag_and_no_other() {
    let written: BTreeSet<String> = section("Flags")
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|cell| cell.split('`'))
        .filter_map(|word| word.strip_prefix("--"))
        .filter_map(|flag| flag.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    // `verify` alone takes `--repair`.
    let common: BTreeSet<String> = written.iter().filter(|flag| *flag != "repair").cloned().collect();
    for command in Cli::command().get_subcommands() {
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

#[test]
fn the_table_of_exit_codes_is_that_of_the_program() {
    use Failure::*;
    let written: BTreeSet<String> = section("Exit codes")
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

/// The commands of all blocks of shell, each on one line, without comments.
fn commands() -> Vec<String> {
    let readme = include_str!("../../README.md").replace("\\\n", " ");
    // The reader's own.
    let readme = readme.replace("@sha256:…", &format!("@sha256:{}", "0".repeat(64)));
    let blocks = readme.split("\n```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("\n```").next().unwrap_or_default().lines());
    let commands = lines.map(|line| line.split(" # ").next().unwrap_or_default().trim().to_owned());
    commands
        .filter(|command| !command.is_empty() && !command.starts_with('#'))
        .collect()
}

/// Somebody will copy them.
#[test]
fn every_command_is_one_that_the_program_takes_and_every_file_is_there() {
    let (mut ours, mut files) = (0, 0);
    for command in commands() {
        let words: Vec<&str> = command.split_whitespace().collect();
        if words[0] == "spoke-precache" {
            // Until the shell's own words begin; `<(…)` is a file.
            let own = words.iter().take_while(|word| !["|", ">", "…"].contains(*word));
            let own = own.map(|word| {
                if word.starts_with("<(") {
                    "/dev/fd/63"
                } else {
                    word
                }
            });
            let end = words.iter().position(|word| word.starts_with("<("));
            let own = own.take(end.map_or(usize::MAX, |end| end + 1));
            if let Err(error) = Cli::try_parse_from(own) {
                panic!("{command}: {error}");
            }
            ours += 1;
        }
        let is_ours = |word: &&&str| word.starts_with("manifests/") || word.starts_with("container/");
        for word in words.iter().filter(is_ours) {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(word);
            assert!(path.exists(), "{command}: no `{word}`");
            files += 1;
        }
    }
    assert!(ours >= 8 && files >= 4, "{ours} commands, {files} files");
}
