//! Determines from the program's own name whether TALM's Job started it as `precache.sh`.
//!
//! TALM's Job starts `["/bin/bash", "-c"]` with the argument `/opt/precache/precache.sh`. The image has no shell and no
//! script: both names are links to this program.
//!
//! ```text
//! /bin/bash -c '/opt/precache/precache.sh FLAG…'   as the script
//! /opt/precache/precache.sh FLAG…                  as the script:  spoke-precache run FLAG…, with TALM's defaults
//! /bin/bash with any other command                 127: there is no shell
//! any other name                                   the arguments as they are
//! ```
//!
//! Under TALM's name the defaults are those that TALM's Job needs; flags and variables override them. The log has the form
//! of TALM's scripts. Priorities are low, because the process shares the few CPUs of the control plane. And the run does not
//! give up: that Job has a deadline and no second attempt, and its failure is final for the cluster's whole upgrade.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::cli::{Cli, Command, LogFormat};
use crate::priority::{IoPriority, Niceness};
use crate::write_back::IoBudget;

/// Names of shells that a Job may use to start its command.
const SHELLS: [&str; 2] = ["bash", "sh"];

/// The script of TALM's image, as its Job names it (`controllers/templates/precache-templates.go`).
const SCRIPT: &str = "/opt/precache/precache.sh";

/// The exit code of shells for a command that is not found (POSIX, Shell Command Language 2.8.2).
pub const NOT_FOUND: u8 = 127;

/// How the program was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrypoint {
    /// Under its own name, with these arguments, including the name.
    Own(Vec<OsString>),
    /// As TALM's script, with these arguments for `run`, including the program's name and the word `run`.
    Script(Vec<OsString>),
}

/// The program was started as a shell, with a command that needs a shell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name}: this image has no shell, and runs only the command `{SCRIPT}`\nhint: run `/usr/bin/spoke-precache run`, or `/usr/bin/spoke-precache --help`"
)]
pub struct NoShell {
    /// The name of the shell.
    name: String,
}

impl Entrypoint {
    /// Reads the arguments of the process; the first is the name.
    ///
    /// # Errors
    /// If the name is that of a shell and the command is not TALM's script.
    pub fn of(args: impl IntoIterator<Item = OsString>) -> Result<Self, NoShell> {
        let args: Vec<OsString> = args.into_iter().collect();
        let name = args.first().and_then(|name| Path::new(name).file_name());
        // A login shell's name begins with `-`.
        let name = name.unwrap_or_default().to_string_lossy();
        let name = name.trim_start_matches('-');
        if Some(OsStr::new(name)) == Path::new(SCRIPT).file_name() {
            return Ok(Self::Script(run(args.into_iter().skip(1))));
        }
        if !SHELLS.contains(&name) {
            return Ok(Self::Own(args));
        }
        let flags = match args.get(1..) {
            // The arguments after the command are its `$0`, `$1`; they have no effect.
            Some([dash_c, command, ..]) if dash_c == "-c" => command.to_str().and_then(flags_of_script),
            _ => None,
        };
        let no_shell = || NoShell {
            name: name.to_owned(),
        };
        flags
            .map(|flags| Self::Script(run(flags.into_iter())))
            .ok_or_else(no_shell)
    }

    /// The arguments for [`Cli`].
    pub fn args(&self) -> &[OsString] {
        match self {
            Self::Own(args) | Self::Script(args) => args,
        }
    }

    /// Sets the defaults for TALM's Job where neither a flag nor a variable sets a value.
    pub fn apply_defaults(&self, cli: &mut Cli) {
        if let (Self::Script(_), Command::Run(run)) = (self, &mut cli.command) {
            run.flags.bounds.is_ended = true;
            run.flags.output.log_format.get_or_insert(LogFormat::Talm);
            run.flags.priority.nice.get_or_insert(Niceness::TALM);
            run.flags.priority.ionice.get_or_insert(IoPriority::Idle);
            run.flags.priority.io_budget.get_or_insert(IoBudget::TALM);
        }
    }
}

fn run(flags: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let words = [env!("CARGO_PKG_NAME"), "run"].map(OsString::from);
    words.into_iter().chain(flags).collect()
}

/// The words after the script's name, if the command starts with it and no word has a special meaning to a shell.
fn flags_of_script(command: &str) -> Option<Vec<OsString>> {
    let mut words = command.split_ascii_whitespace();
    // TALM's Job does not write `exec SCRIPT`.
    if words.next()? != SCRIPT {
        return None;
    }
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@%+".contains(letter);
    words
        .map(|word| word.chars().all(is_plain).then(|| word.into()))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser as _;

    use super::*;

    fn entrypoint(words: &[&str]) -> Result<Entrypoint, NoShell> {
        Entrypoint::of(words.iter().map(OsString::from))
    }

    fn script(flags: &[&str]) -> Result<Entrypoint, NoShell> {
        Ok(Entrypoint::Script(run(flags.iter().map(OsString::from))))
    }

    #[test]
    fn names_of_the_script() {
        assert_eq!(entrypoint(&["/bin/bash", "-c", SCRIPT]), script(&[]));
        assert_eq!(entrypoint(&["sh", "-c", SCRIPT, "sh"]), script(&[]));
        assert_eq!(
            entrypoint(&["/bin/bash", "-c", " /opt/precache/precache.sh --limit=5\n"]),
            script(&["--limit=5"])
        );
        assert_eq!(entrypoint(&[SCRIPT]), script(&[]));
        assert_eq!(
            entrypoint(&["precache.sh", "--nice", "3"]),
            script(&["--nice", "3"])
        );
    }

    #[test]
    fn other_names_are_the_program_itself() {
        for words in [&["/usr/bin/spoke-precache", "run"][..], &["other"], &[]] {
            let own = Entrypoint::Own(words.iter().map(OsString::from).collect());
            assert_eq!(entrypoint(words), Ok(own));
        }
    }

    #[test]
    fn there_is_no_shell() {
        for words in [
            &["/bin/bash"][..],
            &["-bash"],
            &["bash", "-c"],
            &["bash", "-c", ""],
            &["bash", "-c", "ls"],
            &["bash", "-c", "/opt/precache/precache.sh.old"],
            &["bash", "-c", "/opt/precache/precache.sh; rm -rf /"],
            &["bash", "-c", "/opt/precache/precache.sh $FLAGS"],
            &["bash", SCRIPT],
            &["sh", "-ec", SCRIPT],
        ] {
            let error = entrypoint(words).unwrap_err().to_string();
            assert!(error.contains("this image has no shell"), "{words:?}: {error}");
        }
    }

    #[test]
    fn flags_override_the_defaults_for_talm() {
        let filled = |words: &[&str]| {
            let entrypoint = entrypoint(words).unwrap();
            let mut cli = Cli::parse_from(entrypoint.args());
            entrypoint.apply_defaults(&mut cli);
            match cli.command {
                Command::Run(run) => (
                    run.flags.output.log_format,
                    run.flags.priority.nice,
                    run.flags.priority.ionice,
                    run.flags.priority.io_budget,
                ),
                other => panic!("{other:?}"),
            }
        };
        let (talm, idle) = (Some(LogFormat::Talm), Some(IoPriority::Idle));
        assert_eq!(
            filled(&["bash", "-c", SCRIPT]),
            (talm, Some(Niceness::TALM), idle, Some(IoBudget::TALM))
        );
        let flags = [
            "precache.sh",
            "--log-format=json",
            "--nice=0",
            "--ionice=none",
            "--io-budget=off",
        ];
        let none = (
            Some(LogFormat::Json),
            Some(Niceness::NONE),
            Some(IoPriority::Unchanged),
            Some(IoBudget::Off),
        );
        assert_eq!(filled(&flags), none);
        assert_eq!(filled(&["spoke-precache", "run"]), (None, None, None, None));
    }
}
