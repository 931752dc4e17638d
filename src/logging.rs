//! Configures the log: its format, level and colours.

use std::fmt;

use jiff::Timestamp;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use spoke_precache::cli::LogFormat;
use spoke_precache::report::{Console, TalmFormat};
use spoke_precache::settings::OutputSettings;

/// Starts the log of the process.
pub(crate) fn start_log(display: &OutputSettings, console: &Console) {
    // Of other crates' events only warnings, because others might contain a URL or a header.
    let filter = Targets::new()
        .with_default(tracing::Level::WARN.min(display.log_level))
        .with_target(env!("CARGO_CRATE_NAME"), display.log_level)
        // rPGP logs what it skips in keys and messages, which are untrusted input. Verdicts have the reasons that matter.
        .with_target("pgp", LevelFilter::OFF);
    let lines = tracing_subscriber::fmt::layer().with_writer(console.log_writer());
    let registry = tracing_subscriber::registry();
    let text = || {
        let colours = display.colours.unwrap_or_else(|| console.is_terminal());
        tracing_subscriber::fmt::layer()
            .with_writer(console.log_writer())
            .with_target(false)
            .with_ansi(colours)
    };
    match display.log_format {
        LogFormat::Text if console.is_terminal() => registry
            .with(text().with_timer(ShortTime).with_filter(filter))
            .init(),
        LogFormat::Text => registry.with(text().with_filter(filter)).init(),
        LogFormat::Json => registry.with(lines.json().with_filter(filter)).init(),
        LogFormat::Talm => registry
            .with(lines.event_format(TalmFormat).with_filter(filter))
            .init(),
    }
}

/// The time of day in UTC, so that a log line fits on one line of a terminal.
struct ShortTime;

impl FormatTime for ShortTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{}", Timestamp::now().strftime("%H:%M:%SZ"))
    }
}
