//! Converts CatalogSources into index images, and Subscriptions into `package:channel`, as TALM's hub does.
//!
//! The hub writes `%!s(<nil>)` where a field is missing. Here a Subscription without a channel gets the package's default
//! channel, and a CatalogSource without an image is an error.

use std::collections::{BTreeMap, HashSet};

use super::DocumentError;
use super::kube_object::KubeObject;
use crate::oci::{Reference, ReferenceError};
use crate::spec::{list, shown};

/// The group of OLM; ACM has Subscriptions too.
pub(super) const GROUP: &str = "operators.coreos.com";

/// What the objects ask for.
#[derive(Default)]
pub(super) struct Operators {
    pub(super) indexes: Vec<Reference>,
    pub(super) packages: Vec<String>,
}

/// Reads CatalogSources and Subscriptions; adds warnings for the user.
pub(super) fn read(
    sources: &[KubeObject<'_>],
    subscriptions: &[KubeObject<'_>],
    warnings: &mut Vec<String>,
) -> Result<Operators, DocumentError> {
    let mut operators = Operators::default();
    for source in sources {
        operators.indexes.extend(index(source, warnings)?);
    }
    for subscription in subscriptions {
        let package = word(subscription, "spec.name")?;
        let package = package.ok_or_else(|| missing(subscription, "spec.name", "the package"))?;
        let channel = word(subscription, "spec.channel")?.unwrap_or_default();
        operators.packages.push(format!("{package}:{channel}"));
    }
    if !sources.is_empty() {
        warnings.extend(absent_sources(sources, subscriptions));
    }
    Ok(operators)
}

/// A name that can be a part of `package:channel`.
fn word<'a>(object: &KubeObject<'a>, field: &str) -> Result<Option<&'a str>, DocumentError> {
    let is_strange = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ':' | '"' | '\u{feff}');
    match object.text_at(field)? {
        Some(text) if text.contains(is_strange) => {
            let node = object.at(field).unwrap_or(object.node);
            Err(object.wrong(field, node, format!("`{}` is not a name", shown(text))))
        }
        text => Ok(text),
    }
}

/// Warnings about CatalogSources that Subscriptions need and the input does not have. TALM's hub does not compare them: every
/// package is searched in all catalogs.
fn absent_sources(sources: &[KubeObject<'_>], subscriptions: &[KubeObject<'_>]) -> Vec<String> {
    /// The most CatalogSources that are named.
    const NAMED: usize = 10;
    let present: HashSet<&str> = sources
        .iter()
        .filter_map(|source| source.metadata("name"))
        .collect();
    let mut absent: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for subscription in subscriptions {
        let word = |field: &str| subscription.at(field).and_then(|node| node.text());
        if let (Some(source), Some(package)) = (word("spec.source"), word("spec.name"))
            && !present.contains(source)
        {
            absent.entry(source).or_default().push(package.to_owned());
        }
    }
    let absent = absent.iter().take(NAMED).map(|(source, packages)| {
        format!(
            "Subscriptions need the CatalogSource `{}`, which the input does not have, for {}; the packages are searched in \
             the given catalogs",
            shown(source),
            list(packages)
        )
    });
    absent.collect()
}

/// The index image; `None` for a catalog that is not in an image.
fn index(source: &KubeObject<'_>, warnings: &mut Vec<String>) -> Result<Option<Reference>, DocumentError> {
    const IMAGE: &str = "spec.image";
    let Some(image) = source.text_at(IMAGE)? else {
        let elsewhere = ["spec.address", "spec.configMap"];
        if elsewhere.into_iter().any(|field| source.at(field).is_some()) {
            warnings.push(format!(
                "{}: its catalog is not in an image and is left out",
                source.title()
            ));
            return Ok(None);
        }
        return Err(missing(source, IMAGE, "the index image"));
    };
    let wrong = |why: ReferenceError| {
        let node = source.at(IMAGE).unwrap_or(source.node);
        source.wrong(IMAGE, node, why.to_string())
    };
    image.parse().map(Some).map_err(wrong)
}

fn missing(object: &KubeObject<'_>, field: &str, what: &str) -> DocumentError {
    object.wrong(field, object.node, format!("{what} is missing"))
}
