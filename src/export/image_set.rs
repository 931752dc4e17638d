//! Lists the images that a version spec needs: what it names, what the release's payload names without the excluded images,
//! and what the catalogs name for the requested operators. The same functions as in a run select them.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use super::blocking::run_blocking;
use super::error::ExportError;
use super::image_files::ImageFiles;
use super::image_nodes::LayerBlob;
use super::image_source::{ExportedImage, ImageSource};
use crate::catalog::{self, Catalog, CatalogLocation, PackageRequest};
use crate::exit_code::Failure;
use crate::image_request::{ImageRequest, dedupe};
use crate::job::{Added, Operators, requests};
use crate::oci::{Digest, Reference};
use crate::release::{PayloadSearch, select};
use crate::release_signature::{self, StoreUrl, find_verification_config_map};
use crate::report::{Count, Event, OperatorReport, Printable};
use crate::spec::{Excludes, VersionSpec};

/// The directories of a release image with its manifests.
const RELEASE_PATHS: [&str; 2] = ["manifests", "release-manifests"];

/// How many layers of an image are downloaded at the same time to read its files.
const LAYERS: usize = 4;

/// Why an image, or what it names, is not exported.
#[derive(Clone, Debug)]
pub(super) struct Reason {
    pub(super) failure: Failure,
    pub(super) message: String,
}

impl From<&ExportError> for Reason {
    fn from(error: &ExportError) -> Self {
        Self {
            failure: error.failure(),
            message: error.to_string(),
        }
    }
}

/// The release that is exported.
#[derive(Clone, Debug)]
pub(super) struct ExportedRelease {
    pub(super) version: String,
    /// How many of its images are excluded.
    pub(super) excluded: usize,
}

/// The images of an export.
#[derive(Default)]
pub(super) struct ImageSet {
    /// Without duplicates, in the order in which they are named.
    pub(super) requests: Vec<ImageRequest>,
    /// The release image and the index images, as far as they are available.
    pub(super) resolved: BTreeMap<Reference, ExportedImage>,
    /// Those that are not available, or cannot be read.
    pub(super) failed: BTreeMap<Reference, Reason>,
    pub(super) release: Option<ExportedRelease>,
    pub(super) operators: Vec<OperatorReport>,
    pub(super) operator_failures: Vec<Failure>,
}

impl ImageSet {
    /// Reads the release image and the index images. One that is unavailable fails alone.
    pub(super) async fn read(
        spec: &VersionSpec,
        excludes: &Arc<Excludes>,
        stores: &[StoreUrl],
        source: &ImageSource,
    ) -> Result<Self, ExportError> {
        let lines = spec.packages_and_channels.iter().map(String::as_str);
        let packages: Arc<[PackageRequest]> = PackageRequest::of_lines(lines)?.into();
        let mut set = Self {
            requests: requests(spec),
            ..Self::default()
        };
        if let Some(release) = &spec.platform_image
            && let Err(error) = set.add_release(release, excludes, stores, source).await
        {
            set.fail(release, error)?;
        }
        let mut operators = Operators::new(&packages);
        let mut unread = Vec::new();
        for index in &spec.operators_indexes {
            match set.catalog(index, &packages, source).await {
                Ok(catalog) => set.add_catalog(operators.add(index, catalog), source),
                Err(error) => {
                    unread.push((index.clone(), error.failure()));
                    set.fail(index, error)?;
                }
            }
        }
        for row in operators.conclude(&unread) {
            source.observer.observe(Event::Operator(row));
        }
        set.operator_failures = operators.failures().collect();
        set.operators = operators.rows();
        set.requests = dedupe(set.requests);
        Ok(set)
    }

    fn fail(&mut self, image: &Reference, error: ExportError) -> Result<(), ExportError> {
        if error.is_fatal() {
            return Err(error);
        }
        self.failed.insert(image.clone(), Reason::from(&error));
        Ok(())
    }

    async fn add_release(
        &mut self,
        release: &Reference,
        excludes: &Arc<Excludes>,
        stores: &[StoreUrl],
        source: &ImageSource,
    ) -> Result<(), ExportError> {
        let image = source.image(release).await?;
        let digest = image.top().digest();
        let (search, layers) = payload_layers(release, &image, source).await?;
        self.resolved.insert(release.clone(), image);
        let (work_dir, cancel) = (source.work_dir.clone(), source.cancel.clone());
        let (reference, excludes) = (release.to_string(), Arc::clone(excludes));
        let read = run_blocking(move || {
            let payload = search.payload();
            let payload = payload.map_err(|source| ExportError::Payload { reference, source })?;
            let selection = select(&payload, &excludes)?;
            let files = ImageFiles::unpack(&layers, &RELEASE_PATHS, &work_dir, &cancel)?;
            Ok((payload, selection, find_verification_config_map(&files.tree()?)))
        });
        let (payload, selection, of_release) = read.await?;
        tracing::info!(
            "release {} names {}, {} excluded",
            Printable(&payload.version),
            Count(payload.tags.len(), "image"),
            selection.excluded.len()
        );
        for message in selection.warnings {
            source.observer.observe(Event::Warned { message });
        }
        self.release = Some(ExportedRelease {
            version: payload.version,
            excluded: selection.excluded.len(),
        });
        self.requests.extend(selection.wanted);
        let stores = match stores {
            [] => of_release.map(|found| found.stores).unwrap_or_default(),
            stores => stores.to_vec(),
        };
        export_release_signatures(release, digest, &stores, source).await
    }

    async fn catalog(
        &mut self,
        index: &Reference,
        packages: &Arc<[PackageRequest]>,
        source: &ImageSource,
    ) -> Result<Catalog, ExportError> {
        let image = source.image(index).await?;
        // Without packages, only the index image itself is wanted.
        let config = image.image.config.bytes().clone();
        let layers = match packages.is_empty() {
            true => Vec::new(),
            false => layers(index, &image, source).await?,
        };
        self.resolved.insert(index.clone(), image);
        if packages.is_empty() {
            return Ok(Catalog { channels: Vec::new() });
        }
        let (work_dir, cancel) = (source.work_dir.clone(), source.cancel.clone());
        let (reference, packages) = (index.to_string(), Arc::clone(packages));
        run_blocking(move || {
            let paths = CatalogLocation::paths(&config);
            let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
            let files = ImageFiles::unpack(&layers, &paths, &work_dir, &cancel)?;
            let tree = files.tree()?;
            let location = CatalogLocation::find(&tree, &config);
            let read = location.and_then(|location| catalog::read(&tree, &location, &packages, &cancel));
            read.map_err(|source| ExportError::Catalog {
                reference,
                source: Box::new(source),
            })
        })
        .await
    }

    fn add_catalog(&mut self, added: Added, source: &ImageSource) {
        for message in added.warnings {
            source.observer.observe(Event::Warned { message });
        }
        for row in added.rows {
            source.observer.observe(Event::Operator(row));
        }
        self.requests.extend(added.requests);
    }
}

/// The layers of a release image from the top down to those with its payload, base layer first. The nodes may have the others,
/// which are not downloaded only to be read.
async fn payload_layers(
    release: &Reference,
    image: &ExportedImage,
    source: &ImageSource,
) -> Result<(PayloadSearch, Vec<LayerBlob>), ExportError> {
    let (mut search, mut layers) = (PayloadSearch::default(), Vec::new());
    for layer in image.image.layers.iter().rev() {
        let blob = source.layer(layer, release).await?;
        layers.insert(0, blob.clone());
        let cancel = source.cancel.clone();
        search = run_blocking(move || {
            let (digest, size) = (blob.digest, blob.reader.size());
            let read = search.read_layer(blob.reader, size, &cancel);
            read.map_err(|source| ExportError::Layer { blob: digest, source })?;
            Ok(search)
        })
        .await?;
        if search.is_done() {
            break;
        }
    }
    Ok((search, layers))
}

/// The blobs of an image's layers, base layer first.
async fn layers(
    reference: &Reference,
    image: &ExportedImage,
    source: &ImageSource,
) -> Result<Vec<LayerBlob>, ExportError> {
    let layers = stream::iter(&image.image.layers).map(|layer| source.layer(layer, reference));
    layers.buffered(LAYERS).try_collect().await
}

/// Stores the release's signatures where the stores of the cluster-version operator have them.
async fn export_release_signatures(
    release: &Reference,
    digest: Digest,
    stores: &[StoreUrl],
    source: &ImageSource,
) -> Result<(), ExportError> {
    let found = release_signature::download(digest, stores, &source.registries, &source.cancel).await?;
    let signatures = match found {
        Ok(signatures) => signatures,
        Err(why) => {
            let message = format!(
                "no signature of the release `{release}` is exported: {why}\n\
                 hint: without one, a node without a network cannot verify the release; name a store with `--signature-store`"
            );
            source.observer.observe(Event::Warned { message });
            return Ok(());
        }
    };
    let output = Arc::clone(&source.output);
    run_blocking(move || {
        for (number, signature) in (1..).zip(&signatures) {
            let directory = format!("release-signatures/sha256={}", digest.hex());
            output.put_file(&format!("{directory}/signature-{number}"), signature)?;
        }
        Ok(())
    })
    .await
}
