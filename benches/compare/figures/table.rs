//! Draws the figures: as text after the measurement, and as the Markdown of `benches/README.md`.

use std::fmt::Write as _;

use super::{COLUMNS, Column, Figures, Rounds};

/// Medians with the least and the most, and multiples of ours.
pub(crate) fn text(figures: &Figures) -> String {
    let mut table = format!("{:<26}", "");
    for column in &COLUMNS {
        let _ = write!(table, "{:>30}", format!("{} {}", column.title, column.unit));
    }
    for contender in &figures.contenders {
        let _ = write!(table, "\n{:<26}", contender.name);
        for column in &COLUMNS {
            let cell = contender.spread(column).map(|spread| {
                let range = format!("{:.2}–{:.2}", spread.least, spread.most);
                let ratio = ratio(figures, contender, column).unwrap_or_default();
                format!("{:.2} {range:>14} {ratio:>5.2}×", spread.median)
            });
            let _ = write!(table, "{:>30}", cell.unwrap_or_default());
        }
    }
    table
}

/// A sentence about the measurement, and a table of the medians.
pub(crate) fn markdown(figures: &Figures) -> String {
    let machine = &figures.machine;
    let rounds = figures.contenders.first().map_or(0, |first| first.rounds.len());
    let link = figures.link.as_ref();
    let mut text = format!(
        "{} images, {:.0} MB, {}. {}, {}, on {} cores of {} with Linux {}: {}.\n\n|",
        figures.images,
        figures.bytes as f64 / 1e6,
        link.map_or("a link without a limit".to_owned(), |link| format!(
            "a link of {link}"
        )),
        match rounds {
            1 => "One round".to_owned(),
            rounds => format!("Medians of {rounds} rounds"),
        },
        figures.date,
        machine.cores,
        machine.processor,
        machine.kernel,
        figures.programs.join(", "),
    );
    for column in &COLUMNS {
        let _ = write!(text, " | {}", column.title);
    }
    text.push_str(" |\n|---");
    text.push_str(&"|---".repeat(COLUMNS.len()));
    text.push('|');
    for (index, contender) in figures.contenders.iter().enumerate() {
        let _ = write!(text, "\n| {}", contender.name);
        for column in &COLUMNS {
            let _ = write!(text, " | {}", cell(figures, contender, column, index == 0));
        }
        text.push_str(" |");
    }
    text
}

/// Ours with its range, the others as multiples of it.
fn cell(figures: &Figures, contender: &Rounds, column: &Column, is_ours: bool) -> String {
    let Some(spread) = contender.spread(column) else {
        return String::new();
    };
    let amount = |number: f64| match number {
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    };
    let mut cell = format!("{} {}", amount(spread.median), column.unit);
    if is_ours && column.has_ratio && contender.rounds.len() > 1 {
        let _ = write!(cell, " ({}–{})", amount(spread.least), amount(spread.most));
    }
    if let (false, true, Some(ratio)) = (is_ours, column.has_ratio, ratio(figures, contender, column)) {
        let _ = write!(cell, ", {ratio:.2} ×");
    }
    cell
}

/// The median as a multiple of ours.
fn ratio(figures: &Figures, contender: &Rounds, column: &Column) -> Option<f64> {
    let ours = figures.contenders.first()?.spread(column)?;
    Some(contender.spread(column)?.median / ours.median)
}
