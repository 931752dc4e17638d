//! Interprets options of the overlay driver, `overlay.name=value`, as containers/storage does (`overlay.go`:
//! `parseOptions`).
//!
//! storage.conf has a key for each, crio.conf lists them as text (`storage_option`). Of two values the last one
//! counts, except for image stores, which accumulate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Setting;

/// Options that do not affect what is written into a layer or an image. `size` and `inodes` limit the writes of
/// containers. Layers from an additional layer store are refused one by one, by the file that marks them.
const HARMLESS: [&str; 7] = [
    "additionallayerstore",
    "inodes",
    "mountopt",
    "override_kernel_check",
    "size",
    "skip_mount_home",
    "sync",
];

/// Names of other drivers, before the dot of an option.
const OTHER_DRIVERS: [&str; 6] = ["aufs", "btrfs", "devicemapper", "dm", "vfs", "zfs"];

/// The combined effect of all options.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DriverOptions {
    /// The additional image stores in the order of the search, each once.
    pub(super) image_stores: Vec<PathBuf>,
    /// Options that forbid writing, each with the reason.
    pub(super) refused: Vec<String>,
}

impl DriverOptions {
    /// Reads the options in their order.
    pub(super) fn of(settings: &[Setting]) -> Self {
        let mut options = Self::default();
        let mut last: BTreeMap<String, (&str, &Setting)> = BTreeMap::new();
        for option in settings {
            let Some((name, value)) = option.value.split_once('=') else {
                options.refuse(option, "it is not of the form `name=value`");
                continue;
            };
            let (name, value) = (name.trim().to_lowercase(), value.trim());
            if OTHER_DRIVERS.iter().any(|driver| is_for(&name, driver)) {
                continue;
            }
            let name = ["overlay.", "overlay2.", "."]
                .iter()
                .fold(name.as_str(), |name, prefix| {
                    name.strip_prefix(prefix).unwrap_or(name)
                });
            match name {
                "imagestore" | "additionalimagestore" => options.add_stores(option, value),
                name => {
                    last.insert(name.to_owned(), (value, option));
                }
            }
        }
        for (name, (value, option)) in last {
            if let Some(reason) = objection(&name, value) {
                options.refuse(option, reason);
            }
        }
        options
    }

    fn add_stores(&mut self, option: &Setting, value: &str) {
        for store in value.split(',').filter(|store| !store.is_empty()) {
            // Removes `//`, `/./` and a trailing `/`.
            let store: PathBuf = Path::new(store).components().collect();
            if !store.is_absolute() {
                self.refuse(option, "the path of an image store must be absolute");
            } else if !self.image_stores.contains(&store) {
                self.image_stores.push(store);
            }
        }
    }

    fn refuse(&mut self, option: &Setting, reason: &str) {
        self.refused.push(format!("{option}: {reason}"));
    }
}

fn is_for(name: &str, driver: &str) -> bool {
    name.strip_prefix(driver)
        .is_some_and(|rest| rest.starts_with('.'))
}

/// Why this program must not write to a store with this option.
fn objection(name: &str, value: &str) -> Option<&'static str> {
    match name {
        name if HARMLESS.contains(&name) => None,
        "mount_program" => {
            (!value.is_empty()).then_some("only the kernel's overlayfs is supported, not a mount program")
        }
        "force_mask" => Some("files would need other modes, and attributes with the original ones"),
        "use_composefs" => is_true(value).then_some("layers would need a composefs image"),
        "ignore_chown_errors" => is_true(value).then_some("files may have other owners than in the image"),
        _ => Some("the option is unknown to this program, and so is its effect"),
    }
}

/// False for Go's spellings of false, and for an empty value. CRI-O does not start with a value that is neither true
/// nor false.
fn is_true(value: &str) -> bool {
    !matches!(value, "" | "0" | "f" | "F" | "false" | "FALSE" | "False")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(options: &[&str]) -> DriverOptions {
        let setting = |option: &&str| Setting::new(*option, "crio.storage_option", option, Path::new("c"));
        DriverOptions::of(&options.iter().map(setting).collect::<Vec<_>>())
    }

    #[test]
    fn options_that_change_no_layer_are_accepted() {
        let taken = [
            "overlay.mountopt=nodev,metacopy=on",
            "overlay.size=10G",
            "overlay2.inodes=5",
            ".skip_mount_home=true",
            "OVERLAY.Override_Kernel_Check=1",
            "sync=filesystem",
            "overlay.additionallayerstore=/l:ref",
            "overlay.force_maskless=1",
        ];
        let (unknown, known) = taken.split_last().expect("there are some");
        assert_eq!(options(known), DriverOptions::default());
        assert_eq!(options(&[unknown]).refused.len(), 1);
    }

    #[test]
    fn options_that_change_layers_are_refused_and_off_is_off() {
        for (option, is_refused) in [
            ("overlay.mount_program=/usr/bin/fuse-overlayfs", true),
            ("overlay.mount_program=", false),
            ("overlay.force_mask=shared", true),
            ("force_mask=0", true),
            ("overlay.use_composefs=true", true),
            ("overlay.use_composefs=False", false),
            ("overlay.ignore_chown_errors=1", true),
            ("overlay.ignore_chown_errors=0", false),
            ("overlay.novel=1", true),
            ("overlay.mountopt", true),
            ("vfs.ignore_chown_errors=true", false),
            ("btrfs.min_space=1G", false),
        ] {
            assert_eq!(
                options(&[option]).refused.len(),
                usize::from(is_refused),
                "{option}"
            );
        }
    }

    #[test]
    fn the_last_counts_and_image_stores_add_up() {
        assert_eq!(
            options(&["overlay.use_composefs=true", "overlay.use_composefs=false"]),
            DriverOptions::default()
        );
        assert_eq!(
            options(&["use_composefs=false", "overlay.use_composefs=true"])
                .refused
                .len(),
            1
        );
        let stores = options(&[
            "overlay.imagestore=/a,/b/",
            "additionalimagestore=//c/./d",
            ".imagestore=/a",
            "imagestore=",
        ]);
        let expected: Vec<PathBuf> = ["/a", "/b", "/c/d"].map(PathBuf::from).into();
        assert_eq!((stores.image_stores, stores.refused.len()), (expected, 0));
        assert_eq!(options(&["imagestore=a,/b"]).refused.len(), 1);
    }
}
