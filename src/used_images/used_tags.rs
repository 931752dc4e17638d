//! Finds the tags of the running release that a node uses, and assesses the tags of another release by them.

use std::collections::{BTreeMap, BTreeSet};

use super::evidence::Evidence;
use super::image_use::{ImageUse, ImageUser};
use super::refusal::Refusal;
use super::running_release::RunningRelease;
use super::tag_verdict::{Need, TagVerdict};
use crate::release::{Payload, PayloadImage};

/// Tags that every update needs: CRI-O creates no pod without `pod`, and the other is the operator that updates the cluster,
/// which is the release image itself in most releases.
const ALWAYS: [&str; 2] = ["pod", "cluster-version-operator"];

/// The tags of the running release that a node uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedTags {
    /// Version of the running release.
    version: String,
    /// Each tag of the running release, with what uses its image.
    tags: BTreeMap<String, Vec<ImageUser>>,
    /// Also those of images that are not of the running release: a container may have an image of the new one.
    uses: Vec<ImageUse>,
}

impl UsedTags {
    /// Finds the tags that `uses` use.
    ///
    /// # Errors
    /// If the evidence is too thin.
    pub fn find(
        running: RunningRelease<'_>,
        uses: Vec<ImageUse>,
        evidence: &Evidence,
    ) -> Result<Self, Refusal> {
        evidence.check_age()?;
        let payload = running.payload();
        // A payload may have one image under several names: then all are used.
        let tags = payload
            .tags
            .iter()
            .map(|tag| (tag.name.clone(), users(tag, &uses)));
        let tags: BTreeMap<String, Vec<ImageUser>> = tags.collect();
        let used = tags.iter().filter(|(_, users)| !users.is_empty());
        evidence.check_operators(&used.map(|(tag, _)| tag.as_str()).collect())?;
        for other in uses.iter().filter(|it| it.is_container()) {
            if !payload
                .tags
                .iter()
                .any(|tag| other.image.is_named_by(&tag.reference))
            {
                let version = &payload.version;
                tracing::debug!(user = %other.user, %version, "ignoring a container without an image of the release");
            }
        }
        Ok(Self {
            version: payload.version.clone(),
            tags,
            uses,
        })
    }

    /// Version of the running release.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The tags of the running release whose images are used, with what uses them.
    pub fn used(&self) -> impl Iterator<Item = (&str, &[ImageUser])> {
        let used = self.tags.iter().filter(|(_, users)| !users.is_empty());
        used.map(|(tag, users)| (tag.as_str(), users.as_slice()))
    }

    /// How many tags the running release has.
    pub fn count(&self) -> usize {
        self.tags.len()
    }

    /// Assesses each tag of `new`, in its order. `os_image` returns for the tag of an operating system whether an update takes
    /// it from the store, or why not; no container shows that. The result is about tags: an image that two tags name is needed
    /// if one of them is.
    pub fn assess(
        &self,
        new: &Payload,
        os_image: impl Fn(&str) -> Option<Result<(), String>>,
    ) -> Vec<TagVerdict> {
        let verdict = |tag: &PayloadImage| TagVerdict {
            tag: tag.name.clone(),
            need: self.need(tag, &os_image),
        };
        new.tags.iter().map(verdict).collect()
    }

    fn need(&self, tag: &PayloadImage, os_image: &impl Fn(&str) -> Option<Result<(), String>>) -> Need {
        let mut users = users(tag, &self.uses);
        users.extend(self.tags.get(&tag.name).cloned().unwrap_or_default());
        if !users.is_empty() {
            let users: BTreeSet<ImageUser> = users.into_iter().collect();
            return Need::Used(users.into_iter().collect());
        }
        if ALWAYS.contains(&tag.name.as_str()) {
            return Need::Always;
        }
        match os_image(&tag.name) {
            Some(Ok(())) => return Need::OperatingSystem,
            Some(Err(why)) => return Need::LeftOut(why),
            None => {}
        }
        match self.tags.contains_key(&tag.name) {
            true => Need::LeftOut(format!(
                "nothing on this node uses this image of {}",
                self.version
            )),
            false => Need::New,
        }
    }
}

/// What uses the image of this tag.
fn users(tag: &PayloadImage, uses: &[ImageUse]) -> Vec<ImageUser> {
    let of_tag = uses.iter().filter(|it| it.image.is_named_by(&tag.reference));
    of_tag.map(|it| it.user.clone()).collect()
}
