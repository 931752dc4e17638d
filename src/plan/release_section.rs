//! Prints what the manifests of the release say about its images, below the table: by level, operators and unnamed images.

use std::collections::{BTreeMap, BTreeSet};

use crate::release::manifests::{Filter, Inclusion, ReleaseManifests};
use crate::report::{Count, Printable};

/// The width of the table.
const WIDTH: usize = 100;

/// Where the text of a section begins.
const INDENT: usize = 11;

/// Adds the sections.
pub(super) fn write(table: &mut String, manifests: &ReleaseManifests) {
    let unnamed: Vec<&str> = manifests.unnamed().collect();
    let named = manifests.tags().len() - unnamed.len();
    section(
        table,
        "release",
        &format!(
            "{} has {}; {named} of them are named by {} of {}",
            manifests.version,
            Count(manifests.tags().len(), "image"),
            manifests.included,
            Count(manifests.count, "manifest")
        ),
    );
    section(table, "filtered", &filters(&manifests.inclusion));
    if let Some(file) = manifests.unread.first() {
        let files = Count(manifests.unread.len(), "manifest file");
        let text = format!("{files} not understood, such as `{}`: {}", file.path, file.why);
        section(table, "unread", &text);
    }
    let operators = Count(manifests.operators.len(), "cluster operator");
    let text = format!("{operators}, in the order in which an update reaches their run levels");
    section(table, "operators", &text);
    for (level, (images, operators)) in levels(manifests) {
        let level = level.map_or("no level".to_owned(), |level| format!("level {level}"));
        let text = format!("{level}, {}: {}", Count(images, "image"), operators.join(", "));
        section(table, "", text.trim_end_matches([' ', ':']));
    }
    if !unnamed.is_empty() {
        let images = Count(unnamed.len(), "image");
        let text = format!("{images} that no included manifest names: {}", unnamed.join(", "));
        section(table, "unnamed", &text);
        section(
            table,
            "",
            "an operator may still use them, so they are pulled unless you exclude them",
        );
    }
}

/// The number of images that are first used at each level, and the operators of the level, each with its version if that is
/// not the release's.
fn levels(manifests: &ReleaseManifests) -> BTreeMap<Option<u32>, (usize, Vec<String>)> {
    let mut levels = BTreeMap::<Option<u32>, (usize, Vec<String>)>::new();
    for tag in manifests.tags() {
        if let Some(first) = manifests.uses(tag).first() {
            levels.entry(first.level).or_default().0 += 1;
        }
    }
    for operator in &manifests.operators {
        let mut versions = operator.versions.iter();
        let own = versions.find(|version| version.name == "operator");
        let name = match own.filter(|version| version.version != manifests.version) {
            Some(version) => format!("{} {}", operator.name, version.version),
            None => operator.name.clone(),
        };
        levels.entry(operator.level).or_default().1.push(name);
    }
    levels
}

/// By what the manifests were filtered, and what of it is assumed.
fn filters(inclusion: &Inclusion) -> String {
    let assumed = |filter| match inclusion.assumed.contains_key(&filter) {
        true => " (assumed)",
        false => "",
    };
    let profile = inclusion.profile.as_deref().unwrap_or("any");
    let feature_set = match inclusion.feature_set.as_deref() {
        None => "any feature set".to_owned(),
        Some("") => "default feature set".to_owned(),
        Some(name) => format!("feature set {name}"),
    };
    let capabilities = match &inclusion.capabilities {
        None => "all capabilities".to_owned(),
        Some(capabilities) => {
            let implicit = capabilities.implicit.difference(&capabilities.enabled).count();
            let implicit = match implicit {
                0 => String::new(),
                count => format!(" and {count} that the update switches on"),
            };
            format!(
                "{} of {} capabilities{implicit}",
                capabilities.enabled.intersection(&capabilities.known).count(),
                capabilities.known.len()
            )
        }
    };
    let why: BTreeSet<&str> = inclusion.assumed.values().map(String::as_str).collect();
    let why = match why.is_empty() {
        true => String::new(),
        false => format!(
            "; assumed because {}",
            why.into_iter().collect::<Vec<_>>().join("; ")
        ),
    };
    format!(
        "profile {profile}{}, {feature_set}{}, {capabilities}{}{why}",
        assumed(Filter::Profile),
        assumed(Filter::FeatureSet),
        assumed(Filter::Capabilities)
    )
}

/// Adds a text after its title, wrapped between words.
fn section(table: &mut String, title: &str, text: &str) {
    let mut row = match title {
        "" => String::new(),
        title => format!("{title}:"),
    };
    row = format!("{row:<INDENT$}");
    let mut is_first = true;
    for word in Printable(text).to_string().split_whitespace() {
        let length = row.chars().count() + usize::from(!is_first) + word.chars().count();
        if !is_first && length > WIDTH {
            add_line(table, &row);
            row = " ".repeat(INDENT);
            is_first = true;
        }
        if !is_first {
            row.push(' ');
        }
        // A longer word is a text from outside.
        row.extend(word.chars().take(WIDTH - INDENT));
        is_first = false;
    }
    add_line(table, &row);
}

fn add_line(table: &mut String, row: &str) {
    table.push_str(row.trim_end());
    table.push('\n');
}
