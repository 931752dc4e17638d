//! Combines the ClusterVersions of an input: the one of a cluster, and those that request an update.
//!
//! ```text
//! with a status, outside policies   a cluster's own: its status has the updates on offer      at most one
//! without a status, or in a policy  a request; several are merged, as by TALM's hub, and may not contradict each other
//! ```
//!
//! TALM's hub asks the update graph for the image of a version. Here nothing is asked: the version must be on offer in the
//! cluster's own ClusterVersion.

use super::DocumentError;
use super::kube_object::KubeObject;
use crate::cluster_version::{Choice, ClusterVersion, DesiredUpdate};
use crate::spec::shown;

/// The group of ClusterVersion.
pub(super) const GROUP: &str = "config.openshift.io";

/// The fields of a request, which TALM compares too.
const FIELDS: [&str; 5] = [UPSTREAM, CHANNEL, ARCHITECTURE, VERSION, IMAGE];
const UPSTREAM: &str = "spec.upstream";
const CHANNEL: &str = "spec.channel";
const ARCHITECTURE: &str = "spec.desiredUpdate.architecture";
const VERSION: &str = "spec.desiredUpdate.version";
const IMAGE: &str = "spec.desiredUpdate.image";

/// The ClusterVersions of an input.
#[derive(Default)]
pub(super) struct ClusterVersions<'a> {
    own: Option<(KubeObject<'a>, ClusterVersion)>,
    /// Field, value, and the first object that has it.
    requested: Vec<(&'static str, &'a str, KubeObject<'a>)>,
}

impl<'a> ClusterVersions<'a> {
    /// Reads all ClusterVersions.
    pub(super) fn read(objects: &[KubeObject<'a>]) -> Result<Self, DocumentError> {
        let mut versions = Self::default();
        for object in objects {
            let is_own = object.place.policy.is_none() && object.at("status").is_some();
            match is_own || object.is_of_cluster() {
                true => versions.add_own(*object)?,
                false => versions.add_request(*object)?,
            }
        }
        Ok(versions)
    }

    fn add_own(&mut self, object: KubeObject<'a>) -> Result<(), DocumentError> {
        if let Some((first, _)) = &self.own {
            return Err(DocumentError::Several {
                first: first.title(),
                second: object.title(),
            });
        }
        for field in FIELDS {
            object.text_at(field)?;
        }
        let version =
            serde_json::from_value(object.node.to_json()).map_err(|error| DocumentError::Release {
                object: object.title(),
                why: shown(&error.to_string()),
            })?;
        self.own = Some((object, version));
        Ok(())
    }

    fn add_request(&mut self, object: KubeObject<'a>) -> Result<(), DocumentError> {
        for field in FIELDS {
            let Some(value) = object.text_at(field)? else {
                continue;
            };
            match self.requested.iter().find(|(other, ..)| *other == field) {
                None => self.requested.push((field, value, object)),
                Some((_, other, first)) if *other != value => {
                    let node = object.at(field).unwrap_or(object.node);
                    let why = format!(
                        "`{}` contradicts `{}` in {}",
                        shown(value),
                        shown(other),
                        first.title()
                    );
                    return Err(object.wrong(field, node, why));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The cluster's own ClusterVersion.
    pub(super) fn of_cluster(&self) -> Option<&ClusterVersion> {
        self.own.as_ref().map(|(_, version)| version)
    }

    /// The first object that requests an image or a version.
    pub(super) fn request(&self) -> Option<&KubeObject<'a>> {
        let mut fields = [IMAGE, VERSION, ARCHITECTURE].into_iter();
        fields.find_map(|field| {
            let mut requested = self.requested.iter();
            let found = requested.find(|(name, ..)| *name == field)?;
            Some(&found.2)
        })
    }

    /// Chooses the release of the requests, else of the cluster's own desired update, and names the object that asks for it.
    pub(super) fn choose(&self) -> Result<(Choice, String), DocumentError> {
        let Some(request) = self.request() else {
            let Some((object, version)) = &self.own else {
                return Ok((Choice::NothingRequested, String::new()));
            };
            return chosen(object, version.choose());
        };
        let value = |field: &str| {
            let mut requested = self.requested.iter();
            let found = requested.find(|(name, ..)| *name == field);
            found.map(|(_, value, _)| *value).unwrap_or_default()
        };
        let update = DesiredUpdate {
            architecture: value(ARCHITECTURE).to_owned(),
            version: value(VERSION).to_owned(),
            image: value(IMAGE).to_owned(),
            force: false,
        };
        if update.image.is_empty() && self.own.is_none() {
            return Err(DocumentError::Release {
                object: request.title(),
                why: format!(
                    "`spec.desiredUpdate` has the version `{}` without an image; TALM's hub asks the update graph for it, \
                     which is not done here\n\
                     hint: set `spec.desiredUpdate.image`, add a cluster's ClusterVersion to the input (`oc get \
                     clusterversion version -o yaml`), or name the image with `--platform-image`",
                    shown(&update.version)
                ),
            });
        }
        let unknown = ClusterVersion::default();
        let cluster = self.of_cluster().unwrap_or(&unknown);
        chosen(request, cluster.choose_update(&update))
    }
}

fn chosen(
    object: &KubeObject<'_>,
    choice: Result<Choice, crate::cluster_version::ChoiceError>,
) -> Result<(Choice, String), DocumentError> {
    let object = object.title();
    match choice {
        Ok(choice) => Ok((choice, object)),
        Err(why) => Err(DocumentError::Release {
            object,
            why: why.to_string(),
        }),
    }
}
