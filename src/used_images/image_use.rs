//! Describes one use of an image: by a container on this node, or by a pod template in the cluster's API.

use std::fmt;

use super::image_identity::ImageIdentity;
use crate::spec::shown;
use crate::store::PodContainer;

/// The namespace of the cluster-version operator, and the name of its container, whose image is the release image.
const VERSION_OPERATOR: (&str, &str) = ("openshift-cluster-version", "cluster-version-operator");

/// An image in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageUse {
    /// The image.
    pub image: ImageIdentity,
    /// What uses it.
    pub user: ImageUser,
}

/// What uses an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImageUser {
    /// A container of a pod, running or ended.
    Pod(PodContainer),
    /// A container that the kubelet did not create, such as podman's.
    Container(String),
    /// A pod template. The node may have run it long ago, or may run it later.
    Template {
        /// `CronJob`
        kind: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl ImageUse {
    /// Whether it is a container on this node.
    pub(super) fn is_container(&self) -> bool {
        matches!(self.user, ImageUser::Pod(_) | ImageUser::Container(_))
    }

    /// Whether it is the container of the cluster-version operator.
    pub(super) fn is_version_operator(&self) -> bool {
        match &self.user {
            ImageUser::Pod(pod) => (pod.namespace.as_str(), pod.container.as_str()) == VERSION_OPERATOR,
            ImageUser::Container(_) | ImageUser::Template { .. } => false,
        }
    }
}

impl fmt::Display for ImageUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) if pod.container == PodContainer::SANDBOX => {
                write!(
                    f,
                    "sandbox of pod `{}/{}`",
                    shown(&pod.namespace),
                    shown(&pod.pod)
                )
            }
            Self::Pod(pod) => write!(
                f,
                "container `{}` of pod `{}/{}`",
                shown(&pod.container),
                shown(&pod.namespace),
                shown(&pod.pod)
            ),
            Self::Container(name) => write!(f, "container `{}`", shown(name)),
            Self::Template {
                kind,
                namespace,
                name,
            } => write!(f, "{kind} `{}/{}`", shown(namespace), shown(name)),
        }
    }
}
