//! Shares standard error between the log and the progress display.
//!
//! # Design
//!
//! indicatif redraws the bars from any thread that advances one; the log writes from any thread. Both hold the lock of one
//! `MultiProgress`: a log line erases the bars, is written whole, and the bars are redrawn below it. No other code may
//! write to standard error meanwhile.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::Arc;

use indicatif::{MultiProgress, ProgressDrawTarget};
use tracing_subscriber::fmt::MakeWriter;

use super::progress_bars::ProgressBars;
use super::shared_output::SharedOutput;
use super::terminal::{Terminal, size_of_stderr};
use super::{Observer, ProgressLines};

/// `--progress`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressMode {
    /// Bars on a terminal, log lines otherwise.
    #[default]
    Auto,
    /// Bars, also where standard error is no terminal.
    Always,
    /// No progress; results are still logged.
    Never,
}

/// Writes bars and log lines, and decides how progress is shown.
#[derive(Clone)]
pub struct Console {
    out: SharedOutput,
    multi: MultiProgress,
    shown: Shown,
    /// Rows and columns of the terminal.
    size: fn() -> (u16, u16),
    terminal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Bars,
    Lines,
    Nothing,
}

impl Console {
    /// Takes over standard error.
    pub fn stderr(mode: ProgressMode) -> Self {
        let out = SharedOutput::new(io::stderr());
        // indicatif draws nothing on a stream that is no terminal, or on a terminal without escape sequences.
        let terminal = !ProgressDrawTarget::stderr().is_hidden();
        let console = match (mode, terminal) {
            (ProgressMode::Always, _) | (ProgressMode::Auto, true) => Self::with_bars(out, size_of_stderr),
            (ProgressMode::Auto, false) => Self::without_bars(out, Shown::Lines),
            (ProgressMode::Never, _) => Self::without_bars(out, Shown::Nothing),
        };
        Self { terminal, ..console }
    }

    fn with_bars(out: SharedOutput, size: fn() -> (u16, u16)) -> Self {
        let terminal = Terminal::new(out.clone(), size);
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(terminal), Terminal::REFRESH);
        Self {
            out,
            multi: MultiProgress::with_draw_target(target),
            shown: Shown::Bars,
            size,
            terminal: false,
        }
    }

    fn without_bars(out: SharedOutput, shown: Shown) -> Self {
        Self {
            out,
            multi: MultiProgress::with_draw_target(ProgressDrawTarget::hidden()),
            shown,
            size: size_of_stderr,
            terminal: false,
        }
    }

    /// Whether standard error is a terminal that supports escape sequences, and so may show colours.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// The writer for `tracing_subscriber`.
    pub fn log_writer(&self) -> LogWriter {
        LogWriter(self.clone())
    }

    /// The observer that shows progress, if any. Its bars disappear when it is dropped.
    pub fn progress(&self) -> io::Result<Option<Arc<dyn Observer>>> {
        Ok(match self.shown {
            Shown::Bars => Some(Arc::new(ProgressBars::new(self.multi.clone(), self.size))),
            Shown::Lines => Some(Arc::new(ProgressLines::start()?)),
            Shown::Nothing => None,
        })
    }

    /// Erases the bars for good. After a stop, a thread may still own the observer and report bytes to it.
    pub fn end_progress(&self) {
        if self.shown == Shown::Bars {
            // Fails only if the terminal does, and then no bar is visible.
            let _ = self.multi.clear();
            self.multi.set_draw_target(ProgressDrawTarget::hidden());
        }
    }
}

/// Writes log lines above the bars.
pub struct LogWriter(Console);

/// Writes one log event.
pub struct LogLine<'a>(&'a Console);

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> LogLine<'a> {
        LogLine(&self.0)
    }
}

impl Write for LogLine<'_> {
    /// Writes everything at once, because the subscriber passes whole lines. Never fails: the subscriber would report an
    /// error on standard error with `eprintln!`, which panics if that stream is closed. A closed terminal or a log on a
    /// full disk must not end the run.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.multi.suspend(|| self.0.out.write(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.out.flush();
        Ok(())
    }
}

impl FromStr for ProgressMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(format!("must be `auto`, `always` or `never`: `{text}`")),
        }
    }
}

impl fmt::Display for ProgressMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::{Duration, Instant};

    use super::*;
    use crate::oci::Digest;
    use crate::report::terminal_emulator::Emulator;
    use crate::report::{Event, EventLog, Fanout, ImageLabel};

    const MIB: u64 = 1 << 20;

    fn drawn() -> (Emulator, Console) {
        let emulator = Emulator::default();
        let out = SharedOutput::new(emulator.clone());
        (emulator, Console::with_bars(out, || (24, 100)))
    }

    fn blob(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    /// Logs without a time, so that the text is the whole text.
    fn subscriber(console: &Console) -> impl tracing::Subscriber + Send + Sync {
        let format = tracing_subscriber::fmt::format()
            .without_time()
            .with_target(false)
            .with_ansi(false);
        tracing_subscriber::fmt()
            .event_format(format)
            .with_writer(console.log_writer())
            .finish()
    }

    #[test]
    fn log_lines_stay_whole_above_the_bars_and_the_bars_disappear() {
        let (emulator, console) = drawn();
        let bars = console.progress().unwrap().unwrap();
        tracing::subscriber::with_default(subscriber(&console), || {
            let observer = Fanout(vec![bars, Arc::new(EventLog::default())]);
            observer.observe(Event::Planned {
                images: 3,
                present: 0,
                bytes: 30 * MIB,
                bytes_from_media: 0,
            });
            for (name, size) in [("one", 10), ("two", 20)] {
                observer.observe(Event::BlobListed {
                    blob: blob(name),
                    name: "example.com/image:1".to_owned(),
                    label: ImageLabel::new(Some(name), "example.com/image:1"),
                });
                observer.observe(Event::BlobStarted {
                    blob: blob(name),
                    size: size * MIB,
                    resumed: 0,
                });
            }
            observer.observe(Event::BlobReceived {
                blob: blob("one"),
                bytes: 5 * MIB,
            });
            observer.observe(Event::Retrying {
                operation: Arc::default(),
                why: "blob of `example.com/image`: connection reset".into(),
                after: Duration::from_secs(2),
            });
            // Then a rate that depends on how busy the machine is.
            let expected = format!(
                " INFO 3 images wanted, 0 present, 30.0 MiB to download\n \
                 WARN blob of `example.com/image`: connection reset; retrying in 2 s\n\
                 one                      {} [========>       ] 5.0 MiB of 10.0 MiB\n\
                 two                      {} [                ] 0.0 MiB of 20.0 MiB\n\
                 total [==>             ] images 0/3, 5.0 MiB of 30.0 MiB, ",
                &blob("one").hex()[..12],
                &blob("two").hex()[..12],
            );
            // The total is drawn by its own clock.
            let deadline = Instant::now() + Duration::from_secs(20);
            while !emulator.text().starts_with(&expected) {
                assert!(Instant::now() < deadline, "{}", emulator.text());
                std::thread::sleep(Duration::from_millis(20));
            }

            observer.observe(Event::BlobVerified { blob: blob("one") });
            observer.observe(Event::Warned {
                message: "late".into(),
            });
            drop(observer);
        });
        assert_eq!(
            emulator.text(),
            " INFO 3 images wanted, 0 present, 30.0 MiB to download\n \
             WARN blob of `example.com/image`: connection reset; retrying in 2 s\n \
             WARN late\n"
        );
    }

    /// As after Ctrl-C, when a thread still downloads.
    #[test]
    fn no_bar_is_drawn_after_the_end_of_the_progress() {
        let emulator = Emulator::default();
        let console = Console::with_bars(SharedOutput::new(emulator.clone()), || (24, 40));
        let bars = console.progress().unwrap().unwrap();
        tracing::subscriber::with_default(subscriber(&console), || {
            let planned = Event::Planned {
                images: 1,
                present: 0,
                bytes: 10 * MIB,
                bytes_from_media: 0,
            };
            let started = Event::BlobStarted {
                blob: blob("one"),
                size: 10 * MIB,
                resumed: 0,
            };
            let received = || Event::BlobReceived {
                blob: blob("one"),
                bytes: MIB,
            };
            for event in [planned, started, received()] {
                bars.observe(event);
            }
            tracing::info!("before");
            let text = emulator.text();
            assert!(text.contains("] 10 %"), "{text}");
            assert!(text.lines().all(|line| line.chars().count() < 40), "{text}");
            console.end_progress();
            bars.observe(received());
            tracing::info!("after");
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!(emulator.text(), " INFO before\n INFO after\n");
        });
    }

    #[test]
    fn many_threads_do_not_garble_a_line() {
        let (emulator, console) = drawn();
        let bars = console.progress().unwrap().unwrap();
        let dispatch = tracing::Dispatch::new(subscriber(&console));
        bars.observe(Event::Planned {
            images: 1,
            present: 0,
            bytes: 100 * MIB,
            bytes_from_media: 0,
        });
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (bars, dispatch) = (&bars, &dispatch);
                scope.spawn(move || {
                    for round in 0..25 {
                        let blob = blob(&format!("{thread} {round}"));
                        bars.observe(Event::BlobStarted {
                            blob,
                            size: MIB,
                            resumed: 0,
                        });
                        bars.observe(Event::BlobReceived { blob, bytes: MIB });
                        tracing::dispatcher::with_default(dispatch, || {
                            tracing::info!("thread {thread} {round}")
                        });
                        bars.observe(Event::BlobVerified { blob });
                    }
                });
            }
        });
        drop(bars);
        let text = emulator.text();
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        let mut expected: Vec<String> = (0..4)
            .flat_map(|thread| (0..25).map(move |round| format!(" INFO thread {thread} {round}")))
            .collect();
        expected.sort_unstable();
        assert_eq!(lines, expected);
    }

    #[test]
    fn without_bars_lines_go_straight_through() {
        for shown in [Shown::Lines, Shown::Nothing] {
            let emulator = Emulator::default();
            let console = Console::without_bars(SharedOutput::new(emulator.clone()), shown);
            tracing::subscriber::with_default(subscriber(&console), || tracing::info!("hello"));
            assert_eq!(emulator.text(), " INFO hello\n");
            assert_eq!(console.progress().unwrap().is_some(), shown == Shown::Lines);
        }
    }

    /// A terminal that was closed.
    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn a_closed_terminal_does_not_end_the_run() {
        let console = Console::with_bars(SharedOutput::new(Closed), || (24, 100));
        let bars = console.progress().unwrap().unwrap();
        tracing::subscriber::with_default(subscriber(&console), || {
            bars.observe(Event::BlobStarted {
                blob: blob("one"),
                size: MIB,
                resumed: 0,
            });
            tracing::info!("not visible");
            bars.observe(Event::BlobVerified { blob: blob("one") });
        });
    }

    #[test]
    fn modes_are_read_as_they_are_written() {
        for mode in [ProgressMode::Auto, ProgressMode::Always, ProgressMode::Never] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("yes".parse::<ProgressMode>().is_err());
    }
}
