//! Converts a PreCachingConfig (`ran.openshift.io/v1alpha1`) into the keys that TALM's hub would mount.
//!
//! ```text
//! spec.overrides.platformImage                 platform.image                 ignored by the hub
//! spec.overrides.operatorsIndexes              operators.indexes              ignored by the hub
//! spec.overrides.operatorsPackagesAndChannels  operators.packagesAndChannels
//! spec.overrides.preCacheImage                 –                              the hub's own pre-cache image
//! spec.excludePrecachePatterns                 excludePrecachePatterns
//! spec.additionalImages                        additionalImages
//! spec.spaceRequired                           spaceRequired                  in GiB, rounded up; 35 if missing
//! ```
//!
//! Since openshift-kni/cluster-group-upgrades-operator d9ba19eb5 the hub reads the release and the catalogs from its
//! policies. Here these fields are used if no other object has a release or a catalog.

use std::collections::BTreeMap;

use super::DocumentError;
use super::kube_object::KubeObject;
use super::text_position::TextPosition;
use super::yaml_tree::{YamlNode, YamlValue};
use crate::spec::config_map_keys::{
    ADDITIONAL_IMAGES, EXCLUDES, OPERATORS_INDEXES, OPERATORS_PACKAGES, PLATFORM_IMAGE, SPACE_REQUIRED,
    from_keys,
};
use crate::spec::space_required::quantity_in_gib;
use crate::spec::{SpaceRequiredError, SpecError, VersionSpec, shown};

/// GiB that the hub requires by default (`SpaceRequiredForPrecache`).
pub(super) const SPACE_DEFAULT: u64 = 35;

const PLATFORM_IMAGE_FIELD: &str = "spec.overrides.platformImage";
const INDEXES_FIELD: &str = "spec.overrides.operatorsIndexes";
const PRE_CACHE_IMAGE_FIELD: &str = "spec.overrides.preCacheImage";
const SPACE_FIELD: &str = "spec.spaceRequired";

/// The lists: field and key.
const LISTS: [(&str, &str); 4] = [
    (INDEXES_FIELD, OPERATORS_INDEXES),
    ("spec.overrides.operatorsPackagesAndChannels", OPERATORS_PACKAGES),
    ("spec.excludePrecachePatterns", EXCLUDES),
    ("spec.additionalImages", ADDITIONAL_IMAGES),
];

impl KubeObject<'_> {
    pub(super) fn is_pre_caching_config(&self) -> bool {
        (self.api_version, self.kind) == ("ran.openshift.io/v1alpha1", "PreCachingConfig")
    }
}

/// The version spec, and warnings for the user. `others` is what the other objects of the input request; as for the hub,
/// their release and catalogs have precedence, and a list of packages here replaces theirs.
pub(super) fn read(
    object: &KubeObject<'_>,
    others: &VersionSpec,
) -> Result<(VersionSpec, Vec<String>), DocumentError> {
    let mut reader = ConfigReader {
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
    reader.ignored_by_the_hub(others);
    let (mut spec, more) = from_keys(&reader.keys).map_err(|error| reader.located(error))?;
    reader.warnings.extend(more);
    if others.platform_image.is_some() {
        spec.platform_image.clone_from(&others.platform_image);
    }
    if !others.operators_indexes.is_empty() {
        spec.operators_indexes.clone_from(&others.operators_indexes);
    }
    if spec.packages_and_channels.is_empty() {
        spec.packages_and_channels
            .clone_from(&others.packages_and_channels);
    }
    Ok((spec, reader.warnings))
}

/// Whether it has a release.
pub(super) fn names_release(object: &KubeObject<'_>) -> Result<bool, DocumentError> {
    Ok(object.text_at(PLATFORM_IMAGE_FIELD)?.is_some())
}

/// Warnings about unknown fields. An error if a parent of the fields is not a mapping.
fn unknown_fields(object: &KubeObject<'_>) -> Result<Vec<String>, DocumentError> {
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
        let Some(node) = object.at(path) else {
            continue;
        };
        if !matches!(node.value, YamlValue::Mapping(_)) {
            return Err(object.wrong(path, node, format!("it is {}, not a mapping", node.kind())));
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

/// Where a line of a key comes from.
struct LineOrigin {
    key: &'static str,
    /// In the key's text, counted from 1.
    line: usize,
    field: String,
    position: Option<TextPosition>,
}

struct ConfigReader<'a> {
    object: &'a KubeObject<'a>,
    keys: BTreeMap<String, Vec<u8>>,
    /// The origin of each line of a key in the document.
    entries: Vec<LineOrigin>,
    warnings: Vec<String>,
}

impl ConfigReader<'_> {
    fn platform_image(&mut self) -> Result<(), DocumentError> {
        if let Some(node) = self.object.at(PLATFORM_IMAGE_FIELD) {
            let image = self.line(PLATFORM_IMAGE_FIELD, node)?.to_owned();
            self.put(
                PLATFORM_IMAGE,
                &[(image, PLATFORM_IMAGE_FIELD.to_owned(), node.position)],
            );
        }
        Ok(())
    }

    fn list(&mut self, field: &'static str, key: &'static str) -> Result<(), DocumentError> {
        let Some(node) = self.object.at(field) else {
            return Ok(());
        };
        let YamlValue::List(items) = &node.value else {
            let why = format!(
                "it is {}, not a list\nhint: write each entry on its own line that begins with `- `",
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
            entries.push((text, path, item.position));
        }
        self.put(key, &entries);
        Ok(())
    }

    /// The text of a value that has one line.
    fn line<'b>(&self, field: &str, node: &'b YamlNode) -> Result<&'b str, DocumentError> {
        let text = match &node.value {
            YamlValue::Text(text) => text.trim_matches([' ', '\t', '\r', '\n']),
            YamlValue::Null => "",
            other => {
                let hint = match other {
                    YamlValue::Number(_) | YamlValue::Boolean(_) => "\nhint: put it in double quotes",
                    // A pattern with a colon and a blank is a mapping in YAML.
                    YamlValue::Mapping(_) => "\nhint: put the whole entry in double quotes",
                    _ => "",
                };
                let why = format!("it is {}, not a text{hint}", node.kind());
                return Err(self.object.wrong(field, node, why));
            }
        };
        match text.contains('\n') {
            true => Err(self
                .object
                .wrong(field, node, "it has more than one line".to_owned())),
            false => Ok(text),
        }
    }

    fn put(&mut self, key: &'static str, entries: &[(String, String, Option<TextPosition>)]) {
        let lines: Vec<&str> = entries.iter().map(|(text, ..)| &text[..]).collect();
        self.keys.insert(key.to_owned(), lines.join("\n").into_bytes());
        for (index, (_, field, position)) in entries.iter().enumerate() {
            self.entries.push(LineOrigin {
                key,
                line: index + 1,
                field: field.clone(),
                position: *position,
            });
        }
    }

    fn space(&mut self) -> Result<(), DocumentError> {
        let node = self.object.at(SPACE_FIELD);
        let amount = node.map(|node| self.line(SPACE_FIELD, node)).transpose()?;
        let gib = match (node, amount.unwrap_or_default()) {
            (None, _) | (_, "") => SPACE_DEFAULT,
            (Some(node), amount) => {
                if amount.ends_with(|c: char| c.is_ascii_digit()) {
                    self.warnings.push(format!(
                        "{}: `{SPACE_FIELD}` has no unit and is in bytes, as for TALM's hub: `{}`",
                        self.object.title(),
                        shown(amount)
                    ));
                }
                let wrong = |why: SpaceRequiredError| self.object.wrong(SPACE_FIELD, node, why.to_string());
                quantity_in_gib(amount).map_err(wrong)?
            }
        };
        self.keys
            .insert(SPACE_REQUIRED.to_owned(), gib.to_string().into_bytes());
        Ok(())
    }

    fn ignored_by_the_hub(&mut self, others: &VersionSpec) {
        let title = self.object.title();
        let filled = |field: &str| self.object.at(field).is_some_and(|node| !is_empty(node));
        for (field, key, is_replaced) in [
            (
                PLATFORM_IMAGE_FIELD,
                PLATFORM_IMAGE,
                others.platform_image.is_some(),
            ),
            (
                INDEXES_FIELD,
                OPERATORS_INDEXES,
                !others.operators_indexes.is_empty(),
            ),
        ] {
            if filled(field) {
                self.warnings.push(match is_replaced {
                    true => format!("{title}: `{field}` is ignored, as by TALM's hub: other objects have precedence"),
                    false => format!(
                        "{title}: `{field}` is used as `{key}` here, but TALM's hub ignores it and uses its policies"
                    ),
                });
            }
        }
        if filled(PRE_CACHE_IMAGE_FIELD) {
            self.warnings.push(format!(
                "{title}: `{PRE_CACHE_IMAGE_FIELD}` names the image of the hub's pre-cache Job and is ignored"
            ));
        }
    }

    /// Replaces the key and line of an error by the field of the document.
    fn located(&self, error: SpecError) -> DocumentError {
        let (key, line, why) = match &error {
            SpecError::Reference { key, line, why } => (*key, *line, why.to_string()),
            SpecError::Nul { key, line } => (*key, *line, "it contains a zero byte".to_owned()),
            SpecError::GoNil { key, line } => (*key, *line, "`%!s(<nil>)` is not an image".to_owned()),
            _ => ("", 0, String::new()),
        };
        let entry = self
            .entries
            .iter()
            .find(|entry| (entry.key, entry.line) == (key, line));
        match entry {
            Some(entry) => DocumentError::Field {
                object: self.object.title(),
                field: entry.field.clone(),
                position: entry.position,
                why,
            },
            None => DocumentError::Content {
                object: self.object.title(),
                why: Box::new(error),
            },
        }
    }
}

/// `- ptp-operator: stable`: TALM's documentation shows such entries without quotes, which makes them mappings.
fn package_and_channel(item: &YamlNode) -> Option<String> {
    match item.fields() {
        [(package, channel)] => Some(format!("{package}: {}", channel.text()?)),
        _ => None,
    }
}

fn is_empty(node: &YamlNode) -> bool {
    match &node.value {
        YamlValue::Text(text) => text.trim().is_empty(),
        YamlValue::List(items) => items.is_empty(),
        _ => false,
    }
}
