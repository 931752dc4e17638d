//! A PreCachingConfig (`ran.openshift.io/v1alpha1`), turned into the keys that TALM's hub would mount.
//!
//! ```text
//! spec.overrides.platformImage                 platform.image                 ignored by the hub
//! spec.overrides.operatorsIndexes              operators.indexes              ignored by the hub
//! spec.overrides.operatorsPackagesAndChannels  operators.packagesAndChannels
//! spec.overrides.preCacheImage                 –                              the hub's own pre-cache image
//! spec.excludePrecachePatterns                 excludePrecachePatterns
//! spec.additionalImages                        additionalImages
//! spec.spaceRequired                           spaceRequired                  in GiB, rounded up; 35 if it is missing
//! ```
//!
//! The hub takes release and catalogs out of its policies, since
//! openshift-kni/cluster-group-upgrades-operator d9ba19eb5; here are no policies, and whoever hands the object in means
//! what it says.

use std::collections::BTreeMap;

use super::yaml_tree::{Node, TextPosition, Value};
use super::{DocumentError, Object};
use crate::spec::config_map_keys::{
    ADDITIONAL_IMAGES, EXCLUDES, OPERATORS_INDEXES, OPERATORS_PACKAGES, PLATFORM_IMAGE, SPACE_REQUIRED,
    from_keys,
};
use crate::spec::space_required::quantity_in_gib;
use crate::spec::{SpaceError, SpecError, VersionSpec, shown};

/// GiB that the hub demands when nobody says how much; its `SpaceRequiredForPrecache`.
const SPACE_DEFAULT: u64 = 35;

const PLATFORM_IMAGE_FIELD: &str = "spec.overrides.platformImage";
const INDEXES_FIELD: &str = "spec.overrides.operatorsIndexes";
const PRE_CACHE_IMAGE_FIELD: &str = "spec.overrides.preCacheImage";
const SPACE_FIELD: &str = "spec.spaceRequired";

/// The lists: field, key.
const LISTS: [(&str, &str); 4] = [
    (INDEXES_FIELD, OPERATORS_INDEXES),
    ("spec.overrides.operatorsPackagesAndChannels", OPERATORS_PACKAGES),
    ("spec.excludePrecachePatterns", EXCLUDES),
    ("spec.additionalImages", ADDITIONAL_IMAGES),
];

/// The version spec, and what should be told to the user.
pub(super) fn read(object: &Object<'_>) -> Result<(VersionSpec, Vec<String>), DocumentError> {
    let mut reader = Reader {
        object,
        keys: BTreeMap::new(),
        entries: Vec::new(),
        warnings: unknown_fields(object)?,
    };
    reader.platform_image()?;
    for (field, key) in LISTS {
        reader.list(field, key)?;
    }
    reader.space()?;
    reader.ignored_by_the_hub();
    let (spec, more) = from_keys(&reader.keys).map_err(|error| reader.located(error))?;
    reader.warnings.extend(more);
    Ok((spec, reader.warnings))
}

/// Warnings of what is no field; and the mappings that lead to the fields are mappings.
fn unknown_fields(object: &Object<'_>) -> Result<Vec<String>, DocumentError> {
    let mut warnings = Vec::new();
    let known: [(&str, &[&str]); 3] = [
        ("", &["apiVersion", "kind", "metadata", "spec"]),
        (
            "spec",
            &[
                "overrides",
                "spaceRequired",
                "excludePrecachePatterns",
                "additionalImages",
            ],
        ),
        (
            "spec.overrides",
            &[
                "platformImage",
                "operatorsIndexes",
                "operatorsPackagesAndChannels",
                "preCacheImage",
            ],
        ),
    ];
    for (path, fields) in known {
        let Some(node) = at(object.node, path) else {
            continue;
        };
        if !matches!(node.value, Value::Mapping(_)) {
            return Err(object.wrong(path, node, format!("{}, and must be a mapping", node.kind())));
        }
        let prefix = if path.is_empty() {
            String::new()
        } else {
            format!("{path}.")
        };
        warnings.extend(object.unknown_fields(&prefix, node, fields));
    }
    Ok(warnings)
}

/// What lies at a path, nulls being nothing.
fn at<'a>(node: &'a Node, path: &str) -> Option<&'a Node> {
    path.split('.')
        .filter(|name| !name.is_empty())
        .try_fold(node, |node, name| node.field(name))
}

struct Reader<'a> {
    object: &'a Object<'a>,
    keys: BTreeMap<String, Vec<u8>>,
    /// Key, line in its text, field, place: what a line of a key was in the document.
    entries: Vec<(&'static str, usize, String, Option<TextPosition>)>,
    warnings: Vec<String>,
}

impl Reader<'_> {
    fn platform_image(&mut self) -> Result<(), DocumentError> {
        if let Some(node) = at(self.object.node, PLATFORM_IMAGE_FIELD) {
            let image = self.line(PLATFORM_IMAGE_FIELD, node)?.to_owned();
            self.put(
                PLATFORM_IMAGE,
                &[(image, PLATFORM_IMAGE_FIELD.to_owned(), node.place)],
            );
        }
        Ok(())
    }

    fn list(&mut self, field: &'static str, key: &'static str) -> Result<(), DocumentError> {
        let Some(node) = at(self.object.node, field) else {
            return Ok(());
        };
        let Value::List(items) = &node.value else {
            let why = format!(
                "{}, and must be a list\nhint: put each entry on a line of its own that begins with `- `",
                node.kind()
            );
            return Err(self.object.wrong(field, node, why));
        };
        let mut entries = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{field}[{index}]");
            let text = match package_and_channel(item).filter(|_| key == OPERATORS_PACKAGES) {
                Some(text) => {
                    self.warnings.push(format!(
                        "{}: `{path}` is a mapping, which the API server refuses; it is read as `{}`",
                        self.object.title(),
                        shown(&text)
                    ));
                    text
                }
                None => self.line(&path, item)?.to_owned(),
            };
            entries.push((text, path, item.place));
        }
        self.put(key, &entries);
        Ok(())
    }

    /// The text of a value, which has one line.
    fn line<'b>(&self, field: &str, node: &'b Node) -> Result<&'b str, DocumentError> {
        let text = match &node.value {
            Value::Text(text) => text.trim_matches([' ', '\t', '\r', '\n']),
            Value::Null => "",
            other => {
                let hint = match other {
                    Value::Number | Value::Boolean => "\nhint: put it in double quotes",
                    // A colon and a blank in a pattern make it a mapping.
                    Value::Mapping(_) => "\nhint: put the whole entry in quotes",
                    _ => "",
                };
                let why = format!("{}, and must be a text{hint}", node.kind());
                return Err(self.object.wrong(field, node, why));
            }
        };
        match text.contains('\n') {
            true => Err(self
                .object
                .wrong(field, node, "more than one line in one entry".to_owned())),
            false => Ok(text),
        }
    }

    fn put(&mut self, key: &'static str, entries: &[(String, String, Option<TextPosition>)]) {
        let lines: Vec<&str> = entries.iter().map(|(text, ..)| &text[..]).collect();
        self.keys.insert(key.to_owned(), lines.join("\n").into_bytes());
        for (index, (_, field, place)) in entries.iter().enumerate() {
            self.entries.push((key, index + 1, field.clone(), *place));
        }
    }

    fn space(&mut self) -> Result<(), DocumentError> {
        let node = at(self.object.node, SPACE_FIELD);
        let amount = node.map(|node| self.line(SPACE_FIELD, node)).transpose()?;
        let gib = match (node, amount.unwrap_or_default()) {
            (None, _) | (_, "") => SPACE_DEFAULT,
            (Some(node), amount) => {
                if amount.ends_with(|c: char| c.is_ascii_digit()) {
                    self.warnings.push(format!(
                        "{}: `{SPACE_FIELD}` has no unit and counts as bytes, as for TALM's hub: `{}`",
                        self.object.title(),
                        shown(amount)
                    ));
                }
                let wrong = |why: SpaceError| self.object.wrong(SPACE_FIELD, node, why.to_string());
                quantity_in_gib(amount).map_err(wrong)?
            }
        };
        self.keys
            .insert(SPACE_REQUIRED.to_owned(), gib.to_string().into_bytes());
        Ok(())
    }

    fn ignored_by_the_hub(&mut self) {
        let title = self.object.title();
        let filled = |field: &str| at(self.object.node, field).is_some_and(|node| !is_empty(node));
        for (field, key) in [
            (PLATFORM_IMAGE_FIELD, PLATFORM_IMAGE),
            (INDEXES_FIELD, OPERATORS_INDEXES),
        ] {
            if filled(field) {
                self.warnings.push(format!(
                    "{title}: `{field}` is used as `{key}` here, but TALM's hub ignores it and asks its policies"
                ));
            }
        }
        if filled(PRE_CACHE_IMAGE_FIELD) {
            self.warnings.push(format!(
                "{title}: `{PRE_CACHE_IMAGE_FIELD}` names the image of the hub's pre-cache job and is ignored"
            ));
        }
    }

    /// The error with the field in the document instead of the line in the key.
    fn located(&self, error: SpecError) -> DocumentError {
        let (key, line, why) = match &error {
            SpecError::Reference { key, line, why } => (*key, *line, why.to_string()),
            SpecError::Nul { key, line } => (*key, *line, "a zero byte".to_owned()),
            SpecError::GoNil { key, line } => (*key, *line, "`%!s(<nil>)` is no image".to_owned()),
            _ => ("", 0, String::new()),
        };
        let entry = self
            .entries
            .iter()
            .find(|entry| (entry.0, entry.1) == (key, line));
        match entry {
            Some((_, _, field, place)) => DocumentError::Field {
                object: self.object.title(),
                field: field.clone(),
                place: *place,
                why,
            },
            None => DocumentError::Content {
                object: self.object.title(),
                why: Box::new(error),
            },
        }
    }
}

/// `- ptp-operator: stable`: TALM's own documentation shows entries without the quotes that would make them texts.
fn package_and_channel(item: &Node) -> Option<String> {
    match item.fields() {
        [(package, channel)] => Some(format!("{package}: {}", channel.text()?)),
        _ => None,
    }
}

fn is_empty(node: &Node) -> bool {
    match &node.value {
        Value::Text(text) => text.trim().is_empty(),
        Value::List(items) => items.is_empty(),
        _ => false,
    }
}
