//! Lists the images of a ClusterServiceVersion.
//!
//! ```text
//! spec.relatedImages[] { name, image }
//! spec.install { strategy: deployment, spec.deployments[].spec.template.spec.{containers,initContainers}[].image }
//! ```

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

use super::fbc_document::FbcRelatedImage;

/// The most items of each of these lists.
const ITEMS_LIMIT: usize = 10_000;

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Csv {
    spec: Option<Spec>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "relatedImages")]
    related_images: Option<BoundedList<Image>>,
    install: Option<Install>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Image {
    name: Option<String>,
    image: Option<String>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Install {
    strategy: Option<String>,
    spec: Option<Strategy>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Strategy {
    deployments: Option<BoundedList<Deployment>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Deployment {
    spec: Option<DeploymentSpec>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct DeploymentSpec {
    template: Option<Template>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Template {
    spec: Option<Pod>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Pod {
    containers: Option<BoundedList<Image>>,
    #[serde(rename = "initContainers")]
    init_containers: Option<BoundedList<Image>>,
}

/// The related images and, if `with_operands`, other images of the deployments.
pub(super) fn images(csv: &str, with_operands: bool) -> Result<Vec<FbcRelatedImage>, serde_json::Error> {
    let spec = serde_json::from_str::<Csv>(csv)?.spec.unwrap_or_default();
    let related_image = |image: Image| FbcRelatedImage {
        name: image.name.unwrap_or_default(),
        image: image.image.unwrap_or_default(),
    };
    let related = spec.related_images.unwrap_or_default().0;
    let mut images: Vec<FbcRelatedImage> = related.into_iter().map(related_image).collect();
    let install = spec
        .install
        .filter(|install| install.strategy.as_deref() == Some("deployment"));
    if let Some(strategy) = install.filter(|_| with_operands).and_then(|install| install.spec) {
        for deployment in strategy.deployments.unwrap_or_default().0 {
            let template = deployment.spec.and_then(|spec| spec.template);
            let pod = template.and_then(|template| template.spec).unwrap_or_default();
            let lists = [pod.containers, pod.init_containers];
            for image in lists.into_iter().flatten().flat_map(|list| list.0) {
                // The name is the container's, not the image's.
                let image = image.image.unwrap_or_default();
                if !image.is_empty() && images.iter().all(|other| other.image != image) {
                    images.push(FbcRelatedImage {
                        name: String::new(),
                        image,
                    });
                }
            }
        }
    }
    Ok(images)
}

/// A list with at most [`ITEMS_LIMIT`] items.
struct BoundedList<T>(Vec<T>);

impl<T> Default for BoundedList<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for BoundedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BoundedListVisitor(PhantomData))
    }
}

struct BoundedListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for BoundedListVisitor<T> {
    type Value = BoundedList<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {ITEMS_LIMIT}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<BoundedList<T>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            if items.len() == ITEMS_LIMIT {
                return Err(A::Error::invalid_length(items.len() + 1, &self));
            }
            items.push(item);
        }
        Ok(BoundedList(items))
    }
}
