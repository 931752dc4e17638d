//! Collects the options with which CRI-O opens its store, from storage.conf and then crio.conf.
//!
//! Each setting keeps its file and key for messages.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::driver_options::DriverOptions;
use super::{Setting, StorageConf, StorageConfError, lowered};

/// Keys under `[storage.options]` that become options of the driver, in the order of containers/storage
/// (`options.go`: `ReloadConfigurationFile`). This old form is from the time when a store had one driver.
const OPTIONS: [&str; 7] = [
    "size",
    "mount_program",
    "skip_mount_home",
    "ignore_chown_errors",
    "use_composefs",
    "force_mask",
    "mountopt",
];

/// Those under `[storage.options.overlay]` (`config.go`: `GetGraphDriverOptions`).
const OVERLAY_OPTIONS: [&str; 9] = [
    "ignore_chown_errors",
    "mount_program",
    "mountopt",
    "size",
    "inodes",
    "skip_mount_home",
    "force_mask",
    "use_composefs",
    "sync",
];

/// Id mappings for the files of every layer; removed in containers/storage 1.54.
const MAPPINGS: [&str; 4] = ["remap-uids", "remap-gids", "remap-user", "remap-group"];

/// Keys of `[storage]` that locate the store. In other tables containers/storage ignores them with a warning and uses
/// its defaults, which are certainly not the intended store.
const LOCATIONS: [&str; 4] = ["driver", "graphroot", "runroot", "rootless_storage_path"];

/// The settings that were read so far.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    driver: Option<Setting>,
    driver_priority: Option<Setting>,
    graph_root: Option<Setting>,
    run_root: Option<Setting>,
    image_store: Option<Setting>,
    mappings: Vec<Setting>,
    driver_options: Vec<Setting>,
}

impl StoreOptions {
    /// Adds the text of a storage.conf, read from `file`. Irrelevant keys are ignored.
    pub fn add_storage_conf(&mut self, text: &str, file: &Path) -> Result<(), StorageConfError> {
        let root = lowered(text.parse()?);
        let storage = table(&root, "", "storage")?;
        let options = table(&storage, "storage.", "options")?;
        let overlay = table(&options, "storage.options.", "overlay")?;
        for (prefix, misplaced) in [
            ("", &root),
            ("storage.options.", &options),
            ("storage.options.overlay.", &overlay),
        ] {
            if let Some(key) = LOCATIONS.iter().find(|key| misplaced.contains_key(**key)) {
                return Err(StorageConfError::Misplaced {
                    key: format!("{prefix}{key}"),
                });
            }
        }
        let text_of = |table, prefix, key| text_of(table, prefix, key, file);
        self.driver = text_of(&storage, "storage.", "driver")?.or(self.driver.take());
        self.graph_root = text_of(&storage, "storage.", "graphroot")?.or(self.graph_root.take());
        self.run_root = text_of(&storage, "storage.", "runroot")?.or(self.run_root.take());
        for (table, prefix) in [(&storage, "storage."), (&options, "storage.options.")] {
            self.image_store = text_of(table, prefix, "imagestore")?.or(self.image_store.take());
        }
        let priority = strings(&storage, "storage.", "driver_priority")?;
        if let Some(first) = priority.first() {
            let shown = shown(&storage["driver_priority"]);
            let setting = Setting::new(first, "storage.driver_priority", &shown, file);
            self.driver_priority = Some(setting);
        }
        for (key, option) in [
            ("additionalimagestores", "imagestore"),
            ("additionallayerstores", "additionallayerstore"),
        ] {
            for path in strings(&options, "storage.options.", key)? {
                let (value, shown) = (format!("{option}={path}"), shown(&options[key]));
                let key = format!("storage.options.{key}");
                self.driver_options.push(Setting::new(value, &key, &shown, file));
            }
        }
        for (prefix, table, keys) in [
            ("storage.options.", &options, &OPTIONS[..]),
            ("storage.options.overlay.", &overlay, &OVERLAY_OPTIONS),
        ] {
            for key in keys {
                if let Some(value) = table.get(*key).and_then(option_value) {
                    let (key, shown) = (format!("{prefix}{key}"), shown(&table[*key]));
                    let option = key.rsplit('.').next().unwrap_or_default();
                    let value = format!("overlay.{option}={value}");
                    self.driver_options.push(Setting::new(value, &key, &shown, file));
                }
            }
        }
        for key in MAPPINGS {
            self.mappings.extend(text_of(&options, "storage.options.", key)?);
        }
        Ok(())
    }

    /// Sets `[crio] root`; an empty value changes nothing, as for the next two.
    pub fn set_graph_root(&mut self, setting: Setting) {
        replace(&mut self.graph_root, setting);
    }

    /// Sets `[crio] runroot`.
    pub fn set_run_root(&mut self, setting: Setting) {
        replace(&mut self.run_root, setting);
    }

    /// Sets `[crio] storage_driver`.
    pub fn set_driver(&mut self, setting: Setting) {
        replace(&mut self.driver, setting);
    }

    /// Sets `[crio] imagestore`; an empty value clears the one from storage.conf.
    pub fn set_image_store(&mut self, setting: Setting) {
        self.image_store = Some(setting).filter(|setting| !setting.value.is_empty());
    }

    /// Adds one of `[crio] storage_option` after the existing options. Of two equal ones the later one stays.
    pub fn add_driver_option(&mut self, setting: Setting) {
        self.driver_options.retain(|before| before.value != setting.value);
        self.driver_options.push(setting);
    }

    /// Ignores the graph root of the files, because a flag sets it.
    pub fn forget_graph_root(&mut self) {
        self.graph_root = None;
    }

    /// The resulting configuration.
    pub fn resolve(&self) -> StorageConf {
        let mut unsupported = Vec::new();
        let mut refuse = |setting: &Setting, reason: &str| unsupported.push(format!("{setting}: {reason}"));
        let is_overlay = |setting: &&Setting| matches!(setting.value.as_str(), "overlay" | "overlay2");
        match (&self.driver, &self.driver_priority) {
            (Some(driver), _) if !is_overlay(&driver) => {
                refuse(driver, "only the driver `overlay` is supported");
            }
            // CRI-O ignores it, podman uses it.
            (None, Some(first)) if !is_overlay(&first) => {
                refuse(first, "podman may choose another driver than `overlay`");
            }
            _ => {}
        }
        if let Some(setting) = &self.image_store {
            refuse(
                setting,
                "images and containers in different directories are not supported",
            );
        }
        for setting in &self.mappings {
            refuse(setting, "files would need mapped owners");
        }
        let mut path_of = |setting: &Option<Setting>| {
            let setting = setting.as_ref()?;
            // CRI-O runs as root.
            let path = setting.value.replace("$UID", "0");
            if path.contains('$') {
                refuse(setting, "the path depends on CRI-O's environment");
            }
            Some(PathBuf::from(path))
        };
        let (graph_root, run_root) = (path_of(&self.graph_root), path_of(&self.run_root));
        let driver_options = DriverOptions::of(&self.driver_options);
        unsupported.extend(driver_options.refused);
        StorageConf {
            graph_root,
            run_root,
            additional_image_stores: driver_options.image_stores,
            unsupported,
        }
    }
}

fn replace(current: &mut Option<Setting>, setting: Setting) {
    if !setting.value.is_empty() {
        *current = Some(setting);
    }
}

/// The value that containers/storage passes to the driver; `None` for unset values: an empty string and the number 0
/// (the string `0` is a mask).
fn option_value(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text.is_empty() => None,
        Value::Integer(0) => None,
        Value::String(text) => Some(text.clone()),
        value => Some(shown(value)),
    }
}

fn wrong(prefix: &str, key: &str, expected: &'static str, value: &Value) -> StorageConfError {
    StorageConfError::Type {
        key: format!("{prefix}{key}"),
        expected,
        value: shown(value),
    }
}

/// The value for messages, as JSON, which equals TOML for all values that occur.
fn shown(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn table(parent: &Table, prefix: &str, key: &str) -> Result<Table, StorageConfError> {
    match parent.get(key) {
        None => Ok(Table::new()),
        Some(Value::Table(table)) => Ok(table.clone()),
        Some(value) => Err(wrong(prefix, key, "a table", value)),
    }
}

fn text_of(table: &Table, prefix: &str, key: &str, file: &Path) -> Result<Option<Setting>, StorageConfError> {
    match table.get(key) {
        None => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(value @ Value::String(text)) => {
            let key = format!("{prefix}{key}");
            Ok(Some(Setting::new(text, &key, &shown(value), file)))
        }
        Some(value) => Err(wrong(prefix, key, "a string", value)),
    }
}

/// A list of strings. Newer versions also accept `{append = true}` in it (`configfile.Slice`), which has no effect
/// with one file.
fn strings(table: &Table, prefix: &str, key: &str) -> Result<Vec<String>, StorageConfError> {
    let list = match table.get(key) {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(value) => return Err(wrong(prefix, key, "a list of strings", value)),
    };
    let texts = list.iter().filter_map(|value| match value {
        Value::String(text) => Some(Ok(text.clone())),
        Value::Table(attributes) if attributes.keys().all(|key| key == "append") => None,
        value => Some(Err(wrong(prefix, key, "a list of strings", value))),
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn crio(value: &str, key: &str) -> Setting {
        Setting::new(
            value,
            key,
            &format!("{value:?}"),
            Path::new("/etc/crio/crio.conf"),
        )
    }

    #[test]
    fn crio_conf_overrides_and_adds() {
        let mut options = StoreOptions::default();
        let text = "[storage]\ndriver = \"vfs\"\ngraphroot = \"/s\"\nrunroot = \"/r\"\nimagestore = \"/i\"\n\
                    [storage.options]\nadditionalimagestores = [\"/a\"]\n\
                    [storage.options.overlay]\nuse_composefs = \"true\"";
        options.add_storage_conf(text, Path::new("s")).unwrap();
        assert_eq!(options.resolve().unsupported.len(), 3, "{:?}", options.resolve());
        options.set_driver(crio("overlay", "crio.storage_driver"));
        options.set_graph_root(crio("/g", "crio.root"));
        options.set_run_root(crio("", "crio.runroot"));
        options.set_image_store(crio("", "crio.imagestore"));
        for option in [
            "overlay.imagestore=/b",
            "imagestore=/a",
            "overlay.use_composefs=false",
        ] {
            options.add_driver_option(crio(option, "crio.storage_option"));
        }
        let expected = StorageConf {
            graph_root: Some("/g".into()),
            run_root: Some("/r".into()),
            // The repeated one moves to the end.
            additional_image_stores: vec!["/b".into(), "/a".into()],
            unsupported: vec![],
        };
        assert_eq!(options.resolve(), expected);
        options.set_image_store(crio("/j", "crio.imagestore"));
        let refused = options.resolve().unsupported;
        assert!(
            refused[0].starts_with("`crio.imagestore = \"/j\"` in `/etc/crio/crio.conf`: "),
            "{refused:?}"
        );
    }

    #[test]
    fn paths_from_cri_o_s_environment_are_refused_unless_a_flag_sets_them() {
        let mut options = StoreOptions::default();
        let text = "[storage]\ngraphroot = \"$HOME/s\"\nrunroot = \"/run/$UID/s\"";
        options.add_storage_conf(text, Path::new("s")).unwrap();
        assert_eq!(options.resolve().unsupported.len(), 1);
        options.forget_graph_root();
        assert_eq!(options.resolve().unsupported, Vec::<String>::new());
        assert_eq!(options.resolve().run_root, Some("/run/0/s".into()));
    }
}
