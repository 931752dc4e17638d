//! Reads operator catalogs: from an index image's layers to the images of the requested operators.
//!
//! ```text
//! `ptp-operator:stable` ──→ PackageRequest ─┐
//! Store::tree ─→ CatalogLocation::find ─────┴─read→ Catalog: for each channel its head's images, or an error
//!                                              │
//!   a directory of JSON and YAML: fbc_directory, indexignore, fbc_file, fbc_yaml, fbc_document
//!   or an SQLite database: sqlite_database, cluster_service_version
//!                                              │
//!                                  collection ─→ channel_head
//! ```
//!
//! The catalog is read from the layers' directories; nothing is mounted, copied or executed. Only the requested packages are
//! kept, so memory does not depend on the catalog's size, except for the largest YAML document. The rules are
//! operator-registry's. TALM's scripts differ: they may use a skipped entry as the head, lose one of two channels, and ignore
//! a missing package silently.

mod bounded_reader;
mod catalog_location;
mod channel_head;
mod cluster_service_version;
mod collection;
mod error;
mod fbc_directory;
mod fbc_document;
mod fbc_file;
mod fbc_yaml;
mod indexignore;
mod package_request;
mod sqlite_database;
mod suggestions;

use std::collections::HashSet;
use std::path::Path;

pub use catalog_location::CatalogLocation;
pub use error::CatalogError;
pub use package_request::{PackageRequest, PackageRequestError};

use crate::cancel::Cancel;
use crate::oci::Reference;
use crate::store::{Node, Tree};
use collection::{Bundle, Collection, Package};
use suggestions::similar;

/// The result of reading a catalog.
#[derive(Debug)]
pub struct Catalog {
    /// One for each channel of each request, in their order.
    pub channels: Vec<ChannelResult>,
}

/// The result for one requested channel.
#[derive(Debug)]
pub struct ChannelResult {
    /// The package as requested.
    pub package: String,
    /// The channel as requested; empty for the default.
    pub channel: String,
    /// The head. Errors of channels are independent; [`CatalogError::is_absence`] is not an error of the catalog.
    pub head: Result<Head, CatalogError>,
}

/// The head of a channel: the bundle that an installation starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The channel's name, also if the default channel is requested.
    pub channel: String,
    /// The bundle's name: `ptp-operator.v4.16.0-202406131906`.
    pub bundle: String,
    /// The image with its manifests; old catalogs contain the manifests themselves.
    pub bundle_image: Option<Reference>,
    /// The images that it runs, in the catalog's order, without duplicates and without the bundle image.
    pub related_images: Vec<RelatedImage>,
    /// Names of related images without a reference, which the programs that serve catalogs ignore too. Worth a warning,
    /// because an image may be missing.
    pub without_image: Vec<String>,
}

/// An image that a bundle runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelatedImage {
    /// Its name in the bundle; often empty.
    pub name: String,
    /// Its reference, by digest or by tag.
    pub reference: Reference,
}

impl Head {
    /// All images to pull, without duplicates, the bundle image first.
    pub fn images(&self) -> impl Iterator<Item = &Reference> {
        let related = self.related_images.iter().map(|image| &image.reference);
        self.bundle_image.iter().chain(related)
    }
}

/// Reads the catalog at `location` in `tree`, and finds the heads of `requests`.
///
/// # Errors
/// If the catalog as a whole cannot be read: a document of any package is malformed, or a limit is exceeded. Errors of
/// single packages are in their results.
pub fn read(
    tree: &Tree,
    location: &CatalogLocation,
    requests: &[PackageRequest],
    cancel: &Cancel,
) -> Result<Catalog, CatalogError> {
    let mut collection = Collection::new(requests);
    match location {
        CatalogLocation::Configs(directory) => fbc_directory::read(tree, directory, &mut collection, cancel)?,
        CatalogLocation::Database(path) => match tree.open(Path::new(path))? {
            Some(Node::File(file)) => sqlite_database::read(path, &file, &mut collection, cancel)?,
            _ => {
                return Err(CatalogError::Io {
                    file: path.clone(),
                    why: "it is not a file".to_owned(),
                });
            }
        },
    }
    let requested = requests.iter().flat_map(|request| {
        request
            .channels
            .iter()
            .map(move |channel| (&request.package, channel))
    });
    let channels = requested.map(|(package, channel)| ChannelResult {
        package: package.clone(),
        channel: channel.clone(),
        head: head(&collection, package, channel),
    });
    Ok(Catalog {
        channels: channels.collect(),
    })
}

fn head(collection: &Collection<'_>, package: &str, requested: &str) -> Result<Head, CatalogError> {
    let Some(collected) = collection.packages.get(package) else {
        return Err(CatalogError::NoPackage {
            package: package.to_owned(),
            similar: similar(package, collection.names.iter().map(String::as_str)),
        });
    };
    if let Some((what, name)) = &collected.duplicate {
        return Err(CatalogError::Duplicate {
            package: package.to_owned(),
            what,
            name: name.clone(),
        });
    }
    let channels = || collected.channels.keys().cloned().collect();
    let channel = match requested {
        "" => collected.default_channel.as_str(),
        requested => requested,
    };
    if channel.is_empty() {
        return Err(CatalogError::NoDefaultChannel {
            package: package.to_owned(),
            channels: channels(),
        });
    }
    let Some(entries) = collected.channels.get(channel) else {
        return Err(CatalogError::NoChannel {
            package: package.to_owned(),
            channel: channel.to_owned(),
            channels: channels(),
            similar: similar(channel, collected.channels.keys().map(String::as_str)),
        });
    };
    let (package, channel) = (package.to_owned(), channel.to_owned());
    if entries.is_empty() {
        return Err(CatalogError::EmptyChannel { package, channel });
    }
    match channel_head::heads(entries)[..] {
        [] => Err(CatalogError::NoHead {
            package,
            channel,
            entries: entries.iter().map(|entry| entry.name.clone()).collect(),
        }),
        [head] => images(collected, package, channel, head),
        ref heads => Err(CatalogError::SeveralHeads {
            package,
            channel,
            heads: heads.iter().map(|&head| head.to_owned()).collect(),
        }),
    }
}

fn images(collected: &Package, package: String, channel: String, bundle: &str) -> Result<Head, CatalogError> {
    let Some(Bundle {
        image,
        related_images,
    }) = collected.bundles.get(bundle)
    else {
        return Err(CatalogError::NoBundle {
            package,
            channel,
            bundle: bundle.to_owned(),
        });
    };
    let reference = |field: String, text: &str| {
        let parsed = text.parse::<Reference>();
        parsed.map_err(|why| CatalogError::Pullspec {
            package: package.clone(),
            bundle: bundle.to_owned(),
            field,
            why,
        })
    };
    let mut head = Head {
        channel,
        bundle: bundle.to_owned(),
        bundle_image: None,
        related_images: Vec::new(),
        without_image: Vec::new(),
    };
    let mut references = HashSet::new();
    if !image.is_empty() {
        let image = reference("image".to_owned(), image)?;
        references.insert(image.clone());
        head.bundle_image = Some(image);
    }
    for (index, related) in related_images.iter().enumerate() {
        if related.image.is_empty() {
            head.without_image.push(related.name.clone());
            continue;
        }
        let reference = reference(format!("relatedImages[{index}].image"), &related.image)?;
        if references.insert(reference.clone()) {
            head.related_images.push(RelatedImage {
                name: related.name.clone(),
                reference,
            });
        }
    }
    if references.is_empty() {
        return Err(CatalogError::NoImages {
            package,
            bundle: head.bundle,
        });
    }
    Ok(head)
}
