//! Standard error as logs and bars share it.
//!
//! # Design
//!
//! indicatif redraws the bars from whatever thread moves one, the log writes from whatever thread has something to say.
//! Both go through the lock of one `MultiProgress`: a log line wipes the bars, is written whole and has them drawn
//! again below it. Nobody else may write to standard error meanwhile.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{MultiProgress, ProgressDrawTarget};
use tracing_subscriber::fmt::MakeWriter;

use super::progress_bars::ProgressBars;
use super::terminal::Terminal;
use super::{Observer, ProgressLines};

/// `--progress`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressMode {
    /// Bars on a terminal, lines otherwise.
    #[default]
    Auto,
    /// Bars, terminal or not.
    Always,
    /// Neither; what ends is still logged.
    Never,
}

/// Where bars and log lines go, and which progress is shown.
#[derive(Clone)]
pub struct Console {
    out: Out,
    multi: MultiProgress,
    shown: Shown,
    terminal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Bars,
    Lines,
    Nothing,
}

/// The stream below it all.
#[derive(Clone)]
pub(super) struct Out(Arc<Mutex<dyn Write + Send>>);

impl Out {
    pub(super) fn new(stream: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(stream)))
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(bytes)
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

impl Console {
    /// Takes over standard error.
    pub fn stderr(mode: ProgressMode) -> Self {
        let out = Out::new(io::stderr());
        // indicatif hides from what is no terminal, or one that knows no escape sequences.
        let terminal = !ProgressDrawTarget::stderr().is_hidden();
        let console = match (mode, terminal) {
            (ProgressMode::Always, _) | (ProgressMode::Auto, true) => {
                let screen = Terminal::new(out.clone());
                Self::drawing(out, screen)
            }
            (ProgressMode::Auto, false) => Self::plain(out, Shown::Lines),
            (ProgressMode::Never, _) => Self::plain(out, Shown::Nothing),
        };
        Self { terminal, ..console }
    }

    fn drawing(out: Out, screen: Terminal) -> Self {
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(screen), Terminal::REFRESH);
        Self {
            out,
            multi: MultiProgress::with_draw_target(target),
            shown: Shown::Bars,
            terminal: false,
        }
    }

    fn plain(out: Out, shown: Shown) -> Self {
        Self {
            out,
            multi: MultiProgress::with_draw_target(ProgressDrawTarget::hidden()),
            shown,
            terminal: false,
        }
    }

    /// Whether the log may have colours: standard error is a terminal that knows escape sequences.
    pub fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// What `tracing_subscriber` is to write to.
    pub fn log_writer(&self) -> LogWriter {
        LogWriter(self.clone())
    }

    /// What shows the progress, if anything is to. Bars vanish when it is dropped; drop it before the verdict is
    /// printed.
    pub fn progress(&self) -> io::Result<Option<Arc<dyn Observer>>> {
        Ok(match self.shown {
            Shown::Bars => Some(Arc::new(ProgressBars::new(self.multi.clone()))),
            Shown::Lines => Some(Arc::new(ProgressLines::start()?)),
            Shown::Nothing => None,
        })
    }
}

/// Writes log lines above the bars.
pub struct LogWriter(Console);

/// One log event's way out.
pub struct LogLine<'a>(&'a Console);

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> LogLine<'a> {
        LogLine(&self.0)
    }
}

impl Write for LogLine<'_> {
    /// Takes all of it at once, for the subscriber hands over whole lines. Never fails: to an error the subscriber
    /// would say so on standard error, and `eprintln!` panics when that is the stream that has gone. A terminal that
    /// was closed or a log on a full disk must not end the run.
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
    use crate::report::{Event, EventLog, Fanout};

    const MIB: u64 = 1 << 20;

    fn drawn() -> (Emulator, Console) {
        let emulator = Emulator::default();
        let out = Out::new(emulator.clone());
        let screen = Terminal::fixed(out.clone());
        (emulator, Console::drawing(out, screen))
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
    fn log_lines_stay_whole_above_the_bars_and_the_bars_vanish() {
        let (emulator, console) = drawn();
        let bars = console.progress().unwrap().unwrap();
        tracing::subscriber::with_default(subscriber(&console), || {
            let observer = Fanout(vec![bars, Arc::new(EventLog::default())]);
            observer.observe(Event::Planned {
                images: 3,
                present: 0,
                bytes: 30 * MIB,
            });
            for (name, size) in [("one", 10), ("two", 20)] {
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
                " INFO 3 images wanted, 0 present, 30.0 MiB to be fetched\n \
                 WARN blob of `example.com/image`: connection reset; again in 2 s\n\
                 {} [========>       ] 5.0 MiB of 10.0 MiB\n\
                 {} [                ] 0.0 MiB of 20.0 MiB\n\
                 total        [==>             ] images 0/3, 5.0 MiB of 30.0 MiB, ",
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
            " INFO 3 images wanted, 0 present, 30.0 MiB to be fetched\n \
             WARN blob of `example.com/image`: connection reset; again in 2 s\n \
             WARN late\n"
        );
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
            let console = Console::plain(Out::new(emulator.clone()), shown);
            tracing::subscriber::with_default(subscriber(&console), || tracing::info!("hello"));
            assert_eq!(emulator.text(), " INFO hello\n");
            assert_eq!(console.progress().unwrap().is_some(), shown == Shown::Lines);
        }
    }

    /// A terminal that has gone.
    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn a_terminal_that_has_gone_ends_nothing() {
        let out = Out::new(Gone);
        let screen = Terminal::fixed(out.clone());
        let console = Console::drawing(out, screen);
        let bars = console.progress().unwrap().unwrap();
        tracing::subscriber::with_default(subscriber(&console), || {
            bars.observe(Event::BlobStarted {
                blob: blob("one"),
                size: MIB,
                resumed: 0,
            });
            tracing::info!("nobody reads this");
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
