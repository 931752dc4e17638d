//! Images that a ClusterServiceVersion names.
//!
//! ```text
//! spec.relatedImages[] { name, image }
//! spec.install { strategy: deployment, spec.deployments[].spec.template.spec.{containers,initContainers}[].image }
//! ```

use serde::Deserialize;

use super::document::RelatedImage;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Csv {
    spec: Option<Spec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "relatedImages")]
    related_images: Option<Vec<Image>>,
    install: Option<Install>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Image {
    name: Option<String>,
    image: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Install {
    strategy: Option<String>,
    spec: Option<Strategy>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Strategy {
    deployments: Option<Vec<Deployment>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Deployment {
    spec: Option<DeploymentSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DeploymentSpec {
    template: Option<Template>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Template {
    spec: Option<Pod>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Pod {
    containers: Option<Vec<Image>>,
    #[serde(rename = "initContainers")]
    init_containers: Option<Vec<Image>>,
}

/// The related images, and if `with_operands` those of the deployments that are not among them.
pub(super) fn images(csv: &str, with_operands: bool) -> Result<Vec<RelatedImage>, serde_json::Error> {
    let spec = serde_json::from_str::<Csv>(csv)?.spec.unwrap_or_default();
    let plain = |image: Image| RelatedImage {
        name: image.name.unwrap_or_default(),
        image: image.image.unwrap_or_default(),
    };
    let related = spec.related_images.unwrap_or_default();
    let mut images: Vec<RelatedImage> = related.into_iter().map(plain).collect();
    let install = spec
        .install
        .filter(|install| install.strategy.as_deref() == Some("deployment"));
    if let Some(strategy) = install.filter(|_| with_operands).and_then(|install| install.spec) {
        for deployment in strategy.deployments.unwrap_or_default() {
            let template = deployment.spec.and_then(|spec| spec.template);
            let pod = template.and_then(|template| template.spec).unwrap_or_default();
            let lists = [pod.containers, pod.init_containers];
            for image in lists.into_iter().flatten().flatten() {
                // The name here is the container's.
                let image = image.image.unwrap_or_default();
                if !image.is_empty() && images.iter().all(|known| known.image != image) {
                    images.push(RelatedImage {
                        name: String::new(),
                        image,
                    });
                }
            }
        }
    }
    Ok(images)
}
