//! Injects random API faults: the run ends as it does without the API, in the same time, and logs no secret.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::api_faults::Fault;
use super::fake_api::ApiDouble;
use super::{PATIENCE, has_asked, registry_with_samples, start};
use crate::image::layer::random;
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::test_node::TestNode;

/// Parts of methods and paths.
const PLACES: [&str; 9] = [
    "/",
    "/pods/",
    "/jobs/",
    "/proxies/",
    "/images/",
    "configz",
    "PATCH",
    "POST",
    "GET",
];

const STATUSES: [u16; 12] = [200, 301, 400, 401, 403, 404, 409, 410, 422, 500, 503, 504];

/// How long it may take to be gone: the second that it has, and as much again for a machine that runs ten of them.
const GONE: Duration = Duration::from_secs(2);

fn fault(choice: &[u8]) -> Fault {
    let pick = |byte: usize, from: usize| usize::from(choice[byte]) % from;
    let on = PLACES[pick(0, PLACES.len())];
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let fault = match pick(1, 9) {
        0..3 => Fault::status(on, STATUSES[pick(2, STATUSES.len())]),
        3 => Fault::busy(on, u32::from(choice[2]) % 3),
        4 => Fault::hang(on),
        5 => Fault::reset(on),
        6 => Fault::late(on, Duration::from_millis(u64::from(choice[2]) * 4)),
        7 => [Fault::echo, Fault::nonsense, Fault::half][pick(2, 3)](on),
        _ => match choice[2] % 2 {
            0 => Fault::long(on, 20 << 20),
            _ => Fault::redirect(on, nobody),
        },
    };
    match choice[3] % 4 {
        0 => fault,
        times => fault.times(times.into()),
    }
}

/// What went wrong, if anything did.
fn one(registry: &Registry, seed: u64) -> Result<(), String> {
    let choice = random(32, seed);
    let (api, world) = (ApiDouble::start(), TestNode::trusting(&[registry.host()]));
    let mut story = format!("seed {seed}:");
    for choice in choice[2..].chunks_exact(4).take(1 + usize::from(choice[0]) % 5) {
        let fault = fault(choice);
        let _ = write!(story, " {fault:?}");
        api.fault(fault);
    }
    let variables = [
        "SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100",
        "SPOKE_PRECACHE_LOG_LEVEL=trace",
    ];
    let running = start(
        &world,
        &api,
        &variables,
        &["--image", &registry.tagged("zoo/base")],
    );
    let mut told = None;
    has_asked(&api);
    if choice[1].is_multiple_of(2) {
        std::thread::sleep(Duration::from_millis(u64::from(choice[1]) * 12));
        // Unless it has ended already.
        told = Some(Instant::now());
        running.signal(Signal::TERM);
    }
    let run = running.wait();
    let told = told.map(|told| told.elapsed());
    let is_well = match told {
        Some(gone) => [0, 143].contains(&run.code) && gone < GONE,
        None => run.code == 0 && run.took < PATIENCE,
    };
    let is_discreet = !run.to_string().contains("planted") && !run.stderr.contains("panicked");
    let is_short = api.patches().iter().all(|patch| patch.body.len() < 6000);
    match is_well && is_discreet && is_short {
        true => Ok(()),
        false => Err(format!("{story} told {told:?}: {run}")),
    }
}

#[test]
fn whatever_the_api_does_the_run_ends_as_without_it() {
    needs!(root());
    let registry = registry_with_samples();
    let rounds = if long() { 40 } else { 1 };
    for round in 0..rounds {
        let registry = &registry;
        std::thread::scope(|scope| {
            let runs: Vec<_> = (0..8)
                .map(|seed| scope.spawn(move || one(registry, round * 8 + seed)))
                .collect();
            for run in runs {
                let ended = run.join().expect("its own asserts are here");
                assert_eq!(ended, Ok(()));
            }
        });
    }
}
