//! Counts the complete images of an interrupted run: with the plan's download order, and with the orders of other tools.
//!
//! ```text
//! cargo bench --bench order
//! ```
//!
//! The benchmark plans a release of realistic shape and simulates its download in each order. A blob counts when its last byte
//! has arrived, an image when all its blobs count. Parallel downloads get equal shares of the link.

#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use spoke_precache::image_request::Requester;
use spoke_precache::oci::{Content, DiffId, Digest, Layer, LayerDescriptor, ResolvedImage};
use spoke_precache::plan::{ImageAction, ImageToPlan, Plan, Present};

const MB: u64 = 1_000_000;
/// Images of a release, without the release image.
const IMAGES: u64 = 190;
/// Bases: RHEL 8 and 9, each plain and with a tool chain's run time on top, as art builds them.
const BASES: [&[u64]; 4] = [&[80 * MB], &[80 * MB, 45 * MB], &[72 * MB], &[72 * MB, 110 * MB]];
/// Sizes of the images' own layers, in turn.
const OWN: [u64; 10] = [
    2 * MB,
    300 * MB,
    35 * MB,
    12 * MB,
    60 * MB,
    150 * MB,
    25 * MB,
    8 * MB,
    90 * MB,
    45 * MB,
];
/// Images that TALM's script pulls at a time; it waits for all of them before the next.
const BATCH: usize = 10;
/// The share of all bytes, in per cent, after which the run is interrupted.
const CUTS: [u64; 5] = [10, 25, 50, 75, 90];

fn main() {
    let plan = Plan::build((0..IMAGES).map(image).collect(), vec![], &Present::default());
    let all: u64 = plan.blobs.iter().map(|blob| blob.size).sum();
    let images: Vec<Vec<Digest>> = plan
        .images
        .iter()
        .map(|image| image.layers.iter().map(|planned| planned.layer.blob).collect())
        .collect();
    let sizes: HashMap<Digest, u64> = plan.blobs.iter().map(|blob| (blob.digest, blob.size)).collect();
    let in_order: Vec<Vec<Digest>> = plan.blobs.iter().map(|blob| vec![blob.digest]).collect();
    let mut largest_first = in_order.clone();
    largest_first.sort_by_key(|blob| std::cmp::Reverse(sizes[&blob[0]]));
    let orders = [
        ("whole images first", in_order.clone()),
        ("largest blob first", largest_first),
        (
            "as listed, ten images at a time",
            images.chunks(BATCH).map(<[_]>::concat).collect(),
        ),
        ("everything at once", vec![in_order.concat()]),
    ];
    println!(
        "{} images, {} blobs, {} MB; whole images after",
        images.len(),
        sizes.len(),
        all / MB
    );
    println!("{:32}{}", "", CUTS.map(|cut| format!("{cut:>6} %")).concat());
    for (name, groups) in orders {
        let came = arrivals(&groups, &sizes);
        let whole = |cut: u64| {
            let is_whole = |image: &&Vec<Digest>| image.iter().all(|blob| came[blob] <= all * cut / 100);
            images.iter().filter(is_whole).count()
        };
        println!(
            "{name:32}{}",
            CUTS.map(|cut| format!("{:>8}", whole(cut))).concat()
        );
    }
}

/// After how many bytes each blob is complete, if groups are downloaded in sequence and the blobs of a group in parallel.
fn arrivals(groups: &[Vec<Digest>], sizes: &HashMap<Digest, u64>) -> HashMap<Digest, u64> {
    let mut came = HashMap::new();
    let mut before = 0;
    for group in groups {
        let mut blobs: Vec<Digest> = group
            .iter()
            .filter(|blob| !came.contains_key(*blob))
            .copied()
            .collect();
        blobs.sort_by_key(|blob| (sizes[blob], *blob));
        blobs.dedup();
        let mut smaller = 0;
        for (place, blob) in blobs.iter().enumerate() {
            // Meanwhile each larger blob of the group gets as many bytes.
            let larger = (blobs.len() - place) as u64;
            came.insert(*blob, before + smaller + larger * sizes[blob]);
            smaller += sizes[blob];
        }
        before += smaller;
    }
    came
}

fn image(number: u64) -> ImageToPlan {
    let base = (number % 13 % BASES.len() as u64) as usize;
    let own = OWN[(number * 7 % OWN.len() as u64) as usize] + number * MB / 20;
    let lower = BASES[base]
        .iter()
        .enumerate()
        .map(|(depth, size)| (format!("base {} {depth}", size / MB), *size));
    let layers = lower.chain([(format!("own {number}"), own)]).map(|(name, size)| {
        let descriptor = LayerDescriptor {
            blob: Digest::of(name.as_bytes()),
            size,
            media_type: "application/vnd.oci.image.layer.v1.tar+gzip".into(),
        };
        (
            descriptor,
            DiffId(Digest::of(format!("tar of {name}").as_bytes())),
        )
    });
    let layers = Layer::chain(layers);
    let content = || Content::new(Bytes::from(number.to_string()));
    let name = format!("image-{number:03}");
    ImageToPlan {
        reference: format!("example.com/{name}:1").parse().expect("a reference"),
        requesters: vec![Requester::Release { tag: name }],
        rank: None,
        action: ImageAction::Pull(Arc::new(ResolvedImage {
            list: None,
            manifest: content(),
            config: content(),
            layers,
            created: None,
            signatures: Vec::new(),
        })),
        authenticated: false,
    }
}
