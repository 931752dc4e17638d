//! Which layers are in use: under a container, or mounted.
//!
//! ```text
//! overlay-containers/{containers,volatile-containers}.json   → the container's own layer, and its image's
//! overlay-layers/mountpoints.json (run root)                 → layers that containers/storage has mounted
//! /proc/…/mountinfo                                          → whatever else is mounted: `l/<link>` in its options
//! ```
//!
//! With each, all that is below it is in use. Whoever makes a container or mounts a layer holds the layers lock, so that
//! an answer stands as long as the lock is held. In doubt a layer is in use: a mount of another store that has a layer
//! of the same id counts too.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::{StoreError, io_error};
use super::layer_dir;
use super::layers::LayerView;
use super::layout::Layout;
use super::record;
use super::store::Store;
use super::unpack::Name;
use crate::oci::LayerId;

/// Digits of a container's id that are shown, as podman and crictl show it.
const SHORT_ID: usize = 12;

/// Where the host keeps what is known of running containers, as we see it.
#[derive(Clone, Debug, Default)]
pub struct HostState {
    /// The run root.
    pub run_root: PathBuf,
    /// Tables of mounts, ours and the host's. One that is not there is passed over.
    pub mount_tables: Vec<PathBuf>,
}

/// The layers in use, and by whom.
#[derive(Debug, Default)]
pub struct Users {
    layers: HashMap<LayerId, String>,
}

#[derive(Deserialize)]
struct ContainerView {
    id: String,
    names: Option<Vec<String>>,
    image: Option<String>,
    layer: Option<String>,
}

#[derive(Deserialize)]
struct ImageTop {
    id: String,
    layer: Option<String>,
}

#[derive(Deserialize)]
struct MountPoint {
    id: String,
    path: Option<String>,
    count: Option<i64>,
}

impl Store {
    /// Finds out who uses what.
    ///
    /// # Errors
    /// When a record cannot be read: then anything may be in use.
    pub fn users(&self, host: &HostState) -> Result<Users, StoreError> {
        let layout = &self.layout;
        let roots = [layout.root(), &host.run_root];
        let mut parents = HashMap::new();
        let volatile = roots.map(|root| root.join("overlay-layers/volatile-layers.json"));
        for path in [layout.layers_json()].iter().chain(&volatile) {
            for (view, _) in record::read::<LayerView>(path)? {
                let parent = view.parent().map(str::to_owned);
                parents.entry(view.id).or_insert(parent);
            }
        }
        let images = record::read::<ImageTop>(&layout.images_json())?;
        let tops: HashMap<String, Option<String>> = images
            .into_iter()
            .map(|(image, _)| (image.id, image.layer))
            .collect();
        let mut used: Vec<(String, String)> = Vec::new();
        for root in roots {
            for name in ["containers.json", "volatile-containers.json"] {
                let path = root.join("overlay-containers").join(name);
                for (container, _) in record::read::<ContainerView>(&path)? {
                    let user = container.shown();
                    let top = container.image.and_then(|image| tops.get(&image)?.clone());
                    used.extend(container.layer.map(|layer| (layer, user.clone())));
                    used.extend(top.map(|layer| (layer, user)));
                }
            }
            let path = root.join("overlay-layers/mountpoints.json");
            for (mount, _) in record::read::<MountPoint>(&path)? {
                if mount.count != Some(0) {
                    let place = mount.path.unwrap_or_default();
                    used.push((mount.id, format!("the mount `{}`", Name::new(place.as_bytes()))));
                }
            }
        }
        for table in &host.mount_tables {
            match fs::read_to_string(table) {
                Ok(text) => used.extend(mounted(&text, layout)?),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(io_error("read", table)(error)),
            }
        }
        let mut users = Users::default();
        for (layer, user) in used {
            let mut next = Some(layer);
            while let Some(layer) = next.take() {
                // What is below a layer that was seen before was seen with it.
                if let Some(id) = LayerId::from_hex(&layer)
                    && !users.layers.contains_key(&id)
                {
                    users.layers.insert(id, user.clone());
                    next = parents.get(&layer).cloned().flatten();
                }
            }
        }
        Ok(users)
    }
}

impl Users {
    /// Who uses the layer, in words.
    pub fn of(&self, layer: &LayerId) -> Option<&str> {
        self.layers.get(layer).map(String::as_str)
    }

    /// An error if somebody uses the layer.
    pub fn refuse(&self, layer: &LayerId) -> Result<(), StoreError> {
        let (layer, user) = match self.of(layer) {
            None => return Ok(()),
            Some(user) => (*layer, user.to_owned()),
        };
        Err(StoreError::InUse { layer, user })
    }
}

impl ContainerView {
    fn shown(&self) -> String {
        let id = Name::new(self.id.as_bytes().get(..SHORT_ID).unwrap_or(self.id.as_bytes()));
        match self.names.iter().flatten().next() {
            Some(name) => format!("container `{}` ({id})", Name::new(name.as_bytes())),
            None => format!("container {id}"),
        }
    }
}

/// The layers that a table of mounts names, by id or by short name, in options and mount points.
fn mounted(table: &str, layout: &Layout) -> Result<Vec<(String, String)>, StoreError> {
    let mut found = Vec::new();
    for line in table.lines().filter(|line| line.contains("overlay")) {
        let place = line.split(' ').nth(4).unwrap_or_default();
        for word in line.split([' ', ',', '=', ':', '/']) {
            let layer = if layer_dir::is_link_name(word) {
                linked(layout, word)
            } else {
                LayerId::from_hex(word).map(|_| word.to_owned())
            };
            let user = || format!("the mount `{}`", Name::new(place.as_bytes()));
            found.extend(layer.map(|layer| (layer, user())));
        }
    }
    Ok(found)
}

/// The layer to which `l/<link>` leads in this store.
fn linked(layout: &Layout, link: &str) -> Option<String> {
    let target = fs::read_link(layout.links().join(link)).ok()?;
    let id = target.parent().and_then(Path::file_name)?;
    id.to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::store::StorageConf;

    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    #[test]
    fn a_layer_is_in_use_with_all_that_is_above_it_in_use() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (dir, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = dir.path();
        let write = |path: PathBuf, value: serde_json::Value| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value.to_string()).unwrap();
        };
        let layer =
            |digit, parent: Option<char>| serde_json::json!({"id": id(digit), "parent": parent.map(id)});
        let layers: Vec<_> = [
            ('a', None),
            ('b', Some('a')),
            ('c', Some('b')),
            ('d', None),
            ('e', Some('d')),
            ('f', None),
        ]
        .map(|(digit, parent)| layer(digit, parent))
        .into();
        write(root.join("overlay-layers/layers.json"), layers.into());
        write(
            root.join("overlay-layers/volatile-layers.json"),
            serde_json::json!([layer('1', Some('b'))]),
        );
        write(
            root.join("overlay-containers/volatile-containers.json"),
            serde_json::json!([{"id": id('9'), "names": ["web"], "image": id('8'), "layer": id('1')}]),
        );
        write(
            run.path().join("overlay-layers/mountpoints.json"),
            serde_json::json!([{"id": id('f'), "path": "/m", "count": 1}, {"id": id('c'), "path": "/n", "count": 0}]),
        );
        let link = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        fs::create_dir_all(root.join("overlay/l")).unwrap();
        std::os::unix::fs::symlink(format!("../{}/diff", id('e')), root.join("overlay/l").join(link))
            .unwrap();
        let table = root.join("mountinfo");
        fs::write(
            &table,
            format!("36 35 0:40 / /some/place rw - overlay overlay rw,lowerdir=l/{link}:l/XX,upperdir=/u\n"),
        )
        .unwrap();
        let store = Store::open(root, &StorageConf::default()).unwrap();
        let host = HostState {
            run_root: run.path().into(),
            mount_tables: vec![table, "/nonexistent/mountinfo".into()],
        };
        let users = store.users(&host).unwrap();
        let of = |digit| users.of(&LayerId::from_hex(&id(digit)).unwrap());
        for digit in ['a', 'b'] {
            assert_eq!(of(digit), Some("container `web` (999999999999)"));
        }
        for digit in ['d', 'e'] {
            assert_eq!(of(digit), Some("the mount `/some/place`"));
        }
        assert_eq!((of('f'), of('c')), (Some("the mount `/m`"), None));
    }
}
