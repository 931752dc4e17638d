//! Prints what the layers of a pair of releases cost.

use crate::applying::Cost;

/// One layer.
pub(crate) struct Row {
    pub(crate) name: String,
    /// Bytes of the tar.
    pub(crate) tar: u64,
    /// Bytes of the blob.
    pub(crate) whole: u64,
    /// Bytes that remain without known files.
    pub(crate) files: u64,
    /// Bytes of the patch, if measured.
    pub(crate) zstd: Option<u64>,
    /// Bytes of the `tardf1` delta.
    pub(crate) standard: Option<u64>,
    /// Bytes of the delta in our own format.
    pub(crate) inflated: Option<u64>,
    pub(crate) create_seconds: Option<f64>,
    /// How the smallest delta is applied.
    pub(crate) applied: Option<Applied>,
}

/// What applying costs: the median of some rounds.
pub(crate) struct Applied(Cost);

impl Applied {
    pub(crate) fn median(mut rounds: Vec<Cost>) -> anyhow::Result<Self> {
        rounds.sort_by(|a, b| a.cpu.total_cmp(&b.cpu));
        let middle = rounds.len() / 2;
        let median = rounds.into_iter().nth(middle);
        Ok(Self(median.ok_or_else(|| anyhow::anyhow!("no rounds"))?))
    }
}

impl Row {
    fn best(&self) -> u64 {
        let deltas = [self.standard, self.inflated].into_iter().flatten();
        deltas.min().unwrap_or(self.whole)
    }
}

/// Prints a line for each layer, and the totals.
pub(crate) fn print(rows: &[Row]) {
    println!(
        "{:<14}{:>8}{:>8}{:>8}{:>8}{:>10}{:>10}{:>10}{:>10}{:>9}{:>8}{:>8}{:>8}",
        "layer",
        "tar MB",
        "gzip MB",
        "files %",
        "zstd %",
        "tar-diff %",
        "inflated %",
        "best kB",
        "create s",
        "apply s",
        "CPU s",
        "MB/s",
        "MiB",
    );
    for row in rows {
        let share =
            |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |bytes| percent(bytes, row.whole));
        let create = row
            .create_seconds
            .map_or_else(String::new, |seconds| format!("{seconds:.1}"));
        let applied = row.applied.as_ref().map_or_else(String::new, |Applied(cost)| {
            format!(
                "{:>9.2}{:>8.2}{:>8.0}{:>8.0}",
                cost.wall,
                cost.cpu,
                row.tar as f64 / 1e6 / cost.cpu,
                cost.memory
            )
        });
        println!(
            "{:<14}{:>8.1}{:>8.2}{:>8}{:>8}{:>10}{:>10}{:>10.0}{:>10}{applied}",
            row.name,
            row.tar as f64 / 1e6,
            row.whole as f64 / 1e6,
            percent(row.files, row.whole),
            share(row.zstd),
            share(row.standard),
            share(row.inflated),
            row.best() as f64 / 1e3,
            create,
        );
    }
    print_totals(rows);
}

fn print_totals(rows: &[Row]) {
    let sum = |bytes: &dyn Fn(&Row) -> u64| rows.iter().map(bytes).sum::<u64>();
    let whole = sum(&|row| row.whole);
    let zstd = rows.iter().map(|row| row.zstd).sum::<Option<u64>>();
    let applied: Vec<(&Row, &Cost)> = rows
        .iter()
        .filter_map(|row| Some((row, &row.applied.as_ref()?.0)))
        .collect();
    let cpu: f64 = applied.iter().map(|(_, cost)| cost.cpu).sum();
    let wall: f64 = applied.iter().map(|(_, cost)| cost.wall).sum();
    let tar: u64 = applied.iter().map(|(row, _)| row.tar).sum();
    let memory = applied.iter().map(|(_, cost)| cost.memory).fold(0.0, f64::max);
    println!(
        "{:<14}{:>8.1}{:>8.2}{:>8}{:>8}{:>10}{:>10}{:>10.0}{:>10}{wall:>9.2}{cpu:>8.2}{:>8.0}{memory:>8.0}",
        "total",
        sum(&|row| row.tar) as f64 / 1e6,
        whole as f64 / 1e6,
        percent(sum(&|row| row.files), whole),
        zstd.map_or_else(|| "-".to_owned(), |zstd| percent(zstd, whole)),
        percent(sum(&|row| row.standard.unwrap_or(row.whole)), whole),
        percent(sum(&Row::best), whole),
        sum(&Row::best) as f64 / 1e3,
        "",
        tar as f64 / 1e6 / cpu,
    );
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1}", part as f64 * 100.0 / whole as f64)
}
