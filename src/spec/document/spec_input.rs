//! Combines the objects of files to one version spec.
//!
//! ```text
//! files ─yaml_tree→ documents ─→ objects, also of lists and in policies
//!   a ConfigMap with the hub's keys: complete, alone
//!   or, together:
//!     release     UpgradeConfig, else ClusterVersions, else PreCachingConfig     (release.rs)
//!     catalogs    CatalogSources, else PreCachingConfig
//!     packages    PreCachingConfig, else Subscriptions
//!     the rest    PreCachingConfig
//! ```
//!
//! The objects of the cluster's own API count as those of a file, and a ConfigMap may be added to them that names no release.
//! Every other object is ignored, because people use the output of `oc get` and keep a site's objects in one directory.

use super::cluster_versions;
use super::complete_spec::CompleteSpec;
use super::kube_object::{KubeObject, Origin, collect};
use super::named_by_flags::NamedByFlags;
use super::operators::{self, Operators};
use super::release::{ReleaseObjects, Requested};
use super::upgrade_config::is_upgrade_config;
use super::yaml_tree::{self, YamlNode};
use super::{DocumentError, SpecDocument, listed, policy, pre_caching_config, raw_templates, text};
use crate::spec::VersionSpec;

/// The most scalars, lists and mappings of all files together.
const NODES_LIMIT: usize = 500_000;

/// Files with the objects of one version spec.
#[derive(Debug, Default)]
pub struct SpecInput {
    /// The name and the documents of each.
    files: Vec<(FileName, Vec<YamlNode>)>,
    /// The keys of a mounted ConfigMap.
    keys: Option<CompleteSpec>,
    nodes: usize,
}

#[derive(Debug)]
enum FileName {
    Path(String),
    /// An answer of the cluster's API.
    Cluster,
}

impl SpecInput {
    /// Adds a YAML or JSON file; messages name it if there are several.
    ///
    /// # Errors
    /// If it is neither YAML nor JSON, or too large together with the others.
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), DocumentError> {
        self.add_documents(FileName::Path(name.to_owned()), bytes)
    }

    /// Adds an object that the API of the cluster returned in which this program runs.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn add_of_cluster(&mut self, bytes: &[u8]) -> Result<(), DocumentError> {
        self.add_documents(FileName::Cluster, bytes)
    }

    /// Adds the spec of the keys of a mounted ConfigMap, and warnings about them.
    pub fn add_keys(&mut self, title: &str, spec: VersionSpec, warnings: Vec<String>) {
        self.keys = Some(CompleteSpec {
            title: title.to_owned(),
            spec,
            warnings,
        });
    }

    fn add_documents(&mut self, name: FileName, bytes: &[u8]) -> Result<(), DocumentError> {
        let mut left = NODES_LIMIT - self.nodes;
        let mut documents = yaml_tree::parse(text(bytes)?, left)?;
        for document in &mut documents {
            left = left.saturating_sub(document.count());
            raw_templates::expand(document, &mut left);
        }
        self.nodes = NODES_LIMIT - left;
        self.files.push((name, documents));
        Ok(())
    }

    /// Reads the version spec.
    ///
    /// # Errors
    /// If the files have no version spec, objects that contradict each other, or an invalid one.
    pub fn read(&self, flags: NamedByFlags) -> Result<SpecDocument, DocumentError> {
        let mut collected = Vec::new();
        for (name, documents) in &self.files {
            let origin = match name {
                FileName::Cluster => Origin::Cluster,
                FileName::Path(name) if self.files.len() > 1 => Origin::File(name),
                FileName::Path(_) => Origin::OnlyFile,
            };
            for document in documents {
                collect(document, origin, &mut collected)?;
            }
        }
        let objects = SpecObjects::sort(&collected);
        let config_map = objects.config_map()?;
        let config_map = config_map.map(KubeObject::read_config_map).transpose()?;
        match (self.keys.clone().or(config_map), objects.is_empty()) {
            (_, true) if flags.recommended => Err(DocumentError::NoCluster),
            (Some(complete), true) => Ok(complete.into_document(objects.ignored())),
            (Some(complete), false) => complete.with_release(objects.combine(flags)?, flags.release),
            (None, true) => Err(DocumentError::Nothing {
                found: collected.iter().map(KubeObject::description).collect(),
            }),
            (None, false) => objects.combine(flags),
        }
    }
}

/// The objects of the files by their purpose.
#[derive(Default)]
struct SpecObjects<'a> {
    config_maps: Vec<KubeObject<'a>>,
    pre_caching_configs: Vec<KubeObject<'a>>,
    upgrade_configs: Vec<KubeObject<'a>>,
    policies: Vec<KubeObject<'a>>,
    cluster_versions: Vec<KubeObject<'a>>,
    sources: Vec<KubeObject<'a>>,
    subscriptions: Vec<KubeObject<'a>>,
    others: Vec<KubeObject<'a>>,
}

impl<'a> SpecObjects<'a> {
    fn sort(objects: &[KubeObject<'a>]) -> Self {
        let mut sorted = Self::default();
        for object in objects {
            let list = match sorted.installed(object) {
                Some(list) => list,
                None if object.has_spec_keys() => &mut sorted.config_maps,
                None if object.is_pre_caching_config() => &mut sorted.pre_caching_configs,
                None if is_upgrade_config(object) => &mut sorted.upgrade_configs,
                None if policy::is_policy(object) => &mut sorted.policies,
                None => &mut sorted.others,
            };
            list.push(*object);
        }
        sorted
    }

    /// The list of an object that a cluster has, and that a policy may contain.
    fn installed(&mut self, object: &KubeObject<'a>) -> Option<&mut Vec<KubeObject<'a>>> {
        if object.is(cluster_versions::GROUP, "ClusterVersion") {
            return Some(&mut self.cluster_versions);
        }
        if object.is(operators::GROUP, "CatalogSource") {
            return Some(&mut self.sources);
        }
        object
            .is(operators::GROUP, "Subscription")
            .then_some(&mut self.subscriptions)
    }

    /// The lists whose objects can be combined.
    fn combinable(&self) -> [&Vec<KubeObject<'a>>; 6] {
        [
            &self.upgrade_configs,
            &self.cluster_versions,
            &self.policies,
            &self.sources,
            &self.subscriptions,
            &self.pre_caching_configs,
        ]
    }

    fn is_empty(&self) -> bool {
        self.combinable().into_iter().all(Vec::is_empty)
    }

    fn ignored(&self) -> Vec<String> {
        self.others.iter().map(KubeObject::description).collect()
    }

    /// The ConfigMap that is the whole version spec.
    fn config_map(&self) -> Result<Option<&KubeObject<'a>>, DocumentError> {
        let specs = [&self.config_maps[..], &self.pre_caching_configs].concat();
        for list in [&specs, &self.upgrade_configs] {
            if let [first, second, ..] = &list[..] {
                return Err(DocumentError::Several {
                    first: first.title(),
                    second: second.title(),
                });
            }
        }
        let config_map = self.config_maps.first();
        let mut others = self.combinable().into_iter().flatten();
        let other = others.find(|object| !object.is_of_cluster());
        match (config_map, other) {
            (Some(config_map), Some(other)) => Err(DocumentError::Complete {
                config_map: config_map.title(),
                other: other.title(),
            }),
            _ => Ok(config_map),
        }
    }

    fn combine(mut self, flags: NamedByFlags) -> Result<SpecDocument, DocumentError> {
        let titles: Vec<String> = self
            .combinable()
            .into_iter()
            .flatten()
            .map(KubeObject::title)
            .collect();
        let mut document = SpecDocument {
            spec: VersionSpec::default(),
            warnings: Vec::new(),
            upgrade_at: None,
            cluster_version: None,
            notes: Vec::new(),
            nothing_requested: None,
            title: listed(&titles),
            ignored: self.ignored(),
        };
        for object in policy::objects(&self.policies, &mut document.warnings)? {
            if let Some(list) = self.installed(&object) {
                list.push(object);
            }
        }
        let Operators { indexes, packages } =
            operators::read(&self.sources, &self.subscriptions, &mut document.warnings)?;
        let release = ReleaseObjects {
            upgrade_config: self.upgrade_configs.first(),
            cluster_versions: &self.cluster_versions,
        };
        let requested = release.choose(flags, &mut document)?;
        document.spec.operators_indexes = indexes;
        document.spec.packages_and_channels = packages;
        let is_hubs = !self.policies.is_empty();
        if is_hubs {
            document.spec.space_required = pre_caching_config::SPACE_DEFAULT << 30;
            if !document.spec.operators_indexes.is_empty() && document.spec.packages_and_channels.is_empty() {
                document.warnings.push(
                    "the policies have a CatalogSource and no Subscription, which TALM's hub refuses: olm index provided, \
                     but no packages"
                        .to_owned(),
                );
            }
        }
        if let Some(config) = self.pre_caching_configs.first() {
            let is_from_cluster = self.cluster_versions.iter().any(KubeObject::is_of_cluster);
            if is_from_cluster && !flags.release && pre_caching_config::names_release(config)? {
                let object = config.title();
                return Err(DocumentError::TwoReleases { object });
            }
            let (spec, warnings) = pre_caching_config::read(config, &document.spec)?;
            document.spec = spec;
            document.warnings.extend(warnings);
        }
        // The texts are those of keys: without duplicates.
        document.spec = document.spec.merge(crate::spec::Overrides::default());
        let spec = &document.spec;
        let has_images = !spec.operators_indexes.is_empty() || !spec.additional_images.is_empty();
        match requested {
            Requested::No(why) if spec.platform_image.is_none() => match has_images || flags.images {
                true => document.warnings.push(why.to_string()),
                false => return Err(why),
            },
            _ => {}
        }
        Ok(document)
    }
}
