//! The command line as typed. Types and their help only: what a flag leaves open is found out in [`crate::settings`].
//!
//! Every flag has an environment variable, `SPOKE_PRECACHE_` and its name; where TALM's Job sets a variable of its
//! own (`MAX_PULL_THREADS`, `pull_secret_path`, `PRE_CACHE_LOG_LEVEL`), settings reads that too.

use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;

use crate::oci::{Platform, Reference};
use crate::pinning::PinTarget;
use crate::preflight::Threshold;
use crate::priority::{IoPriority, Niceness};
use crate::registry::LimitRate;
use crate::report::ProgressMode;
use crate::spec::parse_space;

/// Pre-caches the images of an OpenShift upgrade in this node's CRI-O store
#[derive(Clone, Debug, Parser)]
#[command(version, about, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The things it does; all take the same flags, and `verify` one more.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Put every image that the version spec asks for into the store
    Run(RunFlags),
    /// Show what `run` would do; pulls only the release image and the operator indexes, which name the others
    Plan(RunFlags),
    /// Read every image in the store again and say what is missing or damaged; pulls and changes nothing
    Verify(VerifyFlags),
    /// Print the version spec, flags included, as the ConfigMap that the hub would write; needs neither store nor network
    Spec(SpecFlags),
}

/// What `run` and `plan` take.
#[derive(Clone, Debug, Default, Args)]
pub struct RunFlags {
    /// The same as for every command.
    #[command(flatten)]
    pub flags: Flags,

    /// Form of what goes to standard output: the plan, the verdict
    #[arg(
        short,
        long,
        value_enum,
        env = "SPOKE_PRECACHE_OUTPUT",
        default_value_t,
        help_heading = "Output"
    )]
    pub output: OutputForm,
}

/// What `spec` takes: whatever `run` takes, so that the word can be exchanged; but only the flags of the version spec and
/// of the log mean anything to it.
#[derive(Clone, Debug, Default, Args)]
pub struct SpecFlags {
    /// The same as for every command.
    #[command(flatten)]
    pub flags: Flags,

    /// Form of the version spec
    #[arg(
        short,
        long,
        value_enum,
        env = "SPOKE_PRECACHE_OUTPUT",
        default_value_t,
        help_heading = "Output"
    )]
    pub output: SpecForm,
}

/// What `verify` takes beside.
#[derive(Clone, Debug, Default, Args)]
pub struct VerifyFlags {
    /// Mend what is damaged or missing, fetching only what the node does not have; never what a container uses
    #[arg(long, env = "SPOKE_PRECACHE_REPAIR")]
    pub repair: bool,

    /// The same as for `run`.
    #[command(flatten)]
    pub run: RunFlags,
}

/// One set of flags for every command.
#[derive(Clone, Debug, Default, Args)]
pub struct Flags {
    /// What to pull.
    #[command(flatten)]
    pub what: What,
    /// Where the host keeps its things.
    #[command(flatten)]
    pub host: HostPaths,
    /// How fast and how long.
    #[command(flatten)]
    pub bounds: Bounds,
    /// How much room it leaves to others.
    #[command(flatten)]
    pub priority: PriorityFlags,
    /// What the cluster's API has to do with it.
    #[command(flatten)]
    pub cluster: Cluster,
    /// What is printed and written.
    #[command(flatten)]
    pub output: Output,
}

/// The version spec, from a ConfigMap, a PreCachingConfig or flag by flag.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Version spec")]
pub struct What {
    /// Directory with the keys of a mounted ConfigMap, or a YAML or JSON file with a ConfigMap or PreCachingConfig, `-`
    /// being standard input [default: /etc/config; not read if `--platform-image`, `--operator-index` or `--image` is
    /// given, unless it is named]
    #[arg(long, value_name = "PATH", env = "SPOKE_PRECACHE_CONFIG")]
    pub config: Option<PathBuf>,

    /// Release image; overrides `platform.image`
    #[arg(long, value_name = "REF", env = "SPOKE_PRECACHE_PLATFORM_IMAGE")]
    pub platform_image: Option<Reference>,

    /// Index image with an operator catalog; adds to `operators.indexes`
    #[arg(
        long = "operator-index",
        value_name = "REF",
        env = "SPOKE_PRECACHE_OPERATOR_INDEX",
        value_delimiter = ','
    )]
    pub operators_indexes: Vec<Reference>,

    /// Operator whose images are wanted, from the package's default channel unless one is named; adds to
    /// `operators.packagesAndChannels`
    #[arg(
        long = "package",
        value_name = "PKG[:CHANNEL]",
        env = "SPOKE_PRECACHE_PACKAGE",
        value_delimiter = ','
    )]
    pub packages: Vec<String>,

    /// Additional image, by tag or digest; adds to `additionalImages`
    #[arg(
        long = "image",
        value_name = "REF",
        env = "SPOKE_PRECACHE_IMAGE",
        value_delimiter = ','
    )]
    pub images: Vec<Reference>,

    /// Leave out the release's images that this basic regular expression matches; adds to `excludePrecachePatterns`
    #[arg(long = "exclude", value_name = "PATTERN", env = "SPOKE_PRECACHE_EXCLUDE")]
    pub excludes: Vec<String>,

    /// Space that must be free, in GiB or with a unit; overrides `spaceRequired`
    #[arg(long, value_name = "GiB", env = "SPOKE_PRECACHE_SPACE_REQUIRED", value_parser = parse_space)]
    pub space_required: Option<u64>,

    /// Which instance of a multi-architecture image [default: the node's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "SPOKE_PRECACHE_PLATFORM")]
    pub platform: Option<Platform>,
}

/// Host paths; each is found under the host root as CRI-O finds it, unless given.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Host")]
pub struct HostPaths {
    /// Where the host's file system is seen [default: /host if it holds var/lib/containers, else /]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_HOST_ROOT")]
    pub host_root: Option<PathBuf>,

    /// Graph root of containers/storage [default: as storage.conf says, else var/lib/containers/storage]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_GRAPH_ROOT")]
    pub graph_root: Option<PathBuf>,

    /// Make host root, graph root and spool where they are missing [default: only a graph root in an existing `containers`
    /// directory, and one that storage.conf names or implies on a host]
    #[arg(long, env = "SPOKE_PRECACHE_CREATE")]
    pub create: bool,

    /// storage.conf, which crio.conf overrides [default: etc/containers, then usr/share/containers]
    #[arg(long, value_name = "FILE", env = "SPOKE_PRECACHE_STORAGE_CONF")]
    pub storage_conf: Option<PathBuf>,

    /// registries.conf [default: root/.config/containers, then etc/containers]
    #[arg(long, value_name = "FILE", env = "SPOKE_PRECACHE_REGISTRIES_CONF")]
    pub registries_conf: Option<PathBuf>,

    /// Directory of drop-ins to registries.conf [default: registries.conf.d in etc/containers, then root/.config/containers]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_REGISTRIES_CONF_DIR")]
    pub registries_conf_dir: Option<PathBuf>,

    /// Directory with a directory of certificates per registry [default: etc/containers/certs.d, etc/docker/certs.d]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_CERTS_DIR")]
    pub certs_dir: Option<PathBuf>,

    /// Pull secret [default: var/lib/kubelet/config.json; also: pull_secret_path]
    #[arg(long, value_name = "FILE", env = "SPOKE_PRECACHE_AUTHFILE")]
    pub authfile: Option<PathBuf>,

    /// Where blobs lie until their layers are in the store [default: spoke-precache beside the graph root]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_SPOOL")]
    pub spool: Option<PathBuf>,
}

/// Bounds on the work.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Bounds")]
pub struct Bounds {
    /// Blobs fetched at the same time [default: 8; also: MAX_PULL_THREADS]
    #[arg(long, value_name = "N", env = "SPOKE_PRECACHE_MAX_DOWNLOADS")]
    pub max_downloads: Option<NonZeroU16>,

    /// What all connections together may bring in a second, all day or by the node's time of day: `20Mbit`, `2.5MB`,
    /// `22:00-04:00=50Mbit,else=5Mbit` [default: unlimited]
    #[arg(long, value_name = "RATE", env = "SPOKE_PRECACHE_LIMIT_RATE")]
    pub limit_rate: Option<LimitRate>,

    /// Layers unpacked at the same time [default: the CPUs that this process may use]
    #[arg(long, value_name = "N", env = "SPOKE_PRECACHE_MAX_UNPACKS")]
    pub max_unpacks: Option<NonZeroU16>,

    /// End with what is there after this long: `3h50m`, `90s`
    #[arg(long, value_name = "DURATION", env = "SPOKE_PRECACHE_DEADLINE", value_parser = positive_duration)]
    pub deadline: Option<SignedDuration>,

    /// Without a deadline, give up when less than 512 bytes a second have come for this long [default: 30m; never when started
    /// as TALM's precache.sh, whose Job has a deadline]
    #[arg(long, value_name = "DURATION", env = "SPOKE_PRECACHE_GIVE_UP_AFTER", value_parser = positive_duration)]
    pub give_up_after: Option<SignedDuration>,

    /// Somebody else ends the run in time. No flag: the name says so by which it was started.
    #[arg(skip)]
    pub is_ended: bool,

    /// The kubelet's imageGCHighThresholdPercent: disk use at which it would delete images again [default: 85]
    #[arg(long, value_name = "PERCENT", env = "SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD")]
    pub image_gc_high_threshold: Option<Threshold>,
}

/// How much room it leaves to others on the node.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Priority")]
pub struct PriorityFlags {
    /// Lower the process's share of CPU time, 0 to 19 [default: as it was started; 10 when started as TALM's precache.sh]
    #[arg(long, value_name = "N", env = "SPOKE_PRECACHE_NICE")]
    pub nice: Option<Niceness>,

    /// Priority of the disk while layers are unpacked or read again: none, idle, best-effort:0 to best-effort:7; commits,
    /// which hold the store's locks, keep theirs [default: none; idle when started as TALM's precache.sh]
    #[arg(long, value_name = "CLASS[:LEVEL]", env = "SPOKE_PRECACHE_IONICE")]
    pub ionice: Option<IoPriority>,
}

/// The API of the cluster whose pod this is.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct Cluster {
    /// Leave the cluster's API alone: no threshold, proxy, authorities or deadline from there, no progress to there
    /// [default: it is asked and told where a service account is mounted]
    #[arg(long, env = "SPOKE_PRECACHE_NO_CLUSTER")]
    pub no_cluster: bool,

    /// Wait so long at the start for an API that is busy or out of reach: without the cluster's proxy and authorities there
    /// may be no way to a registry [default: 60s]
    #[arg(long, value_name = "DURATION", env = "SPOKE_PRECACHE_CLUSTER_PATIENCE", value_parser = positive_duration)]
    pub cluster_patience: Option<SignedDuration>,

    /// After success, make a PinnedImageSet of what is wanted, so that the kubelet does not remove it: a YAML file, or
    /// `api` to apply it
    #[arg(long, value_name = "FILE|api", env = "SPOKE_PRECACHE_PIN")]
    pub pin: Option<PinTarget>,
}

/// What is printed and written.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub struct Output {
    /// Write the report (JSON) to this file when the run ends
    #[arg(long, value_name = "FILE", env = "SPOKE_PRECACHE_REPORT")]
    pub report: Option<PathBuf>,

    /// Form of the log on standard error [default: text; talm when started as TALM's precache.sh]
    #[arg(long, value_enum, env = "SPOKE_PRECACHE_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,

    /// error, warn, info, debug or trace [default: info; also: PRE_CACHE_LOG_LEVEL]
    #[arg(long, value_name = "LEVEL", env = "SPOKE_PRECACHE_LOG_LEVEL")]
    pub log_level: Option<tracing::Level>,

    /// auto: bars on a terminal, a line every few seconds otherwise; always: bars; never: neither
    #[arg(long, value_name = "MODE", env = "SPOKE_PRECACHE_PROGRESS", default_value_t)]
    pub progress: ProgressMode,
}

/// For people or for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    /// A table, a paragraph
    #[default]
    Text,
    /// One JSON document
    Json,
}

/// How `spec` prints.
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

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
    /// As TALM's scripts, for those who know these
    Talm,
}

fn positive_duration(text: &str) -> Result<SignedDuration, String> {
    match text.parse::<SignedDuration>() {
        Ok(duration) if duration > SignedDuration::ZERO => Ok(duration),
        Ok(_) => Err("must be longer than nothing".to_owned()),
        Err(_) => Err("not a duration like `3h50m`, `45m` or `90s`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(positive_duration("3h50m"), Ok(SignedDuration::from_mins(230)));
        for text in ["", "5", "-1s", "0s", "soon"] {
            assert!(positive_duration(text).is_err(), "{text}");
        }
    }
}
