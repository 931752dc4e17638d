//! Reads the settings of the kubelet, the cluster and this Job from the API, once, at the start.
//!
//! ```text
//! nodes/$NODE_NAME/proxy/configz                     the kubelet's imageGCHighThresholdPercent and pull policy
//! config.openshift.io/v1 proxies/cluster             .status: proxies; .spec.trustedCA ─→ ConfigMap, ca-bundle.crt
//! config.openshift.io/v1 images/cluster              .spec.additionalTrustedCA ─→ ConfigMap, host[..port]
//! this pod ─ownerReferences→ this Job                 .status.startTime + .spec.activeDeadlineSeconds
//! clusterversions/version and ConfigMaps              keys and signatures of releases     (cluster_release.rs)
//! pod templates of CronJobs, Deployments and others   their images, for `--only-used`     (pod_templates.rs)
//! deployment of the CVO, featuregates/cluster         profile and feature set, for `plan` (manifest_filters.rs)
//! clusterversions/version and UpgradeConfig           the release, for `--from-cluster`   (upgrade_objects.rs)
//! ```
//!
//! First come the proxy and the certificate authorities: a site that needs them cannot reach any registry without them, and
//! a later retry would not repair that. With them comes the release, if it is needed. So the start waits up to [`PATIENCE`]
//! for an API that is busy or unreachable, such as that of a single node that has just rebooted, but not for one that refuses.
//! The rest may take up to [`SOON`]. A value that is still unknown is a warning, except what release signatures need. Only the
//! fields that are named here are read.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::time::timeout;

use super::api_client::{Api, Effort};
use super::cluster_release::{ClusterRelease, ReleaseNeeds};
use super::kubelet_config::KubeletConfig;
use super::manifest_filters::ManifestFilters;
use super::own_job::{OwnJob, Owner};
use super::pod_templates::PodTemplates;
use super::rbac::{CONFIG_NAMESPACE, GET_CONFIG_MAP, GET_CONFIGZ, GET_IMAGE_CONFIG, GET_PROXY};
use super::upgrade_objects::UpgradeObjects;
use super::{ClusterError, own_job};

/// How long the start waits for a busy API, unless a flag sets it: the API server of a single node restarts within about a
/// minute, and most sites do not need its settings.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How soon a healthy API server responds: the limit for optional values, and for waiting without a message.
const SOON: Duration = Duration::from_secs(3);

/// OpenShift's configuration objects are singletons of this name.
const CLUSTER: &str = "cluster";

/// The key of the ConfigMap of the Proxy's `trustedCA`.
const CA_BUNDLE: &str = "ca-bundle.crt";

/// A key of the images' ConfigMap that is not a registry (OpenShift Update Service).
const UPDATE_SERVICE: &str = "updateservice-registry";

/// Which optional values to read. A flag may have a value already, and then the service account may lack the permission.
#[derive(Clone, Copy, Debug)]
pub struct ClusterNeeds {
    /// The kubelet's threshold.
    pub kubelet: bool,
    /// What the verification of a release needs.
    pub release: ReleaseNeeds,
    /// The pod templates: which images the cluster uses.
    pub used_images: bool,
    /// By what the cluster filters the manifests of a release.
    pub manifest_filters: bool,
    /// The release that the cluster is asked to install.
    pub upgrade: bool,
}

/// Settings from the cluster's API.
#[derive(Debug, Default)]
pub struct ClusterInfo {
    /// The kubelet's settings, if they are known.
    pub kubelet: Option<KubeletConfig>,
    /// The cluster's proxy, if it has one.
    pub proxy: Option<ClusterProxy>,
    /// Certificate authorities in addition to the system's.
    pub ca_bundles: Vec<CaBundle>,
    /// The owner of this pod.
    pub owner: Owner,
    /// What the verification of a release needs.
    pub release: ClusterRelease,
    /// The images of pod templates.
    pub pod_templates: PodTemplates,
    /// By what the cluster filters the manifests of a release.
    pub manifest_filters: ManifestFilters,
    /// The objects that request a release, or why they are unknown; `None` if they are not needed or there is no API.
    pub upgrade: Option<Result<UpgradeObjects, ClusterError>>,
    /// The values that are unknown, and why.
    pub warnings: Vec<String>,
}

/// The status of `proxies.config.openshift.io/cluster`. URLs may contain a password.
#[derive(Clone, Debug)]
pub struct ClusterProxy {
    /// `httpProxy`
    pub http: Option<SecretString>,
    /// `httpsProxy`
    pub https: Option<SecretString>,
    /// `noProxy`, including the cluster's own additions.
    pub except: String,
}

/// Certificate authorities from a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaBundle {
    /// `host[:port]` of the registry that they apply to; `None` for all registries.
    pub host: Option<String>,
    /// The ConfigMap, for messages.
    pub origin: String,
    /// Certificates in PEM, not parsed yet.
    pub pem: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configz {
    #[serde(rename = "kubeletconfig")]
    kubelet_config: KubeletConfig,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Proxy {
    spec: ProxySpec,
    status: ProxyStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProxySpec {
    #[serde(rename = "trustedCA")]
    trusted_ca: ConfigMapName,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProxyStatus {
    http_proxy: Option<SecretString>,
    https_proxy: Option<SecretString>,
    no_proxy: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ImageConfig {
    spec: ImageConfigSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ImageConfigSpec {
    #[serde(rename = "additionalTrustedCA")]
    additional_trusted_ca: ConfigMapName,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfigMapName {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfigMap {
    data: BTreeMap<String, String>,
}

impl ClusterInfo {
    /// Queries the API and waits up to `patience` if it is busy.
    pub async fn query(api: &Api, needs: ClusterNeeds, patience: Duration) -> Self {
        let effort = Effort::patient(patience);
        let upgrade = async {
            match needs.upgrade {
                true => Some(UpgradeObjects::query_with(api, effort).await),
                false => None,
            }
        };
        let required = async { tokio::join!(proxy(api, effort), registry_authorities(api, effort), upgrade) };
        let (proxy, registry_cas, upgrade) = with_wait_message(required, patience).await;
        let effort = Effort::patient(patience.min(SOON));
        let kubelet = async {
            match needs.kubelet {
                true => kubelet(api, effort).await,
                false => Ok(None),
            }
        };
        let version = upgrade.as_ref().and_then(|upgrade| upgrade.as_ref().ok());
        let version = version.map(|upgrade| upgrade.version.clone());
        let release = ClusterRelease::query(api, needs.release, version, effort);
        let pod_templates = async {
            match needs.used_images {
                true => PodTemplates::query(api).await,
                false => PodTemplates::default(),
            }
        };
        let manifest_filters = async {
            match needs.manifest_filters {
                true => ManifestFilters::query(api, effort).await,
                false => ManifestFilters::unknown("only `plan` asks for it"),
            }
        };
        let owner = own_job::find_owner(api, effort);
        let (kubelet, owner, release, pod_templates, manifest_filters) =
            tokio::join!(kubelet, owner, release, pod_templates, manifest_filters);
        let mut unavailable = Unavailable::default();
        let (proxy, trusted) = unavailable
            .value_of("the cluster's proxy", proxy)
            .unwrap_or((None, Ok(Vec::new())));
        let trusted = unavailable.value_of("the cluster's trusted authorities", trusted);
        let registry_cas = unavailable.value_of("the registries' trusted authorities", registry_cas);
        let kubelet = unavailable.value_of("the kubelet's threshold", kubelet).flatten();
        let owner = unavailable.value_of("this pod's Job and its deadline", owner);
        Self {
            kubelet,
            proxy,
            ca_bundles: [trusted.unwrap_or_default(), registry_cas.unwrap_or_default()].concat(),
            owner: owner.unwrap_or_default(),
            release,
            pod_templates,
            manifest_filters,
            upgrade,
            warnings: unavailable.warnings(),
        }
    }

    /// Nothing, because the API cannot be used.
    pub fn without(error: ClusterError) -> Self {
        Self {
            upgrade: Some(Err(error)),
            ..Self::default()
        }
    }

    /// The Job of this pod, if it is known.
    pub fn job(&self) -> Option<&OwnJob> {
        match &self.owner {
            Owner::Job(job) => Some(job),
            Owner::Unknown | Owner::NoJob => None,
        }
    }
}

/// Waits for the values, and logs the reason if it takes long.
async fn with_wait_message<T>(required: impl Future<Output = T>, patience: Duration) -> T {
    let mut required = pin!(required);
    if let Ok(values) = timeout(SOON, &mut required).await {
        return values;
    }
    tracing::warn!(
        "waiting up to {patience:?} for the cluster's API, which is busy or unreachable: registries may be unreachable \
         without its proxy and certificate authorities"
    );
    required.await
}

/// The unknown values by reason: an API that does not respond is one reason for all of them.
#[derive(Default)]
struct Unavailable(BTreeMap<String, Vec<&'static str>>);

impl Unavailable {
    fn value_of<T>(&mut self, what: &'static str, result: Result<T, ClusterError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.0.entry(error.to_string()).or_default().push(what);
                None
            }
        }
    }

    fn warnings(self) -> Vec<String> {
        let warnings = self.0.into_iter();
        warnings
            .map(|(why, what)| format!("continuing without {}: {why}", what.join(", ")))
            .collect()
    }
}

async fn kubelet(api: &Api, effort: Effort) -> Result<Option<KubeletConfig>, ClusterError> {
    let Some(node) = &api.account.node else {
        tracing::debug!("`NODE_NAME` is not set, so the kubelet's threshold is unknown");
        return Ok(None);
    };
    let path = format!("{}/configz", GET_CONFIGZ.path(&api.namespace, node)?);
    let configz: Configz = api.get_at(&GET_CONFIGZ, &path, effort).await?;
    Ok(Some(configz.kubelet_config))
}

/// The proxy, and its bundle of authorities, which may fail separately.
async fn proxy(
    api: &Api,
    effort: Effort,
) -> Result<(Option<ClusterProxy>, Result<Vec<CaBundle>, ClusterError>), ClusterError> {
    let Proxy { spec, status } = match api.get(&GET_PROXY, CLUSTER, effort).await {
        // Not OpenShift.
        Err(error) if error.is_not_found() => Proxy::default(),
        found => found?,
    };
    let set = |url: Option<SecretString>| url.filter(|url| !url.expose_secret().is_empty());
    let (http, https) = (set(status.http_proxy), set(status.https_proxy));
    let proxy = (http.is_some() || https.is_some()).then_some(ClusterProxy {
        http,
        https,
        except: status.no_proxy,
    });
    let bundle = config_map(api, &spec.trusted_ca.name, effort).await;
    let bundle = bundle.map(|mut data| {
        let pem = data.remove(CA_BUNDLE);
        let origin = format!("ConfigMap `{CONFIG_NAMESPACE}/{}`", spec.trusted_ca.name);
        let bundle = pem.map(|pem| CaBundle {
            host: None,
            origin,
            pem,
        });
        bundle.into_iter().collect()
    });
    Ok((proxy, bundle))
}

async fn registry_authorities(api: &Api, effort: Effort) -> Result<Vec<CaBundle>, ClusterError> {
    let image: ImageConfig = match api.get(&GET_IMAGE_CONFIG, CLUSTER, effort).await {
        Err(error) if error.is_not_found() => ImageConfig::default(),
        found => found?,
    };
    let name = &image.spec.additional_trusted_ca.name;
    let data = config_map(api, name, effort).await?;
    let of_host = data
        .into_iter()
        .filter(|(key, _)| key != UPDATE_SERVICE)
        .map(|(key, pem)| CaBundle {
            // A key of a ConfigMap cannot contain a colon, so `..` replaces it.
            host: Some(key.replace("..", ":")),
            origin: format!("`{key}` of ConfigMap `{CONFIG_NAMESPACE}/{name}`"),
            pem,
        });
    Ok(of_host.collect())
}

/// The data of a ConfigMap; empty if there is no name.
async fn config_map(api: &Api, name: &str, effort: Effort) -> Result<BTreeMap<String, String>, ClusterError> {
    if name.is_empty() {
        return Ok(BTreeMap::new());
    }
    let map: ConfigMap = api.get(&GET_CONFIG_MAP, name, effort).await?;
    Ok(map.data)
}
