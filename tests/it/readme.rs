//! The README's tables say what the program does: flags, environment, exit codes.

use std::collections::BTreeSet;

use clap::CommandFactory;
use spoke_precache::cancel::StopReason;
use spoke_precache::cli::Cli;
use spoke_precache::exit::{Ending, Failure};

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
    let failures = [Incomplete, Usage, Space, Credentials, Payload, Content, Store].map(Ending::Failed);
    let stops = [StopReason::Deadline, StopReason::Signal(15)].map(Ending::Stopped);
    let codes = [Ending::Complete].into_iter().chain(failures).chain(stops);
    assert_eq!(written, codes.map(|ending| ending.code().to_string()).collect());
}
