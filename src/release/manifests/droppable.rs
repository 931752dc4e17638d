//! Decides which images of a release may be left out because nothing in it names them.
//!
//! Presence in the payload proves no use, but the absence of a name proves little more: an operator may compose a name,
//! and a capability may be enabled later. Nothing is left out unless a person asks for it.

use std::fmt;

use super::inclusion::Inclusion;
use super::naming::Naming;
use super::payload_manifests::PayloadManifests;
use super::release_manifests::ReleaseManifests;
use crate::release::os_tag::OsTag;

/// Images that every cluster uses, although no manifest has to name them: the sandbox of every pod, and the operator that
/// installs all others.
const ALWAYS_USED: [&str; 2] = ["pod", "cluster-version-operator"];

/// Why an image must stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Every cluster uses it.
    AlwaysUsed,
    /// It is the operating system or its extensions.
    OsImage,
    /// An included manifest names it, in this way.
    Named {
        /// The run level of the first use.
        level: Option<u32>,
        /// The component of the first use.
        component: Option<String>,
        /// How the first use names it.
        naming: Naming,
    },
    /// It is not certain that nothing names it.
    Uncertain(String),
    /// The payload does not have it.
    Foreign,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlwaysUsed => f.write_str("every cluster uses it"),
            Self::OsImage => f.write_str("it is an image of the operating system"),
            Self::Named {
                component, naming, ..
            } => match component {
                Some(component) => write!(f, "`{component}` names it ({naming})"),
                None => write!(f, "a manifest names it ({naming})"),
            },
            Self::Uncertain(why) => f.write_str(why),
            Self::Foreign => f.write_str("it is not an image of the release"),
        }
    }
}

impl ReleaseManifests {
    /// Whether an image may be left out; the error is why not.
    pub fn droppable(&self, tag: &str) -> Result<(), Kept> {
        if !self.index.contains_key(tag) {
            return Err(Kept::Foreign);
        }
        if ALWAYS_USED.contains(&tag) {
            return Err(Kept::AlwaysUsed);
        }
        if OsTag::of(tag).is_some() {
            return Err(Kept::OsImage);
        }
        if let Some(first) = self.uses(tag).first() {
            return Err(Kept::Named {
                level: first.level,
                component: first.component.as_deref().map(str::to_owned),
                naming: first.namings.first().copied().unwrap_or(Naming::Other),
            });
        }
        match self.obstacles.first() {
            Some(why) => Err(Kept::Uncertain(why.clone())),
            None => Ok(()),
        }
    }
}

impl PayloadManifests {
    /// Why the absence of a name proves nothing.
    pub(super) fn obstacles(&self, inclusion: &Inclusion) -> Vec<String> {
        let filters = inclusion
            .unknown_filters()
            .into_iter()
            .map(|filter| format!("the cluster's {filter} is unknown"));
        let directories = self
            .missing_directories()
            .iter()
            .map(|directory| format!("the release image has no manifests in `{directory}`"));
        let unread = self.unread().iter().filter(|file| file.may_name_any);
        let files = unread.map(|file| format!("`{}` is not understood: {}", file.path, file.why));
        filters.chain(directories).chain(files).collect()
    }
}
