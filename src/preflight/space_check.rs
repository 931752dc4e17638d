//! Whether it fits. Pure: numbers in, numbers and words out.
//!
//! ```text
//! |---------------------------- capacity ----------------------------|
//! |------ used ------|------ headroom ------|-- the kubelet's line --|
//!                    |-- needed --|                                     fits
//!                    |----------- needed ---------|                     shortfall
//! ```
//!
//! The spool and the store usually lie on one file system and are checked together: at the worst moment all blobs are
//! in the spool and all layers unpacked. On two, each is checked against its own.

use std::fmt;

use serde::Serialize;

use super::{Space, Threshold};
use crate::report::Printable;

const GIB: u128 = 1 << 30;

/// How to find what may go. No command that removes whatever no container uses: cached images are among that.
const REMOVE: &str = "remove images one by one that nothing needs: `podman images --filter dangling=true` lists those without \
                      a name, `crictl images --pinned` all and which are pinned, `crictl ps --all` which are in use; what is \
                      cached for an update is neither pinned nor in use";

/// The file systems in question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spaces {
    /// Of the graph root.
    pub store: Space,
    /// Of the spool.
    pub spool: Space,
}

/// What is asked of them, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Compressed bytes that are still to be fetched into the spool.
    pub spool: u64,
    /// What the layers that are still to be unpacked will take up in the store.
    pub store: u64,
    /// `spaceRequired` of the version spec, for everything that is wanted; 0 when it says nothing.
    pub required: u64,
    /// What of everything that is wanted lies here already: unpacked layers in the store and bytes in the spool. It is
    /// taken off `required`, so that a second run need not find the same space once more.
    pub cached: u64,
}

/// What a file system holds of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The graph root and the spool.
    Both,
    /// The graph root.
    Store,
    /// The spool.
    Spool,
}

/// Which demand is the larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// What the plan needs.
    Plan,
    /// The version spec's `spaceRequired`, less what is cached.
    SpaceRequired,
}

/// One file system against what is asked of it; all in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What it holds.
    pub holds: Holds,
    /// Its numbers.
    pub space: Space,
    /// What has to fit.
    pub needed: u64,
    /// What decides `needed`.
    pub cause: Cause,
    /// What fits below the kubelet's line.
    pub headroom: u64,
    /// `needed` less `headroom`, 0 if it fits.
    pub shortfall: u64,
}

/// The answer, with every number that led to it. `Display` gives it in full, several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether everything fits.
    pub fits: bool,
    /// The kubelet's line.
    pub threshold: Threshold,
    /// What was asked.
    pub demand: Demand,
    /// One check, or two if the spool has a file system of its own.
    pub checks: Vec<Check>,
}

/// A verdict that is no; its text is the verdict's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.to_string().trim_end())]
pub struct NotEnoughSpace(pub Box<Verdict>);

/// Holds `demand` against what lies below `threshold`. Where nothing is to be fetched or unpacked it always fits,
/// however full the disk is and whatever is required: the work is done.
pub fn verdict(spaces: &Spaces, demand: Demand, threshold: Threshold) -> Verdict {
    let idle = demand.spool == 0 && demand.store == 0;
    let required = demand.required.saturating_sub(demand.cached);
    let check = |holds, space: &Space, planned: u64, required: u64| {
        let headroom = space.headroom(threshold);
        let (needed, cause) = match (idle, required > planned) {
            (true, _) => (0, Cause::Plan),
            (false, true) => (required, Cause::SpaceRequired),
            (false, false) => (planned, Cause::Plan),
        };
        Check {
            holds,
            space: space.clone(),
            needed,
            cause,
            headroom,
            shortfall: needed.saturating_sub(headroom),
        }
    };
    let checks = if spaces.store.shares_blocks_with(&spaces.spool) {
        let planned = demand.store.saturating_add(demand.spool);
        vec![check(Holds::Both, &spaces.store, planned, required)]
    } else {
        vec![
            check(Holds::Store, &spaces.store, demand.store, required),
            check(Holds::Spool, &spaces.spool, demand.spool, 0),
        ]
    };
    Verdict {
        fits: checks.iter().all(|check| check.shortfall == 0),
        threshold,
        demand,
        checks,
    }
}

impl Verdict {
    /// The verdict as a result.
    pub fn into_result(self) -> Result<Self, NotEnoughSpace> {
        if self.fits {
            Ok(self)
        } else {
            Err(NotEnoughSpace(Box::new(self)))
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            check.sentence(self.threshold, f)?;
            // Operators are told to grep a pod's log for this line.
            writeln!(
                f,
                "highThresholdPercent: {} diskSize: {} used: {}",
                self.threshold,
                gib_down(check.space.capacity),
                gib_up(check.space.used())
            )?;
        }
        for check in self.checks.iter().filter(|check| check.shortfall > 0) {
            check.hint(&self.demand, f)?;
        }
        Ok(())
    }
}

impl Check {
    fn sentence(&self, threshold: Threshold, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.shortfall > 0 {
            "not enough space for precaching: "
        } else {
            "space suffices: "
        })?;
        write!(
            f,
            "{} may need {}, {} can be filled before the kubelet collects images at {threshold} % of {} on ",
            self.holds,
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
        match (self.cause, self.holds) {
            (Cause::SpaceRequired, _) => writeln!(
                f,
                "hint: `spaceRequired` is {}, of which {} are cached; the plan itself needs {}: lower it, or enlarge the file \
                 system, or {REMOVE}",
                gib_up(demand.required),
                gib_down(demand.cached.min(demand.required)),
                gib_up(match self.holds {
                    Holds::Both => demand.store.saturating_add(demand.spool),
                    Holds::Store | Holds::Spool => demand.store,
                })
            ),
            (Cause::Plan, Holds::Spool) => {
                writeln!(f, "hint: put the spool (`--spool`) on a larger file system")
            }
            (Cause::Plan, Holds::Both | Holds::Store) => writeln!(
                f,
                "hint: leave out images (`excludePrecachePatterns`, `--exclude`), or enlarge the file system, or {REMOVE}"
            ),
        }
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Both => "store and spool",
            Self::Store => "the store",
            Self::Spool => "the spool",
        })
    }
}

/// GiB with two decimals. Demands are rounded up and supplies down, so that the two never look equal when it does not
/// fit.
fn gib_up(bytes: u64) -> String {
    gib((u128::from(bytes) * 100).div_ceil(GIB))
}

fn gib_down(bytes: u64) -> String {
    gib(u128::from(bytes) * 100 / GIB)
}

fn gib(hundredths: u128) -> String {
    format!("{}.{:02} GiB", hundredths / 100, hundredths % 100)
}
