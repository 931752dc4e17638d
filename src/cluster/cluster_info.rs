//! What the API says of the node, the cluster and our own Job, asked for once, at the start.
//!
//! ```text
//! nodes/$NODE_NAME/proxy/configz                     the kubelet's imageGCHighThresholdPercent, and whose images it uses
//! config.openshift.io/v1 proxies/cluster             .status: proxies; .spec.trustedCA ─→ ConfigMap, ca-bundle.crt
//! config.openshift.io/v1 images/cluster              .spec.additionalTrustedCA ─→ ConfigMap, host[..port]
//! our pod ─ownerReferences→ our Job                  .status.startTime + .spec.activeDeadlineSeconds
//! ```
//!
//! First the proxy and the authorities: where a site needs them, no registry can be reached without, and that would be an
//! error that no later try mends. So an API that is busy or out of reach, as that of a single node that has just rebooted, is
//! waited for, [`PATIENCE`] at most; one that refuses is not. Then the rest, for [`SOON`] at most. What is not known by then is
//! a warning. Of each object only the fields are read that are named here.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::time::timeout;

use super::api_client::{Api, Effort};
use super::own_job::{OwnJob, Owner};
use super::pull_credentials_policy::PullVerification;
use super::rbac::{CONFIG_NAMESPACE, GET_CONFIG_MAP, GET_CONFIGZ, GET_IMAGE_CONFIG, GET_PROXY};
use super::{ClusterError, own_job};

/// How long the start waits for a busy API at most, unless a flag says otherwise: the API server of a single node is back
/// about a minute after it went, and most sites need nothing of what it knows.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How soon a well API server answers; for what only helps no longer is waited, and who waits longer is told for what.
const SOON: Duration = Duration::from_secs(3);

/// OpenShift's configuration objects are singletons of this name.
const CLUSTER: &str = "cluster";

/// The key of a ConfigMap with a bundle, as the Proxy's `trustedCA` says.
const CA_BUNDLE: &str = "ca-bundle.crt";

/// A key of the images' ConfigMap that is no registry (OpenShift Update Service).
const UPDATE_SERVICE: &str = "updateservice-registry";

/// What is known of the cluster.
#[derive(Debug, Default)]
pub struct ClusterInfo {
    /// The kubelet's `imageGCHighThresholdPercent`.
    pub image_gc_high_threshold: Option<u8>,
    /// When the kubelet uses images that it did not pull.
    pub pull_verification: PullVerification,
    /// The cluster's proxy, if it has one.
    pub proxy: Option<ClusterProxy>,
    /// Whom the cluster trusts beside the system's authorities.
    pub authorities: Vec<Authorities>,
    /// Whose pod we are.
    pub owner: Owner,
    /// What could not be learnt, and why.
    pub warnings: Vec<String>,
}

/// The status of `proxies.config.openshift.io/cluster`. URLs may have a password in them.
#[derive(Clone, Debug)]
pub struct ClusterProxy {
    /// `httpProxy`
    pub http: Option<SecretString>,
    /// `httpsProxy`
    pub https: Option<SecretString>,
    /// `noProxy`, with what the cluster itself adds.
    pub except: String,
}

/// Authorities from a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorities {
    /// `host[:port]` of the registry that they are for; all, if there is none.
    pub host: Option<String>,
    /// Where they were found, for messages.
    pub place: String,
    /// Certificates in PEM, not looked at yet.
    pub pem: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configz {
    #[serde(rename = "kubeletconfig")]
    kubelet_config: KubeletConfig,
}

#[derive(Default, Deserialize)]
struct KubeletConfig {
    #[serde(rename = "imageGCHighThresholdPercent")]
    image_gc_high_threshold_percent: Option<u8>,
    #[serde(flatten)]
    pull_verification: PullVerification,
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
    /// Asks. `with_kubelet` is false where a flag says its threshold already, and the account may lack the right to ask. A
    /// busy API is waited for as long as `patience`.
    pub async fn learn(api: &Api, with_kubelet: bool, patience: Duration) -> Self {
        let effort = Effort::patient(patience);
        let way = async { tokio::join!(proxy(api, effort), registry_authorities(api, effort)) };
        let (proxy, of_registries) = announced(way, patience).await;
        let effort = Effort::patient(patience.min(SOON));
        let kubelet = async {
            match with_kubelet {
                true => kubelet(api, effort).await,
                false => Ok(KubeletConfig::default()),
            }
        };
        let (kubelet, owner) = tokio::join!(kubelet, own_job::owner(api, effort));
        let mut ignorance = Ignorance::default();
        let (proxy, trusted) = ignorance
            .of("the cluster's proxy", proxy)
            .unwrap_or((None, Ok(Vec::new())));
        let trusted = ignorance.of("the cluster's trusted authorities", trusted);
        let of_registries = ignorance.of("the registries' trusted authorities", of_registries);
        let kubelet = ignorance
            .of("the kubelet's threshold", kubelet)
            .unwrap_or_default();
        let owner = ignorance.of("this pod's Job and its deadline", owner);
        Self {
            image_gc_high_threshold: kubelet.image_gc_high_threshold_percent,
            pull_verification: kubelet.pull_verification,
            proxy,
            authorities: [trusted.unwrap_or_default(), of_registries.unwrap_or_default()].concat(),
            owner: owner.unwrap_or_default(),
            warnings: ignorance.warnings(),
        }
    }

    /// The Job that we are, if it is known.
    pub fn job(&self) -> Option<&OwnJob> {
        match &self.owner {
            Owner::Job(job) => Some(job),
            Owner::Unknown | Owner::Nobody => None,
        }
    }
}

/// Says what the start waits for, if it does.
async fn announced<T>(way: impl Future<Output = T>, patience: Duration) -> T {
    let mut way = pin!(way);
    if let Ok(known) = timeout(SOON, &mut way).await {
        return known;
    }
    tracing::warn!(
        "waiting up to {patience:?} for the cluster's API, which is busy or out of reach: registries may be out of reach \
         without the proxy and the authorities that it knows"
    );
    way.await
}

/// What is not known, by reason: an API that does not answer is one reason for everything.
#[derive(Default)]
struct Ignorance(BTreeMap<String, Vec<&'static str>>);

impl Ignorance {
    fn of<T>(&mut self, what: &'static str, found: Result<T, ClusterError>) -> Option<T> {
        match found {
            Ok(found) => Some(found),
            Err(error) => {
                self.0.entry(error.to_string()).or_default().push(what);
                None
            }
        }
    }

    fn warnings(self) -> Vec<String> {
        let warnings = self.0.into_iter();
        warnings
            .map(|(why, what)| format!("going on without {}: {why}", what.join(", ")))
            .collect()
    }
}

async fn kubelet(api: &Api, effort: Effort) -> Result<KubeletConfig, ClusterError> {
    let Some(node) = &api.account.node else {
        tracing::debug!("`NODE_NAME` is not set, so the kubelet is not asked for its threshold");
        return Ok(KubeletConfig::default());
    };
    let path = format!("{}/configz", GET_CONFIGZ.path(&api.namespace, node)?);
    let configz: Configz = api.get_at(&GET_CONFIGZ, &path, effort).await?;
    Ok(configz.kubelet_config)
}

/// The proxy, and the bundle that it names. That one may fail by itself.
async fn proxy(
    api: &Api,
    effort: Effort,
) -> Result<(Option<ClusterProxy>, Result<Vec<Authorities>, ClusterError>), ClusterError> {
    let Proxy { spec, status } = match api.get(&GET_PROXY, CLUSTER, effort).await {
        // Not OpenShift.
        Err(error) if error.is_missing() => Proxy::default(),
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
        let place = format!("ConfigMap `{CONFIG_NAMESPACE}/{}`", spec.trusted_ca.name);
        let bundle = pem.map(|pem| Authorities {
            host: None,
            place,
            pem,
        });
        bundle.into_iter().collect()
    });
    Ok((proxy, bundle))
}

async fn registry_authorities(api: &Api, effort: Effort) -> Result<Vec<Authorities>, ClusterError> {
    let image: ImageConfig = match api.get(&GET_IMAGE_CONFIG, CLUSTER, effort).await {
        Err(error) if error.is_missing() => ImageConfig::default(),
        found => found?,
    };
    let name = &image.spec.additional_trusted_ca.name;
    let data = config_map(api, name, effort).await?;
    let of_host = data
        .into_iter()
        .filter(|(key, _)| key != UPDATE_SERVICE)
        .map(|(key, pem)| Authorities {
            // A key of a ConfigMap cannot hold a colon.
            host: Some(key.replace("..", ":")),
            place: format!("`{key}` of ConfigMap `{CONFIG_NAMESPACE}/{name}`"),
            pem,
        });
    Ok(of_host.collect())
}

/// The data of a ConfigMap; of one that is not named nothing.
async fn config_map(api: &Api, name: &str, effort: Effort) -> Result<BTreeMap<String, String>, ClusterError> {
    if name.is_empty() {
        return Ok(BTreeMap::new());
    }
    let map: ConfigMap = api.get(&GET_CONFIG_MAP, name, effort).await?;
    Ok(map.data)
}
