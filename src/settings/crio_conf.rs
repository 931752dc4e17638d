//! Parses crio.conf and its drop-ins: the settings of the store, of pulling and pinning images and of the signature policy.
//!
//! CRI-O starts with the settings of storage.conf, then reads `/etc/crio/crio.conf`, then every file below
//! `/etc/crio/crio.conf.d` in the order of their names, with any suffix (`pkg/config/config.go`: `UpdateFromDropInFile`,
//! `UpdateFromPath`). A later file overrides an earlier one key by key; options of the storage driver accumulate; an empty
//! `root`, `runroot` or `storage_driver` changes nothing. CRI-O does not start if a file does not parse.
//!
//! CRI-O's command line and environment (`--root`, `CONTAINER_ROOT`, `STORAGE_OPTS`) are unknown here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Table;

use super::host_files::is_present;
use crate::store::{Setting, StoreOptions, lowered};
use crate::upgrade_readiness::PinPatterns;

/// The main file, which is optional.
const FILE: &str = "etc/crio/crio.conf";

/// The directory of its drop-ins.
const DROP_INS: &str = "etc/crio/crio.conf.d";

/// The deepest directory. CRI-O has no limit; nodes have at most one level.
const DEPTH_LIMIT: usize = 8;

/// The settings of all files together, except the store's.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CrioConf {
    /// `[crio.image] global_auth_file`: logins for images for which the kubelet has none.
    pub(super) global_auth_file: Option<PathBuf>,
    /// `[crio.image] insecure_registries`: requested without TLS up to CRI-O 1.34, later with TLS.
    pub(super) insecure_registries: Vec<String>,
    /// `[crio.image] signature_policy`: the policy.json for all images.
    pub(super) signature_policy: Option<PathBuf>,
    /// `[crio.image] signature_policy_dir`: the directory of the policies of namespaces.
    pub(super) signature_policy_dir: Option<PathBuf>,
    /// `[crio.image] pinned_images`: patterns of the images that the kubelet does not remove.
    pub(super) pinned_images: Vec<String>,
    /// `[crio.image] pause_image`, which CRI-O pins too. The default depends on its version.
    pub(super) pause_image: Option<String>,
}

/// How CRI-O treats a short name that could be several images.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ShortNameMode {
    #[serde(alias = "")]
    Enforcing,
    Disabled,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CrioConfFile {
    crio: Crio,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Crio {
    root: Option<String>,
    runroot: Option<String>,
    imagestore: Option<String>,
    storage_driver: Option<String>,
    storage_option: Vec<String>,
    image: Image,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Image {
    global_auth_file: Option<String>,
    insecure_registries: Option<Vec<String>>,
    signature_policy: Option<String>,
    signature_policy_dir: Option<String>,
    pinned_images: Option<Vec<String>>,
    pause_image: Option<String>,
    /// Only validated: in either mode it is unknown here which image a pod gets.
    #[serde(rename = "short_name_mode")]
    _short_name_mode: Option<ShortNameMode>,
}

impl CrioConf {
    /// What CRI-O pins.
    pub(super) fn pins(&self) -> PinPatterns {
        let patterns = self.pinned_images.iter().chain(&self.pause_image);
        PinPatterns::new(patterns.map(String::as_str))
    }

    /// Adds the settings of one file with this path; those of the store are added to `options`.
    pub(super) fn add(
        &mut self,
        text: &str,
        file: &Path,
        options: &mut StoreOptions,
    ) -> Result<(), toml::de::Error> {
        // Parses the original text first, so that an error shows the line.
        let _: CrioConfFile = toml::from_str(text)?;
        let CrioConfFile { crio } = lowered(text.parse::<Table>()?).try_into()?;
        let setting = |value: &str, key: &str| {
            let shown = serde_json::to_string(value).unwrap_or_default();
            Setting::new(value, &format!("crio.{key}"), &shown, file)
        };
        if let Some(root) = crio.root {
            options.set_graph_root(setting(&root, "root"));
        }
        if let Some(runroot) = crio.runroot {
            options.set_run_root(setting(&runroot, "runroot"));
        }
        if let Some(imagestore) = crio.imagestore {
            options.set_image_store(setting(&imagestore, "imagestore"));
        }
        if let Some(driver) = crio.storage_driver {
            options.set_driver(setting(&driver, "storage_driver"));
        }
        for option in crio.storage_option {
            options.add_driver_option(setting(&option, "storage_option"));
        }
        let image = crio.image;
        for (path, setting) in [
            (image.global_auth_file, &mut self.global_auth_file),
            (image.signature_policy, &mut self.signature_policy),
            (image.signature_policy_dir, &mut self.signature_policy_dir),
        ] {
            if let Some(path) = path {
                *setting = (!path.is_empty()).then(|| PathBuf::from(path));
            }
        }
        if let Some(registries) = image.insecure_registries {
            self.insecure_registries = registries;
        }
        if let Some(patterns) = image.pinned_images {
            self.pinned_images = patterns;
        }
        if let Some(pause_image) = image.pause_image {
            self.pause_image = Some(pause_image);
        }
        Ok(())
    }
}

/// The files below `root`, the host's root, in the order in which CRI-O reads them.
///
/// # Errors
/// A directory that cannot be read, with its path.
pub(super) fn files(root: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let mut files = vec![root.join(FILE)];
    files.retain(|file| is_present(file));
    let dir = root.join(DROP_INS);
    if is_present(&dir) {
        walk(&dir, 0, &mut files)?;
    }
    Ok(files)
}

/// Lists files in the order of Go's `filepath.Walk`: sorted by name, depth first, symlinks as files.
fn walk(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), (PathBuf, io::Error)> {
    let failed = |error| (dir.to_owned(), error);
    if depth > DEPTH_LIMIT {
        let error = io::Error::other(format!("directories more than {DEPTH_LIMIT} deep"));
        return Err(failed(error));
    }
    let entries: io::Result<Vec<_>> = fs::read_dir(dir).map_err(failed)?.collect();
    let mut entries = entries.map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let is_dir = entry.file_type().map_err(failed)?.is_dir();
        match is_dir {
            true => walk(&entry.path(), depth + 1, files)?,
            false => files.push(entry.path()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stderr)]
    use super::*;

    #[test]
    fn a_later_file_overrides_key_by_key_and_options_add_up() {
        let mut conf = CrioConf::default();
        let mut options = StoreOptions::default();
        for text in [
            "[crio]\nRoot = \"/g1\"\nrunroot = \"/r1\"\nstorage_option = [\"overlay.imagestore=/a\", \"overlay.size=1G\"]\n\
             [crio.image]\nglobal_auth_file = \"/k\"\ninsecure_registries = [\"r:1\"]\nsignature_policy = \"/p\"\nshort_name_mode = \"disabled\"",
            "[crio]\nroot = \"/g2\"\nrunroot = \"\"\nstorage_option = [\"overlay.imagestore=/b\"]\n[crio.runtime]\nx = 1",
            "[crio.image]\npause_image = \"p\"\npinned_images = [\"a\"]\nbig_files_temporary_dir = \"/t\"\nsignature_policy_dir = \"/d\"",
        ] {
            conf.add(text, Path::new("c"), &mut options).unwrap();
        }
        let expected = CrioConf {
            global_auth_file: Some("/k".into()),
            insecure_registries: vec!["r:1".into()],
            signature_policy: Some("/p".into()),
            signature_policy_dir: Some("/d".into()),
            pinned_images: vec!["a".into()],
            pause_image: Some("p".into()),
        };
        assert_eq!(conf, expected);
        let storage = options.resolve();
        assert_eq!(
            (storage.graph_root, storage.run_root),
            (Some("/g2".into()), Some("/r1".into()))
        );
        assert_eq!(
            storage.additional_image_stores,
            [Path::new("/a"), Path::new("/b")]
        );
        assert!(storage.unsupported.is_empty());
        let text = "[crio.image]\nglobal_auth_file = \"\"\nshort_name_mode = \"\"\ninsecure_registries = []\nsignature_policy = \"\"\nsignature_policy_dir = \"\"\npinned_images = []";
        conf.add(text, Path::new("c"), &mut options).unwrap();
        conf.pause_image = None;
        assert_eq!(conf, CrioConf::default());
    }

    #[test]
    fn settings_that_keep_cri_o_from_starting_are_an_error() {
        for text in [
            "[crio",
            "crio = 1",
            "[crio]\nroot = 1",
            "[crio]\nstorage_option = \"overlay.size=1\"",
            "[crio]\nRoot = 1",
            "[crio.image]\nshort_name_mode = \"permissive\"",
        ] {
            let added = CrioConf::default().add(text, Path::new("c"), &mut StoreOptions::default());
            assert!(added.is_err(), "{text}");
        }
    }

    #[test]
    fn files_are_in_the_order_of_cri_o() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(files(dir.path()).unwrap(), Vec::<PathBuf>::new());
        let drop_ins = dir.path().join(DROP_INS);
        fs::create_dir_all(drop_ins.join("10-more")).unwrap();
        for name in ["00-default", "20-last.conf", "10-more/z", "1"] {
            fs::write(drop_ins.join(name), "").unwrap();
        }
        fs::write(dir.path().join(FILE), "").unwrap();
        let found = files(dir.path()).unwrap();
        let shown: Vec<_> = found
            .iter()
            .map(|file| file.strip_prefix(dir.path()).unwrap())
            .collect();
        let expected =
            ["00-default", "1", "10-more/z", "20-last.conf"].map(|name| Path::new(DROP_INS).join(name));
        assert_eq!(shown[0], Path::new(FILE));
        assert_eq!(shown[1..], expected);
    }

    /// The corpus is outside of the repository; without it, this test reads nothing.
    #[test]
    fn the_configurations_of_the_corpus_name_the_logins() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus/crio-conf/machineconfig");
        let (mut read, mut refused) = (0, 0);
        for file in fs::read_dir(corpus).into_iter().flatten().flatten() {
            let (mut conf, mut options) = (CrioConf::default(), StoreOptions::default());
            let added = conf.add(
                &fs::read_to_string(file.path()).unwrap(),
                &file.path(),
                &mut options,
            );
            // Not a crio.conf, but in the same directory of a MachineConfig.
            if file.file_name().to_string_lossy().ends_with(".rules") {
                assert!(added.is_err());
                refused += 1;
                continue;
            }
            added.unwrap();
            assert_eq!(conf.global_auth_file, Some("/var/lib/kubelet/config.json".into()));
            assert_eq!(options.resolve(), crate::store::StorageConf::default());
            read += 1;
        }
        eprintln!("COUNTED {read} files of the corpus's crio-conf, {refused} that are not crio.conf");
    }
}
