//! Chooses the release that the objects of an input request.
//!
//! ```text
//! UpgradeConfig, else ClusterVersions ─→ an update, or none is requested
//!   not installed                          the update
//!   none, or installed   --recommended     the newest recommended update, else nothing
//!                        --from-cluster    nothing
//!                        files             an update is pulled although it is installed; none is an error
//! ```
//!
//! Nothing to do is a success, because a CronJob asks the cluster each night. An update that the cluster has completed counts as
//! nothing there: the node has the images that it uses. The others were removed by the kubelet or never pulled, and would be
//! downloaded again each night. A file names a release for this one run, so its images are wanted in any case.

use super::cluster_versions::ClusterVersions;
use super::kube_object::KubeObject;
use super::named_by_flags::NamedByFlags;
use super::upgrade_config::UpgradeConfig;
use super::{DocumentError, SpecDocument};
use crate::cluster_version::{Choice, ChosenUpdate, ClusterVersion, Offer};
use crate::spec::shown;

/// The objects that may request a release.
pub(super) struct ReleaseObjects<'o, 'a> {
    pub(super) upgrade_config: Option<&'o KubeObject<'a>>,
    pub(super) cluster_versions: &'o [KubeObject<'a>],
}

/// Whether there is a release.
pub(super) enum Requested {
    /// There is one, or a flag names it, or nothing is needed.
    Settled,
    /// None, for this reason; something else may name it.
    No(DocumentError),
}

impl ReleaseObjects<'_, '_> {
    /// Chooses the release and adds it to the document.
    pub(super) fn choose(
        &self,
        flags: NamedByFlags,
        document: &mut SpecDocument,
    ) -> Result<Requested, DocumentError> {
        let upgrade = self.upgrade_config;
        let upgrade = upgrade.map(|object| UpgradeConfig::read(*object, &mut document.warnings));
        let upgrade = upgrade.transpose()?;
        document.upgrade_at = upgrade.as_ref().map(|upgrade| upgrade.upgrade_at);
        let versions = ClusterVersions::read(self.cluster_versions);
        document.cluster_version = match &versions {
            Ok(versions) => versions.of_cluster().cloned(),
            Err(_) => None,
        };
        if flags.release {
            return Ok(Requested::Settled);
        }
        let versions = versions?;
        let cluster = versions.of_cluster();
        let may_be_nothing = flags.recommended || self.cluster_versions.iter().any(KubeObject::is_of_cluster);
        let is_completed = |upgrade: &UpgradeConfig<'_>| {
            may_be_nothing && cluster.is_some_and(|cluster| upgrade.is_completed(cluster))
        };
        let (choice, title) = match (&upgrade, versions.request()) {
            (Some(upgrade), Some(request)) => {
                return Err(DocumentError::Several {
                    first: upgrade.object.title(),
                    second: request.title(),
                });
            }
            (Some(upgrade), None) if !is_completed(upgrade) => {
                (Choice::Update(upgrade.choose(cluster)?), upgrade.object.title())
            }
            (Some(_), None) => {
                document.upgrade_at = None;
                versions.choose()?
            }
            (None, _) => versions.choose()?,
        };
        let is_installed = |update: &ChosenUpdate| cluster.is_some_and(|cluster| cluster.runs(&update.image));
        let why = match choice {
            Choice::Update(update) if !may_be_nothing || !is_installed(&update) => {
                add(update, &title, document);
                return Ok(Requested::Settled);
            }
            Choice::Update(update) => {
                format!("the requested {} is installed", name(&update))
            }
            Choice::NothingRequested => match cluster.and_then(ClusterVersion::completed) {
                Some(entry) => format!(
                    "no update is requested, and the cluster runs {}",
                    shown(&entry.version)
                ),
                None => "no update is requested".to_owned(),
            },
        };
        match (flags.recommended, cluster) {
            (true, Some(cluster)) => self.recommended(cluster, why, document),
            (true, None) => Err(DocumentError::NoCluster),
            (false, _) if may_be_nothing => {
                let offers = cluster.map(|cluster| cluster.offers().to_string());
                document.notes.extend(offers);
                document.nothing_requested = Some(why);
                Ok(Requested::Settled)
            }
            (false, _) => Ok(self.not_requested(cluster)),
        }
    }

    /// The newest recommended update, because nothing else is wanted for the reason `why`.
    fn recommended(
        &self,
        cluster: &ClusterVersion,
        why: String,
        document: &mut SpecDocument,
    ) -> Result<Requested, DocumentError> {
        let title = self.cluster_versions.first().map(KubeObject::title);
        let title = title.unwrap_or_default();
        let chosen = cluster.choose_recommended();
        let chosen = chosen.map_err(|why| DocumentError::Release {
            object: title.clone(),
            why: why.to_string(),
        })?;
        match chosen {
            Some(update) => {
                document
                    .notes
                    .push(format!("{why}; the newest recommended update is pulled"));
                add(update, &title, document);
            }
            None => {
                document.notes.push(cluster.offers().to_string());
                let channel = match &cluster.spec.channel[..] {
                    "" => String::new(),
                    channel => format!(" in the channel `{}`", shown(channel)),
                };
                document.nothing_requested = Some(format!("{why}; no newer update is recommended{channel}"));
            }
        }
        Ok(Requested::Settled)
    }

    fn not_requested(&self, cluster: Option<&ClusterVersion>) -> Requested {
        let Some(first) = self.cluster_versions.first() else {
            return Requested::Settled;
        };
        let offers = cluster.map(|version| version.offers());
        let offers = offers.map(|offers| format!("; {offers}")).unwrap_or_default();
        Requested::No(DocumentError::Release {
            object: first.title(),
            why: format!(
                "no update is requested{offers}\n\
                 hint: set `spec.desiredUpdate`, or name the release with `--platform-image`"
            ),
        })
    }
}

/// Adds the chosen release, and why it is this one.
fn add(update: ChosenUpdate, title: &str, document: &mut SpecDocument) {
    let why = match update.offer {
        Offer::Image => "requested by image",
        Offer::Available => "a recommended update",
        Offer::Conditional => "an update with known risks",
        Offer::AlreadyDesired => "already desired by the cluster, and pulled if this node lacks it",
    };
    let note = format!("the {} of {title} is `{}`: {why}", name(&update), update.image);
    document.notes.push(note);
    let warnings = update.warnings.into_iter();
    document
        .warnings
        .extend(warnings.map(|text| format!("{title}: {text}")));
    document.spec.platform_image = Some(update.image);
}

/// `release 4.16.8`, if the version is known.
fn name(update: &ChosenUpdate) -> String {
    match &update.version {
        Some(version) => format!("release {}", shown(version)),
        None => "release".to_owned(),
    }
}
