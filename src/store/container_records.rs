//! Reads the records of the containers that CRI-O and podman have on this node, running or ended.
//!
//! ```text
//! overlay-containers/containers.json             podman's, and those of old versions of CRI-O
//! overlay-containers/volatile-containers.json    CRI-O's: written without a sync; with `transient_store`, in the run root
//!   [{"id": "<64 digits>", "names": ["k8s_<container>_<pod>_<namespace>_<uid>_<attempt>"], "image": "<image id>",
//!     "layer": "<layer id>", "metadata": "{\"image-name\": \"<as requested>\", …}", "created": "<RFC 3339>"}]
//! ```
//!
//! A pod's sandbox is a container too, of the image `pod`. The parts of CRI-O's names contain no `_`, so no user can imitate a
//! container of another namespace; podman's names are free.
//!
//! The files are only ever replaced as a whole, so reading them needs no lock. An ended container keeps its record until the
//! kubelet removes the container. CRI-O removes the records of its containers at the first start after a reboot
//! (`server.go`: `wipeIfAppropriate`).

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Deserialize;

use super::atomic_file;
use super::error::StoreError;
use super::escaped_name::EscapedName;
use super::host_state::HostState;
use super::json_record::{self, FILE_LIMIT};
use super::store::Store;
use crate::oci::ImageId;

/// The files with records, below `overlay-containers` of the graph root and of the run root.
const FILES: [&str; 2] = ["containers.json", "volatile-containers.json"];

/// Digits of a container's id in messages, as podman and crictl show it.
const SHORT_ID: usize = 12;

/// The container that a record describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRecord {
    /// Its first name, or the beginning of its id.
    pub name: String,
    /// The same in parts, if the kubelet created it.
    pub pod: Option<PodContainer>,
    /// Its image. A container without one has a root directory of its own.
    pub image: Option<ImageId>,
    /// The name or the id by which the image was requested.
    pub requested_image: Option<String>,
    /// When it was created.
    pub created: Option<Timestamp>,
}

/// The parts of a name that CRI-O gives to a container of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodContainer {
    /// As the pod names it; [`PodContainer::SANDBOX`] for the sandbox.
    pub container: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's namespace.
    pub namespace: String,
}

/// The containers of a store, as far as their records are readable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerRecords {
    /// In the order of the files.
    pub containers: Vec<ContainerRecord>,
    /// Why a record is unreadable, one for each.
    pub damaged: Vec<String>,
}

/// The fields of a record that we use. Every field but the id may be missing or null.
#[derive(Deserialize)]
pub(super) struct ContainerView {
    pub(super) id: String,
    pub(super) names: Option<Vec<String>>,
    pub(super) image: Option<String>,
    pub(super) layer: Option<String>,
    metadata: Option<String>,
    pub(super) created: Option<String>,
}

/// The text in `metadata`, of CRI-O (`runtime.go`: `RuntimeContainerMetadata`) and of podman alike.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Metadata {
    image_name: Option<String>,
}

impl Store {
    /// The records of every container, in the graph root and in the run root. It takes no lock and writes nothing.
    ///
    /// # Errors
    /// If a file cannot be read, or is no list. Then no program can use the store's containers.
    pub fn container_records(&self, host: &HostState) -> Result<ContainerRecords, StoreError> {
        let mut records = ContainerRecords::default();
        for path in paths(&[self.layout.root(), &host.run_root]) {
            let bytes = atomic_file::read(&path, FILE_LIMIT)?.unwrap_or_default();
            let text = std::str::from_utf8(&bytes).map_err(|error| StoreError::corrupt(&path, error))?;
            let split = json_record::split(text).map_err(|error| StoreError::corrupt(&path, error))?;
            for (index, raw) in split.into_iter().enumerate() {
                let view = serde_json::from_str::<ContainerView>(raw.get());
                match view
                    .map_err(|error| error.to_string())
                    .and_then(ContainerRecord::of)
                {
                    Ok(record) => records.containers.push(record),
                    Err(why) => {
                        let damage = format!("record {index} in `{}`: {why}", path.display());
                        records.damaged.push(damage);
                    }
                }
            }
        }
        Ok(records)
    }
}

impl ContainerRecord {
    fn of(view: ContainerView) -> Result<Self, String> {
        let image = match view.image.as_deref() {
            None | Some("") => None,
            Some(id) => {
                let damage = || format!("`{}` is not the id of an image", EscapedName::new(id.as_bytes()));
                Some(ImageId::from_hex(id).ok_or_else(damage)?)
            }
        };
        // Both programs can lose it without any effect on the container.
        let metadata = view.metadata.as_deref().unwrap_or_default();
        let metadata: Metadata = serde_json::from_str(metadata).unwrap_or_default();
        let names = view.names.iter().flatten();
        Ok(Self {
            pod: names.clone().find_map(|name| PodContainer::of_name(name)),
            name: view.name().to_owned(),
            image,
            requested_image: metadata.image_name.filter(|name| !name.is_empty()),
            created: view.created.and_then(|time| time.parse().ok()),
        })
    }
}

impl PodContainer {
    /// The name of every pod's sandbox (CRI-O `oci_linux.go`: `InfraContainerName`).
    pub const SANDBOX: &str = "POD";

    /// The parts of `k8s_<container>_<pod>_<namespace>_<uid>_<attempt>`.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        let parts: Vec<&str> = name.split('_').collect();
        match parts[..] {
            ["k8s", container, pod, namespace, _, _] => Some(Self {
                container: container.to_owned(),
                pod: pod.to_owned(),
                namespace: namespace.to_owned(),
            }),
            _ => None,
        }
    }
}

impl ContainerView {
    /// Its first name, or the beginning of its id.
    fn name(&self) -> &str {
        let name = self.names.iter().flatten().next();
        name.map_or_else(|| self.short_id(), String::as_str)
    }

    fn short_id(&self) -> &str {
        self.id.get(..SHORT_ID).unwrap_or(&self.id)
    }

    /// Its first name and the beginning of its id, for messages.
    pub(super) fn description(&self) -> String {
        let id = EscapedName::new(self.short_id().as_bytes());
        match self.names.iter().flatten().next() {
            Some(name) => format!("container `{}` ({id})", EscapedName::new(name.as_bytes())),
            None => format!("container {id}"),
        }
    }
}

/// The fields of every record of these roots.
///
/// # Errors
/// If a file or a record cannot be read.
pub(super) fn read_all(roots: &[&Path]) -> Result<Vec<ContainerView>, StoreError> {
    let mut views = Vec::new();
    for path in paths(roots) {
        let records = json_record::read::<ContainerView>(&path)?;
        views.extend(records.into_iter().map(|(view, _)| view));
    }
    Ok(views)
}

fn paths(roots: &[&Path]) -> Vec<PathBuf> {
    let dirs = roots.iter().map(|root| root.join("overlay-containers"));
    dirs.flat_map(|dir| FILES.map(|file| dir.join(file))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;
    use crate::store::StorageConf;

    /// As CRI-O 1.27 and podman 5 write them; the second to last has no image id, the last no object.
    const RECORDS: &str = r#"[
        {"id":"0f3b6f0cf2a1","names":["k8s_POD_etcd-sno_openshift-etcd_6f7e_0","k8s_etcd-sno_openshift-etcd_6f7e_0"],
         "image":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","layer":"77",
         "metadata":"{\"pod-name\":\"k8s_etcd-sno_openshift-etcd_6f7e_0\",\"pod-id\":\"0f3b\",\"image-name\":\"quay.io/ocp/v4@sha256:1\",\"image-id\":\"aa\",\"name\":\"k8s_POD_etcd-sno_openshift-etcd_6f7e_0\",\"metadata-name\":\"etcd-sno\",\"uid\":\"6f7e\",\"namespace\":\"openshift-etcd\",\"mountlabel\":\"\",\"created-at\":1700000000,\"pod\":true}",
         "created":"2026-01-02T03:04:05.123456789Z","flags":{"MountLabel":"","Volatile":true}},
        {"id":"a1a2a3a4a5a6a7a8","image":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","layer":"78","metadata":"not JSON","created":"0001-01-01T00:00:00Z"},
        {"id":"c1","names":["rootfs"],"image":"","layer":"79"},
        {"id":"c2","names":["web"],"image":"../x","layer":"80"},
        7
    ]"#;

    #[test]
    fn records_of_cri_o_and_podman_are_read_and_damaged_ones_are_counted() {
        if let Err(why) = crate::notice::root() {
            return crate::notice::skip(&why);
        }
        let (dir, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = Store::open(dir.path(), &StorageConf::default()).unwrap();
        let host = HostState {
            run_root: run.path().to_owned(),
            ..HostState::default()
        };
        assert_eq!(
            store.container_records(&host).unwrap(),
            ContainerRecords::default()
        );
        for (root, file, text) in [
            (dir.path(), "volatile-containers.json", RECORDS),
            (
                run.path(),
                "volatile-containers.json",
                r#"[{"id":"d1","names":["transient"],"image":null}]"#,
            ),
            (dir.path(), "containers.json", "null"),
        ] {
            fs::create_dir_all(root.join("overlay-containers")).unwrap();
            fs::write(root.join("overlay-containers").join(file), text).unwrap();
        }
        let records = store.container_records(&host).unwrap();
        let names = records.containers.iter().map(|it| it.name.as_str());
        assert_eq!(
            names.collect::<Vec<_>>(),
            [
                "k8s_POD_etcd-sno_openshift-etcd_6f7e_0",
                "a1a2a3a4a5a6",
                "rootfs",
                "transient"
            ]
        );
        let sandbox = &records.containers[0];
        assert_eq!(
            sandbox.pod,
            Some(PodContainer {
                container: PodContainer::SANDBOX.to_owned(),
                pod: "etcd-sno".to_owned(),
                namespace: "openshift-etcd".to_owned(),
            })
        );
        assert_eq!(
            sandbox.requested_image.as_deref(),
            Some("quay.io/ocp/v4@sha256:1")
        );
        assert_eq!(sandbox.image, ImageId::from_hex(&"a".repeat(64)));
        assert_eq!(sandbox.created, "2026-01-02T03:04:05.123456789Z".parse().ok());
        assert_eq!(
            (
                &records.containers[1].requested_image,
                records.containers[2].image
            ),
            (&None, None)
        );
        assert_eq!(records.damaged.len(), 2, "{:?}", records.damaged);
        assert!(records.damaged[0].ends_with("`../x` is not the id of an image"));
        fs::write(dir.path().join("overlay-containers/containers.json"), "[").unwrap();
        store.container_records(&host).unwrap_err();
    }
}
