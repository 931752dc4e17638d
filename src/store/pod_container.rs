//! Finds the image of a pod's container by the name that CRI-O gives to the container.
//!
//! ```text
//! overlay-containers/{containers,volatile-containers}.json
//!   [{"names": ["k8s_<container>_<pod>_<namespace>_<uid>_<attempt>"], "image": "<id>", "created": "<RFC 3339>"}]
//! ```
//!
//! None of the parts contains `_`, so no user can imitate a container of another namespace.

use jiff::Timestamp;
use serde::Deserialize;

use super::error::StoreError;
use super::json_record;
use super::store::Store;
use crate::oci::ImageId;

#[derive(Deserialize)]
struct ContainerView {
    names: Option<Vec<String>>,
    image: Option<String>,
    created: Option<String>,
}

impl Store {
    /// The image of the container `container` of a pod in `namespace`. The newest container counts; it may have ended.
    pub fn pod_container_image(
        &self,
        namespace: &str,
        container: &str,
    ) -> Result<Option<ImageId>, StoreError> {
        let mut newest: Option<(Option<Timestamp>, ImageId)> = None;
        for file in ["containers.json", "volatile-containers.json"] {
            let path = self.layout.root().join("overlay-containers").join(file);
            for (view, _) in json_record::read::<ContainerView>(&path)? {
                let is_meant = |name: &String| is_container(name, namespace, container);
                if !view.names.iter().flatten().any(is_meant) {
                    continue;
                }
                let Some(image) = view.image.and_then(|id| ImageId::from_hex(&id)) else {
                    continue;
                };
                // `None` is before every time.
                let created = view.created.and_then(|time| time.parse().ok());
                if newest.as_ref().is_none_or(|(newest, _)| *newest < created) {
                    newest = Some((created, image));
                }
            }
        }
        Ok(newest.map(|(_, image)| image))
    }
}

fn is_container(name: &str, namespace: &str, container: &str) -> bool {
    let parts: Vec<&str> = name.split('_').collect();
    matches!(parts[..], ["k8s", of_container, _, of_namespace, _, _]
        if of_container == container && of_namespace == namespace)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use serde_json::{Value, json};

    use super::*;
    use crate::store::StorageConf;

    fn container(name: &str, image: char, created: &str) -> Value {
        json!({"id": "1", "names": [name], "image": image.to_string().repeat(64), "created": created})
    }

    #[test]
    fn the_newest_container_of_the_namespace_counts() {
        if let Err(why) = crate::notice::root() {
            return crate::notice::skip(&why);
        }
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), &StorageConf::default()).unwrap();
        let find = || store.pod_container_image("openshift-cluster-version", "cvo");
        assert_eq!(find().unwrap(), None);
        let containers = dir.path().join("overlay-containers");
        fs::create_dir_all(&containers).unwrap();
        let write = |file: &str, records: &[Value]| {
            fs::write(containers.join(file), json!(records).to_string()).unwrap();
        };
        let named = |namespace: &str| format!("k8s_cvo_cvo-5b_{namespace}_0e1f_1");
        let own = named("openshift-cluster-version");
        write(
            "volatile-containers.json",
            &[
                container(&own, 'a', "2026-01-02T03:04:05.123456789Z"),
                container(&own, 'b', "2026-01-02T04:00:00+03:00"),
                container(
                    "k8s_other_cvo-5b_openshift-cluster-version_0e1f_1",
                    'c',
                    "2026-02-01T00:00:00Z",
                ),
            ],
        );
        write(
            "containers.json",
            &[
                container(&named("default"), 'd', "2026-02-01T00:00:00Z"),
                // podman's names are free.
                container("k8s_cvo_x_openshift-cluster-version", 'e', "2026-02-01T00:00:00Z"),
                container(&own, 'f', "unknown"),
            ],
        );
        let newest = find().unwrap().unwrap();
        assert_eq!(Some(newest), ImageId::from_hex(&"a".repeat(64)));
    }
}
