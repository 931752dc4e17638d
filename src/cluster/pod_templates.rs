//! Lists from the API the images that pod templates name, for `--only-used`: a CronJob or a Job may have run long ago.
//!
//! ```text
//! batch/v1 cronjobs                            .spec.jobTemplate.spec.template.spec
//! batch/v1 jobs                                .spec.template.spec
//! apps/v1 deployments, daemonsets, statefulsets  .spec.template.spec
//!                                                 .containers[].image, .initContainers[].image
//! ```
//!
//! Every list is read in pages. What cannot be read is a warning and no error: the containers on the node are the main evidence.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::ClusterError;
use super::api_client::{Api, Effort};
use super::rbac::{LIST_CRON_JOBS, LIST_DAEMON_SETS, LIST_DEPLOYMENTS, LIST_JOBS, LIST_STATEFUL_SETS, Rule};
use crate::oci::Reference;

/// How long all lists may take together. Only a run that needs them waits for them.
const PATIENCE: Duration = Duration::from_secs(20);

/// Objects in a page. With their managed fields, some have 20 KiB; an answer may have 4 MiB.
const PAGE: usize = 50;

/// The most pages of one kind: 10,000 objects.
const PAGES: usize = 200;

/// The longest token for the next page; the API server's have some hundred bytes.
const TOKEN_LIMIT: usize = 4096;

/// The kinds with pod templates.
const KINDS: [(&str, Rule); 5] = [
    ("CronJob", LIST_CRON_JOBS),
    ("Job", LIST_JOBS),
    ("Deployment", LIST_DEPLOYMENTS),
    ("DaemonSet", LIST_DAEMON_SETS),
    ("StatefulSet", LIST_STATEFUL_SETS),
];

/// The images that pod templates name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTemplates {
    /// Each image once.
    pub images: Vec<TemplateImage>,
    /// Why some templates are unknown, by kind.
    pub unknown: Vec<String>,
}

/// An image that a pod template names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateImage {
    /// The image.
    pub image: Reference,
    /// `CronJob`
    pub kind: &'static str,
    /// Namespace of the first object that names it.
    pub namespace: String,
    /// Name of that object.
    pub name: String,
}

impl Default for PodTemplates {
    fn default() -> Self {
        Self {
            images: Vec::new(),
            unknown: vec!["the cluster's API is not available".to_owned()],
        }
    }
}

impl PodTemplates {
    /// Lists all kinds, for [`PATIENCE`] at most.
    pub(super) async fn query(api: &Api) -> Self {
        let effort = Effort::patient(PATIENCE);
        let lists = KINDS.map(|(kind, rule)| async move {
            let mut images = BTreeMap::new();
            let listed = list(api, kind, &rule, effort, &mut images).await;
            (images, listed.err().map(|error| format!("{kind}s: {error}")))
        });
        let mut all = BTreeMap::new();
        let mut unknown = Vec::new();
        for (images, error) in futures::future::join_all(lists).await {
            for (reference, image) in images {
                all.entry(reference).or_insert(image);
            }
            unknown.extend(error);
        }
        Self {
            images: all.into_values().collect(),
            unknown,
        }
    }
}

/// Adds the images of all objects of a kind. Pages that were read before an error count.
async fn list(
    api: &Api,
    kind: &'static str,
    rule: &Rule,
    effort: Effort,
    images: &mut BTreeMap<String, TemplateImage>,
) -> Result<(), ClusterError> {
    let path = rule.path(&api.namespace, "")?;
    let unexpected = |why: &str| ClusterError::Unexpected {
        request: rule.request(),
        why: why.to_owned(),
    };
    let mut token = String::new();
    for _ in 0..PAGES {
        let next = match token.as_str() {
            "" => String::new(),
            token => format!("&continue={token}"),
        };
        let path = format!("{path}?limit={PAGE}{next}");
        let page: Page = api.get_at(rule, &path, effort).await?;
        for object in page.items.into_iter().flatten() {
            object.add_images(kind, images);
        }
        token = page.metadata.next.unwrap_or_default();
        if token.is_empty() {
            return Ok(());
        }
        // Base64 for URLs (apiserver `continue.go`: `EncodeContinue`), so it needs no escapes.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=".contains(&byte);
        if token.len() > TOKEN_LIMIT || !token.bytes().all(is_plain) {
            return Err(unexpected("its `continue` token is not base64 or too long"));
        }
    }
    Err(unexpected("it has more than 10000 objects"))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Page {
    metadata: ListMetadata,
    items: Option<Vec<Object>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListMetadata {
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    job_template: Option<JobTemplate>,
    template: Option<PodTemplate>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JobTemplate {
    spec: JobSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JobSpec {
    template: Option<PodTemplate>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodTemplate {
    spec: PodSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Container {
    image: Option<String>,
}

impl Object {
    fn add_images(self, kind: &'static str, images: &mut BTreeMap<String, TemplateImage>) {
        let of_job = self.spec.job_template.and_then(|job| job.spec.template);
        for pod in self.spec.template.into_iter().chain(of_job) {
            let containers = pod.spec.containers.into_iter().chain(pod.spec.init_containers);
            for image in containers.flatten().filter_map(|container| container.image) {
                // A name that is no reference cannot be that of a release's image.
                if let Ok(image) = image.parse::<Reference>() {
                    images.entry(image.to_string()).or_insert_with(|| TemplateImage {
                        image,
                        kind,
                        namespace: self.metadata.namespace.clone(),
                        name: self.metadata.name.clone(),
                    });
                }
            }
        }
    }
}
