//! storage.conf, as far as it says where the store is and whether its form is one that we can write.
//!
//! What a program of containers/storage would do differently from us (a mount program, id mappings, masks) is
//! kept as a list of reasons to refuse; `Store::open` does the refusing, so that a configuration can be shown
//! without.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// Where containers/storage looks, the administrator's file first; the first that exists is the only one
/// read.
const FILES: [&str; 2] = ["etc/containers/storage.conf", "usr/share/containers/storage.conf"];

/// Options that change what is written to the store, under `[storage.options]` (the old spelling) or
/// `[storage.options.overlay]`.
const REFUSED_OPTIONS: [&str; 9] = [
    "imagestore",
    "mount_program",
    "force_mask",
    "use_composefs",
    "ignore_chown_errors",
    "remap-uids",
    "remap-gids",
    "remap-user",
    "remap-group",
];

/// Keys of `[storage]` that name a place. Elsewhere containers/storage ignores them with a warning and uses
/// its defaults, which is certainly not what whoever wrote them wants filled with images.
const PLACES: [&str; 4] = ["driver", "graphroot", "runroot", "rootless_storage_path"];

/// The part of storage.conf that matters to a writer. The default is that of a host without the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageConf {
    /// `[storage] driver` as written; empty lets containers/storage choose, and it chooses overlay.
    pub driver: String,
    /// `[storage] graphroot` as written, environment names in it not expanded.
    pub graph_root: Option<PathBuf>,
    /// `[storage] runroot` as written.
    pub run_root: Option<PathBuf>,
    /// `[storage.options] additionalimagestores`: read-only stores whose images CRI-O sees too.
    pub additional_image_stores: Vec<PathBuf>,
    /// Options that are set and that `Store` refuses, as `key = value`.
    pub unsupported: Vec<String>,
}

/// Why a storage.conf could not be understood.
#[derive(Debug, thiserror::Error)]
pub enum StorageConfError {
    /// It is not TOML.
    #[error("not TOML: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A key has a value of the wrong type.
    #[error("`{key}` must be {expected}, and is `{value}`")]
    Type {
        /// The key with its tables.
        key: String,
        /// What containers/storage wants.
        expected: &'static str,
        /// What is there.
        value: String,
    },
    /// A key that says where the store is stands where it has no effect.
    #[error("`{key}` has no effect there\nhint: it belongs into the table `[storage]`")]
    Misplaced {
        /// The key with its tables.
        key: String,
    },
}

impl StorageConf {
    /// Understands the text of a storage.conf. Keys that do not matter here are not looked at.
    pub fn parse(text: &str) -> Result<Self, StorageConfError> {
        let root: Table = text.parse()?;
        let storage = table(&root, "", "storage")?;
        let options = table(&storage, "storage.", "options")?;
        let overlay = table(&options, "storage.options.", "overlay")?;
        for (prefix, misplaced) in [
            ("", &root),
            ("storage.options.", &options),
            ("storage.options.overlay.", &overlay),
        ] {
            if let Some(key) = PLACES.iter().find(|key| misplaced.contains_key(**key)) {
                return Err(StorageConfError::Misplaced {
                    key: format!("{prefix}{key}"),
                });
            }
        }
        let mut unsupported = Vec::new();
        let mut refuse = |prefix: &str, key: &str, table: &Table| {
            if let Some(value) = table.get(key).filter(|value| is_set(value)) {
                unsupported.push(format!("{prefix}{key} = {}", shown(value)));
            }
        };
        refuse("storage.", "imagestore", &storage);
        for key in REFUSED_OPTIONS {
            refuse("storage.options.", key, &options);
            refuse("storage.options.overlay.", key, &overlay);
        }
        Ok(Self {
            driver: text_of(&storage, "storage.", "driver")?.unwrap_or_default(),
            graph_root: text_of(&storage, "storage.", "graphroot")?.map(PathBuf::from),
            run_root: text_of(&storage, "storage.", "runroot")?.map(PathBuf::from),
            additional_image_stores: paths(&options, "storage.options.", "additionalimagestores")?,
            unsupported,
        })
    }

    /// The file that counts on the host whose root is `host_root`, if there is one.
    pub fn find(host_root: &Path) -> Option<PathBuf> {
        FILES
            .iter()
            .map(|file| host_root.join(file))
            .find(|file| file.exists())
    }
}

fn wrong(prefix: &str, key: &str, expected: &'static str, value: &Value) -> StorageConfError {
    StorageConfError::Type {
        key: format!("{prefix}{key}"),
        expected,
        value: shown(value),
    }
}

/// The value for people; JSON's spelling is TOML's for all that occurs.
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

fn text_of(table: &Table, prefix: &str, key: &str) -> Result<Option<String>, StorageConfError> {
    match table.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Some(value) => Err(wrong(prefix, key, "a string", value)),
    }
}

fn paths(table: &Table, prefix: &str, key: &str) -> Result<Vec<PathBuf>, StorageConfError> {
    let list = match table.get(key) {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(value) => return Err(wrong(prefix, key, "a list of paths", value)),
    };
    let path = |value: &Value| match value {
        Value::String(path) => Ok(PathBuf::from(path)),
        value => Err(wrong(prefix, key, "a list of paths", value)),
    };
    list.iter().map(path).collect()
}

/// containers/storage writes its booleans as strings and takes the empty string and 0 for "not set".
fn is_set(value: &Value) -> bool {
    match value {
        Value::String(text) => !matches!(text.as_str(), "" | "0" | "f" | "F" | "false" | "FALSE" | "False"),
        Value::Boolean(set) => *set,
        Value::Integer(number) => *number != 0,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_node_s_file_says_where_the_store_is() {
        let text = "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/x\"\ngraphroot = \"/var/x\"\n\
                    [storage.options]\nadditionalimagestores = [\"/a\"]\nsize = \"\"\n\
                    [storage.options.overlay]\nskip_mount_home = \"true\"\nforce_mask = \"\"\nmountopt = \"nodev\"";
        let expected = StorageConf {
            driver: "overlay".into(),
            graph_root: Some("/var/x".into()),
            run_root: Some("/run/x".into()),
            additional_image_stores: vec!["/a".into()],
            unsupported: vec![],
        };
        assert_eq!(StorageConf::parse(text).unwrap(), expected);
        assert_eq!(StorageConf::parse("").unwrap(), StorageConf::default());
    }

    #[test]
    fn everything_that_changes_what_is_written_is_noticed_in_both_spellings() {
        for (text, expected) in [
            ("[storage]\nimagestore = \"/i\"", "storage.imagestore = \"/i\""),
            (
                "[storage.options]\nmount_program = \"/f\"",
                "storage.options.mount_program = \"/f\"",
            ),
            (
                "[storage.options]\nforce_mask = 0o700",
                "storage.options.force_mask = 448",
            ),
            (
                "[storage.options.overlay]\nforce_mask = \"0700\"",
                "storage.options.overlay.force_mask = \"0700\"",
            ),
            (
                "[storage.options]\noverlay.use_composefs = \"true\"",
                "storage.options.overlay.use_composefs = \"true\"",
            ),
            (
                "[storage.options]\nignore_chown_errors = \"true\"",
                "storage.options.ignore_chown_errors = \"true\"",
            ),
            (
                "[storage.options]\nremap-uids = \"0:1:2\"",
                "storage.options.remap-uids = \"0:1:2\"",
            ),
            (
                "[storage.options]\nremap-user = \"storage\"",
                "storage.options.remap-user = \"storage\"",
            ),
        ] {
            assert_eq!(
                StorageConf::parse(text).unwrap().unsupported,
                [expected],
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_not_a_storage_conf_is_refused() {
        for text in [
            "[storage",
            "storage = 1",
            "[storage]\ngraphroot = 1",
            "[storage.options]\ngraphroot = \"/g\"",
            "graphroot = \"/g\"",
            "[storage.options]\nadditionalimagestores = \"/a\"",
        ] {
            assert!(StorageConf::parse(text).is_err(), "{text}");
        }
    }

    /// The corpus is a reference outside of the repository; where it is absent, the tests above stand for it.
    #[test]
    fn the_corpus_parses_and_its_broken_file_does_not() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus/storage-conf");
        for group in ["machineconfig", "defaults", "types"] {
            for file in std::fs::read_dir(corpus.join(group))
                .into_iter()
                .flatten()
                .flatten()
            {
                let parsed = StorageConf::parse(&std::fs::read_to_string(file.path()).unwrap());
                let broken = file.file_name() == "storage_broken.conf";
                assert_eq!(parsed.is_err(), broken, "{}: {parsed:?}", file.path().display());
                assert!(parsed.iter().all(|conf| conf.unsupported.is_empty()));
            }
        }
    }
}
