//! Unpacks random tars over few names, so that entries meet: links, replacements, whiteouts, odd parents.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::differential::{Same, compare};
use super::entries::*;
use super::own_unpack::Ours;
use super::podman_unpack::Podman;
use super::reread::flaw;
use crate::image::tar::{Entry, entry};
use crate::needs::needs;

fn name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        8 => prop::sample::select(vec!["a", "b", "c", "l"]),
        1 => prop::sample::select(vec![".", "..", ".wh.a", ".wh.b", ".wh..wh..opq", "", "\u{e4}<&>"]),
    ];
    let start = prop_oneof![8 => Just(""), 1 => Just("/"), 1 => Just("./")];
    let end = prop_oneof![8 => Just(""), 1 => Just("/")];
    (start, prop::collection::vec(part, 1..4), end)
        .prop_map(|(start, parts, end)| start.to_owned() + &parts.join("/") + end)
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let made = prop_oneof![
        6 => (name(), prop::collection::vec(any::<u8>(), 0..700)).prop_map(|(name, data)| file(name, data)),
        4 => name().prop_map(dir),
        4 => (name(), name()).prop_map(|(name, target)| symlink(name, target)),
        3 => (name(), name()).prop_map(|(name, target)| hard_link(name, target)),
        1 => name().prop_map(|name| entry(b'6', name)),
        1 => name().prop_map(|name| entry(b'3', name).device(1, 3)),
        1 => name().prop_map(|name| entry(b'g', name)),
        1 => name().prop_map(|name| file(name, "abc").pax("GNU.sparse.size", "9").pax("GNU.sparse.numblocks", "1").pax("GNU.sparse.map", "2,3")),
        1 => (name(), name()).prop_map(|(name, target)| hard_link(name, target).size(7)),
    ];
    let mode = prop::sample::select(vec![0o644, 0o755, 0o4755, 0o2775, 0o1777, 0]);
    let owner = prop::sample::select(vec![(0, 0), (0, 5), (1000, 1000)]);
    (made, mode, owner, 0..2_000_000_000_i64)
        .prop_map(|(made, mode, (uid, gid), mtime)| made.mode(mode).owner(uid, gid).mtime(mtime))
}

fn any_tar() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any_entry(), 1..9).prop_map(tar)
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

#[test]
fn what_is_unpacked_can_be_put_together_again() {
    needs!(root());
    proptest!(config(), |(tar in any_tar())| {
        // `Ours` asserts that nothing outside is touched.
        if let Ok(ours) = Ours::unpack(&tar) {
            prop_assert_eq!(&ours.assemble(), &tar);
            // Whatever the tar is like, nothing is wrong with what was unpacked from it. Among thousands of such tars there
            // is one whose headers do not show that; among layers there is none so far.
            if crate::needs::long() {
                prop_assert_eq!(flaw(&ours.diff(), &ours.tar_split, &tar), None, "{}", listing(&tar));
            }
        }
    });
}

#[test]
fn garbage_is_refused() {
    needs!(root());
    let garbage = prop::collection::vec(any::<u8>(), 0..3000);
    proptest!(config(), |(garbage in garbage, at in 0..5000_usize, tar in any_tar())| {
        let _ = Ours::unpack(&garbage);
        let mut tar = tar;
        let at = at.min(tar.len());
        let end = tar.len().min(at + garbage.len().min(50));
        tar[at..end].copy_from_slice(&garbage[..end - at]);
        if let Ok(ours) = Ours::unpack(&tar) {
            prop_assert_eq!(ours.assemble(), tar);
        }
    });
}

/// Layers that are compared by default; `RANDOM_LAYERS` sets another number, `RANDOM_SEED` other layers.
const LAYERS: u64 = 60;

#[test]
fn podman_agrees() {
    needs!(root(), stock());
    let podman = Podman::new();
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&number("RANDOM_SEED").unwrap_or(0_u64).to_le_bytes());
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let strategy = any_tar();
    let mut differences = Vec::new();
    for count in 0..number("RANDOM_LAYERS").unwrap_or(LAYERS) {
        let tar = strategy.new_tree(&mut runner).unwrap().current();
        let found = compare(&podman, &format!("layer {count}"), &tar, Same::Tree);
        if !found.is_empty() {
            differences.push(format!("layer {count}: {}", listing(&tar)));
        }
        differences.extend(found);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// The headers of a tar made here, to see what a difference is about.
fn listing(tar: &[u8]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_matches('\0').to_owned();
    let headers = tar
        .chunks(512)
        .filter(|block| block.len() == 512 && &block[257..262] == b"ustar");
    let lines = headers.map(|block| {
        format!(
            "{} {:?} -> {:?}",
            block[156] as char,
            text(&block[..100]),
            text(&block[157..257])
        )
    });
    lines.collect::<Vec<_>>().join("; ")
}
