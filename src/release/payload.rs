//! Parses the payload of a release image: two files in `/release-manifests`.
//!
//! ```text
//! image-references   ImageStream, image.openshift.io/v1, JSON in real releases, YAML in hand-made ones
//!                    spec.tags[] { name, from { kind: DockerImage, name: <pullspec> } }
//! release-metadata   { kind: cincinnati-metadata-v0, version, … }
//! ```
//!
//! TALM's scripts read the first with `jq` and continue without images if that fails. Here any unexpected value is an error
//! that names the file and the field.

use std::collections::HashSet;

use serde_json::Value;

use crate::oci::{Reference, ReferenceError};
use crate::spec::shown;

/// Path of the ImageStream in the release image.
pub const IMAGE_REFERENCES: &str = "release-manifests/image-references";
/// Path of the release's metadata in the release image.
pub const RELEASE_METADATA: &str = "release-manifests/release-metadata";

/// The images of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Such as `4.16.3`.
    pub version: String,
    /// In the payload's order; at least one.
    pub tags: Vec<PayloadImage>,
}

/// One image of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadImage {
    /// Its name in the release: `etcd`.
    pub name: String,
    /// Its reference as written, which exclude patterns match.
    pub pullspec: String,
    /// The same, normalised.
    pub reference: Reference,
}

/// Why a payload cannot be used; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The image has no such file.
    #[error("the release image has no `{file}`\nhint: check that `platform.image` is a release image")]
    Missing {
        /// Path in the image.
        file: &'static str,
    },
    /// Bytes that are not text.
    #[error("`{file}` of the release image is not UTF-8, at byte {offset}")]
    NotUtf8 {
        /// Path in the image.
        file: &'static str,
        /// Counted from 0.
        offset: usize,
    },
    /// Broken JSON or YAML.
    #[error("`{file}` of the release image is broken {format}: {why}")]
    Syntax {
        /// Path in the image.
        file: &'static str,
        /// The format that was tried.
        format: &'static str,
        /// The parser's message, with the position.
        why: String,
    },
    /// A field is missing or has a wrong value.
    #[error("`{file}` of the release image: `{field}` {why}")]
    Field {
        /// Path in the image.
        file: &'static str,
        /// Such as `spec.tags[12].from.name`.
        field: String,
        /// Why.
        why: String,
    },
    /// A pullspec is invalid.
    #[error("`{file}` of the release image: `{field}`: {why}")]
    Pullspec {
        /// Path in the image.
        file: &'static str,
        /// Such as `spec.tags[12].from.name`.
        field: String,
        /// Why.
        why: ReferenceError,
    },
}

impl Payload {
    /// Parses the bytes of [`IMAGE_REFERENCES`] and [`RELEASE_METADATA`]. The caller bounds their length.
    pub fn parse(image_references: &[u8], release_metadata: &[u8]) -> Result<Self, PayloadError> {
        let metadata = PayloadFile::parse(RELEASE_METADATA, release_metadata)?;
        metadata.expect("kind", "cincinnati-metadata-v0")?;
        let version = metadata.string("version")?;

        let images = PayloadFile::parse(IMAGE_REFERENCES, image_references)?;
        images.expect("kind", "ImageStream")?;
        images.expect("apiVersion", "image.openshift.io/v1")?;
        // The cluster-version operator refuses such a payload too. Not every test payload has a name.
        if images.value("metadata.name").is_some() {
            let name = images.string("metadata.name")?;
            if name != version {
                let why = format!(
                    "is `{}`, but `version` of `{RELEASE_METADATA}` is `{}`",
                    shown(name),
                    shown(version)
                );
                return Err(images.bad("metadata.name", why));
            }
        }
        Ok(Self {
            version: version.to_owned(),
            tags: tags(&images)?,
        })
    }
}

fn tags(images: &PayloadFile) -> Result<Vec<PayloadImage>, PayloadError> {
    let list = match images.value("spec.tags") {
        None => return Err(images.bad("spec.tags", "is missing")),
        Some(Value::Array(list)) if list.is_empty() => return Err(images.bad("spec.tags", "is empty")),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(images.bad("spec.tags", "is not a list")),
    };
    let mut names = HashSet::new();
    let mut tags = Vec::with_capacity(list.len());
    for index in 0..list.len() {
        let field = |name: &str| format!("spec.tags[{index}].{name}");
        let name = images.string(&field("name"))?;
        // Exclude patterns match a line with the name, so it must not contain quotes or line breaks.
        if !name
            .bytes()
            .all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\'))
        {
            let why = format!("is `{}`, which is not a valid name of a tag", shown(name));
            return Err(images.bad(&field("name"), why));
        }
        if !names.insert(name) {
            let why = format!("is `{}`, which is a duplicate", shown(name));
            return Err(images.bad(&field("name"), why));
        }
        images.expect(&field("from.kind"), "DockerImage")?;
        let pullspec = images.string(&field("from.name"))?;
        tags.push(PayloadImage {
            name: name.to_owned(),
            pullspec: pullspec.to_owned(),
            reference: pullspec.parse().map_err(|why| PayloadError::Pullspec {
                file: images.file,
                field: field("from.name"),
                why,
            })?,
        });
    }
    Ok(tags)
}

/// A parsed file; fields are accessed by paths.
struct PayloadFile {
    file: &'static str,
    root: Value,
}

impl PayloadFile {
    fn parse(file: &'static str, bytes: &[u8]) -> Result<Self, PayloadError> {
        let text = std::str::from_utf8(bytes).map_err(|error| PayloadError::NotUtf8 {
            file,
            offset: error.valid_up_to(),
        })?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let syntax = |format, why: String| PayloadError::Syntax {
            file,
            format,
            why: shown(&why),
        };
        let root = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| syntax("JSON", error.to_string()))?
        } else {
            let options = serde_saphyr::options! { with_snippet: false };
            serde_saphyr::from_str_with_options(text, options)
                .map_err(|error| syntax("YAML", error.to_string()))?
        };
        match root {
            Value::Object(_) => Ok(Self { file, root }),
            _ => Err(syntax("YAML", "it is not a mapping".to_owned())),
        }
    }

    /// The value at `path`, such as `spec.tags[3].name`; `null` counts as missing.
    fn value(&self, path: &str) -> Option<&Value> {
        let pointer = format!("/{}", path.replace(['.', '['], "/").replace(']', ""));
        self.root.pointer(&pointer).filter(|value| !value.is_null())
    }

    fn string(&self, path: &str) -> Result<&str, PayloadError> {
        match self.value(path) {
            None => Err(self.bad(path, "is missing")),
            Some(Value::String(text)) if text.is_empty() => Err(self.bad(path, "is empty")),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(self.bad(path, "is not a string")),
        }
    }

    fn expect(&self, path: &str, expected: &str) -> Result<(), PayloadError> {
        let found = self.string(path)?;
        match found == expected {
            true => Ok(()),
            false => Err(self.bad(path, format!("is `{}`, not `{expected}`", shown(found)))),
        }
    }

    fn bad(&self, field: &str, why: impl Into<String>) -> PayloadError {
        PayloadError::Field {
            file: self.file,
            field: field.to_owned(),
            why: why.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const METADATA: &str =
        r#"{"kind": "cincinnati-metadata-v0", "version": "4.16.3", "previous": ["4.16.2"]}"#;

    const IMAGES: &str = "\
kind: ImageStream
apiVersion: image.openshift.io/v1
metadata: {name: 4.16.3}
spec:
  tags:
  - name: etcd
    annotations: {io.openshift.build.versions: \"\"}
    from: {kind: DockerImage, name: 'quay.io/a/b@sha256:dbcc1c35ac38df41fd2f5e4130b32ffdb93ebae8b3dbe638c23575912276fc9c'}
  - name: cli
    from: {kind: DockerImage, name: 'quay.io/a/b:1'}
";

    fn parse(images: &str) -> Result<Payload, PayloadError> {
        Payload::parse(images.as_bytes(), METADATA.as_bytes())
    }

    #[test]
    fn yaml_and_json_have_the_same_meaning() {
        let payload = parse(IMAGES).unwrap();
        assert_eq!(payload.version, "4.16.3");
        assert_eq!(
            payload
                .tags
                .iter()
                .map(|tag| tag.name.as_str())
                .collect::<Vec<_>>(),
            ["etcd", "cli"]
        );
        assert_eq!(payload.tags[1].reference.to_string(), "quay.io/a/b:1");
        let json = serde_json::to_string(&serde_saphyr::from_str::<Value>(IMAGES).unwrap()).unwrap();
        assert_eq!(parse(&json).unwrap(), payload);
    }

    #[test]
    fn an_error_names_file_and_field() {
        for (from, to, expected) in [
            (
                "kind: ImageStream",
                "kind: ConfigMap",
                "`kind` is `ConfigMap`, not `ImageStream`",
            ),
            ("kind: ImageStream", "", "`kind` is missing"),
            ("image.openshift.io/v1", "v1", "`apiVersion` is `v1`"),
            (
                "{name: 4.16.3}",
                "{name: 4.16.4}",
                "`metadata.name` is `4.16.4`, but `version` of `release-manifests/release-metadata` is `4.16.3`",
            ),
            ("- name: cli", "- title: cli", "`spec.tags[1].name` is missing"),
            (
                "- name: cli",
                "- name: etcd",
                "`spec.tags[1].name` is `etcd`, which is a duplicate",
            ),
            (
                "- name: cli",
                "- name: [cli]",
                "`spec.tags[1].name` is not a string",
            ),
            (
                "- name: cli",
                "- name: 'c\"li'",
                "`spec.tags[1].name` is `c\"li`, which is not a valid name of a tag",
            ),
            (
                ", name: 'quay.io/a/b:1'",
                "",
                "`spec.tags[1].from.name` is missing",
            ),
            ("'quay.io/a/b:1'", "''", "`spec.tags[1].from.name` is empty"),
            (
                "'quay.io/a/b:1'",
                "quay.io/A",
                "`spec.tags[1].from.name`: `quay.io/A` is not an image reference",
            ),
            (
                "DockerImage, name: 'quay.io/a/b:1'",
                "ImageStreamTag, name: x",
                "`spec.tags[1].from.kind` is `ImageStreamTag`",
            ),
            ("tags:", "others:", "`spec.tags` is missing"),
        ] {
            let error = parse(&IMAGES.replacen(from, to, 1)).unwrap_err().to_string();
            let expected = format!("`release-manifests/image-references` of the release image: {expected}");
            assert!(error.starts_with(&expected), "{error}\n{expected}");
        }
        for (tags, expected) in [
            ("[]", "is empty"),
            ("{}", "is not a list"),
            ("null", "is missing"),
        ] {
            let error = parse(&format!(
                "kind: ImageStream\napiVersion: image.openshift.io/v1\nspec: {{tags: {tags}}}"
            ));
            assert!(
                error
                    .unwrap_err()
                    .to_string()
                    .ends_with(&format!("`spec.tags` {expected}"))
            );
        }
    }

    #[test]
    fn the_metadata_must_be_valid() {
        for (metadata, expected) in [
            ("", "broken YAML: it is not a mapping"),
            (
                "{\"kind\": ",
                "broken JSON: EOF while parsing a value at line 1 column 9",
            ),
            (
                "{\"kind\": \"x\", \"version\": \"1\"}",
                "`kind` is `x`, not `cincinnati-metadata-v0`",
            ),
            ("{\"kind\": \"cincinnati-metadata-v0\"}", "`version` is missing"),
        ] {
            let error = Payload::parse(IMAGES.as_bytes(), metadata.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("release-metadata") && error.contains(expected),
                "{error}"
            );
        }
    }

    #[test]
    fn a_syntax_error_has_its_position() {
        let json = parse("{\n\"kind\": \"ImageStream\",\n]").unwrap_err().to_string();
        assert!(json.contains("broken JSON") && json.contains("line 3"), "{json}");
        let yaml = parse("kind: [ImageStream\nspec: }").unwrap_err().to_string();
        assert!(yaml.contains("broken YAML") && yaml.contains("line 2"), "{yaml}");
        assert!(matches!(
            Payload::parse(b"\xff", METADATA.as_bytes()),
            Err(PayloadError::NotUtf8 { offset: 0, .. })
        ));
    }

    /// A billion strings out of a kilobyte, and ten thousand open brackets.
    #[test]
    fn bombs_are_refused() {
        let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (this, last) in ('b'..='j').zip('a'..) {
            bomb += &format!("{this}: &{this} [{}]\n", vec![format!("*{last}"); 10].join(", "));
        }
        for text in [
            bomb,
            "[".repeat(10_000),
            format!("{{\"a\":{}", "[".repeat(10_000)),
            "- ".repeat(10_000),
        ] {
            assert!(
                matches!(parse(&text), Err(PayloadError::Syntax { .. })),
                "{}",
                &text[..40]
            );
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,60}|[-{}\\[\\]:,&*\"a \\n]{0,60}") {
            let _ = parse(&text);
            let _ = Payload::parse(IMAGES.as_bytes(), text.as_bytes());
        }
    }
}
