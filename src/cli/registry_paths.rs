//! Defines the flags for logins, certificates and registries.conf, which `delta create` has too.

use std::path::PathBuf;

use clap::Args;

/// Paths of the settings for registries. Without a flag, each is found below the host root in the same way as CRI-O finds it.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Host")]
pub struct RegistryPaths {
    /// Where the host's file system is mounted
    ///
    /// [default: /host if it contains var/lib/containers, else /]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_HOST_ROOT", hide_env = true)]
    pub host_root: Option<PathBuf>,

    /// Pull secret
    ///
    /// [default: var/lib/kubelet/config.json; also: pull_secret_path]
    #[arg(long, value_name = "FILE", env = "SPOKE_PRECACHE_AUTHFILE", hide_env = true)]
    pub authfile: Option<PathBuf>,

    /// Directory with a directory of certificates for each registry
    ///
    /// [default: etc/containers/certs.d, etc/docker/certs.d]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_CERTS_DIR")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub certs_dir: Option<PathBuf>,

    /// registries.conf [default: root/.config/containers, then etc/containers]
    #[arg(long, value_name = "FILE", env = "SPOKE_PRECACHE_REGISTRIES_CONF")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub registries_conf: Option<PathBuf>,

    /// Directory of drop-ins for registries.conf
    ///
    /// [default: registries.conf.d in etc/containers, then in root/.config/containers]
    #[arg(long, value_name = "DIR", env = "SPOKE_PRECACHE_REGISTRIES_CONF_DIR")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub registries_conf_dir: Option<PathBuf>,
}
