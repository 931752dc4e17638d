//! Collects the requested packages of a catalog, and the names of all packages.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::channel_head::ChannelEntry;
use super::fbc_document::{BUNDLE, CHANNEL, FbcDocument, FbcRelatedImage, PACKAGE};
use super::package_request::PackageRequest;

/// The most names of packages for suggestions; far more than a catalog has.
const NAMES_LIMIT: usize = 20_000;

/// The longest name that is kept; a package's name is a DNS label.
const NAME_LIMIT: usize = 253;

/// Packages by name.
#[derive(Debug)]
pub(super) struct Collection<'r> {
    wanted: HashMap<&'r str, HashSet<&'r str>>,
    /// All packages of the catalog.
    pub(super) names: BTreeSet<String>,
    pub(super) packages: HashMap<String, Package>,
}

/// A requested package.
#[derive(Debug, Default)]
pub(super) struct Package {
    /// Whether it has a document of its own; channels and bundles alone make a package too.
    declared: bool,
    /// Empty if there is none.
    pub(super) default_channel: String,
    /// The entries of each channel; empty for channels that are not requested.
    pub(super) channels: BTreeMap<String, Vec<ChannelEntry>>,
    pub(super) bundles: HashMap<String, Bundle>,
    /// The first thing that the catalog defines more than once, and its name: the right definition is unknown.
    pub(super) duplicate: Option<(&'static str, String)>,
}

/// A bundle's images, as written.
#[derive(Clone, Debug, Default)]
pub(super) struct Bundle {
    pub(super) image: String,
    pub(super) related_images: Vec<FbcRelatedImage>,
}

impl<'r> Collection<'r> {
    pub(super) fn new(requests: &'r [PackageRequest]) -> Self {
        let mut wanted: HashMap<&str, HashSet<&str>> = HashMap::new();
        for request in requests {
            let channels = request.channels.iter().map(String::as_str);
            wanted.entry(&request.package).or_default().extend(channels);
        }
        Self {
            wanted,
            names: BTreeSet::new(),
            packages: HashMap::new(),
        }
    }

    /// Whether the package is requested.
    pub(super) fn is_wanted(&self, package: &str) -> bool {
        self.wanted.contains_key(package)
    }

    /// Whether the channel is requested, or may be the requested default channel.
    pub(super) fn is_channel_wanted(&self, package: &str, channel: &str) -> bool {
        let channels = self.wanted.get(package);
        channels.is_some_and(|channels| channels.contains("") || channels.contains(channel))
    }

    /// Keeps the name of a package of the catalog.
    pub(super) fn add_name(&mut self, package: &str) {
        if package.len() <= NAME_LIMIT && self.names.len() < NAMES_LIMIT && !self.names.contains(package) {
            self.names.insert(package.to_owned());
        }
    }

    /// Adds a document; returns whether any of it is kept. The error is a message.
    pub(super) fn add(&mut self, document: FbcDocument) -> Result<bool, &'static str> {
        let FbcDocument {
            schema,
            package,
            name,
            default_channel,
            image,
            entries,
            related_images,
        } = document;
        let (package, name) = match schema.as_str() {
            PACKAGE => (name, None),
            CHANNEL | BUNDLE => (package, Some(name)),
            "" => return Err("it has no `schema`"),
            // Deprecations, and schemas of other programs.
            _ => return Ok(false),
        };
        if package.is_empty() {
            return Err("it does not name its package");
        }
        if name.as_deref() == Some("") {
            return Err("it has no `name`");
        }
        self.add_name(&package);
        if !self.is_wanted(&package) {
            return Ok(false);
        }
        let is_channel_wanted = name
            .as_deref()
            .is_some_and(|name| self.is_channel_wanted(&package, name));
        let collected = self.packages.entry(package.clone()).or_default();
        match name {
            None if collected.declared => collected.set_duplicate("the declaration", package),
            None => {
                collected.declared = true;
                collected.default_channel = default_channel;
            }
            Some(channel) if schema == CHANNEL => {
                if collected.channels.contains_key(&channel) {
                    collected.set_duplicate("the channel", channel);
                    return Ok(true);
                }
                let mut names = HashSet::new();
                if let Some(entry) = entries.iter().find(|entry| !names.insert(&entry.name)) {
                    collected.set_duplicate("the channel entry", entry.name.clone());
                }
                let entries = if is_channel_wanted { entries } else { Vec::new() };
                collected.channels.insert(channel, entries);
            }
            Some(bundle) if collected.bundles.contains_key(&bundle) => {
                collected.set_duplicate("the bundle", bundle)
            }
            Some(bundle) => {
                let value = Bundle {
                    image,
                    related_images,
                };
                collected.bundles.insert(bundle, value);
            }
        }
        Ok(true)
    }
}

impl Package {
    /// Keeps the first duplicate.
    fn set_duplicate(&mut self, what: &'static str, name: String) {
        self.duplicate.get_or_insert((what, name));
    }
}
