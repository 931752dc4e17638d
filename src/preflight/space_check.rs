//! Compares the space that a run needs with the space below the kubelet's threshold, and words the result.
//!
//! ```text
//! |---------------------------- capacity ----------------------------|
//! |------ used ------|------ headroom ------|------ reserve -------|
//!                    |-- needed --|                                     fits
//!                    |----------- needed ---------|                     shortfall
//! ```
//!
//! The spool and the store are usually on one file system and are checked together: at the worst moment all blobs are in the
//! spool and all layers are unpacked. On two file systems, each is checked on its own.

use std::fmt;

use serde::Serialize;

use super::{Space, Threshold};
use crate::report::Printable;

const GIB: u128 = 1 << 30;

/// How to find images to remove. Not `prune`: it removes every image that no container uses, and cached images are such
/// images.
const REMOVE: &str = "remove unneeded images one by one: `podman images --filter dangling=true` lists images without a name, \
                      `crictl images --pinned` shows which are pinned, `crictl ps --all` which are in use; images cached for \
                      an update are neither pinned nor in use";

/// The file systems of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spaces {
    /// Of the graph root.
    pub store: Space,
    /// Of the spool.
    pub spool: Space,
}

/// The space that a run needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Compressed bytes to download into the spool.
    pub spool: u64,
    /// Estimated disk space of the layers to unpack into the store.
    pub store: u64,
    /// `spaceRequired` of the version spec, for everything that is requested; 0 if it is not set.
    pub required: u64,
    /// The requested content that the node already has: unpacked layers in the store and bytes in the spool. Subtracted from
    /// `required`, so that a second run does not need the same space again.
    pub cached: u64,
}

/// What a run uses a file system for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesystemUse {
    /// The graph root and the spool.
    Both,
    /// The graph root.
    Store,
    /// The spool.
    Spool,
}

/// Which need is the larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// The plan.
    Plan,
    /// The version spec's `spaceRequired`, minus what is cached.
    SpaceRequired,
}

/// The check of one file system; all sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesystemCheck {
    /// What a run uses it for.
    pub used_for: FilesystemUse,
    /// Its capacity and available space.
    pub space: Space,
    /// How much has to fit.
    pub needed: u64,
    /// What determines `needed`.
    pub cause: Cause,
    /// How much fits below the kubelet's threshold.
    pub headroom: u64,
    /// `needed` minus `headroom`, 0 if it fits.
    pub shortfall: u64,
}

/// The result, with all its numbers. `Display` writes it in several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceCheck {
    /// Whether everything fits.
    pub fits: bool,
    /// The kubelet's threshold.
    pub threshold: Threshold,
    /// What the run needs.
    pub demand: Demand,
    /// One, or two if the spool has a file system of its own.
    pub filesystems: Vec<FilesystemCheck>,
}

/// A failed space check; its text is that of the check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.to_string().trim_end())]
pub struct NotEnoughSpace(pub Box<SpaceCheck>);

/// Compares `demand` with the space below `threshold`. With nothing to download or unpack it always fits, however full the
/// disk is and whatever is required.
pub fn check_space(spaces: &Spaces, demand: Demand, threshold: Threshold) -> SpaceCheck {
    let idle = demand.spool == 0 && demand.store == 0;
    let required = demand.required.saturating_sub(demand.cached);
    let check = |used_for, space: &Space, planned: u64, required: u64| {
        let headroom = space.headroom(threshold);
        let (needed, cause) = match (idle, required > planned) {
            (true, _) => (0, Cause::Plan),
            (false, true) => (required, Cause::SpaceRequired),
            (false, false) => (planned, Cause::Plan),
        };
        FilesystemCheck {
            used_for,
            space: space.clone(),
            needed,
            cause,
            headroom,
            shortfall: needed.saturating_sub(headroom),
        }
    };
    let filesystems = if spaces.store.shares_blocks_with(&spaces.spool) {
        let planned = demand.store.saturating_add(demand.spool);
        vec![check(FilesystemUse::Both, &spaces.store, planned, required)]
    } else {
        vec![
            check(FilesystemUse::Store, &spaces.store, demand.store, required),
            check(FilesystemUse::Spool, &spaces.spool, demand.spool, 0),
        ]
    };
    SpaceCheck {
        fits: filesystems.iter().all(|check| check.shortfall == 0),
        threshold,
        demand,
        filesystems,
    }
}

impl SpaceCheck {
    /// The check as a result.
    pub fn into_result(self) -> Result<Self, NotEnoughSpace> {
        if self.fits {
            Ok(self)
        } else {
            Err(NotEnoughSpace(Box::new(self)))
        }
    }
}

impl fmt::Display for SpaceCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.filesystems {
            check.sentence(self.threshold, f)?;
            // The line of TALM's script; operators search a pod's log for it.
            writeln!(
                f,
                "highThresholdPercent: {} diskSize: {} used: {}",
                self.threshold,
                gib_down(check.space.capacity),
                gib_up(check.space.used())
            )?;
        }
        for check in self.filesystems.iter().filter(|check| check.shortfall > 0) {
            check.hint(&self.demand, f)?;
        }
        Ok(())
    }
}

impl FilesystemCheck {
    fn sentence(&self, threshold: Threshold, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.shortfall > 0 {
            "not enough space for precaching: "
        } else {
            "space suffices: "
        })?;
        write!(
            f,
            "{} may need {}; {} can be filled before the kubelet removes images at {threshold} % of {} on ",
            self.used_for,
            gib_up(self.needed),
            gib_down(self.headroom),
            gib_down(self.space.capacity)
        )?;
        match &self.space.mount {
            Some(mount) => write!(f, "{mount}")?,
            None => write!(
                f,
                "the file system of {}",
                Printable(&self.space.path.to_string_lossy())
            )?,
        }
        match self.shortfall {
            0 => writeln!(f),
            bytes => writeln!(f, ": {} short", gib_up(bytes)),
        }
    }

    fn hint(&self, demand: &Demand, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cause, self.used_for) {
            (Cause::SpaceRequired, _) => writeln!(
                f,
                "hint: lower `spaceRequired` ({}, of which {} are cached; the plan itself needs {}), or enlarge the file \
                 system, or {REMOVE}",
                gib_up(demand.required),
                gib_down(demand.cached.min(demand.required)),
                gib_up(match self.used_for {
                    FilesystemUse::Both => demand.store.saturating_add(demand.spool),
                    FilesystemUse::Store | FilesystemUse::Spool => demand.store,
                })
            ),
            (Cause::Plan, FilesystemUse::Spool) => {
                writeln!(f, "hint: move the spool (`--spool`) to a larger file system")
            }
            (Cause::Plan, FilesystemUse::Both | FilesystemUse::Store) => writeln!(
                f,
                "hint: exclude images (`excludePrecachePatterns`, `--exclude`), or enlarge the file system, or {REMOVE}"
            ),
        }
    }
}

impl fmt::Display for FilesystemUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Both => "store and spool",
            Self::Store => "the store",
            Self::Spool => "the spool",
        })
    }
}

/// GiB with two decimals. Needed space is rounded up and available space down, so that the two never look equal if the plan
/// does not fit.
fn gib_up(bytes: u64) -> String {
    gib((u128::from(bytes) * 100).div_ceil(GIB))
}

fn gib_down(bytes: u64) -> String {
    gib(u128::from(bytes) * 100 / GIB)
}

fn gib(hundredths: u128) -> String {
    format!("{}.{:02} GiB", hundredths / 100, hundredths % 100)
}
