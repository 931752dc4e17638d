//! The document of a comparison: what was measured, where, when, and every round.

pub(crate) mod table;

use serde::{Deserialize, Serialize};

/// A whole comparison.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Figures {
    /// The day, in UTC.
    pub(crate) date: String,
    pub(crate) machine: Machine,
    /// The name and version of each program, this one first.
    pub(crate) programs: Vec<String>,
    pub(crate) profile: String,
    pub(crate) images: usize,
    /// Bytes of all distinct layers, compressed.
    pub(crate) bytes: u64,
    /// As on the command line; without it, as fast as the machine.
    pub(crate) link: Option<String>,
    /// This program is the first.
    pub(crate) contenders: Vec<Rounds>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
}

/// The costs of one contender, in the order of the rounds.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rounds {
    pub(crate) name: String,
    pub(crate) rounds: Vec<Cost>,
}

/// Seconds, MiB of memory, and MB. The bare pipeline has only times.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cost {
    pub(crate) wall: f64,
    #[serde(rename = "onDisk")]
    pub(crate) on_disk: f64,
    pub(crate) cpu: f64,
    pub(crate) memory: Option<f64>,
    pub(crate) received: Option<f64>,
    pub(crate) written: Option<f64>,
    pub(crate) again: Option<f64>,
}

impl Cost {
    pub(crate) fn times(wall: f64, on_disk: f64, cpu: f64) -> Self {
        Self {
            wall,
            on_disk,
            cpu,
            memory: None,
            received: None,
            written: None,
            again: None,
        }
    }
}

/// A column of the tables.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) of: fn(&Cost) -> Option<f64>,
    /// Whether a multiple of ours says something.
    pub(crate) has_ratio: bool,
}

pub(crate) const COLUMNS: [Column; 7] = [
    column("wall", "s", |cost| Some(cost.wall), true),
    column("on disk", "s", |cost| Some(cost.on_disk), true),
    column("CPU", "s", |cost| Some(cost.cpu), true),
    column("memory", "MiB", |cost| cost.memory, false),
    column("received", "MB", |cost| cost.received, false),
    column("written", "MB", |cost| cost.written, false),
    column("again", "s", |cost| cost.again, false),
];

const fn column(
    title: &'static str,
    unit: &'static str,
    of: fn(&Cost) -> Option<f64>,
    has_ratio: bool,
) -> Column {
    Column {
        title,
        unit,
        of,
        has_ratio,
    }
}

/// Of the rounds of one contender.
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Rounds {
    /// `None` if the column was not measured.
    pub(crate) fn spread(&self, column: &Column) -> Option<Spread> {
        let mut values: Vec<f64> = self.rounds.iter().filter_map(column.of).collect();
        values.sort_by(f64::total_cmp);
        Some(Spread {
            median: *values.get(values.len() / 2)?,
            least: *values.first()?,
            most: *values.last()?,
        })
    }
}
