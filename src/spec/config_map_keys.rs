//! Parses the keys of the hub's ConfigMap `pre-cache-spec`.
//!
//! ```text
//! platform.image                 one reference, or nothing
//! operators.indexes              one reference per line
//! operators.packagesAndChannels  one `package:channel` per line
//! excludePrecachePatterns        one pattern per line; quotes belong to it, and there are no comments
//! additionalImages               one reference per line, perhaps in double quotes
//! spaceRequired                  an amount, in GiB unless it has a unit
//! ```
//!
//! The parser is lenient where the hub's versions and people's editors differ (surrounding blanks, carriage returns, blank
//! lines, no final newline, a missing key, `null`), and strict where leniency would lose an image.

use std::collections::BTreeMap;

use super::{SpecError, VersionSpec, parse_space, unique};
use crate::oci::Reference;

pub(super) const PLATFORM_IMAGE: &str = "platform.image";
pub(super) const OPERATORS_INDEXES: &str = "operators.indexes";
pub(super) const OPERATORS_PACKAGES: &str = "operators.packagesAndChannels";
pub(super) const EXCLUDES: &str = "excludePrecachePatterns";
pub(super) const ADDITIONAL_IMAGES: &str = "additionalImages";
pub(super) const SPACE_REQUIRED: &str = "spaceRequired";

const KNOWN: [&str; 6] = [
    PLATFORM_IMAGE,
    OPERATORS_INDEXES,
    OPERATORS_PACKAGES,
    EXCLUDES,
    ADDITIONAL_IMAGES,
    SPACE_REQUIRED,
];

/// Whether the hub mounts a key of this name.
pub fn is_key(name: &str) -> bool {
    KNOWN.contains(&name)
}

/// What the hub's `fmt.Sprintf("%s", nil)` writes for a missing image.
const GO_NIL: &str = "%!s(<nil>)";

/// Parses the version spec from the keys' bytes, as in a directory of files. Names that begin with `..` belong to the mount
/// and are ignored. Also returns warnings for the user.
pub fn from_keys(keys: &BTreeMap<String, Vec<u8>>) -> Result<(VersionSpec, Vec<String>), SpecError> {
    let (known, unknown): (Vec<&str>, Vec<&str>) = keys
        .keys()
        .map(String::as_str)
        .filter(|name| !name.starts_with(".."))
        .partition(|name| is_key(name));
    if known.is_empty() {
        return Err(SpecError::NoKeys {
            found: unknown.into_iter().map(str::to_owned).collect(),
        });
    }
    let warnings = unknown
        .into_iter()
        .map(|name| {
            format!(
                "the version spec's key `{}` is unknown and ignored",
                super::shown(name)
            )
        })
        .collect();

    let spec = VersionSpec {
        platform_image: platform_image(text(keys, PLATFORM_IMAGE)?)?,
        operators_indexes: references(OPERATORS_INDEXES, text(keys, OPERATORS_INDEXES)?)?,
        packages_and_channels: unique(
            lines(unless_null(text(keys, OPERATORS_PACKAGES)?))
                .map(|(_, line)| unquoted(line).to_owned())
                .filter(|line| !line.is_empty()),
        ),
        exclude_patterns: unique(patterns(text(keys, EXCLUDES)?)),
        additional_images: references(ADDITIONAL_IMAGES, text(keys, ADDITIONAL_IMAGES)?)?,
        space_required: space_required(text(keys, SPACE_REQUIRED)?)?,
    };
    Ok((spec, warnings))
}

/// The value of `key` as text; empty when the key is missing.
fn text<'a>(keys: &'a BTreeMap<String, Vec<u8>>, key: &'static str) -> Result<&'a str, SpecError> {
    let bytes = keys.get(key).map_or(&[][..], Vec::as_slice);
    let line_of = |offset: usize| 1 + bytes[..offset].iter().filter(|&&byte| byte == b'\n').count();
    let text = std::str::from_utf8(bytes).map_err(|error| SpecError::NotUtf8 {
        key,
        line: line_of(error.valid_up_to()),
    })?;
    if let Some(offset) = text.find('\0') {
        return Err(SpecError::Nul {
            key,
            line: line_of(offset),
        });
    }
    // Windows editors write a byte order mark at the start.
    Ok(text.strip_prefix('\u{feff}').unwrap_or(text))
}

/// Lines that are not blank, without the blanks around them, numbered from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split('\n')
        // Concatenated files have byte order marks inside.
        .map(|line| line.trim_matches([' ', '\t', '\r', '\u{feff}']))
        .enumerate()
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, line)| !line.is_empty())
}

/// The exclude patterns of a text, one per line.
pub(super) fn patterns(text: &str) -> impl Iterator<Item = String> {
    lines(text).map(|(_, line)| line.to_owned())
}

/// A template without a value writes `null`.
fn unless_null(text: &str) -> &str {
    if text.trim() == "null" { "" } else { text }
}

fn unquoted(line: &str) -> &str {
    line.trim_matches(|c: char| matches!(c, '"' | '\u{feff}') || c.is_whitespace())
}

fn references(key: &'static str, text: &str) -> Result<Vec<Reference>, SpecError> {
    let mut references = Vec::new();
    for (line, text) in lines(unless_null(text)) {
        let text = unquoted(text);
        if text.is_empty() {
            continue;
        }
        if text.contains(GO_NIL) {
            return Err(SpecError::GoNil { key, line });
        }
        let reference = text
            .parse()
            .map_err(|why| SpecError::Reference { key, line, why })?;
        references.push(reference);
    }
    Ok(unique(references))
}

fn platform_image(text: &str) -> Result<Option<Reference>, SpecError> {
    let references = references(PLATFORM_IMAGE, text)?;
    if references.len() > 1 {
        return Err(SpecError::SeveralPlatformImages { key: PLATFORM_IMAGE });
    }
    Ok(references.into_iter().next())
}

fn space_required(text: &str) -> Result<u64, SpecError> {
    let mut lines = lines(unless_null(text));
    let Some((line, amount)) = lines.next() else {
        return Ok(0);
    };
    if let Some((line, _)) = lines.next() {
        return Err(SpecError::SeveralAmounts {
            key: SPACE_REQUIRED,
            line,
        });
    }
    parse_space(unquoted(amount)).map_err(|why| SpecError::Space {
        key: SPACE_REQUIRED,
        line,
        why,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn keys(values: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        values
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec()))
            .collect()
    }

    fn spec(values: &[(&str, &str)]) -> VersionSpec {
        from_keys(&keys(values)).unwrap().0
    }

    fn error(key: &str, value: &str) -> String {
        from_keys(&keys(&[(key, value)])).unwrap_err().to_string()
    }

    #[test]
    fn the_keys_that_the_hub_mounts_are_read() {
        let spec = spec(&[
            (
                "platform.image",
                "quay.io/openshift-release-dev/ocp-release:4.16.3-x86_64\n",
            ),
            (
                "operators.indexes",
                "\nregistry:5000/index:v4.16 \nregistry:5000/index:v4.16\r\n",
            ),
            (
                "operators.packagesAndChannels",
                "ptp-operator:4.9\nsriov-network-operator:4.9",
            ),
            (
                "excludePrecachePatterns",
                "aws \r\n\n\tvsphere\n^\"gcp\naws\n# not a comment",
            ),
            (
                "additionalImages",
                "\"quay.io/a/b:1\"\n\n  quay.io/a/b:1 \nquay.io/c@sha256:dbcc1c35ac38df41fd2f5e4130b32ffdb93ebae8b3dbe638c23575912276fc9c",
            ),
            ("spaceRequired", "35"),
            ("..data", "a mount's own link"),
        ]);
        assert_eq!(
            spec.platform_image.unwrap().to_string(),
            "quay.io/openshift-release-dev/ocp-release:4.16.3-x86_64"
        );
        assert_eq!(spec.operators_indexes.len(), 1);
        assert_eq!(
            spec.packages_and_channels,
            ["ptp-operator:4.9", "sriov-network-operator:4.9"]
        );
        assert_eq!(
            spec.exclude_patterns,
            ["aws", "vsphere", "^\"gcp", "# not a comment"]
        );
        assert_eq!(
            spec.additional_images.len(),
            2,
            "a last line without a newline is read"
        );
        assert_eq!(spec.space_required, 35 << 30);
    }

    #[test]
    fn an_empty_value_means_no_value() {
        for nothing in ["", "\n", " \r\n\r\n", "null", "null\n", "\u{feff}"] {
            let empty = KNOWN
                .iter()
                .filter(|key| **key != EXCLUDES)
                .map(|key| (*key, nothing))
                .collect::<Vec<_>>();
            assert_eq!(spec(&empty), VersionSpec::default(), "{nothing:?}");
        }
        assert_eq!(spec(&[(PLATFORM_IMAGE, "\"\"")]), VersionSpec::default());
        assert_eq!(
            spec(&[(SPACE_REQUIRED, "\u{feff}\"40 GiB\"\r\n")]).space_required,
            40 << 30
        );
    }

    #[test]
    fn an_error_names_key_and_line() {
        for (key, value, expected) in [
            (
                PLATFORM_IMAGE,
                "quay.io/A\n",
                "`platform.image`, line 1: `quay.io/A` is not an image reference",
            ),
            (
                PLATFORM_IMAGE,
                "quay.io/a\nquay.io/b",
                "`platform.image` names more than one image",
            ),
            (
                ADDITIONAL_IMAGES,
                "quay.io/a\n\nquay.io/b c\n",
                "`additionalImages`, line 3: `quay.io/b c`",
            ),
            (
                OPERATORS_INDEXES,
                "quay.io/a\n%!s(<nil>)",
                "`operators.indexes`, line 2: `%!s(<nil>)`",
            ),
            (
                SPACE_REQUIRED,
                "\n-3",
                "`spaceRequired`, line 2: `-3` is not an amount of space: it is negative",
            ),
            (SPACE_REQUIRED, "lots", "`spaceRequired`, line 1: `lots`"),
            (SPACE_REQUIRED, "3\n4", "`spaceRequired`, line 2: a second amount"),
            (
                EXCLUDES,
                "a\nb\0",
                "`excludePrecachePatterns`, line 2: a zero byte",
            ),
        ] {
            assert!(error(key, value).starts_with(expected), "{}", error(key, value));
        }
        let latin1 = BTreeMap::from([(ADDITIONAL_IMAGES.to_owned(), b"a\n\xe9".to_vec())]);
        assert_eq!(
            from_keys(&latin1).unwrap_err().to_string(),
            "`additionalImages`, line 2: not UTF-8"
        );
    }

    #[test]
    fn an_unknown_key_is_a_warning_and_no_known_key_is_an_error() {
        let (_, warnings) = from_keys(&keys(&[(SPACE_REQUIRED, "1"), ("platformImage", "x")])).unwrap();
        assert_eq!(
            warnings,
            ["the version spec's key `platformImage` is unknown and ignored"]
        );
        assert!(error("passwd", "").ends_with("found: `passwd`"));
        assert!(
            from_keys(&keys(&[("..data", "")]))
                .unwrap_err()
                .to_string()
                .ends_with("found: nothing")
        );
    }

    #[test]
    fn flags_add_to_lists_and_replace_values() {
        let image = |text: &str| text.parse::<Reference>().unwrap();
        let spec = spec(&[
            (PLATFORM_IMAGE, "quay.io/a:1"),
            (ADDITIONAL_IMAGES, "quay.io/b"),
            (EXCLUDES, "aws"),
            (SPACE_REQUIRED, "35"),
        ]);
        assert_eq!(spec.clone().merge(super::super::Overrides::default()), spec);
        let merged = spec.merge(super::super::Overrides {
            platform_image: Some(image("quay.io/a:2")),
            operators_indexes: vec![image("quay.io/i:1")],
            packages_and_channels: vec!["ptp:4.16".to_owned()],
            images: vec![image("quay.io/b:latest"), image("quay.io/c")],
            excludes: ["gcp", " aws ", ""].map(str::to_owned).to_vec(),
            space_required: Some(1),
        });
        assert_eq!(merged.platform_image, Some(image("quay.io/a:2")));
        assert_eq!(merged.additional_images, [image("quay.io/b"), image("quay.io/c")]);
        assert_eq!(merged.operators_indexes, [image("quay.io/i:1")]);
        assert_eq!(merged.packages_and_channels, ["ptp:4.16"]);
        assert_eq!(merged.exclude_patterns, ["aws", "gcp"]);
        assert_eq!(merged.space_required, 1);
    }

    #[test]
    fn a_spec_that_would_do_less_than_requested_is_refused() {
        let nothing = spec(&[(SPACE_REQUIRED, "35"), (EXCLUDES, "aws")]);
        assert_eq!(nothing.validate(), Err(SpecError::NothingToDo));
        let packages = spec(&[(PLATFORM_IMAGE, "quay.io/a:1"), (OPERATORS_PACKAGES, "ptp:4.16")]);
        let error = packages.validate().unwrap_err().to_string();
        assert!(
            error.contains("requests `ptp:4.16`, but `operators.indexes` names no catalog"),
            "{error}"
        );
        for key in [ADDITIONAL_IMAGES, OPERATORS_INDEXES, PLATFORM_IMAGE] {
            assert_eq!(spec(&[(key, "quay.io/a")]).validate(), Ok(()));
        }
    }
}
