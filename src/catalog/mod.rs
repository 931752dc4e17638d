//! Operator catalogs: from an index image's layers to the images of the operators that are asked for.
//!
//! ```text
//! `ptp-operator:stable` ─→ Request ─┐
//! Store::tree ─→ CatalogPlace::find ┴─read→ Catalog: for each channel its head's images, or why there are none
//!                                     │
//!        a directory of JSON and YAML ┤ configs, ignore, file, yaml, document
//!             or an SQLite database   ┴ database, csv      both into collect, of which head chooses
//! ```
//!
//! The catalog is read where it lies in the layers, nothing is mounted, copied or run. All of its bytes go by, and only the
//! packages that were asked for are kept: memory does not depend on the catalog's size, but for the largest YAML document.
//! The rules are operator-registry's; where today's scripts do otherwise (talm-contract.md, section 8: an entry that is
//! skipped taken for the head, one of two channels lost, nothing said of a package that is not there), they are not followed.

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

pub use catalog_location::CatalogPlace;
pub use error::CatalogError;
pub use package_request::{Request, RequestError};

use crate::cancel::Cancel;
use crate::oci::Reference;
use crate::store::{Node, Tree};
use collection::{Bundle, Collection, Package};
use suggestions::near;

/// What a catalog has of what was asked for.
#[derive(Debug)]
pub struct Catalog {
    /// One for each channel of each request, in their order.
    pub answers: Vec<Answer>,
}

/// What came of one channel of one request.
#[derive(Debug)]
pub struct Answer {
    /// The package as asked for.
    pub package: String,
    /// The channel as asked for; empty for the default.
    pub channel: String,
    /// The head. An error of one channel says nothing about the others; one that [`CatalogError::is_absence`] is no fault
    /// of the catalog.
    pub head: Result<Head, CatalogError>,
}

/// The bundle that an installation from a channel begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The channel; the default's name if the default was asked for.
    pub channel: String,
    /// The bundle's name: `ptp-operator.v4.16.0-202406131906`.
    pub bundle: String,
    /// The image that holds its manifests; old catalogs hold them themselves.
    pub bundle_image: Option<Reference>,
    /// The images that it runs, in the catalog's order, each once and without the bundle's own.
    pub related_images: Vec<RelatedImage>,
    /// Names of related images that the catalog lists without an image, which the programs that serve catalogs pass over
    /// too. Worth a warning: something may be missing.
    pub without_image: Vec<String>,
}

/// An image that a bundle runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelatedImage {
    /// Its name in the bundle; often empty.
    pub name: String,
    /// Where it is pulled from, by digest or by tag.
    pub reference: Reference,
}

impl Head {
    /// All that is to be pulled, each once, the bundle's image first.
    pub fn images(&self) -> impl Iterator<Item = &Reference> {
        let related = self.related_images.iter().map(|image| &image.reference);
        self.bundle_image.iter().chain(related)
    }
}

/// Reads the catalog at `place` in `tree`, and answers `requests`.
///
/// # Errors
/// When the catalog as a whole cannot be read: something in it is malformed, whoever's it is, or is more than a catalog
/// can have. What is wrong with one package is in its answers.
pub fn read(
    tree: &Tree,
    place: &CatalogPlace,
    requests: &[Request],
    cancel: &Cancel,
) -> Result<Catalog, CatalogError> {
    let mut collection = Collection::new(requests);
    match place {
        CatalogPlace::Configs(directory) => fbc_directory::read(tree, directory, &mut collection, cancel)?,
        CatalogPlace::Database(path) => match tree.open(Path::new(path))? {
            Some(Node::File(file)) => sqlite_database::read(path, &file, &mut collection, cancel)?,
            _ => {
                return Err(CatalogError::Io {
                    file: path.clone(),
                    why: "it is no file".to_owned(),
                });
            }
        },
    }
    let asked = requests.iter().flat_map(|request| {
        request
            .channels
            .iter()
            .map(move |channel| (&request.package, channel))
    });
    let answers = asked.map(|(package, channel)| Answer {
        package: package.clone(),
        channel: channel.clone(),
        head: head(&collection, package, channel),
    });
    Ok(Catalog {
        answers: answers.collect(),
    })
}

fn head(collection: &Collection<'_>, package: &str, asked: &str) -> Result<Head, CatalogError> {
    let Some(known) = collection.packages.get(package) else {
        return Err(CatalogError::NoPackage {
            package: package.to_owned(),
            near: near(package, collection.names.iter().map(String::as_str)),
        });
    };
    if let Some((what, name)) = &known.twice {
        return Err(CatalogError::Twice {
            package: package.to_owned(),
            what,
            name: name.clone(),
        });
    }
    let channels = || known.channels.keys().cloned().collect();
    let channel = match asked {
        "" => known.default_channel.as_str(),
        asked => asked,
    };
    if channel.is_empty() {
        return Err(CatalogError::NoDefaultChannel {
            package: package.to_owned(),
            channels: channels(),
        });
    }
    let Some(entries) = known.channels.get(channel) else {
        return Err(CatalogError::NoChannel {
            package: package.to_owned(),
            channel: channel.to_owned(),
            channels: channels(),
            near: near(channel, known.channels.keys().map(String::as_str)),
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
        [head] => images(known, package, channel, head),
        ref heads => Err(CatalogError::SeveralHeads {
            package,
            channel,
            heads: heads.iter().map(|&head| head.to_owned()).collect(),
        }),
    }
}

fn images(known: &Package, package: String, channel: String, bundle: &str) -> Result<Head, CatalogError> {
    let Some(Bundle {
        image,
        related_images,
    }) = known.bundles.get(bundle)
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
    let mut known = HashSet::new();
    if !image.is_empty() {
        let image = reference("image".to_owned(), image)?;
        known.insert(image.clone());
        head.bundle_image = Some(image);
    }
    for (index, related) in related_images.iter().enumerate() {
        if related.image.is_empty() {
            head.without_image.push(related.name.clone());
            continue;
        }
        let reference = reference(format!("relatedImages[{index}].image"), &related.image)?;
        if known.insert(reference.clone()) {
            head.related_images.push(RelatedImage {
                name: related.name.clone(),
                reference,
            });
        }
    }
    if known.is_empty() {
        return Err(CatalogError::NoImages {
            package,
            bundle: head.bundle,
        });
    }
    Ok(head)
}
