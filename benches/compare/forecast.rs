//! Compares the estimates of `plan` and of the log with what a run then does.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::profile::Content;
use crate::rig;
use crate::site::{REGISTRY, Site};
use crate::test_node::{self, TestNode};

/// Plans and pulls on a separate disk, and prints how far the plan was off.
pub(crate) fn forecast(site: &Site, content: &Content) -> anyhow::Result<()> {
    let disk = rig::Disk::xfs()?;
    let world = TestNode::below(disk.path(), &[REGISTRY.to_owned()]);
    let agent = |verb: &str| {
        let begin = Instant::now();
        let flags = [
            "--platform-image",
            &content.images[0],
            "--output",
            "json",
            "--image-gc-high-threshold",
            "100",
        ];
        let document = world.out(&format!("{verb}.json"));
        let mut command = Command::new(test_node::product());
        command
            .arg(verb)
            .arg("--host-root")
            .arg(world.host())
            .args(flags)
            .stdout(File::create(&document)?)
            .stderr(Stdio::piped());
        let mut child = site.client().within(|| command.spawn())?;
        let log = BufReader::new(child.stderr.take().context("no log")?);
        let lines = log.lines().map_while(Result::ok);
        let told: Vec<_> = lines
            .filter_map(|line| Some((begin.elapsed(), time_to_go(&line)?)))
            .collect();
        let status = child.wait()?;
        ensure!(status.success(), "`{verb}`: {status}");
        let document: serde_json::Value = serde_json::from_reader(File::open(&document)?)?;
        anyhow::Ok((document["totals"].clone(), begin.elapsed().as_secs_f64(), told))
    };
    let number = |totals: &serde_json::Value, name: &str| {
        totals[name]
            .as_f64()
            .with_context(|| format!("no `{name}` among the totals"))
    };
    // `plan` pulls the release image, which names the others.
    let (plan, planning, _) = agent("plan")?;
    let before = disk_use(&world)?;
    let (report, took, told) = agent("run")?;
    let grown = disk_use(&world)? - before;
    let (to_fetch, fetched) = (number(&plan, "bytesToFetch")?, number(&report, "bytesFetched")?);
    let unpacked = number(&plan, "unpackedEstimate")?;
    println!(
        "forecast in {planning:.2} s: {:.2} MB to fetch, {:.2} fetched; {:.0} MB on disk, {:.0} by du: {:+.1} %",
        to_fetch / 1e6,
        fetched / 1e6,
        unpacked / 1e6,
        grown / 1e6,
        (unpacked / grown - 1.0) * 100.0
    );
    for (when, left) in told {
        let foretold = (when + left).as_secs_f64();
        println!(
            "after {:.1} s it said that it would take {foretold:.0} s, and it took {took:.1}: {:+.1} %",
            when.as_secs_f64(),
            (foretold / took - 1.0) * 100.0
        );
    }
    Ok(())
}

/// The estimated time in a line of the log: `12.3 MiB left to download: about 1 min 5 s at 99.9 Mbit/s`.
fn time_to_go(line: &str) -> Option<Duration> {
    let (_, rest) = line.split_once(" left to download: about ")?;
    let (time, _) = rest.split_once(" at ")?;
    let words: Vec<&str> = time.split(' ').collect();
    let seconds = words.chunks(2).map(|pair| {
        let unit = match *pair.get(1)? {
            "h" => 3600,
            "min" => 60,
            _ => 1,
        };
        Some(pair[0].parse::<u64>().ok()? * unit)
    });
    seconds.sum::<Option<u64>>().map(Duration::from_secs)
}

/// Disk usage of the graph root, in bytes.
fn disk_use(world: &TestNode) -> anyhow::Result<f64> {
    let output = Command::new("du")
        .args(["-s", "-B1"])
        .arg(world.graph_root())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().next().context("du is silent")?.parse()?)
}
