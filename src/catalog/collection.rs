//! What is known of a catalog once it was read: the packages that were asked for, and the names of the others.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::channel_head::Entry;
use super::fbc_document::{BUNDLE, CHANNEL, Document, PACKAGE, RelatedImage};
use super::package_request::Request;

/// Names of other packages, for near misses; far more than a catalog has.
const NAMES_LIMIT: usize = 20_000;

/// The longest of these that is remembered; a package's name is a DNS label.
const NAME_LIMIT: usize = 253;

/// Packages by name.
#[derive(Debug)]
pub(super) struct Collection<'r> {
    wanted: HashMap<&'r str, HashSet<&'r str>>,
    /// All that the catalog has.
    pub(super) names: BTreeSet<String>,
    pub(super) packages: HashMap<String, Package>,
}

/// A package that was asked for.
#[derive(Debug, Default)]
pub(super) struct Package {
    /// Whether it was said to be one; channels and bundles alone make a package too.
    declared: bool,
    /// Empty if none was said.
    pub(super) default_channel: String,
    /// Their entries; those of channels that nobody asked for are not kept.
    pub(super) channels: BTreeMap<String, Vec<Entry>>,
    pub(super) bundles: HashMap<String, Bundle>,
    /// What the catalog says more than once of it, and its name: nobody knows which is meant.
    pub(super) twice: Option<(&'static str, String)>,
}

/// A bundle's images, as written.
#[derive(Clone, Debug, Default)]
pub(super) struct Bundle {
    pub(super) image: String,
    pub(super) related_images: Vec<RelatedImage>,
}

impl<'r> Collection<'r> {
    pub(super) fn new(requests: &'r [Request]) -> Self {
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

    /// Whether the package was asked for.
    pub(super) fn is_wanted(&self, package: &str) -> bool {
        self.wanted.contains_key(package)
    }

    /// Whether the channel was, or may turn out to be the default that was.
    pub(super) fn is_channel_wanted(&self, package: &str, channel: &str) -> bool {
        let channels = self.wanted.get(package);
        channels.is_some_and(|channels| channels.contains("") || channels.contains(channel))
    }

    /// Remembers that the catalog has a package of this name.
    pub(super) fn name(&mut self, package: &str) {
        if package.len() <= NAME_LIMIT && self.names.len() < NAMES_LIMIT && !self.names.contains(package) {
            self.names.insert(package.to_owned());
        }
    }

    /// Takes in a document; true if any of it is kept. What is wrong with it is said in words.
    pub(super) fn take(&mut self, document: Document) -> Result<bool, &'static str> {
        let Document {
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
        self.name(&package);
        if !self.is_wanted(&package) {
            return Ok(false);
        }
        let is_channel_wanted = name
            .as_deref()
            .is_some_and(|name| self.is_channel_wanted(&package, name));
        let known = self.packages.entry(package.clone()).or_default();
        match name {
            None if known.declared => known.is_twice("the declaration", package),
            None => {
                known.declared = true;
                known.default_channel = default_channel;
            }
            Some(channel) if schema == CHANNEL => {
                if known.channels.contains_key(&channel) {
                    known.is_twice("the channel", channel);
                    return Ok(true);
                }
                let mut names = HashSet::new();
                if let Some(entry) = entries.iter().find(|entry| !names.insert(&entry.name)) {
                    known.is_twice("the channel entry", entry.name.clone());
                }
                let entries = if is_channel_wanted { entries } else { Vec::new() };
                known.channels.insert(channel, entries);
            }
            Some(bundle) if known.bundles.contains_key(&bundle) => known.is_twice("the bundle", bundle),
            Some(bundle) => {
                let value = Bundle {
                    image,
                    related_images,
                };
                known.bundles.insert(bundle, value);
            }
        }
        Ok(true)
    }
}

impl Package {
    /// Remembers what the catalog says more than once, the first of it.
    fn is_twice(&mut self, what: &'static str, name: String) {
        self.twice.get_or_insert((what, name));
    }
}
