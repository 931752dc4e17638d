//! Reads the kubelet's configuration from the files of the host, for a run that does not know it from the API: the main file,
//! then the drop-ins in the order of their names, whose fields override earlier ones (machine-config-operator
//! `kubelet.service.yaml`).

use super::SettingsError;
use super::host_files::drop_ins;
use super::host_root::HostRoot;
use crate::cli::Flags;
use crate::cluster::KubeletConfig;
use crate::registry::ConfText;

/// The argument of `--config`.
const FILE: &str = "etc/kubernetes/kubelet.conf";

/// The argument of `--config-dir`, from OpenShift 4.20 on.
const DROP_INS: &str = "etc/openshift/kubelet.conf.d";

/// The deepest nesting and the most values of a file; a node's have a hundred values.
const DEPTH_LIMIT: usize = 40;
const NODES_LIMIT: usize = 50_000;

/// The settings of the host's files. `None` if there are none or one is not readable, which is a warning.
pub fn host_kubelet(flags: &Flags) -> Option<KubeletConfig> {
    let host = HostRoot::find(&flags.host.registries);
    let files = files(&host)
        .inspect_err(|error| tracing::warn!("continuing without the kubelet's settings: {error}"))
        .ok()?;
    let mut config: Option<KubeletConfig> = None;
    for ConfText { path, text } in files {
        match parse(&text) {
            Ok(later) => config.get_or_insert_default().override_with(later),
            Err(why) => {
                tracing::warn!(
                    "continuing without the kubelet's settings: cannot parse `{}`: {why}",
                    path.display()
                );
                return None;
            }
        }
    }
    config
}

fn files(host: &HostRoot) -> Result<Vec<ConfText>, SettingsError> {
    let main = host.file(FILE)?.into_iter();
    Ok(main.chain(drop_ins(&host.join(DROP_INS), ".conf")?).collect())
}

/// YAML or JSON.
fn parse(text: &str) -> Result<KubeletConfig, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_LIMIT,
            max_nodes: NODES_LIMIT,
            max_events: 2 * NODES_LIMIT,
        },
    };
    serde_saphyr::from_str_with_options(text, options)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::time::Duration;

    use super::*;

    /// As the Machine Config Operator writes it for a node, with two more fields.
    const KUBELET_CONF: &str = "kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  x509:
    clientCAFile: /etc/kubernetes/kubelet-ca.crt
clusterDNS:
  - 172.30.0.10
featureGates:
  DisableKubeletCloudCredentialProviders: true
imageGCHighThresholdPercent: 80
imageMaximumGCAge: 24h0m0s
";

    #[test]
    fn a_drop_in_overrides_single_settings() {
        let dir = tempfile::tempdir().unwrap();
        let mut flags = Flags::default();
        flags.host.registries.host_root = Some(dir.path().to_owned());
        assert_eq!(host_kubelet(&flags), None);
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(FILE, KUBELET_CONF);
        let config = host_kubelet(&flags).unwrap();
        assert_eq!(config.image_gc_high_threshold, Some(80));
        assert_eq!(config.image_maximum_gc_age(), Some(Duration::from_secs(86400)));
        let json = r#"{"imageGCHighThresholdPercent": 90, "imagePullCredentialsVerificationPolicy": "AlwaysVerify"}"#;
        write("etc/openshift/kubelet.conf.d/10-a.conf", json);
        write("etc/openshift/kubelet.conf.d/20-b.yaml", "not read: [");
        let config = host_kubelet(&flags).unwrap();
        assert_eq!(config.image_gc_high_threshold, Some(90));
        assert_eq!(config.image_maximum_gc_age(), Some(Duration::from_secs(86400)));
        let image = ["quay.io/a/b:1".parse().unwrap()];
        assert!(config.pull_verification.warning(&image).is_some());
        write(
            "etc/openshift/kubelet.conf.d/20-b.conf",
            "imageGCHighThresholdPercent: [",
        );
        assert_eq!(host_kubelet(&flags), None);
    }
}
