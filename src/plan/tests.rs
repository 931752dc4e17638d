//! Builds plans of small releases. A letter stands for a layer.

#![allow(clippy::unwrap_used)]

mod deltas;
mod layers;
mod media;
mod output;
mod properties;
mod release;
mod requests;
mod stored;

use bytes::Bytes;

use super::*;
use crate::delta::{Format, LayerDelta};
use crate::oci::{Content, DiffId, LayerDescriptor};

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const MIB: u64 = 1 << 20;

/// A layer whose blob, diffID and size follow from a letter: `a` has 1 MiB, `b` 2 MiB.
fn layer(letter: char) -> (LayerDescriptor, DiffId) {
    let descriptor = LayerDescriptor {
        blob: blob(letter),
        size: size(letter),
        media_type: GZIP.into(),
    };
    (descriptor, diff_id(letter))
}

fn blob(letter: char) -> Digest {
    Digest::of(format!("blob {letter}").as_bytes())
}

fn diff_id(letter: char) -> DiffId {
    DiffId(Digest::of(format!("tar {letter}").as_bytes()))
}

fn size(letter: char) -> u64 {
    u64::from(letter as u32 - 'a' as u32 + 1) * MIB
}

fn unpacked(letter: char) -> u64 {
    disk_estimate::disk_bytes(size(letter) * 57 / 20)
}

fn chain(letters: &str) -> Vec<LayerId> {
    LayerId::chain(letters.chars().map(diff_id))
}

fn pull(layers: Vec<(LayerDescriptor, DiffId)>) -> ImageAction {
    let config = format!("{layers:?}");
    ImageAction::Pull(Arc::new(ResolvedImage {
        list: None,
        manifest: Content::new(Bytes::from(format!("manifest of {config}"))),
        config: Content::new(Bytes::from(config)),
        layers: Layer::chain(layers),
        created: None,
        signatures: Vec::new(),
    }))
}

fn image(name: &str, requester: Requester, action: ImageAction) -> ImageToPlan {
    ImageToPlan {
        reference: name.parse().unwrap(),
        requesters: vec![requester],
        rank: None,
        action,
        authenticated: false,
    }
}

/// An image of the release with one layer for each letter.
fn component(name: &str, letters: &str) -> ImageToPlan {
    image(
        name,
        Requester::Release { tag: name.into() },
        pull(letters.chars().map(layer).collect()),
    )
}

/// The delta of this number for the layer of a letter.
fn delta(letter: char, number: usize, size: u64) -> Arc<DeltaOption> {
    Arc::new(DeltaOption {
        delta: LayerDelta {
            blob: Digest::of(format!("delta {letter} {number}").as_bytes()),
            size,
            format: Format::TarDiff,
            target: blob(letter),
            tar_size: None,
        },
        repository: "example.com/deltas:1".parse().unwrap(),
        sources: Vec::new(),
    })
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.images.iter().map(|image| image.reference.path()).collect()
}
