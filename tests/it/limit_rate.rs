//! Measures `--limit-rate` on the link: bytes that arrive at the node's device, and the delay of other traffic.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::compare::inconsistencies;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::link::{Link, Quality};
use crate::needs::{long, needs};
use crate::network::certificates::Authority;
use crate::network::servers::Program;
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

const MBIT: u64 = 1_000_000;
/// A frame's header, which a TUN device has not.
const ETHERNET: u64 = 14;
/// The neighbour's answers: a number, UDP, IP and that.
const ANSWER: u64 = 8 + 8 + 20 + ETHERNET;
/// Time between two readings of the device's counter.
const LOOK: Duration = Duration::from_millis(10);
/// Bursts are measured over this time.
const BURST: Duration = Duration::from_millis(100);
/// Time between two questions of the neighbour, and the longest that an answer may take.
const QUESTION: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(1);

/// A registry at the far end, and an echo server beside it.
struct Site {
    link: Link,
    registry: Registry,
    echo: UdpSocket,
    names: Vec<String>,
    authority: Authority,
    is_tls: bool,
    _nginx: Option<Program>,
}

/// What was seen while something went on.
struct Seen {
    /// The device's counter without the neighbour's answers, and when it was read.
    counter: Vec<(Instant, u64)>,
    /// Round trips of the neighbour, sorted; a lost one counts as [`PATIENCE`].
    trips: Vec<Duration>,
}

impl Site {
    /// Four images with `kilobytes` together, in twelve layers; by plain HTTP/1.1, or by TLS and HTTP/2.
    fn new(quality: Quality, kilobytes: u64, is_tls: bool) -> Self {
        let link = Link::new(quality).unwrap();
        let address = SocketAddr::from((Link::SERVER, 5000));
        let plain = match is_tls {
            true => SocketAddr::from((Ipv4Addr::LOCALHOST, 5001)),
            false => address,
        };
        let (listener, echo) = link.server.within(|| {
            let echo = UdpSocket::bind((Link::SERVER, 7)).unwrap();
            (TcpListener::bind(plain).unwrap(), echo)
        });
        let authority = Authority::new("site");
        let nginx = is_tls.then(|| {
            let certificate = authority.certificate("registry", &format!("IP:{}", Link::SERVER));
            Program::nginx(&link.server, address, &certificate, &plain.to_string(), None)
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
            format!("{address}/{name}:latest")
        });
        let names = names.collect();
        Self {
            link,
            registry,
            echo,
            names,
            authority,
            is_tls,
            _nginx: nginx,
        }
    }

    /// A node that wants all of them.
    fn world(&self) -> TestNode {
        let insecure = (!self.is_tls).then(|| self.registry.host());
        let world = TestNode::trusting(insecure.as_slice());
        world.write("etc/ssl/certs/ca-certificates.crt", &self.authority.pem());
        world.spec(&[("additionalImages", &self.names.join("\n"))]);
        world
    }

    /// Measures the link while `work` runs.
    fn watch(&self, work: impl FnOnce()) -> Seen {
        let (is_over, is_quiet, answers) =
            (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        let client = self
            .link
            .client
            .within(|| UdpSocket::bind((Link::CLIENT, 0)).unwrap());
        client.connect((Link::SERVER, 7)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        std::thread::scope(|scope| {
            let until_over = || !is_over.load(Ordering::Relaxed);
            let (is_quiet, answers) = (&is_quiet, &answers);
            let counter = scope.spawn(move || {
                self.link.client.within(|| {
                    let (mut seen, mut latest) = (Vec::new(), 0);
                    while until_over() {
                        // An answer may be counted here before it is there.
                        latest =
                            latest.max(counter().saturating_sub(ANSWER * answers.load(Ordering::Relaxed)));
                        seen.push((Instant::now(), latest));
                        std::thread::sleep(LOOK);
                    }
                    seen
                })
            });
            scope.spawn(move || {
                let mut packet = [0; 64];
                while !is_quiet.load(Ordering::Relaxed) {
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
                    answers.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(QUESTION);
                }
                trips.sort();
                trips
            });
            work();
            is_over.store(true, Ordering::Relaxed);
            let trips = trips.join().unwrap();
            is_quiet.store(true, Ordering::Relaxed);
            Seen {
                counter: counter.join().unwrap(),
                trips,
            }
        })
    }

    /// A run with these arguments, from an empty store to its good end.
    fn run(&self, args: &[&str]) -> Seen {
        self.run_on(&self.world(), &[], args).0
    }

    /// The same on this node, with these variables.
    fn run_on(&self, world: &TestNode, variables: &[&str], args: &[&str]) -> (Seen, Run) {
        let mut run = None;
        let wrapper = [&["/usr/bin/env"], variables].concat();
        let seen = self.watch(|| {
            let started = self
                .link
                .client
                .within(|| world.start_under(&wrapper, "run", args));
            run = Some(started.wait().exits(0));
        });
        assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
        (seen, run.unwrap())
    }
}

/// Bytes that arrived at `tun0` of this thread's namespace, with what Ethernet would have added to each packet.
fn counter() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("tun0:"));
    let mut numbers = line
        .unwrap()
        .split_whitespace()
        .map(|number| number.parse::<u64>().unwrap());
    numbers.next().unwrap() + ETHERNET * numbers.next().unwrap()
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

    /// The average rate between two moments after the first kilobytes, in bits per second.
    fn between(&self, from: Duration, to: Duration) -> f64 {
        let (_, first) = self.counter[0];
        let began = self.counter.iter().find(|(_, bytes)| *bytes > first + 20_000);
        let began = began.unwrap().0;
        let span = |(at, _): &&(Instant, u64)| (began + from..began + to).contains(at);
        let span: Vec<_> = self.counter.iter().filter(span).collect();
        let ((from, before), (to, after)) = (span[0], span[span.len() - 1]);
        (after - before) as f64 * 8.0 / (*to - *from).as_secs_f64()
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

/// Pulls for about so many seconds over a link of 100 Mbit/s, and answers with what came on average, in the worst [`BURST`],
/// and in the worst one after two seconds, as parts of the limit.
fn held(megabits: u64, milliseconds: u64, seconds: u64, is_tls: bool) -> (f64, f64, f64) {
    let site = Site::new(link(100, milliseconds), seconds * megabits * 1000 / 8, is_tls);
    let seen = site.run(&["--limit-rate", &format!("{megabits}Mbit")]);
    let limit = (megabits * MBIT) as f64;
    let (average, burst) = (seen.average() / limit, seen.burst(Duration::ZERO) / limit);
    let later = seen.burst(Duration::from_secs(2)) / limit;
    say(&format!(
        "--limit-rate {megabits}Mbit of 100 Mbit/s, {} ms, {}: {:.1} % on average, at most {:.0} % in 100 ms, {:.0} % \
         after two seconds; round trips {}",
        2 * milliseconds,
        if is_tls { "HTTP/2 by TLS" } else { "plain HTTP/1.1" },
        average * 100.0,
        burst * 100.0,
        later * 100.0,
        seen.trips()
    ));
    (average, burst, later)
}

#[test]
fn the_limit_is_held_on_the_link() {
    needs!(root(), links());
    let (average, burst, _) = held(20, 5, 3, false);
    // Other tests may hold us up.
    assert!((0.8..1.1).contains(&average), "{average}");
    assert!(burst < 2.5, "{burst}");
}

#[test]
fn the_limit_is_held_on_links_of_all_kinds() {
    needs!(root(), links(), nginx());
    if !long() {
        return crate::needs::leave_out("it takes minutes; SPOKE_LONG=1 asks for it");
    }
    // `5:75:true,20:0:false`: these alone.
    let asked = std::env::var("SPOKE_LIMITS").unwrap_or_default();
    let mut missed = Vec::new();
    for is_tls in [false, true] {
        for megabits in [1, 5, 20, 80] {
            for milliseconds in [0, 20, 75] {
                let name = format!("{megabits}:{milliseconds}:{is_tls}");
                if !asked.is_empty() && !asked.split(',').any(|one| one == name) {
                    continue;
                }
                let (average, burst, later) = held(megabits, milliseconds, 24, is_tls);
                // At 1 Mbit/s a share is eight packets, and several connections that begin have two or three each.
                let is_held = (average - 1.0).abs() < 0.03 && burst < 2.5 && later < 2.0;
                missed.extend((!is_held).then_some((name, average, burst, later)));
            }
        }
    }
    assert_eq!(missed, []);
}

/// Without a limit each question waits behind a router's queue.
#[test]
fn a_neighbour_does_not_wait_behind_a_run_that_leaves_it_half_of_the_link() {
    needs!(root(), links());
    let site = Site::new(link(100, 1), if long() { 60_000 } else { 12_000 }, false);
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

/// A zone in which it is noon in so many seconds, as `zic -b slim` writes one that never had other rules.
fn noon_in(seconds: i64) -> Vec<u8> {
    let of_day = jiff::Timestamp::now().as_second().rem_euclid(86_400);
    let east = (12 * 3600 - seconds - of_day + 43_200).rem_euclid(86_400) - 43_200;
    // POSIX counts to the west.
    let (sign, ahead) = if east > 0 { ('-', east) } else { ('+', -east) };
    let rules = format!(
        "LOC{sign}{:02}:{:02}:{:02}",
        ahead / 3600,
        ahead / 60 % 60,
        ahead % 60
    );
    let head = |version: u8| {
        let mut head = b"TZif".to_vec();
        head.push(version);
        head.extend([0; 15]);
        for count in [0, 0, 0, 0, 1, 4u32] {
            head.extend(count.to_be_bytes());
        }
        head.extend([0, 0, 0, 0, 0, 0]);
        head.extend(b"LOC\0");
        head
    };
    [head(b'2'), head(b'2'), format!("\n{rules}\n").into_bytes()].concat()
}

/// The new rate also applies to open connections: HTTP/2 keeps one for the whole run.
#[test]
fn the_rate_changes_with_the_time_of_day_during_a_run() {
    needs!(root(), links(), nginx());
    let site = Site::new(link(100, 10), 8_000, true);
    let world = site.world();
    fs::write(world.host().join("etc/localtime"), noon_in(2)).unwrap();
    let schedule = "12:00-23:00=20Mbit,else=4Mbit";
    let (seen, run) = site.run_on(&world, &[], &["--limit-rate", schedule]);
    let milliseconds = Duration::from_millis;
    let before = seen.between(milliseconds(300), milliseconds(1300));
    let after = seen.between(milliseconds(3300), milliseconds(4000));
    say(&format!(
        "{schedule}: {before:.0} bit/s before noon, {after:.0} bit/s after it"
    ));
    assert!((2e6..6e6).contains(&before), "{before}: {run}");
    assert!((12e6..26e6).contains(&after), "{after}: {run}");
    let run = run
        .says("4 Mbit/s until 12:00")
        .says("--limit-rate: 20 Mbit/s until 23:00");
    assert_eq!(
        run.report["limitRate"]["schedule"],
        "12:00-23:00 20 Mbit/s, else 4 Mbit/s"
    );
}

#[test]
fn the_limit_is_held_through_a_proxy_with_a_password() {
    needs!(root(), links(), nginx(), tinyproxy());
    for is_tls in [false, true] {
        let site = Site::new(link(100, 5), 2_000, is_tls);
        let address = (Link::SERVER, 3128).into();
        let proxy = Program::tinyproxy(&site.link.server, address, Some("me s3cret"));
        let variables =
            ["HTTP_PROXY=", "HTTPS_PROXY="].map(|name| format!("{name}http://me:s3cret@10.77.0.1:3128"));
        let variables: Vec<&str> = variables.iter().map(String::as_str).collect();
        let (seen, run) = site.run_on(&site.world(), &variables, &["--limit-rate", "10Mbit"]);
        let average = seen.between(Duration::from_millis(300), Duration::from_millis(1300)) / 10e6;
        say(&format!("through a proxy: {:.1} %", average * 100.0));
        assert!((0.8..1.15).contains(&average), "{average}: {run}");
        let asked = if is_tls {
            "CONNECT 10.77.0.1:5000"
        } else {
            "GET http://10.77.0.1:5000/v2/"
        };
        assert!(proxy.log().contains(asked), "{}", proxy.log());
    }
}

/// Errors of connections through the forwarder are reported as without it.
#[test]
fn unreachable_registries_are_reported_under_a_limit_as_without() {
    needs!(root());
    let world = TestNode::trusting(&["127.0.0.1:1".into()]);
    for (image, why) in [
        ("127.0.0.1:1/image:latest", "Connection refused"),
        ("nowhere.invalid/image:latest", "its name is not resolved"),
    ] {
        for limit in ["unlimited", "5Mbit"] {
            let args = ["--image", image, "--limit-rate", limit, "--give-up-after", "1s"];
            world.run(&args).exits(1).says(why);
        }
    }
    let variables = ["/usr/bin/env", "HTTPS_PROXY=http://127.0.0.1:1"];
    for limit in ["unlimited", "5Mbit"] {
        let image = "nowhere.invalid/image:latest";
        let args = ["--image", image, "--limit-rate", limit, "--give-up-after", "1s"];
        let run = world.start_under(&variables, "run", &args).wait();
        run.exits(1)
            .says("proxy `http://127.0.0.1:1` cannot be reached")
            .says("Connection refused");
    }
}

/// A download that waits for the limit obeys the signal and reports the limit; a blob that arrives so slowly is not stalled.
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
    let world = TestNode::trusting(&[registry.host()]);
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
        .says("hint: write `20Mbit` for megabits per second");
}
