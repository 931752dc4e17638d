//! Writes the plan as JSON: `apiVersion: spoke-precache/v1`, `kind: Plan`.

use std::collections::HashMap;

use serde::Serialize;

use super::release_json::{Release, Use, uses};
use super::{
    ImageAction, LayerAction, LayerSource, Plan, PlanTotals, PlannedImage, PlannedLayer, UpgradeOutlook,
};
use crate::image_request::Requester;
use crate::oci::{Digest, LayerId};
use crate::release::manifests::ReleaseManifests;
use crate::report::{API_VERSION, LimitReport, OperatorReport, RequesterKind};

/// The plan as a document. `S` is the result of the space check and `U` what leaving out unused images changes; the plan
/// interprets neither.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanDocument<'a, S, U> {
    api_version: &'static str,
    kind: &'static str,
    totals: PlanTotals,
    #[serde(skip_serializing_if = "Option::is_none")]
    space: Option<&'a S>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    operators: &'a [OperatorReport],
    /// What the manifests of the release say about its images.
    #[serde(skip_serializing_if = "Option::is_none")]
    release: Option<Release<'a>>,
    images: Vec<Image<'a>>,
    excluded: Vec<Excluded<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    only_used: Option<&'a U>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_rate: Option<LimitReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upgrade: Option<UpgradeOutlook>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Image<'a> {
    name: String,
    source: Option<RequesterKind>,
    /// Its tags in the payload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<&'a str>,
    /// Run level of its first use.
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u32>,
    /// Component of its first use.
    #[serde(skip_serializing_if = "Option::is_none")]
    component: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    uses: Vec<Use<'a>>,
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    bytes: u64,
    /// The share of these that are deltas.
    #[serde(skip_serializing_if = "Option::is_none")]
    delta_bytes: Option<u64>,
    /// Bytes without deltas.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_whole: Option<u64>,
    /// Bytes to copy from media.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_from_media: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    layers: Vec<Layer<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Layer<'a> {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    diff_id: String,
    blob: String,
    size: u64,
    media_type: &'a str,
    action: &'static str,
    /// From which it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Delta<'a>>,
    /// Id of the layer in the store from which it is copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_layer: Option<String>,
    /// The path of the medium that has the blob or the delta.
    #[serde(skip_serializing_if = "Option::is_none")]
    medium: Option<&'a str>,
}

/// What a run fetches for a layer.
#[derive(Clone, Copy, Debug, Default)]
struct Origin<'a> {
    source: Option<&'a LayerSource>,
    medium: Option<&'a str>,
}

/// The first delta that a run tries.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Delta<'a> {
    blob: String,
    size: u64,
    media_type: &'static str,
    repository: String,
    /// Ids of the old images.
    sources: Vec<&'a Digest>,
}

#[derive(Debug, Serialize)]
struct Excluded<'a> {
    name: String,
    source: RequesterKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<&'a str>,
    reason: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    uses: Vec<Use<'a>>,
    /// Bytes that are not fetched for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

impl<'a, S: Serialize, U: Serialize> PlanDocument<'a, S, U> {
    /// The document for `plan`, with the requested operators, the release's manifests if they are known, the result of the space
    /// check if there was one, what leaving out unused images changes if that is known, the rate limit, and the start
    /// of the upgrade, if there are.
    pub fn new(
        plan: &'a Plan,
        operators: &'a [OperatorReport],
        manifests: Option<&'a ReleaseManifests>,
        space: Option<&'a S>,
        only_used: Option<&'a U>,
        limit_rate: Option<LimitReport>,
        upgrade: Option<UpgradeOutlook>,
    ) -> Self {
        let excluded = plan.excluded.iter().map(|image| Excluded {
            name: image.reference.to_string(),
            source: image.requester.kind(),
            tag: tag(&image.requester),
            reason: &image.reason,
            uses: uses([&image.requester], manifests),
            bytes: image.bytes,
        });
        let blobs = plan
            .blobs
            .iter()
            .filter_map(|blob| Some((blob.digest, blob.medium.as_deref()?)));
        let media: HashMap<Digest, &str> = blobs.collect();
        let origins = plan.layers.iter().map(|task| {
            let origin = Origin {
                source: task.sources.first(),
                medium: media.get(&task.download().0).copied(),
            };
            (task.layer.id(), origin)
        });
        let origins: HashMap<LayerId, Origin<'_>> = origins.collect();
        Self {
            api_version: API_VERSION,
            kind: "Plan",
            totals: plan.totals,
            space,
            operators,
            release: manifests.map(Release::new),
            images: plan
                .images
                .iter()
                .map(|image| Image::of(image, manifests, &origins))
                .collect(),
            excluded: excluded.collect(),
            only_used,
            limit_rate,
            upgrade,
        }
    }
}

impl<'a> Image<'a> {
    fn of(
        image: &'a PlannedImage,
        manifests: Option<&'a ReleaseManifests>,
        origins: &HashMap<LayerId, Origin<'a>>,
    ) -> Self {
        let uses = uses(&image.requesters, manifests);
        let first = uses.iter().min_by_key(|it| (it.level.is_none(), it.level));
        Self {
            level: first.and_then(|first| first.level),
            component: first.and_then(|first| first.component),
            name: image.reference.to_string(),
            source: image.requesters.first().map(Requester::kind),
            tags: image.requesters.iter().filter_map(tag).collect(),
            uses,
            action: action_of(&image.action),
            reason: match &image.action {
                ImageAction::Failed(reason) => Some(reason),
                ImageAction::Present | ImageAction::Pull(_) => None,
            },
            bytes: image.bytes,
            delta_bytes: (image.delta_bytes > 0).then_some(image.delta_bytes),
            bytes_whole: (image.bytes_whole > image.bytes).then_some(image.bytes_whole),
            bytes_from_media: (image.bytes_from_media > 0).then_some(image.bytes_from_media),
            layers: image
                .layers
                .iter()
                .map(|planned| Layer::of(planned, origins))
                .collect(),
        }
    }
}

impl<'a> Layer<'a> {
    fn of(planned: &'a PlannedLayer, origins: &HashMap<LayerId, Origin<'a>>) -> Self {
        let layer = &planned.layer;
        let origin = origins.get(&layer.id()).copied().unwrap_or_default();
        let delta = origin.source.and_then(LayerSource::delta);
        let stored = origin.source.and_then(LayerSource::stored);
        Self {
            id: layer.id().to_string(),
            parent: layer.parent().map(|parent| parent.to_string()),
            diff_id: layer.diff_id().to_string(),
            blob: layer.blob.to_string(),
            size: layer.size,
            media_type: &layer.media_type,
            action: match planned.action {
                LayerAction::Reuse => "reuse",
                LayerAction::Fetch => "fetch",
                LayerAction::Share => "share",
            },
            medium: origin.medium,
            stored_layer: stored.map(|stored| stored.id.to_string()),
            delta: delta.map(|option| Delta {
                blob: option.delta.blob.to_string(),
                size: option.delta.size,
                media_type: option.delta.format.media_type(),
                repository: option.repository.repository(),
                sources: option.sources.iter().map(|source| &source.config).collect(),
            }),
        }
    }
}

/// What a run does about an image, in one word.
pub(super) fn action_of(action: &ImageAction) -> &'static str {
    match action {
        ImageAction::Present => "present",
        ImageAction::Pull(_) => "pull",
        ImageAction::Failed(_) => "failed",
    }
}

fn tag(requester: &Requester) -> Option<&str> {
    match requester {
        Requester::Release { tag } => Some(tag),
        Requester::ReleaseImage
        | Requester::OperatorIndex
        | Requester::Operator { .. }
        | Requester::Additional => None,
    }
}
