//! Defines the flags that name images, which `export` has too.

use std::path::PathBuf;

use clap::Args;

use crate::oci::{Platform, Reference};

/// Images of a version spec: objects of a hub or a cluster, single flags, or a combination.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Version spec")]
pub struct ImageFlags {
    /// Version spec: directory or file (repeatable)
    ///
    /// A directory with the keys of a mounted ConfigMap, or YAML and JSON files, or directories of them, with a ConfigMap, a
    /// PreCachingConfig, a ClusterVersion, an UpgradeConfig or policies; `-` is standard input. The variable takes one path.
    /// [default: /etc/config, unless `--platform-image`, `--operator-index` or `--image` is given]
    #[arg(long, value_name = "PATH", env = "SPOKE_PRECACHE_CONFIG", hide_env = true)]
    pub config: Vec<PathBuf>,

    /// Release image
    ///
    /// Overrides `platform.image`.
    #[arg(
        long,
        value_name = "REF",
        env = "SPOKE_PRECACHE_PLATFORM_IMAGE",
        hide_env = true
    )]
    pub platform_image: Option<Reference>,

    /// Operator index image (repeatable)
    ///
    /// It contains an operator catalog. Is added to `operators.indexes`.
    #[arg(
        long = "operator-index",
        value_name = "REF",
        env = "SPOKE_PRECACHE_OPERATOR_INDEX",
        hide_env = true,
        value_delimiter = ','
    )]
    pub operators_indexes: Vec<Reference>,

    /// Operator to pull (repeatable)
    ///
    /// Without a channel, the package's default channel. Is added to `operators.packagesAndChannels`.
    #[arg(
        long = "package",
        value_name = "PKG[:CHANNEL]",
        env = "SPOKE_PRECACHE_PACKAGE",
        hide_env = true,
        value_delimiter = ','
    )]
    pub packages: Vec<String>,

    /// Additional image (repeatable)
    ///
    /// By tag or digest. Is added to `additionalImages`.
    #[arg(
        long = "image",
        value_name = "REF",
        env = "SPOKE_PRECACHE_IMAGE",
        hide_env = true,
        value_delimiter = ','
    )]
    pub images: Vec<Reference>,

    /// Exclude matching release images (repeatable)
    ///
    /// The pattern is a basic regular expression, as for grep. Is added to `excludePrecachePatterns`. The variable takes
    /// one pattern, because a pattern may contain commas.
    #[arg(
        long = "exclude",
        value_name = "PATTERN",
        env = "SPOKE_PRECACHE_EXCLUDE",
        hide_env = true
    )]
    pub excludes: Vec<String>,

    /// Platform to pull of a multi-architecture image [default: the node's]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "SPOKE_PRECACHE_PLATFORM")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub platform: Option<Platform>,
}
