//! Reads from the store which images this node uses, and leaves out the images of the release that it does not need.
//!
//! ```text
//! container records, then images of the store ─→ ImageUse*       ─┐
//! release images of the store ─────────────────→ StoredRelease*  ─┼→ UsedTags ─→ OnlyUsed::cut ─→ ExcludedImage*
//! /proc/uptime, ages of containers ────────────→ Evidence        ─┘
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::config::OnlyUsedConfig;
use super::os_images;
use super::release_manifests::{operators_of_tags, stored_payload};
use crate::cluster_version::ClusterVersion;
use crate::image_request::Requester;
use crate::oci::Reference;
use crate::plan::ExcludedImage;
use crate::release::{Payload, Selection};
use crate::report::{Count, Size};
use crate::store::{ContainerRecord, HostState, Inventory, Store, StoreError};
use crate::used_images::{
    Evidence, ImageIdentity, ImageUse, ImageUser, Need, OperatorOfTag, Refusal, RunningRelease,
    StoredRelease, UsedTags,
};

/// The most releases that are compared; a node has two or three.
const RELEASES: usize = 32;

/// The uptime, where the host's `/proc` is not mounted: of the same kernel.
const PROC: &str = "/proc";

/// Leaves out the images that the node does not use.
#[derive(Clone, Debug)]
pub(super) struct OnlyUsed {
    tags: UsedTags,
    /// As in [`OnlyUsedConfig`].
    is_pinned: bool,
}

/// What leaving out unused images changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OnlyUsedReport {
    /// Whether they are left out, or would be with the flag.
    pub is_requested: bool,
    /// Version of the release that runs here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_release: Option<String>,
    /// How many images of the release are left out.
    pub images: usize,
    /// Bytes that are not downloaded then. Only `plan` asks the registries for sizes of images that are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// How many of the images have a size that no registry returned, so that `bytes` is too small.
    #[serde(skip_serializing_if = "is_zero")]
    pub images_without_size: usize,
    /// Why no image can be left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

impl OnlyUsed {
    /// Finds out which images this node uses. Reads the store, and the release images in it.
    pub(super) fn find(
        config: &OnlyUsedConfig,
        host: &HostState,
        version: Option<&ClusterVersion>,
        store: &Store,
    ) -> Result<Result<Self, Refusal>, StoreError> {
        let records = store.container_records(host)?;
        // Read after the records: the image of a container that is removed meanwhile may be gone, but that of a container that
        // is created meanwhile is not missed.
        let inventory = store.inventory()?;
        let releases = stored_releases(store, &inventory);
        let mut evidence = Evidence {
            up_for: up_for(&host.proc),
            oldest_container: oldest(&records.containers, Timestamp::now()),
            unknown_images: records.damaged,
            operators: HashMap::new(),
        };
        let mut uses = Vec::new();
        for record in records.containers {
            match image_of(&record, &inventory) {
                None if record.image.is_none() => {}
                None => evidence
                    .unknown_images
                    .push(format!("container `{}`", record.name)),
                Some(image) => {
                    let user = match record.pod {
                        Some(pod) => ImageUser::Pod(pod),
                        None => ImageUser::Container(record.name),
                    };
                    uses.push(ImageUse { image, user });
                }
            }
        }
        let templates = config.pod_templates.images.iter();
        uses.extend(templates.map(|template| ImageUse {
            image: ImageIdentity::of_reference(&template.image),
            user: ImageUser::Template {
                kind: template.kind,
                namespace: template.namespace.clone(),
                name: template.name.clone(),
            },
        }));
        let running = RunningRelease::find(&releases, version, &uses);
        if let Ok(running) = &running {
            evidence.operators = operators(running, version, store, &inventory);
        }
        let tags = running.and_then(|running| UsedTags::find(running, uses, &evidence));
        Ok(tags.map(|tags| Self {
            tags,
            is_pinned: config.is_pinned,
        }))
    }

    /// Leaves out what the node does not need of `payload`.
    pub(super) fn cut(&self, payload: &Payload, selection: &mut Selection) -> Vec<ExcludedImage> {
        let os_image = |tag: &str| os_images::need(tag, &payload.version, self.is_pinned);
        let verdicts = self.tags.assess(payload, os_image);
        let needs: BTreeMap<&str, &Need> = verdicts.iter().map(|it| (it.tag.as_str(), &it.need)).collect();
        let mut left_out = Vec::new();
        // An image is needed if one of its tags is, also one that a pattern excludes.
        let needed = payload
            .tags
            .iter()
            .filter(|tag| needs.get(tag.name.as_str()).is_none_or(|it| it.is_needed()));
        let needed: HashSet<&Reference> = needed.map(|tag| &tag.reference).collect();
        selection.wanted.retain(|request| {
            if needed.contains(&request.reference) {
                return true;
            }
            let reasons = request.requesters.iter().filter_map(|requester| match requester {
                Requester::Release { tag } => Some((requester.clone(), needs.get(tag.as_str())?)),
                _ => None,
            });
            left_out.extend(reasons.map(|(requester, need)| ExcludedImage {
                reference: request.reference.clone(),
                requester,
                reason: format!("`--only-used`: {need}"),
                bytes: None,
            }));
            false
        });
        for verdict in &verdicts {
            tracing::debug!(tag = %verdict.tag, needed = verdict.need.is_needed(), "{}", verdict.need);
        }
        left_out
    }

    /// Version of the release that runs here.
    pub(super) fn running_release(&self) -> &str {
        self.tags.version()
    }

    /// What was found, for the log.
    pub(super) fn summary(&self) -> String {
        format!(
            "release {} runs here; {} of its {} images are used",
            self.tags.version(),
            self.tags.used().count(),
            self.tags.count()
        )
    }
}

impl OnlyUsedReport {
    /// One line for people.
    pub fn line(&self) -> String {
        let images = Count(self.images, "image");
        match (&self.refusal, self.is_requested, self.bytes) {
            (Some(why), ..) => {
                let why = why.lines().next().unwrap_or_default();
                format!("unused:    `--only-used` cannot be used: {why}")
            }
            (None, true, None) => format!("unused:    {images} left out by `--only-used`"),
            (None, true, Some(bytes)) => {
                format!(
                    "unused:    {images} left out by `--only-used`, {} saved",
                    self.saved(bytes)
                )
            }
            (None, false, bytes) => format!(
                "unused:    `--only-used` would leave out {images} and save {}",
                self.saved(bytes.unwrap_or_default())
            ),
        }
    }

    fn saved(&self, bytes: u64) -> String {
        match self.images_without_size {
            0 => Size(bytes).to_string(),
            count => format!(
                "at least {}, without {} of unknown size",
                Size(bytes),
                Count(count, "image")
            ),
        }
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The image of a container: by its id, or else by the name that was requested.
fn image_of(record: &ContainerRecord, inventory: &Inventory) -> Option<ImageIdentity> {
    let requested = record.requested_image.as_deref();
    let requested = requested.and_then(|name| name.parse::<Reference>().ok());
    if let Some(image) = inventory.image(record.image.as_ref()?) {
        return Some(ImageIdentity::of_stored(image));
    }
    // Somebody removed the image by force.
    let by_digest = requested.filter(|reference| reference.digest().is_some())?;
    Some(ImageIdentity::of_reference(&by_digest))
}

/// The releases whose release images are in the store. An image that cannot be read is not one of them.
fn stored_releases(store: &Store, inventory: &Inventory) -> Vec<StoredRelease> {
    let releases = inventory.all_images().filter_map(|image| {
        let (_, payload) = stored_payload(store, &inventory.chain_of(image)?)?;
        Some(StoredRelease {
            image: ImageIdentity::of_stored(image),
            payload,
        })
    });
    releases.take(RELEASES).collect()
}

/// The operators that name each image of the running release; none if its manifests cannot be read.
fn operators(
    running: &RunningRelease<'_>,
    version: Option<&ClusterVersion>,
    store: &Store,
    inventory: &Inventory,
) -> HashMap<String, Vec<OperatorOfTag>> {
    let image = inventory
        .all_images()
        .find(|image| ImageIdentity::of_stored(image) == *running.image());
    let Some(layers) = image.and_then(|image| inventory.chain_of(image)) else {
        return HashMap::new();
    };
    let tree = store.tree(&layers);
    let operators = tree.and_then(|tree| operators_of_tags(&tree, running.payload(), version));
    operators.unwrap_or_else(|error| {
        tracing::warn!("it is unknown which operators have run: {error}");
        HashMap::new()
    })
}

/// Age of the oldest container of a pod. A container from the future has none: the clock was wrong.
fn oldest(containers: &[ContainerRecord], now: Timestamp) -> Option<Duration> {
    let pods = containers.iter().filter(|record| record.pod.is_some());
    let ages = pods.map(|record| {
        let age = record.created.map(|created| now.duration_since(created));
        age.and_then(|age| Duration::try_from(age).ok())
            .unwrap_or_default()
    });
    ages.max()
}

/// How long the node has been up; 0 if that is unknown.
fn up_for(proc: &Path) -> Duration {
    let read = |proc: &Path| {
        let mut text = String::new();
        let file = File::open(proc.join("uptime")).ok()?;
        file.take(100).read_to_string(&mut text).ok()?;
        let seconds = text.split_whitespace().next()?.parse::<f64>().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    };
    read(proc).or_else(|| read(Path::new(PROC))).unwrap_or_default()
}
