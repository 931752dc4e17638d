//! One YAML document of a file-based catalog.

use serde::de::DeserializeSeed as _;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::fbc_document::{BUNDLE, CHANNEL, Document, DocumentSeed};

/// The deepest nesting. The parser recurses: 128 levels overflow a thread's 2 MiB in a debug build.
const DEPTH_LIMIT: usize = 64;

/// As many scalars, lists and mappings as a document may have: a channel of 1,000 entries with 1,000 skips each.
const NODES_LIMIT: usize = 2_000_000;

/// Reads the document; what is wrong with it is said in the parser's words, after the line, counted from 1.
pub(super) fn parse(text: &str, seed: DocumentSeed<'_>) -> Result<Option<Document>, (u64, String)> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // `y` is a name for Go.
        strict_booleans: true,
        // The reader refuses those that matter; in a bundle's manifests Go lets them pass.
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_LIMIT,
            max_nodes: NODES_LIMIT,
            max_events: 2 * NODES_LIMIT,
        },
    };
    let read = |deserializer: serde_saphyr::Deserializer<'_, '_>| seed.deserialize(deserializer);
    serde_saphyr::with_deserializer_from_str_with_options(text, options, read).map_err(|error| {
        let line = error.location().map_or(1, |location| location.line());
        (line, error.to_string())
    })
}

/// The package of a channel or bundle, where that can be told without parsing: documents as programs write them have the
/// fields of the outermost mapping at the beginning of lines, and nothing else there. `None` where it is not as plain
/// as that.
///
/// Parsing runs at 30 MB/s (serde-saphyr 2.0, release build), a catalog of which a twentieth is asked for at 540.
pub(super) fn package_of(text: &str) -> Option<&str> {
    let (mut package, mut schema) = (None, None);
    for line in text.lines() {
        match line.as_bytes().first() {
            None | Some(b' ' | b'-' | b'#') => continue,
            Some(b'a'..=b'z') => {}
            // A key in quotes, a brace, an anchor, a capital.
            Some(_) => return None,
        }
        let (name, value) = line.split_once(':')?;
        let field = match name {
            "package" => &mut package,
            "schema" => &mut schema,
            _ => continue,
        };
        if field.replace(value.trim()).is_some() {
            return None;
        }
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let package = package.filter(|package: &&str| {
        // Not a number, which is no name, and not a null.
        package.starts_with(|c: char| c.is_ascii_lowercase()) && package.chars().all(plain)
    })?;
    (matches!(schema, Some(CHANNEL | BUNDLE)) && package != "null").then_some(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_plain_is_told_without_parsing() {
        for (text, expected) in [
            ("schema: olm.bundle\npackage: a-b.c\nname: x\n", Some("a-b.c")),
            (
                "# c\nentries:\n- name: x\n  package: y\nname: x\npackage: a \nschema: olm.channel\n",
                Some("a"),
            ),
            ("schema: olm.package\nname: a\n", None),
            ("schema: olm.bundle\npackage: a\npackage: b\n", None),
            ("schema: olm.bundle\npackage: \"a\"\n", None),
            ("schema: olm.bundle\npackage: &x a\n", None),
            ("schema: olm.bundle\npackage: a # b\n", None),
            ("schema: olm.bundle\npackage: null\n", None),
            ("schema: olm.bundle\npackage: 1.0\n", None),
            ("schema: olm.bundle\npackage: |\n  a\n", None),
            ("schema: olm.bundle\n\"package\": b\npackage: a\n", None),
            ("schema: olm.bundle\nPackage: b\npackage: a\n", None),
            ("{schema: olm.bundle,\npackage: a}\n", None),
            ("schema: olm.bundle\n", None),
            ("package: a\nschema: other\n", None),
            ("schema: olm.bundle\nx: \"\nno colon\"\npackage: a\n", None),
        ] {
            assert_eq!(package_of(text), expected, "{text}");
        }
    }
}
