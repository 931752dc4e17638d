//! Finds the layers that containers or mounts use, so that a repair does not touch them.
//!
//! ```text
//! overlay-containers/{containers,volatile-containers}.json   → the container's own layer, and its image's
//! overlay-layers/mountpoints.json (run root)                 → layers that containers/storage has mounted
//! /proc/<each>/mountinfo                                     → whatever else is mounted: `l/<link>` in its options
//! ```
//!
//! A layer in use keeps all layers below it in use, by the records and by its `lower`. Creating a container or
//! mounting a layer requires the layers lock, so the result is valid as long as the lock is held. In doubt a layer
//! counts as in use: a mount of another store with a layer of the same id counts too.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::Deserialize;

use super::container_records;
use super::error::{StoreError, io_error};
use super::escaped_name::EscapedName;
use super::host_state::HostState;
use super::json_record;
use super::layer_dir;
use super::layers_json::LayerView;
use super::layout::Layout;
use super::store::Store;
use crate::oci::LayerId;

/// The layers in use, with a description of the user.
#[derive(Debug, Default)]
pub struct LayersInUse {
    layers: HashMap<LayerId, String>,
}

#[derive(Deserialize)]
struct ImageView {
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
    /// Finds the layers in use.
    ///
    /// # Errors
    /// If a record cannot be read: then any layer may be in use.
    pub fn layers_in_use(&self, host: &HostState) -> Result<LayersInUse, StoreError> {
        let layout = &self.layout;
        let roots = [layout.root(), &host.run_root];
        let mut parents = HashMap::new();
        let volatile = roots.map(|root| root.join("overlay-layers/volatile-layers.json"));
        for path in [layout.layers_json()].iter().chain(&volatile) {
            for (view, _) in json_record::read::<LayerView>(path)? {
                let parent = view.parent().map(str::to_owned);
                parents.entry(view.id).or_insert(parent);
            }
        }
        let images = json_record::read::<ImageView>(&layout.images_json())?;
        let tops: HashMap<String, Option<String>> = images
            .into_iter()
            .map(|(image, _)| (image.id, image.layer))
            .collect();
        let mut used: Vec<(String, String)> = Vec::new();
        for container in container_records::read_all(&roots)? {
            let user = container.description();
            let top = container.image.and_then(|image| tops.get(&image)?.clone());
            used.extend(container.layer.map(|layer| (layer, user.clone())));
            used.extend(top.map(|layer| (layer, user)));
        }
        for root in roots {
            let path = root.join("overlay-layers/mountpoints.json");
            for (mount, _) in json_record::read::<MountPoint>(&path)? {
                if mount.count != Some(0) {
                    let path = mount.path.unwrap_or_default();
                    used.push((
                        mount.id,
                        format!("the mount `{}`", EscapedName::new(path.as_bytes())),
                    ));
                }
            }
        }
        let mut mounted = HashMap::new();
        let own = fs::read(&host.mount_table).map_err(io_error("read", &host.mount_table))?;
        add_mounts(&own, &mut mounted);
        add_mounts_of_all_processes(&host.proc, &mut mounted)?;
        let names = LinkNames {
            layout,
            own: OnceCell::new(),
        };
        for (name, mount_point) in mounted {
            let layer = match layer_dir::is_link_name(&name) {
                true => names.layer(&name),
                false => Some(name),
            };
            used.extend(layer.map(|layer| (layer, format!("the mount `{mount_point}`"))));
        }
        // `lower` determines what is mounted below a container's layer; a record may be damaged.
        for (layer, user) in used.clone() {
            let Some(id) = LayerId::from_hex(&layer) else {
                continue;
            };
            let lower = layer_dir::lower(layout, &id)?.unwrap_or_default();
            let links = lower.split(':').filter_map(|name| name.strip_prefix("l/"));
            let below = links.filter_map(|link| names.layer(link));
            used.extend(below.map(|layer| (layer, user.clone())));
        }
        let mut users = LayersInUse::default();
        for (layer, user) in used {
            let mut next = Some(layer);
            while let Some(layer) = next.take() {
                // The layers below a known layer are known too.
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

impl LayersInUse {
    /// A description of the layer's user.
    pub fn user_of(&self, layer: &LayerId) -> Option<&str> {
        self.layers.get(layer).map(String::as_str)
    }

    /// Fails if the layer is in use.
    pub fn check_unused(&self, layer: &LayerId) -> Result<(), StoreError> {
        let (layer, user) = match self.user_of(layer) {
            None => return Ok(()),
            Some(user) => (*layer, user.to_owned()),
        };
        Err(StoreError::InUse { layer, user })
    }
}

/// Adds the mounts that each process at `proc` sees, each mount namespace once: those of services repeat the mounts
/// of the host.
fn add_mounts_of_all_processes(
    proc: &Path,
    mounted: &mut HashMap<String, EscapedName>,
) -> Result<(), StoreError> {
    let processes = match fs::read_dir(proc) {
        Ok(processes) => processes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("list", proc)(error)),
    };
    let (mut seen, mut hidden) = (HashSet::new(), 0);
    for process in processes {
        let process = process.map_err(io_error("list", proc))?;
        let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        if !process.file_name().to_str().is_some_and(is_number) {
            continue;
        }
        let (namespace, table) = (process.path().join("ns/mnt"), process.path().join("mountinfo"));
        let read = fs::read_link(&namespace).and_then(|namespace| match seen.contains(&namespace) {
            true => Ok(None),
            false => fs::read(&table).map(|text| Some((namespace, text))),
        });
        match read {
            Ok(None) => {}
            Ok(Some((namespace, text))) => {
                seen.insert(namespace);
                add_mounts(&text, mounted);
            }
            Err(error) if has_ended(&error) => {}
            Err(error) if error.kind() == ErrorKind::PermissionDenied => hidden += 1,
            Err(error) => return Err(io_error("read", &table)(error)),
        }
    }
    if hidden > 0 {
        // The records of this store's containers still count.
        tracing::warn!(
            "cannot read the mounts of {hidden} processes in `{}`",
            proc.display()
        );
    }
    Ok(())
}

/// The errors for a process that has ended, or is about to end.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL))
}

/// Adds the ids and link names of layers in a mount table, from options and mount points, each with a mount point
/// that has it.
fn add_mounts(table: &[u8], mounted: &mut HashMap<String, EscapedName>) {
    let table = String::from_utf8_lossy(table);
    for line in table.lines().filter(|line| line.contains("overlay")) {
        let mount_point = line.split(' ').nth(4).unwrap_or_default();
        for word in line.split([' ', ',', '=', ':', '/']) {
            if layer_dir::is_link_name(word) || LayerId::from_hex(word).is_some() {
                let mount_point = || EscapedName::new(mount_point.as_bytes());
                mounted.entry(word.to_owned()).or_insert_with(mount_point);
            }
        }
    }
}

/// Finds the layer with a link name.
struct LinkNames<'l> {
    layout: &'l Layout,
    /// The names in the layers' `link` files, read when a symlink is missing.
    own: OnceCell<HashMap<String, String>>,
}

impl LinkNames<'_> {
    /// The layer to which `l/<link>` leads. A crash may have removed the symlink while the layer was mounted.
    fn layer(&self, link: &str) -> Option<String> {
        let Ok(target) = fs::read_link(self.layout.links().join(link)) else {
            return self.own.get_or_init(|| self.own_names()).get(link).cloned();
        };
        let id = target.parent().and_then(Path::file_name)?;
        id.to_str().map(str::to_owned)
    }

    fn own_names(&self) -> HashMap<String, String> {
        let layers = fs::read_dir(self.layout.overlay())
            .into_iter()
            .flatten()
            .flatten();
        let named = layers.filter_map(|layer| {
            let link = layer_dir::link_in(&layer.path()).ok().flatten()?;
            Some((link, layer.file_name().to_str()?.to_owned()))
        });
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::PathBuf;

    use super::*;
    use crate::store::StorageConf;

    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    #[test]
    fn a_layer_is_in_use_if_one_above_it_is() {
        if let Err(why) = crate::notice::root() {
            return crate::notice::skip(&why);
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
        let lower = "234567ABCDEFGHIJKLMNOPQRST";
        for (digit, link) in [('e', link), ('4', lower)] {
            let target = format!("../{}/diff", id(digit));
            std::os::unix::fs::symlink(target, root.join("overlay/l").join(link)).unwrap();
        }
        // No record has this layer below the container's layer.
        let top = root.join("overlay").join(id('1'));
        fs::create_dir_all(&top).unwrap();
        fs::write(
            top.join("lower"),
            format!("l/AAAAAAAAAAAAAAAAAAAAAAAAAA:l/{lower}"),
        )
        .unwrap();
        let (proc, own) = (root.join("proc"), root.join("mountinfo"));
        fs::write(&own, "").unwrap();
        fs::create_dir_all(proc.join("7/ns")).unwrap();
        std::os::unix::fs::symlink("mnt:[4026531841]", proc.join("7/ns/mnt")).unwrap();
        // One that has just ended.
        fs::create_dir(proc.join("8")).unwrap();
        fs::write(
            proc.join("7/mountinfo"),
            format!("36 35 0:40 / /some/place rw - overlay overlay rw,lowerdir=l/{link}:l/XX,upperdir=/u\n"),
        )
        .unwrap();
        let store = Store::open(root, &StorageConf::default()).unwrap();
        let host = HostState {
            run_root: run.path().into(),
            mount_table: own,
            proc,
        };
        let users = store.layers_in_use(&host).unwrap();
        let of = |digit| users.user_of(&LayerId::from_hex(&id(digit)).unwrap());
        for digit in ['a', 'b', '4'] {
            assert_eq!(of(digit), Some("container `web` (999999999999)"));
        }
        for digit in ['d', 'e'] {
            assert_eq!(of(digit), Some("the mount `/some/place`"));
        }
        assert_eq!((of('f'), of('c')), (Some("the mount `/m`"), None));
    }
}
