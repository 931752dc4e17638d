//! What is asked of a catalog: lines such as `ptp-operator:stable`.

use std::collections::{HashMap, HashSet};

use crate::spec::shown;

/// What the hub's Go writes for a channel that the Subscription does not name.
const GO_NIL: &str = "%!s(<nil>)";

/// A package, and the channels whose heads are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The package's name.
    pub package: String,
    /// Names of channels, at least one and each once; the empty one is the package's default channel.
    pub channels: Vec<String>,
}

/// Why a line asks for nothing that can be found; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not `package:channel`: {why}\n\
     hint: {}`package:` without a channel is the package's default channel",
    shown(line),
    did_you_mean(line)
)]
pub struct RequestError {
    /// The line as written.
    pub line: String,
    /// What is wrong with it.
    pub why: &'static str,
}

impl Request {
    /// Reads `package:channel` lines. Lines of one package become one request, in the order of its first. Blanks around
    /// either name, blank lines and lines that begin with `#` are passed over, as the hub's scripts do; what those drop
    /// without a word, a line with no colon or with two, is an error.
    pub fn of_lines<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Vec<Self>, RequestError> {
        let mut requests: Vec<Self> = Vec::new();
        let (mut places, mut known) = (HashMap::new(), HashSet::new());
        for line in lines {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (package, channel) = package_and_channel(line).map_err(|why| RequestError {
                line: line.to_owned(),
                why,
            })?;
            let place = *places.entry(package).or_insert(requests.len());
            if place == requests.len() {
                requests.push(Self {
                    package: package.to_owned(),
                    channels: Vec::new(),
                });
            }
            if known.insert((package, channel)) {
                requests[place].channels.push(channel.to_owned());
            }
        }
        Ok(requests)
    }
}

fn package_and_channel(line: &str) -> Result<(&str, &str), &'static str> {
    let (package, channel) = line.split_once(':').ok_or("it has no colon")?;
    let (package, channel) = (package.trim(), channel.trim());
    let channel = if channel == GO_NIL { "" } else { channel };
    if channel.contains(':') {
        return Err("it has more than one colon");
    }
    if package.is_empty() || package == GO_NIL {
        return Err("it names no package");
    }
    if [package, channel]
        .iter()
        .any(|name| name.contains(|c: char| c.is_whitespace() || c.is_control()))
    {
        return Err("a name has a blank or a control character in it");
    }
    Ok((package, channel))
}

/// The line as it would be right if somebody took another mark for the colon, or forgot it.
fn did_you_mean(line: &str) -> String {
    let words: Vec<&str> = line
        .split([':', '=', '@', '/', ',', ';', ' ', '\t'])
        .filter(|word| !word.is_empty())
        .collect();
    let meant = match words[..] {
        [package] => format!("{package}:"),
        [package, channel] => format!("{package}:{channel}"),
        _ => return String::new(),
    };
    match package_and_channel(&meant) {
        Ok(_) => format!("did you mean `{}`? ", shown(&meant)),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn lines_become_requests_and_no_channel_is_lost() {
        let lines = [
            "ptp-operator:stable",
            " sriov-network-operator : 4.9 \r",
            "",
            "# local-storage-operator: stable",
            "ptp-operator:4.16",
            "ptp-operator:stable",
            "lvms-operator:",
            "lvms-operator: %!s(<nil>)",
        ];
        let requests = Request::of_lines(lines).unwrap();
        let plain: Vec<_> = requests
            .iter()
            .map(|request| (request.package.as_str(), request.channels.join(",")))
            .collect();
        assert_eq!(
            plain,
            [
                ("ptp-operator", "stable,4.16".to_owned()),
                ("sriov-network-operator", "4.9".to_owned()),
                ("lvms-operator", String::new()),
            ]
        );
        assert_eq!(requests[2].channels, [""]);
    }

    #[test]
    fn what_was_meant_is_guessed() {
        for (line, meant) in [
            ("ptp-operator", "did you mean `ptp-operator:`? "),
            ("ptp-operator stable", "did you mean `ptp-operator:stable`? "),
            ("ptp-operator=stable", "did you mean `ptp-operator:stable`? "),
            ("ptp-operator::stable", "did you mean `ptp-operator:stable`? "),
            ("too:many:colons", ""),
            (":", ""),
            ("ptp\0=x", ""),
        ] {
            let error = Request::of_lines([line]).unwrap_err().to_string();
            assert!(
                error.contains(&format!("hint: {meant}`package:` without")),
                "{error}"
            );
        }
    }

    #[test]
    fn what_the_scripts_drop_without_a_word_is_an_error() {
        for (line, why) in [
            ("malformed-no-colon", "it has no colon"),
            ("too:many:colons:here", "it has more than one colon"),
            (":stable", "it names no package"),
            ("%!s(<nil>):stable", "it names no package"),
            (
                "ptp operator:stable",
                "a name has a blank or a control character in it",
            ),
            ("ptp\0:stable", "a name has a blank or a control character in it"),
        ] {
            let error = Request::of_lines(["ptp-operator:stable", line]).unwrap_err();
            assert_eq!((error.line.as_str(), error.why), (line, why));
        }
    }
}
