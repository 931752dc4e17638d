//! Reads the manifests of a release image in the store, and filters them as the cluster does.

use std::collections::{BTreeMap, HashMap};

use super::config::ClusterView;
use crate::cluster_version::{ClusterVersion, SemanticVersion};
use crate::oci::{LayerId, Reference};
use crate::release::manifests::{
    Capabilities, FILE_LIMIT, FILES_LIMIT, Filter, Inclusion, MANIFEST_DIRECTORIES, ManifestFile,
    PayloadManifests, ReleaseManifests,
};
use crate::release::{IMAGE_REFERENCES, Payload, RELEASE_METADATA};
use crate::store::{Inventory, Store, StoreError, Tree};
use crate::used_images::{ImageIdentity, OperatorOfTag};

/// The profile of clusters that manage themselves, also of those with one node. The CVO assumes it too.
const PROFILE: &str = "self-managed-high-availability";

/// The CVO takes the empty one for the default feature set.
const FEATURE_SET: &str = "";

/// Far above every real payload file.
const PAYLOAD_FILE_LIMIT: u64 = 16 << 20;

/// What the cluster includes of the manifests of the release in `tree`. What is unknown about the cluster is assumed. The store
/// may have the running release, whose manifests decide which capabilities the update switches on.
pub(super) fn included(
    tree: &Tree,
    payload: &Payload,
    cluster: &ClusterView,
    store: &Store,
    inventory: &Inventory,
) -> Result<ReleaseManifests, StoreError> {
    let manifests = PayloadManifests::read(files(tree)?, payload);
    let mut inclusion = inclusion(cluster, &payload.version);
    let is_filtered = |it: &Capabilities| !it.known.is_subset(&it.enabled);
    if inclusion.capabilities.as_ref().is_some_and(is_filtered) {
        let running = cluster.version.as_ref().ok().and_then(ClusterVersion::completed);
        let running = running.and_then(|entry| running_manifests(&entry.image, store, inventory));
        let implicit = running.map(|running| manifests.implicitly_enabled(&running, &inclusion));
        if let (Some(capabilities), Some(implicit)) = (&mut inclusion.capabilities, implicit) {
            capabilities.implicit = implicit;
        }
    }
    Ok(manifests.included(&inclusion))
}

/// By what the cluster filters the manifests of release `version`.
fn inclusion(cluster: &ClusterView, version: &str) -> Inclusion {
    let mut assumed = BTreeMap::new();
    let mut known = match &cluster.version {
        Ok(version) => Inclusion::of(version),
        Err(_) => Inclusion::default(),
    };
    if known.capabilities.is_none() {
        let why = match &cluster.version {
            Ok(_) => "the ClusterVersion has no `status.capabilities`",
            Err(why) => why,
        };
        assumed.insert(Filter::Capabilities, why.to_owned());
    }
    match &cluster.filters.operator {
        Ok(settings) => {
            known.profile = Some(settings.profile.clone().unwrap_or_else(|| PROFILE.to_owned()));
            known.exclude = settings.exclude.clone();
        }
        Err(why) => {
            known.profile = Some(PROFILE.to_owned());
            assumed.insert(Filter::Profile, why.clone());
        }
    }
    match &cluster.filters.feature_gates {
        Ok(gates) => {
            known.feature_set = Some(gates.feature_set.clone());
            known.feature_gates = gates.enabled.get(version).cloned();
        }
        Err(why) => {
            known.feature_set = Some(FEATURE_SET.to_owned());
            assumed.insert(Filter::FeatureSet, why.clone());
        }
    }
    let version = version.parse::<SemanticVersion>().ok();
    Inclusion {
        major_version: version.map(|version| version.minor().0),
        assumed,
        ..known
    }
}

/// The manifests of the running release, if the store has its release image.
fn running_manifests(image: &str, store: &Store, inventory: &Inventory) -> Option<PayloadManifests> {
    let reference: Reference = image.parse().ok()?;
    let mut images = inventory.all_images();
    let stored = images.find(|image| ImageIdentity::of_stored(image).is_named_by(&reference))?;
    let (tree, payload) = stored_payload(store, &inventory.chain_of(stored)?)?;
    Some(PayloadManifests::read(files(&tree).ok()?, &payload))
}

/// The files and the payload of an image with these layers, if it is a release image and can be read.
pub(super) fn stored_payload(store: &Store, layers: &[LayerId]) -> Option<(Tree, Payload)> {
    let tree = store.tree(layers).ok()?;
    // Few images have the directory, so all others are passed over fast.
    let read = |file: &str| tree.read_file(file, PAYLOAD_FILE_LIMIT).ok()?;
    let payload = Payload::parse(&read(IMAGE_REFERENCES)?, &read(RELEASE_METADATA)?).ok()?;
    Some((tree, payload))
}

/// The cluster operators that name each image of the release in `tree`. `version` has the cluster's capabilities; without it, all
/// are assumed to be on. Of several operators in one component, the first stands for all: they have the same images.
pub(super) fn operators_of_tags(
    tree: &Tree,
    payload: &Payload,
    version: Option<&ClusterVersion>,
) -> Result<HashMap<String, Vec<OperatorOfTag>>, StoreError> {
    let manifests = PayloadManifests::read(files(tree)?, payload);
    let manifests = manifests.included(&Inclusion {
        profile: Some(PROFILE.to_owned()),
        feature_set: Some(FEATURE_SET.to_owned()),
        ..version.map(Inclusion::of).unwrap_or_default()
    });
    let operators = |tag: &str| {
        let mut operators: Vec<OperatorOfTag> = Vec::new();
        for tag_use in manifests.uses(tag) {
            let component = tag_use.component.as_deref().unwrap_or_default();
            if let (Some(run_level), Some(operator)) =
                (tag_use.level, manifests.operators_of(component).next())
                && operators.iter().all(|known| known.operator != operator.name)
            {
                let operator = operator.name.clone();
                operators.push(OperatorOfTag { operator, run_level });
            }
        }
        operators
    };
    let tags = payload.tags.iter();
    Ok(tags.map(|tag| (tag.name.clone(), operators(&tag.name))).collect())
}

/// The manifest files, read one by one, because they are large together.
fn files(tree: &Tree) -> Result<impl Iterator<Item = ManifestFile>, StoreError> {
    let mut paths = Vec::new();
    for directory in MANIFEST_DIRECTORIES {
        let entries = tree.read_directory(directory, FILES_LIMIT)?.unwrap_or_default();
        // The cluster-version operator could not read a name that is not UTF-8 either.
        let names = entries
            .into_iter()
            .filter_map(|entry| entry.name.into_string().ok());
        paths.extend(names.map(|name| format!("{directory}/{name}")));
    }
    Ok(paths.into_iter().map(|path| {
        let content = tree
            .read_file(&path, FILE_LIMIT)
            .map_err(|error| error.to_string());
        let content = content.and_then(|bytes| bytes.ok_or_else(|| "it does not exist".to_owned()));
        ManifestFile { path, content }
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::cluster::{FeatureGates, ManifestFilters, OperatorSettings};

    #[test]
    fn what_is_unknown_about_the_cluster_is_assumed() {
        let unknown = ClusterView {
            version: Err("no API".to_owned()),
            filters: ManifestFilters::default(),
        };
        let assumed = inclusion(&unknown, "4.16.3");
        assert_eq!(assumed.profile.as_deref(), Some(PROFILE));
        assert_eq!(assumed.feature_set.as_deref(), Some(""));
        assert_eq!((assumed.capabilities, assumed.feature_gates), (None, None));
        assert_eq!(assumed.major_version, Some(4));
        let filters: Vec<Filter> = assumed.assumed.keys().copied().collect();
        assert_eq!(
            filters,
            [Filter::Profile, Filter::FeatureSet, Filter::Capabilities]
        );
        assert_eq!(assumed.assumed[&Filter::Capabilities], "no API");

        let version = r#"{"status": {"capabilities": {"knownCapabilities": ["A", "B"], "enabledCapabilities": ["A"]}}}"#;
        let gates = |name: &str| BTreeSet::from([name.to_owned()]);
        let known = ClusterView {
            version: Ok(serde_json::from_str(version).unwrap()),
            filters: ManifestFilters {
                operator: Ok(OperatorSettings {
                    profile: None,
                    exclude: Some("x".to_owned()),
                }),
                feature_gates: Ok(FeatureGates {
                    feature_set: "TechPreviewNoUpgrade".to_owned(),
                    enabled: BTreeMap::from([("4.16.3".to_owned(), gates("G"))]),
                }),
            },
        };
        let known_inclusion = inclusion(&known, "4.16.3");
        assert_eq!(known_inclusion.assumed, BTreeMap::new());
        assert_eq!(
            known_inclusion.profile.as_deref(),
            Some(PROFILE),
            "the operator's default"
        );
        assert_eq!(known_inclusion.exclude.as_deref(), Some("x"));
        assert_eq!(known_inclusion.feature_gates, Some(gates("G")));
        assert!(known_inclusion.capabilities.is_some());
        // The gates of another version say nothing.
        assert_eq!(inclusion(&known, "4.16.4").feature_gates, None);
        let old = ClusterView {
            version: Ok(ClusterVersion::default()),
            ..known
        };
        let why = &inclusion(&old, "nightly").assumed[&Filter::Capabilities];
        assert_eq!(why, "the ClusterVersion has no `status.capabilities`");
    }

    #[test]
    fn each_image_has_the_operators_of_the_components_that_name_it() {
        let dir = tempfile::tempdir().unwrap();
        let manifests = dir.path().join("release-manifests");
        fs::create_dir(&manifests).unwrap();
        let pullspec = |n: u8| format!("quay.io/a/b@sha256:{}", n.to_string().repeat(64));
        let tag = |(name, n): (&str, u8)| serde_json::json!({"name": name, "from": {"kind": "DockerImage", "name": pullspec(n)}});
        let tags = [("etcd-operator", 1), ("proxy", 2), ("console", 3)].map(tag);
        let references = serde_json::json!({
            "kind": "ImageStream", "apiVersion": "image.openshift.io/v1",
            "spec": {"tags": tags},
        });
        let metadata = br#"{"kind": "cincinnati-metadata-v0", "version": "4.16.3"}"#;
        let payload = Payload::parse(references.to_string().as_bytes(), metadata).unwrap();
        let annotations = format!("annotations: {{include.release.openshift.io/{PROFILE}: 'true'}}");
        let deployment = |n: &[u8]| {
            let images: Vec<String> = n
                .iter()
                .map(|n| format!("{{image: '{}'}}", pullspec(*n)))
                .collect();
            format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d, namespace: n, {annotations}}}\n\
                 spec: {{template: {{spec: {{containers: [{}]}}}}}}\n",
                images.join(", ")
            )
        };
        let operator = |name: &str| {
            format!(
                "apiVersion: config.openshift.io/v1\nkind: ClusterOperator\nmetadata: {{name: {name}, {annotations}}}\n"
            )
        };
        for (file, text) in [
            ("0000_20_etcd-operator_06_deployment.yaml", deployment(&[1, 2])),
            ("0000_20_etcd-operator_07_clusteroperator.yaml", operator("etcd")),
            ("0000_50_console-operator_07.yaml", deployment(&[2, 3])),
            ("0000_50_console-operator_08.yaml", operator("console")),
            ("0000_50_nothing_08.yaml", deployment(&[3])),
        ] {
            fs::write(manifests.join(file), text).unwrap();
        }
        let tree = Tree::of_directories(&[dir.path()]).unwrap();
        let operators = operators_of_tags(&tree, &payload, None).unwrap();
        let names = |tag: &str| {
            let operators = operators[tag].iter();
            operators
                .map(|it| (it.operator.as_str(), it.run_level))
                .collect::<Vec<_>>()
        };
        assert_eq!(names("etcd-operator"), [("etcd", 20)]);
        assert_eq!(names("proxy"), [("etcd", 20), ("console", 50)]);
        assert_eq!(names("console"), [("console", 50)]);
    }
}
