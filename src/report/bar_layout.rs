//! Lays out the text of a progress bar so that it fits on one line of the terminal.

use super::image_label::SHORT_DIGEST;
use super::progress::ProgressSnapshot;
use super::{Size, Span};
use crate::oci::Digest;

/// From this width on, a bar also shows the blob's digest: one component can have several bars.
const WITH_DIGEST: usize = 90;

/// From this width on, a bar shows sizes; below, a percentage.
const WITH_SIZES: usize = 64;

/// Columns that stay empty: the `^C` that a terminal echoes at the end of the last line must not start a new row.
const MARGIN: usize = 3;

/// Widest column of component names.
const NAME: usize = 24;

/// One blob: `etcd [====>   ] 5.0 MiB of 10.0 MiB`. Without a component the digest is the name.
pub(super) fn blob_line(
    width: usize,
    component: Option<&str>,
    digest: &Digest,
    position: u64,
    size: u64,
) -> String {
    let hex = digest.hex();
    let digest = &hex[..SHORT_DIGEST];
    let (bar_width, amount, amount_width) = match width >= WITH_SIZES {
        true => (16, format!("{} of {}", Size(position), Size(size)), 24),
        false => (8, format!("{} %", percent(position, size)), 5),
    };
    let name_width = width
        .saturating_sub(bar_width + amount_width + "[]  ".len() + MARGIN)
        .min(NAME);
    let mut line = clipped(component.unwrap_or(digest), name_width);
    line = format!("{line:<name_width$} ");
    if width >= WITH_DIGEST && component.is_some() {
        line = format!("{line}{digest} ");
    }
    line += &format!("[{}] {amount}", bar(bar_width, position, size));
    clipped(&line, width.saturating_sub(MARGIN))
}

/// The whole run, as much of it as fits; the time left and the number of images stay longest.
pub(super) fn total_line(width: usize, progress: &ProgressSnapshot) -> String {
    let (fetched, bytes) = (progress.fetched, progress.bytes);
    let images = format!("images {}/{}", progress.images_here, progress.images);
    let sizes = (bytes > 0).then(|| format!("{} of {}", Size(fetched), Size(bytes)));
    let percentage = (bytes > 0).then(|| format!("{} %", percent(fetched, bytes)));
    let rate = (progress.downloads + progress.copies > 0)
        .then(|| format!("{}/s", Size(progress.rate.saturating_add(progress.copy_rate))));
    let left = progress.time_left().map(|left| format!("{} left", Span(left)));
    let images = Some(images);
    let join = |parts: &[&Option<String>]| {
        let parts: Vec<&str> = parts.iter().filter_map(|part| part.as_deref()).collect();
        parts.join(", ")
    };
    let whole = join(&[&images, &sizes, &rate, &left]);
    let with_bar = |columns| format!("total [{}] {whole}", bar(columns, fetched, bytes));
    let candidates = [
        with_bar(16),
        with_bar(8),
        whole.clone(),
        join(&[&images, &percentage, &rate, &left]),
        join(&[&images, &percentage, &left]),
        join(&[&images, &percentage]),
    ];
    let available = width.saturating_sub(MARGIN);
    let fitting = candidates.iter().find(|line| line.chars().count() <= available);
    fitting
        .or(candidates.last())
        .map_or_else(String::new, |line| clipped(line, available))
}

fn percent(part: u64, whole: u64) -> u128 {
    u128::from(part) * 100 / u128::from(whole.max(1))
}

fn bar(columns: usize, position: u64, size: u64) -> String {
    let filled = u128::from(position.min(size)) * columns as u128 / u128::from(size.max(1));
    let filled = usize::try_from(filled).unwrap_or(columns);
    let head = if position > 0 && filled < columns { ">" } else { "" };
    format!("{:<columns$}", "=".repeat(filled) + head)
}

fn clipped(text: &str, width: usize) -> String {
    match text.char_indices().nth(width) {
        None => text.to_owned(),
        Some(_) => text
            .chars()
            .take(width.saturating_sub(1))
            .chain(['…'])
            .take(width)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_blob_has_one_line_at_every_width() {
        let digest = Digest::of(b"blob");
        let hex = digest.hex();
        let short = &hex[..12];
        let line = |width, name| blob_line(width, name, &digest, 5 * MIB, 10 * MIB);
        assert_eq!(
            line(100, Some("etcd")),
            format!("etcd                     {short} [========>       ] 5.0 MiB of 10.0 MiB")
        );
        assert_eq!(
            line(80, Some("cluster-network-operator-with-a-long-name")),
            "cluster-network-operato… [========>       ] 5.0 MiB of 10.0 MiB"
        );
        assert_eq!(line(40, Some("etcd")), "etcd                 [====>   ] 50 %");
        assert_eq!(line(40, None), format!("{short}         [====>   ] 50 %"));
        for width in 0..200 {
            let longest = blob_line(width, Some(&"x".repeat(99)), &digest, 1023 * MIB, 1023 * MIB);
            assert!(
                longest.chars().count() <= width.saturating_sub(MARGIN),
                "{width}: {longest}"
            );
        }
    }

    #[test]
    fn the_total_has_one_line_at_every_width() {
        let progress = ProgressSnapshot {
            images: 190,
            images_here: 3,
            bytes: 16_500 * MIB,
            fetched: 1_200 * MIB,
            rate: 2 * MIB,
            downloads: 8,
            ..ProgressSnapshot::default()
        };
        for (width, expected) in [
            (
                100,
                "total [=>              ] images 3/190, 1.2 GiB of 16.1 GiB, 2.0 MiB/s, 2 h 7 min left",
            ),
            (
                80,
                "total [>       ] images 3/190, 1.2 GiB of 16.1 GiB, 2.0 MiB/s, 2 h 7 min left",
            ),
            (60, "images 3/190, 7 %, 2.0 MiB/s, 2 h 7 min left"),
            (40, "images 3/190, 7 %, 2 h 7 min left"),
        ] {
            assert_eq!(total_line(width, &progress), expected);
        }
        for width in 0..200 {
            assert!(
                total_line(width, &progress).chars().count() <= width.saturating_sub(MARGIN),
                "{width}"
            );
        }
    }
}
