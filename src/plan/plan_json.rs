//! Writes the plan as JSON: `apiVersion: spoke-precache/v1`, `kind: Plan`.

use std::collections::HashMap;

use serde::Serialize;

use super::{ImageAction, LayerAction, Plan, PlanTotals, PlannedImage, PlannedLayer};
use crate::delta::DeltaOption;
use crate::image_request::Requester;
use crate::oci::{Digest, LayerId};
use crate::report::{API_VERSION, LimitReport, OperatorReport, RequesterKind};

/// The plan as a document. `S` is the result of the space check, which the plan does not interpret.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanDocument<'a, S> {
    api_version: &'static str,
    kind: &'static str,
    totals: PlanTotals,
    #[serde(skip_serializing_if = "Option::is_none")]
    space: Option<&'a S>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    operators: &'a [OperatorReport],
    images: Vec<Image<'a>>,
    excluded: Vec<Excluded<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_rate: Option<LimitReport>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Image<'a> {
    name: String,
    source: Option<RequesterKind>,
    /// Its tags in the payload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<&'a str>,
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
}

impl<'a, S: Serialize> PlanDocument<'a, S> {
    /// The document for `plan`, with the requested operators, the result of the space check if there was one, and the rate
    /// limit if there is one.
    pub fn new(
        plan: &'a Plan,
        operators: &'a [OperatorReport],
        space: Option<&'a S>,
        limit_rate: Option<LimitReport>,
    ) -> Self {
        let excluded = plan.excluded.iter().map(|image| Excluded {
            name: image.reference.to_string(),
            source: image.requester.kind(),
            tag: tag(&image.requester),
            reason: &image.reason,
        });
        let deltas = plan.layers.iter().filter_map(|task| {
            let option = task.deltas.first()?;
            Some((task.layer.id(), option.as_ref()))
        });
        let deltas: HashMap<LayerId, &DeltaOption> = deltas.collect();
        Self {
            api_version: API_VERSION,
            kind: "Plan",
            totals: plan.totals,
            space,
            operators,
            images: plan
                .images
                .iter()
                .map(|image| Image::of(image, &deltas))
                .collect(),
            excluded: excluded.collect(),
            limit_rate,
        }
    }
}

impl<'a> Image<'a> {
    fn of(image: &'a PlannedImage, deltas: &HashMap<LayerId, &'a DeltaOption>) -> Self {
        Self {
            name: image.reference.to_string(),
            source: image.requesters.first().map(Requester::kind),
            tags: image.requesters.iter().filter_map(tag).collect(),
            action: action_of(&image.action),
            reason: match &image.action {
                ImageAction::Failed(reason) => Some(reason),
                ImageAction::Present | ImageAction::Pull(_) => None,
            },
            bytes: image.bytes,
            delta_bytes: (image.delta_bytes > 0).then_some(image.delta_bytes),
            bytes_whole: (image.bytes_whole > image.bytes).then_some(image.bytes_whole),
            layers: image
                .layers
                .iter()
                .map(|planned| Layer::of(planned, deltas))
                .collect(),
        }
    }
}

impl<'a> Layer<'a> {
    fn of(planned: &'a PlannedLayer, deltas: &HashMap<LayerId, &'a DeltaOption>) -> Self {
        let layer = &planned.layer;
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
            delta: deltas.get(&layer.id()).map(|option| Delta {
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
