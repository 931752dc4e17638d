//! Prints a version spec: as keys for people, and as the ConfigMap that the hub would write.
//!
//! The output parses as the same spec: the ConfigMap with `from_document`, its values with `from_keys`.

use std::fmt::Write as _;

use serde_json::json;

use super::VersionSpec;
use super::config_map_keys::{
    ADDITIONAL_IMAGES, EXCLUDES, OPERATORS_INDEXES, OPERATORS_PACKAGES, PLATFORM_IMAGE, SPACE_REQUIRED,
};

/// The name of the hub's ConfigMap.
const NAME: &str = "pre-cache-spec";
/// Its namespace.
const NAMESPACE: &str = "openshift-talo-pre-cache";

/// Units for amounts that are not whole GiB.
const UNITS: [(u32, &str); 3] = [(20, "MiB"), (10, "KiB"), (0, "B")];

impl VersionSpec {
    /// All keys with their texts, as the hub writes them: lists with one entry per line, without a final newline.
    pub fn keys(&self) -> [(&'static str, String); 6] {
        let release = self.platform_image.as_ref();
        [
            (
                PLATFORM_IMAGE,
                release.map(ToString::to_string).unwrap_or_default(),
            ),
            (OPERATORS_INDEXES, lines(&self.operators_indexes)),
            (OPERATORS_PACKAGES, lines(&self.packages_and_channels)),
            (EXCLUDES, lines(&self.exclude_patterns)),
            (ADDITIONAL_IMAGES, lines(&self.additional_images)),
            (SPACE_REQUIRED, amount(self.space_required)),
        ]
    }

    /// A heading for each key with its lines below it; for people, and without control characters for their terminals.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (key, value) in self.keys() {
            let _ = writeln!(text, "{key}");
            if value.is_empty() {
                text += "  (nothing)\n";
            }
            for line in value.lines() {
                let shown = line.replace(|c: char| c.is_control() || is_direction(c), "\u{fffd}");
                let _ = writeln!(text, "  {shown}");
            }
        }
        text
    }

    /// The ConfigMap as JSON.
    pub fn to_json(&self) -> String {
        let data: serde_json::Map<_, _> = self
            .keys()
            .map(|(key, value)| (key.to_owned(), value.into()))
            .into_iter()
            .collect();
        let config_map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "data": data,
        });
        format!("{config_map:#}\n")
    }

    /// The ConfigMap as YAML: lists as block texts, with one entry per line.
    ///
    /// A list ends with a newline; without it, TALM's script loses the last additional image.
    pub fn to_yaml(&self) -> String {
        let mut yaml = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {NAME}\n  namespace: {NAMESPACE}\ndata:\n"
        );
        for (key, value) in self.keys() {
            let is_list = !value.is_empty() && !matches!(key, PLATFORM_IMAGE | SPACE_REQUIRED);
            if is_list && value.chars().all(|c| c == '\n' || is_plain(c)) {
                let _ = writeln!(yaml, "  {key}: |");
                for line in value.lines() {
                    let _ = writeln!(yaml, "    {line}");
                }
            } else {
                let _ = writeln!(yaml, "  {key}: {}", quoted(&value));
            }
        }
        yaml
    }
}

fn lines<T: ToString>(entries: &[T]) -> String {
    let lines: Vec<String> = entries.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Whole GiB as a bare number, the only form that TALM's scripts understand; any other amount exactly, with a unit.
fn amount(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 30) {
        return (bytes >> 30).to_string();
    }
    let unit = UNITS.iter().find(|(shift, _)| bytes.is_multiple_of(1 << shift));
    let (shift, unit) = unit.unwrap_or(&UNITS[UNITS.len() - 1]);
    format!("{} {unit}", bytes >> shift)
}

/// Whether every YAML parser keeps this character in a block text, and people can see it. YAML 1.1, which Kubernetes and
/// Python use, has more line breaks than 1.2; neither allows control characters.
fn is_plain(c: char) -> bool {
    match c {
        '\u{2028}' | '\u{2029}' | '\u{feff}' => false,
        c if is_direction(c) => false,
        ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'.. => true,
        _ => false,
    }
}

/// Marks that change the visible order of a line (CVE-2021-42574).
fn is_direction(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// In YAML's double quotes.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted += "\\n",
            c if is_plain(c) => quoted.push(c),
            // Every character that is not plain is in the basic multilingual plane.
            c => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::VersionSpec;

    fn spec() -> VersionSpec {
        VersionSpec {
            platform_image: Some("quay.io/ocp:4.16.3".parse().unwrap()),
            operators_indexes: vec!["registry:5000/index:v4.16".parse().unwrap()],
            packages_and_channels: vec!["ptp:4.9".to_owned(), "sriov: 4.10".to_owned()],
            exclude_patterns: ["# aws", "- a: \"b", "x\\"].map(str::to_owned).to_vec(),
            additional_images: Vec::new(),
            space_required: 40 << 30,
        }
    }

    #[test]
    fn the_text_has_a_heading_for_each_key() {
        let mut spec = spec();
        spec.exclude_patterns = vec!["\u{1b}[2J\u{202e}".to_owned()];
        assert_eq!(
            spec.to_text(),
            "platform.image\n  quay.io/ocp:4.16.3\n\
             operators.indexes\n  registry:5000/index:v4.16\n\
             operators.packagesAndChannels\n  ptp:4.9\n  sriov: 4.10\n\
             excludePrecachePatterns\n  \u{fffd}[2J\u{fffd}\n\
             additionalImages\n  (nothing)\n\
             spaceRequired\n  40\n"
        );
    }

    #[test]
    fn the_yaml_has_block_texts_and_quotes_odd_characters() {
        let expected = r##"apiVersion: v1
kind: ConfigMap
metadata:
  name: pre-cache-spec
  namespace: openshift-talo-pre-cache
data:
  platform.image: "quay.io/ocp:4.16.3"
  operators.indexes: |
    registry:5000/index:v4.16
  operators.packagesAndChannels: |
    ptp:4.9
    sriov: 4.10
  excludePrecachePatterns: |
    # aws
    - a: "b
    x\
  additionalImages: ""
  spaceRequired: "40"
"##;
        assert_eq!(spec().to_yaml(), expected);
        // Not every parser keeps these characters in a block text.
        let mut odd = spec();
        odd.exclude_patterns = ["a\tb\u{202e}", "\u{85}\u{2028}", "\"\\é😀\u{7f}"]
            .map(str::to_owned)
            .to_vec();
        let line = r#"  excludePrecachePatterns: "a\u0009b\u202e\n\u0085\u2028\n\"\\é😀\u007f""#;
        assert!(odd.to_yaml().contains(line), "{}", odd.to_yaml());
    }

    #[test]
    fn amounts_are_exact() {
        for (bytes, expected) in [
            (0, "0"),
            (35 << 30, "35"),
            (512 << 20, "512 MiB"),
            (5 << 10, "5 KiB"),
            (40_000_000_001, "40000000001 B"),
            (u64::MAX, "18446744073709551615 B"),
        ] {
            assert_eq!(super::amount(bytes), expected);
        }
    }
}
