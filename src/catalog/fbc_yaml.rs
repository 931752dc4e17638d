//! Parses one YAML document of a file-based catalog, or only finds its package's name.

use serde::de::DeserializeSeed as _;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::fbc_document::{BUNDLE, CHANNEL, FbcDocument, FbcDocumentSeed};

/// The deepest nesting. The parser recurses: 128 levels overflow a thread's 2 MiB in a debug build.
const DEPTH_LIMIT: usize = 64;

/// The most scalars, lists and mappings of a document: a channel of 1,000 entries with 1,000 skips each.
const NODES_LIMIT: usize = 2_000_000;

/// Parses the document. The error is the line, counted from 1, and the parser's message.
pub(super) fn parse(text: &str, seed: FbcDocumentSeed<'_>) -> Result<Option<FbcDocument>, (u64, String)> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // For Go's parser, `y` is a string.
        strict_booleans: true,
        // The seed refuses duplicate fields that are read; Go allows them in a bundle's manifests.
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

/// Finds the package of a channel or bundle without parsing: in documents that programs write, only the fields of the
/// outermost mapping start at the beginning of a line. `None` for any other form.
///
/// Parsing runs at 30 MB/s (serde-saphyr 2.0, release build); a catalog of which a twentieth is requested is read at 540
/// MB/s.
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
        // A number or null is not a name.
        package.starts_with(|c: char| c.is_ascii_lowercase()) && package.chars().all(plain)
    })?;
    (matches!(schema, Some(CHANNEL | BUNDLE)) && package != "null").then_some(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_documents_are_read_without_parsing() {
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
