//! Defines the manifests of a release that one cluster includes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::header::OperandVersion;
use super::inclusion::Inclusion;
use super::naming::Naming;
use super::payload_manifests::{PayloadManifests, UnreadFile};

/// The manifests of a release that a cluster includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseManifests {
    /// Version of the release.
    pub version: String,
    /// By what the manifests were filtered.
    pub inclusion: Inclusion,
    /// All manifests of the release, without files that are not understood.
    pub count: usize,
    /// Those that the cluster includes, with those whose exclusion is uncertain.
    pub included: usize,
    /// Why manifests are excluded, and how many for each reason.
    pub excluded: BTreeMap<String, usize>,
    /// Why the exclusion of other manifests is uncertain, and how many for each reason. They count as included.
    pub uncertain: BTreeMap<String, usize>,
    /// The included ClusterOperators, in the order of the files.
    pub operators: Vec<ClusterOperator>,
    /// The files that are not understood.
    pub unread: Vec<UnreadFile>,
    /// The payload's images, in its order.
    pub(super) tags: Vec<String>,
    /// The uses of each tag.
    pub(super) uses: Vec<Vec<TagUse>>,
    pub(super) index: HashMap<String, usize>,
    /// Why no image may be dropped.
    pub(super) obstacles: Vec<String>,
}

/// A ClusterOperator of the release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOperator {
    /// Such as `kube-apiserver`.
    pub name: String,
    /// The run level at which the CVO waits for it.
    pub level: Option<u32>,
    /// The component whose file announces it.
    pub component: Option<Arc<str>>,
    /// What it reports when it is updated.
    pub versions: Vec<OperandVersion>,
}

/// The use of an image by the manifests of a component at one run level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagUse {
    /// `None` if the file's name has none.
    pub level: Option<u32>,
    /// `None` if the file's name has none.
    pub component: Option<Arc<str>>,
    /// How the manifests name the image.
    pub namings: BTreeSet<Naming>,
    /// Orders the uses by the files that name the image first.
    pub(super) position: usize,
}

impl PayloadManifests {
    /// What a cluster includes of these manifests.
    pub fn included(&self, inclusion: &Inclusion) -> ReleaseManifests {
        let (mut excluded, mut uncertain) = (BTreeMap::new(), BTreeMap::new());
        let mut operators = Vec::new();
        let mut uses = vec![Vec::new(); self.tags().len()];
        for (position, manifest) in self.manifests().iter().enumerate() {
            if let Some(exclusion) = inclusion.exclusion(&manifest.header) {
                let reasons = match exclusion.is_certain() {
                    true => &mut excluded,
                    false => &mut uncertain,
                };
                *reasons.entry(exclusion.to_string()).or_insert(0) += 1;
                if exclusion.is_certain() {
                    continue;
                }
            }
            let place = (manifest.level, &manifest.component);
            for (tag, naming) in &manifest.names {
                add_use(&mut uses[*tag], place, *naming, position);
            }
            if let Some(versions) = &manifest.header.versions {
                operators.push(ClusterOperator {
                    name: manifest.header.id.name.clone(),
                    level: manifest.level,
                    component: manifest.component.clone(),
                    versions: versions.clone(),
                });
            }
        }
        for file in self.unread() {
            for tag in &file.names {
                let place = (file.level, &file.component);
                add_use(&mut uses[*tag], place, Naming::Other, file.position);
            }
        }
        for uses in &mut uses {
            uses.sort_by_key(TagUse::order);
        }
        let count = self.manifests().len();
        let names = self.tags().iter().cloned().enumerate();
        ReleaseManifests {
            version: self.version().to_owned(),
            inclusion: inclusion.clone(),
            count,
            included: count - excluded.values().sum::<usize>(),
            excluded,
            uncertain,
            operators,
            unread: self.unread().to_vec(),
            tags: self.tags().to_vec(),
            uses,
            index: names.map(|(index, name)| (name, index)).collect(),
            obstacles: self.obstacles(inclusion),
        }
    }
}

/// A component rarely has more than five uses of an image; a hostile one has as many as it has levels, which cost as many
/// bytes of file names.
fn add_use(
    uses: &mut Vec<TagUse>,
    (level, component): (Option<u32>, &Option<Arc<str>>),
    naming: Naming,
    position: usize,
) {
    let same = uses
        .iter_mut()
        .find(|known| (known.level, &known.component) == (level, component));
    match same {
        Some(known) => {
            known.namings.insert(naming);
        }
        None => uses.push(TagUse {
            level,
            component: component.clone(),
            namings: BTreeSet::from([naming]),
            position,
        }),
    }
}

impl TagUse {
    /// The order in which the CVO reaches the uses. Files without a level are last, because their place is unknown.
    pub(super) fn order(&self) -> (bool, Option<u32>, usize) {
        (self.level.is_none(), self.level, self.position)
    }
}

impl ReleaseManifests {
    /// The uses of an image, first one first; empty if no included manifest names it, or if the payload does not have it.
    pub fn uses(&self, tag: &str) -> &[TagUse] {
        self.index.get(tag).map_or(&[], |index| &self.uses[*index])
    }

    /// The included ClusterOperators of a component.
    pub fn operators_of<'a>(&'a self, component: &'a str) -> impl Iterator<Item = &'a ClusterOperator> {
        let is_meant = move |operator: &&ClusterOperator| operator.component.as_deref() == Some(component);
        self.operators.iter().filter(is_meant)
    }

    /// The payload's images, in its order.
    pub fn tags(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tags.iter().map(String::as_str)
    }

    /// The images that no included manifest names, in the payload's order.
    pub fn unnamed(&self) -> impl Iterator<Item = &str> {
        let uses = self.tags.iter().zip(&self.uses);
        uses.filter(|(_, uses)| uses.is_empty())
            .map(|(tag, _)| tag.as_str())
    }
}
