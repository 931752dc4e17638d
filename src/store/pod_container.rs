//! Finds the image of a pod's container by the name that CRI-O gives to the container.

use jiff::Timestamp;

use super::container_records::{self, PodContainer};
use super::error::StoreError;
use super::store::Store;
use crate::oci::ImageId;

impl Store {
    /// The image of the container `container` of a pod in `namespace`. The newest container counts; it may have ended.
    pub fn pod_container_image(
        &self,
        namespace: &str,
        container: &str,
    ) -> Result<Option<ImageId>, StoreError> {
        let mut newest: Option<(Option<Timestamp>, ImageId)> = None;
        for view in container_records::read_all(&[self.layout.root()])? {
            let mut pods = view.names.iter().flatten();
            let is_meant = |it: PodContainer| it.container == container && it.namespace == namespace;
            if !pods.any(|name| PodContainer::of_name(name).is_some_and(is_meant)) {
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
        Ok(newest.map(|(_, image)| image))
    }
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
