//! Parses storage.conf: where the store is, the additional image stores, and settings that this program does not
//! support.
//!
//! ```text
//! storage.conf ─┐
//! crio.conf ────┴→ StoreOptions ─resolve→ StorageConf      where, which additional stores, reasons to refuse
//! ```
//!
//! Settings under which containers/storage would write differently from us (a mount program, id mappings, masks)
//! become a list of reasons. `Store::open` refuses them, so that a configuration can be shown without an error.

mod driver_options;
mod setting;
mod store_options;

use std::path::{Path, PathBuf};

use toml::{Table, Value};

pub use setting::Setting;
pub use store_options::StoreOptions;

/// The settings that matter for writing. The default is that of a host without configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageConf {
    /// The graph root as written.
    pub graph_root: Option<PathBuf>,
    /// The run root as written.
    pub run_root: Option<PathBuf>,
    /// Read-only stores whose images CRI-O uses too, in the order of the search.
    pub additional_image_stores: Vec<PathBuf>,
    /// Settings that `Store` refuses, each with its file and the reason.
    pub unsupported: Vec<String>,
}

/// Why a storage.conf is invalid.
#[derive(Debug, thiserror::Error)]
pub enum StorageConfError {
    /// It is not TOML.
    #[error("not TOML: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A key has a value of the wrong type.
    #[error("`{key}` must be {expected}, but is `{value}`")]
    Type {
        /// The key with its tables.
        key: String,
        /// The type that containers/storage requires.
        expected: &'static str,
        /// The value in the file.
        value: String,
    },
    /// A key that locates the store is in a table where it has no effect.
    #[error("`{key}` has no effect there\nhint: move it to the table `[storage]`")]
    Misplaced {
        /// The key with its tables.
        key: String,
    },
}

impl StorageConf {
    /// Parses the text of one storage.conf.
    pub fn parse(text: &str) -> Result<Self, StorageConfError> {
        let mut options = StoreOptions::default();
        options.add_storage_conf(text, Path::new("storage.conf"))?;
        Ok(options.resolve())
    }
}

/// Converts every key to lower case: the TOML library of containers/storage and CRI-O matches `GraphRoot` to
/// `graphroot` (BurntSushi/toml `decode.go`: `unifyStruct`).
pub(crate) fn lowered(table: Table) -> Table {
    let lower = |(key, value): (String, Value)| {
        let value = match value {
            Value::Table(table) => Value::Table(lowered(table)),
            value => value,
        };
        (key.to_lowercase(), value)
    };
    table.into_iter().map(lower).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stderr)]
    use super::*;

    #[test]
    fn a_node_s_file_says_where_the_store_is() {
        let text = "[storage]\nDriver = \"overlay\"\nrunroot = \"/run/x\"\nGraphRoot = \"/var/x\"\n\
                    [storage.options]\nadditionalimagestores = [\"/a\", {append = true}]\nsize = \"\"\n\
                    [storage.options.overlay]\nskip_mount_home = \"true\"\nforce_mask = \"\"\nmountopt = \"nodev\"";
        let expected = StorageConf {
            graph_root: Some("/var/x".into()),
            run_root: Some("/run/x".into()),
            additional_image_stores: vec!["/a".into()],
            unsupported: vec![],
        };
        assert_eq!(StorageConf::parse(text).unwrap(), expected);
        assert_eq!(StorageConf::parse("").unwrap(), StorageConf::default());
    }

    /// One line of storage-format.md 4.8 each, and how each is named.
    #[test]
    fn everything_that_changes_what_is_written_is_noticed_in_both_spellings() {
        for (text, expected) in [
            ("[storage]\ndriver = \"vfs\"", "storage.driver = \"vfs\""),
            (
                "[storage]\ndriver_priority = [\"btrfs\", \"overlay\"]",
                "storage.driver_priority = [\"btrfs\",\"overlay\"]",
            ),
            ("[storage]\nimagestore = \"/i\"", "storage.imagestore = \"/i\""),
            (
                "[storage]\ngraphroot = \"$HOME/s\"",
                "storage.graphroot = \"$HOME/s\"",
            ),
            (
                "[storage.options]\nimagestore = \"/i\"",
                "storage.options.imagestore = \"/i\"",
            ),
            (
                "[storage.options]\nmount_program = \"/f\"",
                "storage.options.mount_program = \"/f\"",
            ),
            (
                "[storage.options]\nforce_mask = 0o700",
                "storage.options.force_mask = 448",
            ),
            (
                "[storage.options.overlay]\nforce_mask = \"0\"",
                "storage.options.overlay.force_mask = \"0\"",
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
                "[storage.options.overlay]\nignore_chown_errors = \"true\"",
                "storage.options.overlay.ignore_chown_errors = \"true\"",
            ),
            (
                "[storage.options.overlay]\nmount_program = \"/f\"",
                "storage.options.overlay.mount_program = \"/f\"",
            ),
            (
                "[storage.options]\nremap-uids = \"0:1:2\"",
                "storage.options.remap-uids = \"0:1:2\"",
            ),
            (
                "[storage.options]\nremap-gids = \"0:1:2\"",
                "storage.options.remap-gids = \"0:1:2\"",
            ),
            (
                "[storage.options]\nremap-user = \"storage\"",
                "storage.options.remap-user = \"storage\"",
            ),
            (
                "[storage.options]\nremap-group = \"storage\"",
                "storage.options.remap-group = \"storage\"",
            ),
            (
                "[storage.options]\nadditionalimagestores = [\"a\"]",
                "storage.options.additionalimagestores = [\"a\"]",
            ),
        ] {
            let unsupported = StorageConf::parse(text).unwrap().unsupported;
            let expected = format!("`{expected}` in `storage.conf`: ");
            assert!(
                matches!(&unsupported[..], [one] if one.starts_with(&expected)),
                "{text}: {unsupported:?}"
            );
        }
    }

    #[test]
    fn what_changes_nothing_of_layers_and_images_is_taken() {
        for text in [
            "[storage]\ndriver = \"overlay2\"",
            "[storage]\ndriver = \"overlay\"\ndriver_priority = [\"btrfs\"]",
            "[storage]\ndriver_priority = [\"overlay\", \"vfs\"]",
            "[storage]\ntransient_store = true\nrootless_storage_path = \"$HOME/s\"",
            "[storage.options]\nadditionallayerstores = [\"/l:ref\"]\nroot-auto-userns-user = \"storage\"",
            "[storage.options]\nauto-userns-min-size = 1\ndisable-volatile = true\nsize = \"10G\"",
            "[storage.options.pull_options]\nenable_partial_images = \"true\"\nuse_hard_links = \"true\"\n\
             convert_images = \"true\"\nostree_repos = \"/ostree\"",
            "[storage.options.overlay]\nmountopt = \"nodev,metacopy=on\"\nskip_mount_home = \"true\"\n\
             inodes = \"9\"\nsize = \"1G\"\nsync = \"filesystem\"\nuse_composefs = \"false\"\nmount_program = \"\"",
            "[storage.options.vfs]\nignore_chown_errors = \"true\"\n[storage.options.thinpool]\nfs = \"xfs\"",
        ] {
            assert_eq!(
                StorageConf::parse(text).unwrap(),
                StorageConf::default(),
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
            "[storage.options]\nadditionalimagestores = [1]",
        ] {
            assert!(StorageConf::parse(text).is_err(), "{text}");
        }
    }

    /// The corpus is a reference outside of the repository; without it, the tests above cover the parser.
    #[test]
    fn the_corpus_parses_and_its_broken_file_does_not() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus/storage-conf");
        let mut read = 0;
        for group in ["machineconfig", "defaults", "types"] {
            for file in std::fs::read_dir(corpus.join(group))
                .into_iter()
                .flatten()
                .flatten()
            {
                let parsed = StorageConf::parse(&std::fs::read_to_string(file.path()).unwrap());
                let broken = file.file_name() == "storage_broken.conf";
                assert_eq!(parsed.is_err(), broken, "{}: {parsed:?}", file.path().display());
                // `$HOME/$UID/containers/storage` depends on the environment.
                let refused = usize::from(file.file_name() == "storage_test.conf");
                assert!(
                    parsed.iter().all(|conf| conf.unsupported.len() == refused),
                    "{parsed:?}"
                );
                read += 1;
            }
        }
        eprintln!("COUNTED {read} files of the corpus's storage-conf");
    }
}
