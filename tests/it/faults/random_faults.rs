//! Injects random faults: if the registry works in the end, the run ends with 0, the store equals that of a run without
//! faults, and no byte is transferred twice except those that a fault provably costs.
//!
//! # The oracle
//!
//! It knows the faults and the sizes of the blobs, and nothing of the product. What a fault may cost of a blob of `S`
//! bytes, each time it acts:
//!
//! | fault | bytes in vain |
//! |---|---|
//! | a status, a redirect, slowness | 0 |
//! | the connection cut | [`IN_FLIGHT`] |
//! | 200 to a range from `o` on | `o`, at most `S` |
//! | 206 of another range | the wrong answer, `S - o`, and a whole one up to `o`: `S` |
//! | 416 | a whole answer up to `o`: at most `S` |
//! | a byte inverted | `S` |
//! | any of these on a blob of which a byte was inverted | `S`: each source has to give all of it from then on |
//! | a kill | [`PER_KILL`] |
//!
//! A source that gives the wrong bytes of a blob twice is not asked again, so at most one byte of each is inverted.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::process::Signal;

use crate::compare::{compare, inconsistencies_after_kills};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

const KB: u64 = 1_000;
/// Sizes of the layers: a few pieces of a socket each, the largest for offsets that matter.
const LAYERS: [u64; 6] = [300 * KB, 100 * KB, 2_000 * KB, 5 * KB, 700 * KB, 450 * KB];
/// Layers of each image, the shared one first.
const IMAGES: [(&str, &[usize]); 3] = [("one", &[0, 1]), ("two", &[0, 2, 3]), ("three", &[0, 4, 5])];
/// What the registry had given to its socket when a connection was cut.
const IN_FLIGHT: u64 = 64 << 10;
/// What had arrived and was not yet written, or was written and is not trusted.
const PER_KILL: u64 = 4 << 20;

/// Where a fault acts.
#[derive(Clone, Copy, Debug)]
enum Place {
    Layer(usize),
    /// Whichever comes.
    Blobs,
    Manifests,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Status(u16),
    /// With `Retry-After: 1`.
    Quiet(u16),
    Cut(u64),
    IgnoreRange,
    ShiftRange(u64),
    RefuseRange,
    Flip(u64),
    Redirect,
    Slow(u64),
}

#[derive(Clone, Copy, Debug)]
struct Injection {
    at_mirror: bool,
    place: Place,
    after: u64,
    times: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
struct Case {
    has_mirror: bool,
    injections: Vec<Injection>,
    /// When the process is killed, in thousandths of the time of a run without faults.
    kills: Vec<u32>,
}

fn injection() -> impl Strategy<Value = Injection> {
    let offset = prop_oneof![Just(0), 1..20 * KB, 20 * KB..2_000 * KB];
    let kind = prop_oneof![
        2 => prop::sample::select(vec![500_u16, 502, 503, 504, 408, 429]).prop_map(Kind::Status),
        1 => prop::sample::select(vec![429_u16, 503]).prop_map(Kind::Quiet),
        6 => offset.clone().prop_map(Kind::Cut),
        2 => Just(Kind::IgnoreRange),
        2 => (1..5 * KB).prop_map(Kind::ShiftRange),
        2 => Just(Kind::RefuseRange),
        2 => offset.prop_map(Kind::Flip),
        1 => Just(Kind::Redirect),
        1 => (2_000 * KB..8_000 * KB).prop_map(Kind::Slow),
    ];
    let place = prop_oneof![
        4 => (0..LAYERS.len()).prop_map(Place::Layer),
        2 => Just(Place::Blobs),
        1 => Just(Place::Manifests),
    ];
    let after = prop_oneof![4 => Just(0_u64), 1 => 1_u64..3];
    (any::<bool>(), place, after, 1_u64..3, kind).prop_map(|(at_mirror, place, after, times, kind)| {
        Injection {
            at_mirror,
            place,
            after,
            times,
            kind,
        }
    })
}

fn case() -> impl Strategy<Value = Case> {
    (
        any::<bool>(),
        prop::collection::vec(injection(), 4..12),
        prop::collection::vec(0_u32..1500, 0..3),
    )
        .prop_map(|(has_mirror, mut injections, kills)| {
            let mut has_flip = false;
            injections.retain_mut(|injection| {
                let Kind::Flip(offset) = &mut injection.kind else {
                    return true;
                };
                // One for a case, so that no source is wrong twice, and in a layer that has that byte.
                injection.times = 1;
                if let Place::Layer(layer) = injection.place {
                    *offset %= LAYERS[layer];
                }
                !std::mem::replace(&mut has_flip, true)
            });
            Case {
                has_mirror,
                injections,
                kills,
            }
        })
}

impl Injection {
    fn fault(&self, layers: &[Layer], elsewhere: &str) -> Fault {
        let path = match self.place {
            Place::Layer(layer) => layers[layer].digest.as_str(),
            Place::Blobs => "/blobs/",
            Place::Manifests => "/manifests/",
        };
        let fault = Fault::on(path).after(self.after).times(self.times);
        match self.kind {
            Kind::Status(status) => fault.status(status),
            Kind::Quiet(status) => fault.status(status).header("Retry-After", "1"),
            Kind::Cut(offset) => fault.cut(offset),
            Kind::IgnoreRange => fault.ignore_range(),
            Kind::ShiftRange(by) => fault.shift_range(by),
            Kind::RefuseRange => fault.refuse_range(),
            Kind::Flip(offset) => fault.flip(offset),
            Kind::Redirect => fault.redirect(elsewhere),
            Kind::Slow(rate) => fault.slow(rate),
        }
    }

    /// Bytes that one act of it may cost, by the table above.
    fn cost(&self, layers: &[Layer], is_flipped: bool) -> u64 {
        let size = match self.place {
            Place::Layer(layer) => layers[layer].size,
            Place::Blobs => layers.iter().map(|layer| layer.size).max().unwrap_or(0),
            Place::Manifests => return 0,
        };
        match self.kind {
            Kind::IgnoreRange | Kind::ShiftRange(_) | Kind::RefuseRange | Kind::Flip(_) => size,
            _ if is_flipped => size,
            Kind::Cut(_) => IN_FLIGHT,
            Kind::Status(_) | Kind::Quiet(_) | Kind::Redirect | Kind::Slow(_) => 0,
        }
    }
}

/// What a case cost.
struct Toll {
    /// Bytes that travelled beyond those that are wanted.
    vain: u64,
    /// Those that may have.
    bytes: u64,
    /// How often faults acted.
    acts: u64,
}

/// Registries, images and a store without faults, for all cases.
struct Stage {
    origin: Registry,
    mirror: Registry,
    elsewhere: Registry,
    layers: Vec<Layer>,
    names: Vec<String>,
    ideal: TestNode,
    took: Duration,
}

impl Stage {
    fn new() -> Self {
        let origin = Registry::start();
        let layers: Vec<Layer> = (10..)
            .zip(LAYERS)
            .map(|(seed, bytes)| {
                let text = format!("file /{seed} 0644 0:0 random={bytes} seed={seed}");
                Layer::of(&text, Compression::Gzip)
            })
            .collect();
        let mut names = Vec::new();
        for (name, own) in IMAGES {
            let layers = own.iter().map(|layer| layers[*layer].clone()).collect();
            let image = Image::build(name, Format::Docker, node_architecture(), layers, |_, _| {});
            origin.push(name, None, &image);
            names.push(origin.at(name, &image.digest()));
        }
        let (mirror, elsewhere) = (origin.twin(), origin.twin());
        let ideal = TestNode::trusting(&[origin.host()]);
        ideal.spec(&[("additionalImages", &names.join("\n"))]);
        let took = ideal.run(&[]).exits(0).took;
        Self {
            origin,
            mirror,
            elsewhere,
            layers,
            names,
            ideal,
            took,
        }
    }

    fn unique(&self) -> u64 {
        self.layers.iter().map(|layer| layer.size).sum()
    }

    /// Plays a case.
    fn play(&self, case: &Case) -> Toll {
        for registry in [&self.origin, &self.mirror, &self.elsewhere] {
            registry.end_faults();
            registry.clear_log();
        }
        for injection in &case.injections {
            self.of(injection, case)
                .fault(injection.fault(&self.layers, &self.elsewhere.host()));
        }

        let world = TestNode::trusting(&[self.origin.host()]);
        if case.has_mirror {
            let (origin, mirror) = (self.origin.host(), self.mirror.host());
            world.write(
                "etc/containers/registries.conf",
                &format!(
                    "[[registry]]\nlocation = \"{origin}\"\ninsecure = true\n\
                     [[registry.mirror]]\nlocation = \"{mirror}\"\ninsecure = true\n"
                ),
            );
        }
        world.spec(&[("additionalImages", &self.names.join("\n"))]);
        for kill in &case.kills {
            let run = world.start("run", &[]);
            std::thread::sleep(self.took * *kill / 1000);
            run.signal(Signal::KILL);
            let run = run.wait();
            assert!([0, 1009].contains(&run.code), "{case:#?}: {run}");
        }
        let run = world.run(&[]);
        let log = || {
            let registries = [&self.mirror, &self.origin, &self.elsewhere];
            let lines = registries.iter().flat_map(|registry| registry.log());
            lines.map(|access| format!("{access}\n")).collect::<String>()
        };
        assert_eq!(run.code, 0, "{case:#?}: {run}\n{}", log());
        let wrong = inconsistencies_after_kills(&world.graph_root());
        assert_eq!(wrong, Vec::<String>::new(), "{case:#?}");
        let mut differences = compare(&world.graph_root(), &self.ideal.graph_root(), &[]);
        // What a kill leaves of a write; see `inconsistencies_after_kills`.
        differences.retain(|line| case.kills.is_empty() || !line.contains(" .tmp-"));
        assert!(differences.is_empty(), "{case:#?}:\n{}", differences.join("\n"));

        let (unique, sent) = (self.unique(), self.sent());
        let toll = self.toll(case);
        let allowed = unique * 102 / 100 + toll.bytes;
        assert!(
            sent <= allowed,
            "{sent} bytes travelled, {unique} are wanted and {allowed} allowed: {case:#?}: {run}\n{}",
            log()
        );
        Toll {
            vain: sent.saturating_sub(unique),
            ..toll
        }
    }

    /// The registry that fails.
    fn of(&self, injection: &Injection, case: &Case) -> &Registry {
        match injection.at_mirror && case.has_mirror {
            true => &self.mirror,
            false => &self.origin,
        }
    }

    /// What the faults that acted may have cost, and the kills.
    fn toll(&self, case: &Case) -> Toll {
        let (mut at_origin, mut at_mirror) = (self.origin.acts().into_iter(), self.mirror.acts().into_iter());
        let mut acted: Vec<(&Injection, u64)> = Vec::new();
        for injection in &case.injections {
            let acts = match injection.at_mirror && case.has_mirror {
                true => at_mirror.next(),
                false => at_origin.next(),
            };
            acted.push((
                injection,
                acts.expect("each injection is a fault of its registry"),
            ));
        }
        let flips = |it: &&(&Injection, u64)| matches!(it.0.kind, Kind::Flip(_)) && it.1 > 0;
        let flipped = acted.iter().find(flips).map(|(injection, _)| injection.place);
        let may_be_flipped = |place| match (flipped, place) {
            (None, _) => false,
            (Some(Place::Layer(flipped)), Place::Layer(layer)) => flipped == layer,
            // A received byte may belong to any blob.
            _ => true,
        };
        let costs = acted
            .iter()
            .map(|(injection, acts)| acts * injection.cost(&self.layers, may_be_flipped(injection.place)));
        Toll {
            vain: 0,
            bytes: costs.sum::<u64>() + PER_KILL * case.kills.len() as u64,
            acts: acted.iter().map(|(_, acts)| acts).sum(),
        }
    }

    /// Bytes of layers that left, over all servers. Documents of errors are no layers.
    fn sent(&self) -> u64 {
        let registries = [&self.origin, &self.mirror, &self.elsewhere];
        let requests = registries.iter().flat_map(|registry| registry.layer_requests());
        requests
            .filter(|access| [200, 206].contains(&access.status))
            .map(|access| access.sent())
            .sum()
    }
}

#[test]
fn any_faults_that_pass_leave_the_same_store_and_cost_what_they_must() {
    needs!(root());
    let cases = if long() { 300 } else { 6 };
    let stage = Stage::new();
    let [vain, allowed, kills, acts] = [const { AtomicU64::new(0) }; 4];
    let mut runner = TestRunner::new(Config {
        cases,
        // Each step of shrinking is a run of some seconds.
        max_shrink_iters: 12,
        failure_persistence: None,
        ..Config::default()
    });
    let result = runner.run(&case(), |case| {
        let toll = stage.play(&case);
        vain.fetch_add(toll.vain, Ordering::Relaxed);
        allowed.fetch_add(toll.bytes, Ordering::Relaxed);
        acts.fetch_add(toll.acts, Ordering::Relaxed);
        kills.fetch_add(case.kills.len() as u64, Ordering::Relaxed);
        Ok(())
    });
    let [vain, allowed, kills, acts] = [vain, allowed, kills, acts].map(AtomicU64::into_inner);
    let unique = stage.unique() * u64::from(cases);
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(
        std::io::stderr(),
        "{cases} cases with {acts} faults and {kills} kills: of {unique} bytes that are wanted {vain} travelled again, \
         {allowed} were allowed"
    );
    if let Err(error) = result {
        panic!("{error}");
    }
}
