//! Parses requests for operators: lines such as `ptp-operator:stable`.

use std::collections::{HashMap, HashSet};

use crate::spec::shown;

/// What the hub's `fmt.Sprintf("%s", nil)` writes for a Subscription without a channel.
const GO_NIL: &str = "%!s(<nil>)";

/// A package, and the channels whose heads are requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackageRequest {
    /// The package's name.
    pub package: String,
    /// Names of channels, at least one and without duplicates; an empty name is the package's default channel.
    pub channels: Vec<String>,
}

/// Why a line is not a request; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not `package:channel`: {why}\n\
     hint: {}`package:` requests the package's default channel",
    shown(line),
    did_you_mean(line)
)]
pub struct PackageRequestError {
    /// The line as written.
    pub line: String,
    /// Why.
    pub why: &'static str,
}

impl PackageRequest {
    /// Parses `package:channel` lines. The lines of one package become one request, at the position of the first. Blanks
    /// around names, blank lines and lines that begin with `#` are ignored, as by the hub's scripts. A line without a colon
    /// or with two, which the scripts drop silently, is an error.
    pub fn of_lines<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Vec<Self>, PackageRequestError> {
        let mut requests: Vec<Self> = Vec::new();
        let (mut indices, mut known) = (HashMap::new(), HashSet::new());
        for line in lines {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (package, channel) = package_and_channel(line).map_err(|why| PackageRequestError {
                line: line.to_owned(),
                why,
            })?;
            let index = *indices.entry(package).or_insert(requests.len());
            if index == requests.len() {
                requests.push(Self {
                    package: package.to_owned(),
                    channels: Vec::new(),
                });
            }
            if known.insert((package, channel)) {
                requests[index].channels.push(channel.to_owned());
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
        return Err("a name contains a blank or a control character");
    }
    Ok((package, channel))
}

/// The probable line, if the colon is missing or another character was used.
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
    fn lines_of_one_package_become_one_request_with_all_channels() {
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
        let requests = PackageRequest::of_lines(lines).unwrap();
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
    fn the_hint_suggests_the_probable_line() {
        for (line, meant) in [
            ("ptp-operator", "did you mean `ptp-operator:`? "),
            ("ptp-operator stable", "did you mean `ptp-operator:stable`? "),
            ("ptp-operator=stable", "did you mean `ptp-operator:stable`? "),
            ("ptp-operator::stable", "did you mean `ptp-operator:stable`? "),
            ("too:many:colons", ""),
            (":", ""),
            ("ptp\0=x", ""),
        ] {
            let error = PackageRequest::of_lines([line]).unwrap_err().to_string();
            assert!(
                error.contains(&format!("hint: {meant}`package:` requests")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_line_that_the_scripts_drop_silently_is_an_error() {
        for (line, why) in [
            ("malformed-no-colon", "it has no colon"),
            ("too:many:colons:here", "it has more than one colon"),
            (":stable", "it names no package"),
            ("%!s(<nil>):stable", "it names no package"),
            (
                "ptp operator:stable",
                "a name contains a blank or a control character",
            ),
            ("ptp\0:stable", "a name contains a blank or a control character"),
        ] {
            let error = PackageRequest::of_lines(["ptp-operator:stable", line]).unwrap_err();
            assert_eq!((error.line.as_str(), error.why), (line, why));
        }
    }
}
