//! By which name the program was started, and what is meant by it.
//!
//! TALM's Job starts `["/bin/bash", "-c"]` with the argument `/opt/precache/precache.sh`. The image has no shell and no
//! script: both names are links to this program, which reads from its own name what is asked for.
//!
//! ```text
//! /bin/bash -c '/opt/precache/precache.sh FLAG…'   as the script
//! /opt/precache/precache.sh FLAG…                  as the script:  spoke-precache run FLAG…, with TALM's defaults
//! /bin/bash, and whatever else one may ask of it   127: there is no shell
//! any other name                                   the arguments as they are
//! ```
//!
//! Under TALM's name it looks and behaves as TALM's Job expects, where neither a flag nor a variable says otherwise: its
//! form of the log, and low priorities, for it runs on the few CPUs that the control plane has for itself. And it does not
//! give up: that Job has a deadline, no second attempt, and its failure is final for the cluster's whole upgrade.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::cli::{Cli, Command, LogFormat};
use crate::priority::{IoPriority, Niceness};

/// Names of shells that a Job may start its command by.
const SHELLS: [&str; 2] = ["bash", "sh"];

/// The script of TALM's image, as its Job names it (`controllers/templates/precache-templates.go`).
const SCRIPT: &str = "/opt/precache/precache.sh";

/// What shells answer when a command is not found (POSIX, Shell Command Language 2.8.2).
pub const NOT_FOUND: u8 = 127;

/// What the program was started as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrypoint {
    /// Itself, with these arguments, its name among them.
    Own(Vec<OsString>),
    /// TALM's script, with these arguments for `run`, the program's name and the word `run` among them.
    Script(Vec<OsString>),
}

/// A shell was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name}: this image has no shell: it knows the command `{SCRIPT}` alone\nhint: run `/usr/bin/spoke-precache run`, or `/usr/bin/spoke-precache --help`"
)]
pub struct NoShell {
    /// By which name.
    name: String,
}

impl Entrypoint {
    /// Reads the arguments of the process, of which the first is the name.
    ///
    /// # Errors
    /// When a shell is asked for what only a shell can do.
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
            // What follows the command would be its `$0`, `$1`; it has no use for them.
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

    /// Fills in what TALM's Job expects where nothing else is said.
    pub fn fill_in(&self, cli: &mut Cli) {
        if let (Self::Script(_), Command::Run(run)) = (self, &mut cli.command) {
            run.flags.bounds.is_ended = true;
            run.flags.output.log_format.get_or_insert(LogFormat::Talm);
            run.flags.priority.nice.get_or_insert(Niceness::TALM);
            run.flags.priority.ionice.get_or_insert(IoPriority::Idle);
        }
    }
}

fn run(flags: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let words = [env!("CARGO_PKG_NAME"), "run"].map(OsString::from);
    words.into_iter().chain(flags).collect()
}

/// Words after the script's name, if that is what the command begins with and no word needs a shell to be understood.
fn flags_of_script(command: &str) -> Option<Vec<OsString>> {
    let mut words = command.split_ascii_whitespace();
    // As `exec SCRIPT` it would be the same.
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

    fn applet(words: &[&str]) -> Result<Entrypoint, NoShell> {
        Entrypoint::of(words.iter().map(OsString::from))
    }

    fn script(flags: &[&str]) -> Result<Entrypoint, NoShell> {
        Ok(Entrypoint::Script(run(flags.iter().map(OsString::from))))
    }

    #[test]
    fn names_that_mean_the_script() {
        assert_eq!(applet(&["/bin/bash", "-c", SCRIPT]), script(&[]));
        assert_eq!(applet(&["sh", "-c", SCRIPT, "sh"]), script(&[]));
        assert_eq!(
            applet(&["/bin/bash", "-c", " /opt/precache/precache.sh --limit=5\n"]),
            script(&["--limit=5"])
        );
        assert_eq!(applet(&[SCRIPT]), script(&[]));
        assert_eq!(applet(&["precache.sh", "--nice", "3"]), script(&["--nice", "3"]));
    }

    #[test]
    fn other_names_are_its_own() {
        for words in [&["/usr/bin/spoke-precache", "run"][..], &["other"], &[]] {
            let own = Entrypoint::Own(words.iter().map(OsString::from).collect());
            assert_eq!(applet(words), Ok(own));
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
            let error = applet(words).unwrap_err().to_string();
            assert!(error.contains("this image has no shell"), "{words:?}: {error}");
        }
    }

    #[test]
    fn what_is_said_otherwise_stands() {
        let filled = |words: &[&str]| {
            let applet = applet(words).unwrap();
            let mut cli = Cli::parse_from(applet.args());
            applet.fill_in(&mut cli);
            match cli.command {
                Command::Run(run) => (
                    run.flags.output.log_format,
                    run.flags.priority.nice,
                    run.flags.priority.ionice,
                ),
                other => panic!("{other:?}"),
            }
        };
        let (talm, idle) = (Some(LogFormat::Talm), Some(IoPriority::Idle));
        assert_eq!(
            filled(&["bash", "-c", SCRIPT]),
            (talm, Some(Niceness::TALM), idle)
        );
        let said = ["precache.sh", "--log-format=json", "--nice=0", "--ionice=none"];
        let none = (
            Some(LogFormat::Json),
            Some(Niceness::NONE),
            Some(IoPriority::Unchanged),
        );
        assert_eq!(filled(&said), none);
        assert_eq!(filled(&["spoke-precache", "run"]), (None, None, None));
    }
}
