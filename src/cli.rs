//! Defines the command line: commands, flags and their help.
//!
//! [`crate::settings`] determines what a flag leaves open. Every flag has an environment variable: `SPOKE_PRECACHE_` and the
//! flag's name. Variables of TALM's Job (`MAX_PULL_THREADS`, `pull_secret_path`, `PRE_CACHE_LOG_LEVEL`) are read by settings.

mod delta_create_flags;
mod delta_flags;
mod export_flags;
mod image_flags;
mod media_flags;
mod registry_paths;
mod release_flags;
mod signature_flags;

use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;

use crate::pinning::PinTarget;
use crate::preflight::Threshold;
use crate::priority::{IoPriority, Niceness};
use crate::registry::LimitRate;
use crate::report::ProgressMode;
use crate::spec::parse_space;
use crate::write_back::IoBudget;
pub use delta_create_flags::{DeltaCommand, DeltaCommands, DeltaCreateFlags};
pub use delta_flags::DeltaFlags;
pub use export_flags::ExportFlags;
pub use image_flags::ImageFlags;
pub use media_flags::MediaFlags;
pub use registry_paths::RegistryPaths;
pub use release_flags::ReleaseFlags;
pub use signature_flags::SignatureFlags;

/// Lines are not longer, on however wide a terminal.
const WIDTH: usize = 100;

/// The end of `-h`.
const SEE_HELP: &str = "`--help` shows all flags, environment variables, exit codes and examples.";

/// The end of `--help`.
const DETAILS: &str = "\
Environment:
  Every flag has a variable: SPOKE_PRECACHE_ and the flag's name in capitals, with _ for -.
  --max-downloads is SPOKE_PRECACHE_MAX_DOWNLOADS. A flag overrides its variable.
  The variables of repeatable flags take several values, separated by commas. Only those of --exclude
  and --config take one.
  NO_COLOR and CLICOLOR_FORCE turn colours off and on.

Exit codes:
    0    every requested image is in the store, verified
    1    some images are missing after retries; run it again
    2    the arguments or the version spec are unusable
    3    not enough disk space
    4    a registry or a proxy refused the credentials
    5    a release, a catalog, an image or a pattern is not as expected
    6    content differs from its digest at every mirror, or a signature is missing or wrong
    7    the store is unusable or damaged
    8    a registry does not have an image, or its certificate or a rule forbids the request
    124  the deadline passed; run it again, it continues
         or the upgrade begins before everything can be whole; CRI-O then pulls the rest
    128+n  signal n arrived (143: SIGTERM); run it again, it continues

Examples:
  spoke-precache plan --platform-image quay.io/openshift-release-dev/ocp-release:4.16.8-x86_64
  spoke-precache run --config spec.yaml --limit-rate 20Mbit --deadline 6h --report /tmp/report.json";

/// Pre-caches the images of an OpenShift upgrade in this node's CRI-O store
#[derive(Clone, Debug, Parser)]
#[command(version, about, propagate_version = true, max_term_width = WIDTH)]
#[command(after_help = SEE_HELP, after_long_help = DETAILS)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands. All take the same flags, and `verify` has two more; `delta` and `export` have flags of their own.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Pull every image that the version spec names into the store
    #[command(after_help = SEE_HELP, after_long_help = DETAILS)]
    Run(RunFlags),
    /// Show what `run` would do
    ///
    /// Pulls only the release image and the operator indexes, because these name the other images.
    #[command(after_help = SEE_HELP, after_long_help = DETAILS)]
    Plan(RunFlags),
    /// Read every image in the store again and report what is missing or damaged
    ///
    /// Downloads nothing and changes nothing, except with `--repair`.
    #[command(after_help = SEE_HELP, after_long_help = DETAILS)]
    Verify(VerifyFlags),
    /// Print the version spec, including flags, as a ConfigMap
    ///
    /// The ConfigMap is the one that the hub would write. Needs neither a store nor, without `--from-cluster`, a network.
    #[command(after_help = SEE_HELP, after_long_help = DETAILS)]
    Spec(SpecFlags),
    /// Show the last runs, and what is missing now of what the last one requested
    ///
    /// Reads only the store and the spool: no registry, no API, no version spec. Takes about a second. The exit code is 0 if
    /// every requested image is known and in the store, and 1 otherwise.
    #[command(after_help = SEE_HELP, after_long_help = DETAILS)]
    Status(RunFlags),
    /// Create deltas from one release to the next
    Delta(DeltaCommands),
    /// Write what the version spec needs to a directory or a tar
    ///
    /// For a site without a network: needs neither root nor a store, and nodes use the result with `--blobs-from`. Another run
    /// continues, and downloads only what is missing.
    #[command(after_help = SEE_HELP, after_long_help = export_flags::DETAILS)]
    Export(Box<ExportFlags>),
}

/// Flags of `run`, `plan` and `status`. In `status`, as in `spec`, only the command has to be replaced: the flags for the
/// store, the spool, the platform, the log and the format have an effect.
#[derive(Clone, Debug, Default, Args)]
pub struct RunFlags {
    /// Flags of every command.
    #[command(flatten)]
    pub flags: Flags,

    /// Format of standard output: text or json
    ///
    /// Of the plan, the summary or the status.
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        hide_possible_values = true,
        env = "SPOKE_PRECACHE_OUTPUT",
        hide_env = true,
        default_value_t,
        help_heading = "Output"
    )]
    pub output: OutputForm,
}

/// Flags of `spec`: all flags of `run`, so that only the command has to be replaced. Only the flags of the version spec and
/// of the log have an effect.
#[derive(Clone, Debug, Default, Args)]
pub struct SpecFlags {
    /// Flags of every command.
    #[command(flatten)]
    pub flags: Flags,

    /// Format of the version spec: text, json or yaml
    ///
    /// json and yaml are a ConfigMap.
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        hide_possible_values = true,
        env = "SPOKE_PRECACHE_OUTPUT",
        hide_env = true,
        default_value_t,
        help_heading = "Output"
    )]
    pub output: SpecForm,
}

/// Flags of `verify`.
#[derive(Clone, Debug, Default, Args)]
pub struct VerifyFlags {
    /// Repair what is damaged or missing
    ///
    /// Downloads only what the node does not have. Never replaces a layer that a container uses.
    #[arg(long, env = "SPOKE_PRECACHE_REPAIR", hide_env = true)]
    pub repair: bool,

    /// Judge whether an upgrade finds its images in the store
    ///
    /// Shows which images are pinned, which the kubelet may remove, and what else may cause pulls. In a pod it asks the
    /// cluster's API, but no registry. An upgrade at risk is a warning and no failure.
    #[arg(
        long,
        env = "SPOKE_PRECACHE_FOR_UPGRADE",
        hide_env = true,
        conflicts_with = "repair"
    )]
    pub for_upgrade: bool,

    /// Flags of `run`.
    #[command(flatten)]
    pub run: RunFlags,
}

/// Flags of every command.
#[derive(Clone, Debug, Default, Args)]
pub struct Flags {
    /// What to pull.
    #[command(flatten)]
    pub what: VersionSpecFlags,
    /// Where the host's files are.
    #[command(flatten)]
    pub host: HostPaths,
    /// Where images are before they are downloaded.
    #[command(flatten)]
    pub media: MediaFlags,
    /// How signatures are checked.
    #[command(flatten)]
    pub signatures: SignatureFlags,
    /// Whether deltas are used.
    #[command(flatten)]
    pub deltas: DeltaFlags,
    /// How much at once, how fast, and how long.
    #[command(flatten)]
    pub bounds: LimitFlags,
    /// CPU and disk priority.
    #[command(flatten)]
    pub priority: PriorityFlags,
    /// How the cluster's API is used.
    #[command(flatten)]
    pub cluster: Cluster,
    /// What is printed and written.
    #[command(flatten)]
    pub output: Output,
}

/// The version spec: objects of a hub or a cluster, single flags, or a combination.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Version spec")]
pub struct VersionSpecFlags {
    /// The images.
    #[command(flatten)]
    pub images: ImageFlags,

    /// The release from a cluster.
    #[command(flatten)]
    pub release: ReleaseFlags,

    /// Leave out release images that this node does not use
    ///
    /// Judges by the release that runs here: an image is left out if no container of this node has used it since the start.
    #[arg(
        long,
        env = "SPOKE_PRECACHE_ONLY_USED",
        hide_env = true,
        hide_short_help = true
    )]
    pub only_used: bool,

    /// Space that must be free, in GiB or with a unit
    ///
    /// Overrides `spaceRequired`.
    #[arg(long, value_name = "GiB", env = "SPOKE_PRECACHE_SPACE_REQUIRED", value_parser = parse_space)]
    #[arg(hide_env = true, hide_short_help = true)]
    pub space_required: Option<u64>,
}

/// Paths of the host. Without a flag, each is found below the host root in the same way as CRI-O finds it.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Host")]
pub struct HostPaths {
    /// Where the settings for registries are.
    #[command(flatten)]
    pub registries: RegistryPaths,

    /// Graph root of containers/storage
    ///
    /// [default: the one in storage.conf, else var/lib/containers/storage]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_GRAPH_ROOT")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub graph_root: Option<PathBuf>,

    /// Create missing directories: host root, graph root and spool
    ///
    /// Without it, only a graph root is created: inside an existing `containers` directory, or where the storage.conf of a
    /// host places it.
    #[arg(long, env = "SPOKE_PRECACHE_CREATE", hide_env = true, hide_short_help = true)]
    pub create: bool,

    /// storage.conf
    ///
    /// crio.conf overrides it. [default: etc/containers, then usr/share/containers]
    #[arg(long, value_name = "FILE", env = "SPOKE_PRECACHE_STORAGE_CONF")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub storage_conf: Option<PathBuf>,

    /// Directory that states where signatures are
    ///
    /// [default: registries.d in root/.config/containers, else in etc/containers]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_REGISTRIES_D")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub registries_d: Option<PathBuf>,

    /// Directory for downloaded blobs until their layers are in the store
    ///
    /// [default: spoke-precache beside the graph root]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_SPOOL")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub spool: Option<PathBuf>,
}

/// Limits of the run.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Limits")]
pub struct LimitFlags {
    /// Blobs to download at the same time [default: 8]
    ///
    /// [also: MAX_PULL_THREADS]
    #[arg(long, value_name = "N", env = "SPOKE_PRECACHE_MAX_DOWNLOADS", value_parser = positive_number)]
    #[arg(hide_env = true)]
    pub max_downloads: Option<NonZeroU16>,

    /// Rate limit of all connections together
    ///
    /// [default: unlimited] For the whole day, or by the node's time of day: `20Mbit`, `2.5MB`, `22:00-04:00=50Mbit,else=5Mbit`.
    #[arg(long, value_name = "RATE", env = "SPOKE_PRECACHE_LIMIT_RATE", hide_env = true)]
    pub limit_rate: Option<LimitRate>,

    /// Layers to unpack at the same time [default: number of usable CPUs]
    #[arg(long, value_name = "N", env = "SPOKE_PRECACHE_MAX_UNPACKS", value_parser = positive_number)]
    #[arg(hide_env = true, hide_short_help = true)]
    pub max_unpacks: Option<NonZeroU16>,

    /// Stop after this time: `3h50m`, `90s`
    ///
    /// Complete images stay in the store, and another run continues.
    #[arg(long, value_name = "DURATION", env = "SPOKE_PRECACHE_DEADLINE", value_parser = positive_duration)]
    #[arg(hide_env = true)]
    pub deadline: Option<SignedDuration>,

    /// Give up after this time without progress
    ///
    /// Only without a deadline: less than 512 bytes a second for this long. [default: 30m; never when started as TALM's
    /// precache.sh, whose Job has a deadline]
    #[arg(long, value_name = "DURATION", env = "SPOKE_PRECACHE_GIVE_UP_AFTER", value_parser = positive_duration)]
    #[arg(hide_env = true, hide_short_help = true)]
    pub give_up_after: Option<SignedDuration>,

    /// Whether another program ends the run in time. Not a flag: it follows from the name of the program.
    #[arg(skip)]
    pub is_ended: bool,

    /// Disk use in percent at which the kubelet removes images [default: 85]
    ///
    /// The kubelet's imageGCHighThresholdPercent.
    #[arg(long, value_name = "PERCENT", env = "SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub image_gc_high_threshold: Option<Threshold>,
}

/// CPU and disk priority.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Priority")]
pub struct PriorityFlags {
    /// Niceness of the process, 0 to 19
    ///
    /// [default: inherited; 10 when started as TALM's precache.sh]
    #[arg(
        long,
        value_name = "N",
        env = "SPOKE_PRECACHE_NICE",
        hide_env = true,
        hide_short_help = true
    )]
    pub nice: Option<Niceness>,

    /// Disk priority of unpacking and verifying: none, idle, best-effort:0 to best-effort:7
    ///
    /// Commits hold locks of the store and keep the normal priority. [default: none; idle when started as TALM's
    /// precache.sh]
    #[arg(long, value_name = "CLASS[:LEVEL]", env = "SPOKE_PRECACHE_IONICE")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub ionice: Option<IoPriority>,

    /// Bytes written to the disk at once: auto, off, or a size such as 2MB
    ///
    /// Unpacked files are written to the disk before the sync of a commit, in portions of this size, so that etcd on the same
    /// disk waits less. A size makes unpacking wait for the disk; auto (2 MB) leaves to the sync what comes too fast.
    /// [default: auto; 2MB when started as TALM's precache.sh]
    #[arg(long, value_name = "SIZE", env = "SPOKE_PRECACHE_IO_BUDGET")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub io_budget: Option<IoBudget>,
}

/// The API of the cluster in which this pod runs.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct Cluster {
    /// Do not use the cluster's API
    ///
    /// By default, if a service account is mounted, the program reads the kubelet's threshold, the proxy, the certificate
    /// authorities and the Job's deadline from the API, and reports its progress to it.
    #[arg(
        long,
        env = "SPOKE_PRECACHE_NO_CLUSTER",
        hide_env = true,
        hide_short_help = true
    )]
    pub no_cluster: bool,

    /// How long to wait at the start for an API that does not respond [default: 60s]
    ///
    /// Without the cluster's proxy and certificate authorities, a registry may be out of reach.
    #[arg(long, value_name = "DURATION", env = "SPOKE_PRECACHE_CLUSTER_PATIENCE", value_parser = positive_duration)]
    #[arg(hide_env = true, hide_short_help = true)]
    pub cluster_patience: Option<SignedDuration>,

    /// After success, pin the images: write a PinnedImageSet to a file, or apply it with `api`
    ///
    /// The kubelet does not remove pinned images.
    #[arg(
        long,
        value_name = "FILE|api",
        env = "SPOKE_PRECACHE_PIN",
        hide_env = true,
        hide_short_help = true
    )]
    pub pin: Option<PinTarget>,
}

/// What is printed and written.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub struct Output {
    /// Write the report (JSON) to this file at the end
    #[arg(long, value_name = "FILE", env = "SPOKE_PRECACHE_REPORT", hide_env = true)]
    pub report: Option<PathBuf>,

    /// Format of the log: text, json or talm
    ///
    /// json has one object per line; talm is like TALM's scripts.
    /// [default: text; talm when started as TALM's precache.sh]
    #[arg(long, value_enum, value_name = "FORMAT", env = "SPOKE_PRECACHE_LOG_FORMAT")]
    #[arg(hide_env = true, hide_possible_values = true)]
    pub log_format: Option<LogFormat>,

    /// error, warn, info, debug or trace [default: info]
    ///
    /// [also: PRE_CACHE_LOG_LEVEL]
    #[arg(long, value_name = "LEVEL", env = "SPOKE_PRECACHE_LOG_LEVEL", hide_env = true)]
    pub log_level: Option<tracing::Level>,

    /// auto, always (bars) or never
    ///
    /// auto: bars on a terminal, otherwise a log line every few seconds.
    #[arg(
        long,
        value_name = "MODE",
        env = "SPOKE_PRECACHE_PROGRESS",
        default_value_t,
        hide_env = true
    )]
    pub progress: ProgressMode,
}

/// Format of standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    /// For people
    #[default]
    Text,
    /// One JSON document
    Json,
}

/// Format of the version spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SpecForm {
    /// A heading for each key, its lines below it
    #[default]
    Text,
    /// A ConfigMap
    Json,
    /// A ConfigMap to apply
    Yaml,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line
    Json,
    /// Like TALM's scripts
    Talm,
}

fn positive_duration(text: &str) -> Result<SignedDuration, String> {
    match text.parse::<SignedDuration>() {
        Ok(duration) if duration > SignedDuration::ZERO => Ok(duration),
        Ok(_) => Err("the duration must be more than 0".to_owned()),
        Err(_) => Err("not a duration like `3h50m`, `45m` or `90s`".to_owned()),
    }
}

fn positive_number(text: &str) -> Result<NonZeroU16, String> {
    text.parse()
        .map_err(|_| format!("must be a number from 1 to {}", NonZeroU16::MAX))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn is_well_formed() {
        Cli::command().debug_assert();
    }

    /// All help texts, `-h` and `--help`, with the names of their commands.
    fn helps() -> Vec<(String, String, String)> {
        let mut command = Cli::command().term_width(80);
        command.build();
        let create = command
            .find_subcommand("delta")
            .and_then(|delta| delta.find_subcommand("create"));
        let create = create.cloned().expect("`delta create` exists");
        // `delta` alone is only a list of commands.
        let commands = command
            .get_subcommands()
            .filter(|command| command.get_name() != "delta")
            .cloned();
        let commands = std::iter::once(command.clone()).chain(commands).chain([create]);
        let helps = commands.map(|mut command| {
            let (short, long) = (command.render_help(), command.render_long_help());
            (command.get_name().to_owned(), short.to_string(), long.to_string())
        });
        helps.filter(|(name, ..)| name != "help").collect()
    }

    #[test]
    fn short_help_fits_one_screen() {
        for (name, short, _) in helps() {
            let lines = short.lines().count();
            assert!(lines <= 40, "{name}: {lines} lines\n{short}");
            assert!(
                short.lines().all(|line| line.chars().count() <= 80),
                "{name}:\n{short}"
            );
            assert!(short.contains("--help"), "{name}:\n{short}");
        }
    }

    #[test]
    fn long_help_has_exit_codes_examples_and_repeatable_flags() {
        for (name, _, long) in helps() {
            for code in [0, 1, 2, 3, 4, 5, 6, 7, 8, 124] {
                let has_code = long.lines().any(|line| line.starts_with(&format!("    {code} ")));
                assert!(has_code, "{name}: no exit code {code}\n{long}");
            }
            assert_eq!(long.matches("\n  spoke-precache ").count(), 2, "{name}:\n{long}");
            assert!(long.contains("commas"), "{name}:\n{long}");
            let repeatable = match name.as_str() {
                "spoke-precache" => 0,
                "create" => 2,
                "export" => 6,
                _ => 9,
            };
            assert_eq!(
                long.matches("(repeatable)").count(),
                repeatable,
                "{name}:\n{long}"
            );
        }
    }

    #[test]
    fn numbers_start_at_one() {
        assert_eq!(positive_number("1"), Ok(NonZeroU16::MIN));
        for text in ["0", "-1", "65536", "", "x"] {
            let expected = "must be a number from 1 to 65535".to_owned();
            assert_eq!(positive_number(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(positive_duration("3h50m"), Ok(SignedDuration::from_mins(230)));
        for text in ["", "5", "-1s", "0s", "soon"] {
            assert!(positive_duration(text).is_err(), "{text}");
        }
    }
}
