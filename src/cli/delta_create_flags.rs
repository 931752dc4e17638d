//! Defines the command `delta create` and its flags.

use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use jiff::SignedDuration;

use super::{Output, OutputForm, RegistryPaths, positive_duration, positive_number};
use crate::oci::{Platform, Reference};
use crate::priority::Niceness;
use crate::registry::LimitRate;
use crate::spec::parse_space;

/// The end of `-h`.
const SEE_HELP: &str = "`--help` shows all flags, exit codes and examples.";

/// The end of `--help`.
const DETAILS: &str = "\
Environment:
  The flags that `run` has too have its variables, such as SPOKE_PRECACHE_AUTHFILE. The variables of
  repeatable flags take several values, separated by commas.

Exit codes:
    0    every delta is in the repository or the layout, or none is worthwhile
    1    some images failed; run it again, it continues
    2    the arguments are unusable
    3    not enough disk space
    4    a registry or a proxy refused the credentials
    5    a release or an image is not as expected
    6    content differs from its digest at every mirror
    7    the work directory or the layout is unusable
    8    a registry does not have an image, or refuses the deltas
    124  the deadline passed; run it again, it continues
    128+n  signal n arrived (143: SIGTERM); run it again, it continues

Examples:
  spoke-precache delta create --from quay.io/openshift-release-dev/ocp-release:4.18.7-x86_64 --to quay.io/openshift-release-dev/ocp-release:4.18.8-x86_64 --push registry.example.com:5000/deltas
  spoke-precache delta create --image registry.example.com/operator:1.0 registry.example.com/operator:1.1 --output deltas";

/// The words after `delta`.
#[derive(Clone, Debug, Args)]
pub struct DeltaCommands {
    /// What to do.
    #[command(subcommand)]
    pub command: DeltaCommand,
}

/// clap's own line is longer than a terminal is wide.
const USAGE: &str = "\
spoke-precache delta create --from OLD --to NEW --push REPO [OPTIONS]
       spoke-precache delta create --image OLD NEW --output DIR [OPTIONS]";

/// The commands about deltas.
#[derive(Clone, Debug, Subcommand)]
pub enum DeltaCommand {
    /// Create deltas from one release, or one image, to the next
    ///
    /// For the hub: needs neither root nor a store. Nodes that have the old release then download the deltas instead of
    /// whole layers. Another run continues, and does nothing if nothing is new.
    #[command(after_help = SEE_HELP, after_long_help = DETAILS, override_usage = USAGE)]
    Create(Box<DeltaCreateFlags>),
}

/// Flags of `delta create`.
#[derive(Clone, Debug, Default, Args)]
#[command(group(ArgGroup::new("what").args(["from", "images"]).required(true).multiple(true)))]
#[command(group(ArgGroup::new("destination").args(["push", "output_layout"]).required(true)))]
pub struct DeltaCreateFlags {
    /// Release image that the nodes have (repeatable)
    #[arg(
        long,
        value_name = "RELEASE",
        value_delimiter = ',',
        requires = "to",
        help_heading = "Deltas"
    )]
    pub from: Vec<Reference>,

    /// Release image that the nodes will get
    #[arg(long, value_name = "RELEASE", requires = "from", help_heading = "Deltas")]
    pub to: Option<Reference>,

    /// Image that the nodes have, and its successor (repeatable)
    ///
    /// For operators and additional images.
    #[arg(
        long = "image",
        value_names = ["OLD", "NEW"],
        num_args = 2,
        action = clap::ArgAction::Append,
        help_heading = "Deltas"
    )]
    pub images: Vec<Reference>,

    /// Repository that receives the deltas
    ///
    /// The repository of the new release, so that nodes find the deltas by themselves, or any other.
    #[arg(long, value_name = "REPOSITORY", value_parser = repository, help_heading = "Deltas")]
    pub push: Option<Reference>,

    /// OCI layout that receives the deltas: a directory
    #[arg(long = "output", value_name = "OCI-LAYOUT", help_heading = "Deltas")]
    pub output_layout: Option<PathBuf>,

    /// Platform of the images
    #[arg(
        long,
        value_name = "OS/ARCH[/VARIANT]",
        default_value = "linux/amd64",
        env = "SPOKE_PRECACHE_PLATFORM",
        hide_env = true,
        hide_short_help = true,
        help_heading = "Deltas"
    )]
    pub platform: Option<Platform>,

    /// Directory for temporary layers; a later run continues from it
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/tmp/spoke-precache-delta",
        help_heading = "Limits"
    )]
    pub work_dir: PathBuf,

    /// Memory for comparing files, in GiB or with a unit
    ///
    /// [default: half of the memory of the container or the host]
    #[arg(long, value_name = "SIZE", value_parser = parse_space, help_heading = "Limits")]
    pub memory: Option<u64>,

    /// Deltas to create at a time [default: usable CPUs]
    #[arg(long, value_name = "N", value_parser = positive_number, help_heading = "Limits")]
    pub jobs: Option<NonZeroU16>,

    /// Blobs to download at the same time [default: 8]
    #[arg(long, value_name = "N", env = "SPOKE_PRECACHE_MAX_DOWNLOADS", value_parser = positive_number)]
    #[arg(hide_env = true, hide_short_help = true, help_heading = "Limits")]
    pub max_downloads: Option<NonZeroU16>,

    /// Rate limit of all connections together
    ///
    /// [default: unlimited] For the whole day, or by the time of day, as for `run`.
    #[arg(long, value_name = "RATE", env = "SPOKE_PRECACHE_LIMIT_RATE")]
    #[arg(hide_env = true, hide_short_help = true, help_heading = "Limits")]
    pub limit_rate: Option<LimitRate>,

    /// Stop after this time: `3h50m`, `90s`
    ///
    /// Finished deltas are kept, and another run continues.
    #[arg(long, value_name = "DURATION", env = "SPOKE_PRECACHE_DEADLINE", value_parser = positive_duration)]
    #[arg(hide_env = true, hide_short_help = true, help_heading = "Limits")]
    pub deadline: Option<SignedDuration>,

    /// Niceness of the process, 0 to 19
    #[arg(long, value_name = "N", default_value = "10", env = "SPOKE_PRECACHE_NICE")]
    #[arg(hide_env = true, hide_short_help = true, help_heading = "Limits")]
    pub nice: Option<Niceness>,

    /// Where the settings for registries are.
    #[command(flatten)]
    pub registries: RegistryPaths,

    /// What is printed and written.
    #[command(flatten)]
    pub log: Output,

    /// Format of standard output: text or json
    #[arg(
        short = 'o',
        long,
        value_enum,
        value_name = "FORMAT",
        hide_possible_values = true,
        default_value_t,
        help_heading = "Output"
    )]
    pub output_format: OutputForm,
}

impl DeltaCreateFlags {
    /// The pairs of `--image`: old and new.
    pub fn image_pairs(&self) -> Vec<(Reference, Reference)> {
        let pairs = self.images.chunks_exact(2);
        pairs.map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    }
}

/// A repository has neither a tag nor a digest: every artifact gets its own.
fn repository(text: &str) -> Result<Reference, String> {
    let reference: Reference = text.parse().map_err(|error| format!("{error}"))?;
    if reference.is_short() {
        return Err("it names no registry\nhint: begin with the registry's host".to_owned());
    }
    match reference.tag() {
        Some("latest") if !text.ends_with(":latest") => Ok(reference),
        _ => Err("a repository has neither a tag nor a digest".to_owned()),
    }
}
