//! `cargo run --example demo`: the real main job on a small release, in a minute and without a network.
//!
//! A registry in this process serves a release of a few images with shared layers; the version spec is in a directory
//! as the hub would mount it, and leaves one image out. The job is the program's own, from flags to report, and writes
//! into a store in a temporary directory, as CRI-O's would be. Only root can write a store: owners, devices and
//! `trusted` attributes are set. Without root this starts itself again under sudo.

// The helpers have more than a demo needs; and it is here to print.
#![allow(dead_code, unused_imports, clippy::print_stdout, clippy::print_stderr)]

mod image;
mod registry;

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser as _;

use image::release::{EXCLUDE, Release};
use registry::Registry;
use spoke_precache::cancel::Cancel;
use spoke_precache::cli::{self, Cli};
use spoke_precache::cluster::ClusterInfo;
use spoke_precache::job::{self, Mode};
use spoke_precache::report::{Console, EventLog, Fanout, Observer, ProgressMode, Recorder};
use spoke_precache::settings;

/// Bytes in the large file of each layer: enough for a bar to be seen, little enough for a laptop.
const LAYER_BYTES: usize = 8 << 20;

fn main() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can write a store: starting again under sudo");
        let error = Command::new("sudo")
            .arg("--")
            .arg(std::env::current_exe()?)
            .exec();
        return Err(error).context("there is no sudo; as root, run `cargo run --example demo`");
    }
    let console = Console::stderr(ProgressMode::Auto);
    tracing_subscriber::fmt()
        .with_writer(console.log_writer())
        .with_target(false)
        .init();

    println!("making a release of eight images…");
    let registry = Registry::start();
    let release = Release::build(&registry.host(), LAYER_BYTES);
    registry.push_release(&release);

    let dir = tempfile::tempdir()?;
    let (config, host) = (dir.path().join("config"), dir.path().join("host"));
    write(&config.join("platform.image"), &release.by_digest())?;
    write(&config.join("excludePrecachePatterns"), EXCLUDE)?;
    write(
        &host.join("etc/containers/registries.conf"),
        &format!(
            "[[registry]]\nlocation = \"{}\"\ninsecure = true\n",
            registry.host()
        ),
    )?;
    write(
        &host.join("etc/containers/policy.json"),
        r#"{"default": [{"type": "insecureAcceptAnything"}]}"#,
    )?;
    // A laptop's disk may be fuller than the kubelet lets a node's become.
    let arguments = ["spoke-precache", "run", "--image-gc-high-threshold", "100"].map(OsString::from);
    let paths = [
        "--config".into(),
        config.into(),
        "--host-root".into(),
        host.into(),
    ];
    let cli = Cli::parse_from(arguments.into_iter().chain(paths));
    let cli::Command::Run(flags) = cli.command else {
        anyhow::bail!("the command is `run`")
    };
    let order = settings::job_config(&flags.flags, &ClusterInfo::default())?;

    let recorder = Arc::new(Recorder::new(jiff::Timestamp::now));
    let mut observers: Vec<Arc<dyn Observer>> = vec![recorder.clone(), Arc::new(EventLog::default())];
    observers.extend(console.progress()?);
    let observer: Arc<dyn Observer> = Arc::new(Fanout(observers));
    let cancel = Cancel::default();
    let runtime = tokio::runtime::Runtime::new()?;
    let result = runtime.block_on(job::run(&order, Mode::Run, &observer, &cancel));
    drop(observer);
    let ending = match &result {
        Ok(outcome) => outcome.ending(&cancel),
        Err(error) => error.ending(),
    };
    let report = recorder.report(ending.code());
    println!(
        "{}\n\n{}",
        report.json(),
        report.summary(&ending.meaning(None)).trim_end()
    );
    println!("store:    {} (removed now)", order.graph_root.display());
    result?;
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::create_dir_all(path.parent().context("a file has a parent")?)?;
    Ok(fs::write(path, text)?)
}
