//! Tracks the requested operators: which catalogs contain each, which images it needs, and why it failed.
//!
//! A package may be in several catalogs. Then the images of all of them are requested, because it is unknown which catalog
//! the cluster will install from. A package is missing only if no catalog has it.

use crate::catalog::{Catalog, CatalogError, Head, PackageRequest};
use crate::exit_code::Failure;
use crate::image_request::{ImageRequest, Requester};
use crate::oci::Reference;
use crate::report::{Count, OperatorReport, OperatorState};
use crate::spec::shown;

use super::super::error::Reason;

/// Every requested operator.
pub(crate) struct Operators(Vec<Operator>);

/// One channel of one package.
struct Operator {
    package: String,
    channel: String,
    /// One for each catalog that contains it, successful or not.
    rows: Vec<OperatorReport>,
    failure: Option<Failure>,
    /// Index images whose catalogs do not contain it, with the error of each.
    absences: Vec<(Reference, CatalogError)>,
}

/// What one catalog added.
pub(crate) struct Added {
    pub(crate) requests: Vec<ImageRequest>,
    pub(crate) rows: Vec<OperatorReport>,
    pub(crate) warnings: Vec<String>,
}

impl Operators {
    pub(crate) fn new(requests: &[PackageRequest]) -> Self {
        let channels = requests
            .iter()
            .flat_map(|request| request.channels.iter().map(move |channel| (request, channel)));
        let operators = channels.map(|(request, channel)| Operator {
            package: request.package.clone(),
            channel: channel.clone(),
            rows: Vec::new(),
            failure: None,
            absences: Vec::new(),
        });
        Self(operators.collect())
    }

    /// How many rows have this state.
    pub(crate) fn count(&self, state: OperatorState) -> usize {
        let rows = self.0.iter().flat_map(|operator| &operator.rows);
        rows.filter(|row| row.state == state).count()
    }

    /// The current rows of all operators; one that no catalog has contributed to is pending.
    pub(crate) fn rows(&self) -> Vec<OperatorReport> {
        let rows = self.0.iter().flat_map(|operator| {
            let pending = OperatorReport::pending(&operator.package, &operator.channel);
            let pending = operator.rows.is_empty().then_some(pending);
            operator.rows.iter().cloned().chain(pending)
        });
        rows.collect()
    }

    /// The failures so far.
    pub(crate) fn failures(&self) -> impl Iterator<Item = Failure> {
        self.0.iter().filter_map(|operator| operator.failure)
    }

    /// Adds the contents of the catalog of `index`.
    pub(crate) fn add(&mut self, index: &Reference, catalog: Catalog) -> Added {
        let mut added = Added {
            requests: Vec::new(),
            rows: Vec::new(),
            warnings: Vec::new(),
        };
        // Both are in the order of the requests.
        for (operator, channel) in self.0.iter_mut().zip(catalog.channels) {
            match channel.head {
                Ok(head) => {
                    added.warnings.extend(warning(index, &operator.package, &head));
                    let requester = Requester::Operator {
                        package: channel.package,
                    };
                    let images = head.images().cloned();
                    added
                        .requests
                        .extend(images.map(|image| ImageRequest::new(image, requester.clone())));
                    added.rows.push(operator.found(index, &head));
                }
                Err(error) if error.is_absence() => operator.absences.push((index.clone(), error)),
                Err(error) => added.rows.push(operator.failed(
                    Some(index),
                    Reason {
                        failure: Failure::Payload,
                        message: format!("`{index}`: {error}"),
                    },
                )),
            }
        }
        added
    }

    /// Marks operators as failed that no catalog contains, after every readable catalog was read. `unread` are the index
    /// images that are unavailable or unreadable, and why.
    pub(crate) fn conclude(&mut self, unread: &[(Reference, Failure)]) -> Vec<OperatorReport> {
        let nowhere = self.0.iter_mut().filter(|operator| operator.rows.is_empty());
        let rows = nowhere.map(|operator| {
            let absences = operator
                .absences
                .iter()
                .map(|(index, error)| format!("`{index}`: {error}"));
            let unreadable = unread
                .iter()
                .map(|(index, _)| format!("`{index}`: its catalog could not be read"));
            let message: Vec<String> = absences.chain(unreadable).collect();
            let failure = unread.iter().map(|(_, failure)| *failure).min();
            let reason = Reason {
                failure: failure.unwrap_or(Failure::Payload),
                message: message.join("\n"),
            };
            operator.failed(None, reason)
        });
        rows.collect()
    }
}

impl Operator {
    fn found(&mut self, index: &Reference, head: &Head) -> OperatorReport {
        let row = OperatorReport {
            state: OperatorState::Found,
            index: Some(index.to_string()),
            bundle: Some(head.bundle.clone()),
            images: head.images().map(ToString::to_string).collect(),
            ..OperatorReport::pending(&self.package, &self.channel)
        };
        self.rows.push(row.clone());
        row
    }

    fn failed(&mut self, index: Option<&Reference>, reason: Reason) -> OperatorReport {
        let row = OperatorReport {
            state: OperatorState::Failed,
            index: index.map(ToString::to_string),
            reason: Some(reason.message),
            ..OperatorReport::pending(&self.package, &self.channel)
        };
        let failures = self.failure.into_iter().chain([reason.failure]);
        self.failure = failures.min();
        self.rows.push(row.clone());
        row
    }
}

/// Warns about related images that a catalog lists without a pull spec, which therefore may be missing.
fn warning(index: &Reference, package: &str, head: &Head) -> Option<String> {
    /// How many names the message lists.
    const NAMES: usize = 10;
    let without = head.without_image.len();
    let named = head.without_image.iter().filter(|name| !name.is_empty());
    let named: Vec<String> = named
        .take(NAMES)
        .map(|name| format!("`{}`", shown(name)))
        .collect();
    let named = match named.is_empty() {
        true => String::new(),
        false => format!(": {}", named.join(", ")),
    };
    (without > 0).then(|| {
        format!(
            "`{index}`: bundle `{}` of package `{package}` lists {} without a pull spec{named}",
            shown(&head.bundle),
            Count(without, "related image")
        )
    })
}
