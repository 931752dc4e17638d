//! The operators that are asked for, and what the catalogs say of each.
//!
//! A package may be in several catalogs: then all of its images are wanted, for nobody knows which of them the cluster will
//! install from. It is missing only if no catalog has it.

use crate::catalog::{Catalog, CatalogError, Head, PackageRequest};
use crate::exit_code::Failure;
use crate::image_request::{ImageRequest, Requester};
use crate::oci::Reference;
use crate::report::{Count, OperatorReport, OperatorState};
use crate::spec::shown;

use super::super::failure::Reason;

/// What is known of all of them.
pub(in crate::job) struct Operators(Vec<Operator>);

/// One channel of one package.
struct Operator {
    package: String,
    channel: String,
    /// What catalogs have of it, or what is wrong with what they have.
    rows: Vec<OperatorReport>,
    failure: Option<Failure>,
    /// Index images whose catalogs do not have it, with what those said.
    absences: Vec<(Reference, CatalogError)>,
}

/// What a catalog added.
pub(in crate::job) struct Added {
    pub(in crate::job) requests: Vec<ImageRequest>,
    pub(in crate::job) rows: Vec<OperatorReport>,
    pub(in crate::job) warnings: Vec<String>,
}

impl Operators {
    pub(in crate::job) fn new(requests: &[PackageRequest]) -> Self {
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

    /// How many answers of catalogs, or the lack of any, are such.
    pub(in crate::job) fn count(&self, state: OperatorState) -> usize {
        let rows = self.0.iter().flat_map(|operator| &operator.rows);
        rows.filter(|row| row.state == state).count()
    }

    /// Each of them as it stands.
    pub(in crate::job) fn rows(&self) -> Vec<OperatorReport> {
        let rows = self.0.iter().flat_map(|operator| {
            let pending = OperatorReport::pending(&operator.package, &operator.channel);
            let pending = operator.rows.is_empty().then_some(pending);
            operator.rows.iter().cloned().chain(pending)
        });
        rows.collect()
    }

    /// What is wrong, as far as it is known.
    pub(in crate::job) fn failures(&self) -> impl Iterator<Item = Failure> {
        self.0.iter().filter_map(|operator| operator.failure)
    }

    /// Takes in what the catalog of `index` says.
    pub(in crate::job) fn take(&mut self, index: &Reference, catalog: Catalog) -> Added {
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

    /// Every catalog was read that can be: what was found nowhere is missing. `unread` are the index images that cannot be had
    /// or read, and why.
    pub(in crate::job) fn conclude(&mut self, unread: &[(Reference, Failure)]) -> Vec<OperatorReport> {
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

/// What may be missing although nobody can say what.
fn warning(index: &Reference, package: &str, head: &Head) -> Option<String> {
    /// Enough to find the others.
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
