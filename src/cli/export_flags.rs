//! Defines the command `export` and its flags.

use std::num::NonZeroU16;
use std::path::PathBuf;

use clap::Args;
use jiff::SignedDuration;

use super::{ImageFlags, Output, OutputForm, RegistryPaths, positive_duration, positive_number};
use crate::oci::Reference;
use crate::priority::Niceness;
use crate::registry::LimitRate;
use crate::release_signature::StoreUrl;

/// The end of `--help`.
pub(super) const DETAILS: &str = "\
Environment:
  The flags that `run` has too have its variables, such as SPOKE_PRECACHE_AUTHFILE. The variables of
  repeatable flags take several values, separated by commas. Only those of --exclude and --config
  take one.

Exit codes:
    0    everything that the version spec needs is in the output
    1    some images are missing after retries; run it again, it continues
    2    the arguments or the version spec are unusable
    3    not enough disk space
    4    a registry or a proxy refused the credentials
    5    a release, a catalog, an image or a pattern is not as expected
    6    content differs from its digest at every mirror
    7    the output or the work directory is unusable
    8    a registry does not have an image, or its certificate or a rule forbids the request
    124  the deadline passed; run it again, it continues
    128+n  signal n arrived (143: SIGTERM); run it again, it continues

Examples:
  spoke-precache export --config spec.yaml --authfile pull-secret.json --output /run/media/me/STICK
  spoke-precache export --config spec.yaml --since quay.io/openshift-release-dev/ocp-release:4.18.7-x86_64 --output site.tar";

/// Flags of `export`.
#[derive(Clone, Debug, Default, Args)]
pub struct ExportFlags {
    /// Directory or tar that receives the images
    ///
    /// A tar if the name ends with `.tar`. What an earlier export has stored there is kept and not downloaded again.
    #[arg(
        long = "output",
        value_name = "DIR|TAR",
        required = true,
        help_heading = "Export"
    )]
    pub destination: PathBuf,

    /// Release image that the nodes have: leave out its layers
    ///
    /// A node without them downloads the rest.
    #[arg(long, value_name = "RELEASE", help_heading = "Export")]
    pub since: Option<Reference>,

    /// Directory for incomplete blobs; a later run continues from it
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/tmp/spoke-precache-export",
        help_heading = "Export"
    )]
    pub work_dir: PathBuf,

    /// What to export.
    #[command(flatten)]
    pub images: ImageFlags,

    /// Where the settings for registries are.
    #[command(flatten)]
    pub registries: RegistryPaths,

    /// Directory that states where signatures are
    ///
    /// [default: registries.d in root/.config/containers, else in etc/containers]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_REGISTRIES_D")]
    #[arg(hide_env = true, hide_short_help = true, help_heading = "Signatures")]
    pub registries_d: Option<PathBuf>,

    /// URL with signatures of releases: https, http or file (repeatable)
    ///
    /// [default: those that the release names]
    #[arg(
        long = "signature-store",
        value_name = "URL",
        env = "SPOKE_PRECACHE_SIGNATURE_STORE",
        help_heading = "Signatures"
    )]
    #[arg(hide_env = true, hide_short_help = true, value_delimiter = ',')]
    pub signature_stores: Vec<StoreUrl>,

    /// Blobs to download at the same time [default: 8]
    #[arg(long, value_name = "N", env = "SPOKE_PRECACHE_MAX_DOWNLOADS", value_parser = positive_number)]
    #[arg(hide_env = true, hide_short_help = true, help_heading = "Limits")]
    pub max_downloads: Option<NonZeroU16>,

    /// Rate limit of all connections together
    ///
    /// [default: unlimited] For the whole day, or by the time of day, as for `run`.
    #[arg(long, value_name = "RATE", env = "SPOKE_PRECACHE_LIMIT_RATE")]
    #[arg(hide_env = true, help_heading = "Limits")]
    pub limit_rate: Option<LimitRate>,

    /// Stop after this time: `3h50m`, `90s`
    ///
    /// What is stored is kept, and another run continues.
    #[arg(long, value_name = "DURATION", env = "SPOKE_PRECACHE_DEADLINE", value_parser = positive_duration)]
    #[arg(hide_env = true, hide_short_help = true, help_heading = "Limits")]
    pub deadline: Option<SignedDuration>,

    /// Niceness of the process, 0 to 19
    #[arg(long, value_name = "N", default_value = "10", env = "SPOKE_PRECACHE_NICE")]
    #[arg(hide_env = true, hide_short_help = true, help_heading = "Limits")]
    pub nice: Option<Niceness>,

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
