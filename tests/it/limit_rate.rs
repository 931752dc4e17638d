//! `--limit-rate` as the link sees it: bytes that arrive at the node's device, and what a neighbour on the same link waits.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::compare::census;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::link::{Link, Quality};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::world::World;

const MBIT: u64 = 1_000_000;
/// Time between two looks at the device's counter.
const LOOK: Duration = Duration::from_millis(10);
/// Bursts are measured over this time.
const BURST: Duration = Duration::from_millis(100);
/// Time between two questions of the neighbour, and the longest that an answer may take.
const QUESTION: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(1);

/// A registry at the far end, and somebody beside it who answers each packet with itself.
struct Site {
    link: Link,
    registry: Registry,
    echo: UdpSocket,
    names: Vec<String>,
}

/// What was seen while something went on.
struct Seen {
    /// The device's counter and when it was read.
    counter: Vec<(Instant, u64)>,
    /// Round trips of the neighbour, sorted; a lost one counts as [`PATIENCE`].
    trips: Vec<Duration>,
}

impl Site {
    /// Four images with `kilobytes` together, in twelve layers.
    fn new(quality: Quality, kilobytes: u64) -> Self {
        let link = Link::new(quality).unwrap();
        let (listener, echo) = link.server.within(|| {
            let echo = UdpSocket::bind((Link::SERVER, 7)).unwrap();
            (TcpListener::bind((Link::SERVER, 5000)).unwrap(), echo)
        });
        echo.set_read_timeout(Some(LOOK)).unwrap();
        let registry = Registry::on(listener);
        let names = (0..4).map(|number| {
            let layers = (0..3).map(|layer| {
                let (seed, bytes) = (10 * number + layer, kilobytes * 1000 / 12);
                let text = format!("file /{seed} 0644 0:0 random={bytes} seed={seed}");
                Layer::of(&text, Compression::Gzip)
            });
            let (name, layers) = (format!("image-{number}"), layers.collect());
            let image = Image::build(&name, Format::Docker, node_architecture(), layers, |_, _| {});
            registry.push(&name, Some("latest"), &image);
            registry.tagged(&name)
        });
        let names = names.collect();
        Self {
            link,
            registry,
            echo,
            names,
        }
    }

    /// Looks at the link while `work` goes on.
    fn watch(&self, work: impl FnOnce()) -> Seen {
        let is_over = AtomicBool::new(false);
        let client = self
            .link
            .client
            .within(|| UdpSocket::bind((Link::CLIENT, 0)).unwrap());
        client.connect((Link::SERVER, 7)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        std::thread::scope(|scope| {
            let until_over = || !is_over.load(Ordering::Relaxed);
            let counter = scope.spawn(move || {
                self.link.client.within(|| {
                    let mut seen = Vec::new();
                    while until_over() {
                        seen.push((Instant::now(), counter()));
                        std::thread::sleep(LOOK);
                    }
                    seen
                })
            });
            scope.spawn(move || {
                let mut packet = [0; 64];
                while until_over() {
                    if let Ok((length, from)) = self.echo.recv_from(&mut packet) {
                        // One that is lost is the asker's affair.
                        let _ = self.echo.send_to(&packet[..length], from);
                    }
                }
            });
            let trips = scope.spawn(move || {
                let mut trips = Vec::new();
                while until_over() {
                    trips.push(trip(&client, trips.len() as u64));
                    std::thread::sleep(QUESTION);
                }
                trips.sort();
                trips
            });
            work();
            is_over.store(true, Ordering::Relaxed);
            Seen {
                counter: counter.join().unwrap(),
                trips: trips.join().unwrap(),
            }
        })
    }

    /// A run with these arguments, from an empty store to its good end.
    fn run(&self, args: &[&str]) -> Seen {
        let world = World::trusting(&[self.registry.host()]);
        world.spec(&[("additionalImages", &self.names.join("\n"))]);
        let seen = self.watch(|| {
            let run = self.link.client.within(|| world.start("run", args));
            run.wait().exits(0);
        });
        assert_eq!(census(&world.graph_root()), Vec::<String>::new());
        seen
    }
}

/// Bytes that arrived at `tun0` of this thread's namespace.
fn counter() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("tun0:"));
    line.unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// How long an answer takes. Those to earlier questions are passed over.
fn trip(client: &UdpSocket, number: u64) -> Duration {
    let (asked, mut answer) = (Instant::now(), [0; 8]);
    client.send(&number.to_be_bytes()).unwrap();
    loop {
        match client.recv(&mut answer) {
            Ok(_) if u64::from_be_bytes(answer) == number => return asked.elapsed(),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return PATIENCE,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Seen {
    /// The counter's rate in bits a second, from a second after the first kilobytes until the last ones.
    fn average(&self) -> f64 {
        let (_, first) = self.counter[0];
        let (_, last) = self.counter[self.counter.len() - 1];
        let began = self
            .counter
            .iter()
            .find(|(_, bytes)| *bytes > first + 20_000)
            .unwrap()
            .0;
        let steady = |(at, bytes): &&(Instant, u64)| {
            *at >= began + Duration::from_secs(1) && *bytes < last - (last - first) / 20
        };
        let steady: Vec<_> = self.counter.iter().filter(steady).collect();
        let ((from, before), (to, after)) = (steady[0], steady[steady.len() - 1]);
        (after - before) as f64 * 8.0 / (*to - *from).as_secs_f64()
    }

    /// The most bytes in any [`BURST`], after the first `skipped`, in bits a second.
    fn burst(&self, skipped: Duration) -> f64 {
        let began = self.counter[0].0 + skipped;
        let late: Vec<_> = self.counter.iter().filter(|(at, _)| *at >= began).collect();
        let spans = late.iter().flat_map(|(at, before)| {
            let end = late.iter().find(|(to, _)| *to - *at >= BURST);
            end.map(|(to, after)| (after - before) as f64 * 8.0 / (*to - *at).as_secs_f64())
        });
        spans.fold(0.0, f64::max)
    }

    fn percentile(&self, percent: usize) -> Duration {
        self.trips[(self.trips.len() - 1) * percent / 100]
    }

    fn trips(&self) -> String {
        let [half, most, worst] =
            [50, 95, 100].map(|percent| self.percentile(percent).as_secs_f64() * 1000.0);
        format!("{half:.1} ms, {most:.1} ms at the 95th percentile, {worst:.1} ms at worst")
    }
}

fn say(text: &str) {
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn link(megabits: u64, milliseconds: u64) -> Quality {
    Quality {
        rate: megabits * MBIT,
        delay: Duration::from_millis(milliseconds),
        loss: 0.0,
    }
}

/// Pulls for about so many seconds over a link of 100 Mbit/s, and answers with what came on average and in the worst
/// [`BURST`], as parts of the limit.
fn held(megabits: u64, milliseconds: u64, seconds: u64) -> (f64, f64) {
    let site = Site::new(link(100, milliseconds), seconds * megabits * 1000 / 8);
    let seen = site.run(&["--limit-rate", &format!("{megabits}Mbit")]);
    let limit = (megabits * MBIT) as f64;
    let (average, burst) = (seen.average() / limit, seen.burst(Duration::ZERO) / limit);
    let later = seen.burst(Duration::from_secs(1)) / limit;
    say(&format!(
        "--limit-rate {megabits}Mbit of 100 Mbit/s, {} ms: {:.1} % on average, at most {:.0} % in 100 ms, {:.0} % after a \
         second; round trips {}",
        2 * milliseconds,
        average * 100.0,
        burst * 100.0,
        later * 100.0,
        seen.trips()
    ));
    (average, burst)
}

#[test]
fn the_limit_is_held_on_the_link() {
    needs!(root(), links());
    let (average, burst) = held(20, 5, 3);
    // Another test may hold us up, and then what is made up for comes in a burst.
    assert!((0.8..1.15).contains(&average), "{average}");
    assert!(burst < 4.0, "{burst}");
}

#[test]
fn the_limit_is_held_on_links_of_all_kinds() {
    needs!(root(), links());
    if !long() {
        return crate::needs::leave_out("it takes minutes; SPOKE_LONG=1 asks for it");
    }
    let mut missed = Vec::new();
    for (megabits, milliseconds) in [(5, 40), (20, 5), (20, 75), (50, 20), (80, 5), (5, 5)] {
        let (average, burst) = held(megabits, milliseconds, 12);
        // What lies in windows is a few hundred milliseconds' worth then, which this short a run has at one end alone.
        let is_far_or_slow = milliseconds > 20 || megabits < 20;
        let (average_within, burst_within) = if is_far_or_slow { (0.1, 4.0) } else { (0.03, 2.0) };
        let is_held = (average - 1.0).abs() < average_within && burst < burst_within;
        missed.extend((!is_held).then_some((megabits, milliseconds, average, burst)));
    }
    assert_eq!(missed, []);
}

/// Without a limit each question waits behind a router's queue.
#[test]
fn a_neighbour_does_not_wait_behind_a_run_that_leaves_it_half_of_the_link() {
    needs!(root(), links());
    let site = Site::new(link(100, 1), if long() { 60_000 } else { 12_000 });
    let idle = site.watch(|| std::thread::sleep(Duration::from_millis(500)));
    let free = site.run(&[]);
    let limited = site.run(&["--limit-rate", "50Mbit"]);
    for (what, seen) in [
        ("idle", &idle),
        ("without a limit", &free),
        ("half of it", &limited),
    ] {
        say(&format!("round trips over 100 Mbit/s, {what}: {}", seen.trips()));
    }
    assert!(
        limited.percentile(50) < free.percentile(50),
        "{} against {}",
        limited.trips(),
        free.trips()
    );
}

/// Who waits for the limit hears the signal, and says what limit that was; a blob that comes so slowly is no stalled one.
#[test]
fn a_run_that_waits_for_its_limit_leaves_at_once() {
    needs!(root());
    let registry = Registry::start();
    let layer = Layer::of("file /data 0644 0:0 random=2000000 seed=1", Compression::Gzip);
    let image = Image::build(
        "image",
        Format::Docker,
        node_architecture(),
        vec![layer],
        |_, _| {},
    );
    registry.push("image", Some("latest"), &image);
    let world = World::trusting(&[registry.host()]);
    let args = [
        "--image",
        &registry.tagged("image"),
        "--limit-rate",
        "00:00-24:00=500kbit",
    ];
    let run = world.start("run", &args);
    std::thread::sleep(Duration::from_secs(1));
    let asked = Instant::now();
    run.signal(rustix::process::Signal::TERM);
    let run = run.wait().exits(143).says("--limit-rate: 500 kbit/s");
    assert!(asked.elapsed() < 3 * PATIENCE, "{run}");
    assert!(run.total("bytesFetched") < 1_000_000, "{run}");
    let refused = world.run(&["--image", &registry.tagged("image"), "--limit-rate", "20"]);
    refused
        .exits(2)
        .says("hint: write `20Mbit` for megabits a second");
}
