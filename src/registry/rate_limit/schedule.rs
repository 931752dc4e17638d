//! Parses the schedule of `--limit-rate`: a rate for each time of day.
//!
//! ```text
//! 20Mbit                          at all times
//! 22:00-04:00=50Mbit,else=5Mbit   from 22:00 to 04:00, and at all other times
//! 08:00-18:00=2MB                 no limit at other times, without `else`
//! ```

use std::fmt;
use std::str::FromStr;

use jiff::civil::Time;

use super::rate::{Rate, RateError};

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// The parsed value of `--limit-rate`. The default has no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitRate {
    /// Without overlaps.
    windows: Vec<Window>,
    otherwise: Option<Rate>,
}

/// From one minute of the day up to another, exclusive; past midnight if the second is earlier.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    from: u16,
    to: u16,
    rate: Option<Rate>,
}

/// Why a text is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitRateError {
    /// A rate in it is invalid.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// `20Mbit,else=5Mbit`
    #[error(
        "`{0}` is neither `HH:MM-HH:MM=RATE` nor `else=RATE`\nhint: write `20Mbit`, or for example `22:00-04:00=50Mbit,else=5Mbit`"
    )]
    Part(String),
    /// `9:00-25:00`
    #[error(
        "`{0}` is not a time window\nhint: write two times of day between `00:00` and `24:00`: `22:00-04:00`"
    )]
    Window(String),
    /// `04:00-04:00`
    #[error("the window `{0}` is empty\nhint: for the whole day write the rate alone")]
    Empty(String),
    /// Two windows that both cover some time.
    #[error("the windows `{0}` and `{1}` overlap\nhint: cover each time of day once")]
    Overlap(String, String),
    /// `else=5Mbit,else=6Mbit`
    #[error("there is more than one `else`\nhint: write `else` once, for all times outside the windows")]
    ElseAgain,
}

impl LimitRate {
    /// Whether there is no limit at any time.
    pub fn is_unlimited(&self) -> bool {
        self.otherwise.is_none() && self.windows.iter().all(|window| window.rate.is_none())
    }

    /// Whether the rate depends on the time of day.
    pub fn has_windows(&self) -> bool {
        !self.windows.is_empty()
    }

    /// The rate at a local time; `None` if there is no limit then.
    pub fn at(&self, time: Time) -> Option<Rate> {
        let minute = minute(time);
        let window = self.windows.iter().find(|window| window.contains(minute));
        window.map_or(self.otherwise, |window| window.rate)
    }

    /// The lowest rate of the day.
    pub(in crate::registry) fn lowest(&self) -> Option<Rate> {
        self.rates().flatten().min()
    }

    /// The highest rate of the day, ignoring times without a limit.
    pub(super) fn highest(&self) -> Option<Rate> {
        self.rates().flatten().max()
    }

    /// The highest rate of the day; `None` if some times have no limit.
    pub(super) fn upper_bound(&self) -> Option<Rate> {
        self.rates()
            .try_fold(None, |most, rate| Some(most.max(Some(rate?))))?
    }

    /// The rates of all windows and of the remaining time, which may be empty.
    fn rates(&self) -> impl Iterator<Item = Option<Rate>> {
        let windows = self.windows.iter().map(|window| window.rate);
        windows.chain([self.otherwise])
    }

    /// When the rate next changes after `time`; `None` if it never changes.
    pub(super) fn next_change(&self, time: Time) -> Option<Time> {
        let (now, rate) = (minute(time), self.at(time));
        let boundaries = self
            .windows
            .iter()
            .flat_map(|window| [window.from, window.to % DAY]);
        let after = |boundary: u16| (boundary + DAY - now - 1) % DAY;
        let mut boundaries: Vec<u16> = boundaries.collect();
        boundaries.sort_by_key(|boundary| after(*boundary));
        let times = boundaries.into_iter().filter_map(|boundary| clock(boundary).ok());
        times.into_iter().find(|boundary| self.at(*boundary) != rate)
    }
}

impl FromStr for LimitRate {
    type Err = LimitRateError;

    fn from_str(text: &str) -> Result<Self, LimitRateError> {
        if !text.contains(['=', ',']) {
            return Ok(Self {
                windows: Vec::new(),
                otherwise: Rate::parse(text)?,
            });
        }
        let (mut windows, mut otherwise) = (Vec::<Window>::new(), None);
        for part in text.split(',').map(str::trim) {
            let Some((when, rate)) = part.split_once('=') else {
                return Err(LimitRateError::Part(part.to_owned()));
            };
            let (when, rate) = (when.trim(), Rate::parse(rate)?);
            if when == "else" {
                if otherwise.replace(rate).is_some() {
                    return Err(LimitRateError::ElseAgain);
                }
                continue;
            }
            let window = Window::parse(when, rate)?;
            if let Some(other) = windows.iter().find(|other| other.overlaps(&window)) {
                return Err(LimitRateError::Overlap(other.to_string(), window.to_string()));
            }
            windows.push(window);
        }
        Ok(Self {
            windows,
            otherwise: otherwise.flatten(),
        })
    }
}

impl Window {
    fn parse(text: &str, rate: Option<Rate>) -> Result<Self, LimitRateError> {
        let no_window = || LimitRateError::Window(text.to_owned());
        let (from, to) = text.split_once('-').ok_or_else(no_window)?;
        let from = minutes(from.trim())
            .filter(|from| *from < DAY)
            .ok_or_else(no_window)?;
        let to = minutes(to.trim()).ok_or_else(no_window)?;
        if from == to {
            return Err(LimitRateError::Empty(text.to_owned()));
        }
        Ok(Self { from, to, rate })
    }

    fn contains(&self, minute: u16) -> bool {
        match self.from < self.to {
            true => (self.from..self.to).contains(&minute),
            false => minute >= self.from || minute < self.to,
        }
    }

    /// Whether both contain some minute: then one begins inside the other.
    fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.from) || other.contains(self.from)
    }
}

/// `20 Mbit/s`, `22:00-04:00 50 Mbit/s, else 5 Mbit/s`
impl fmt::Display for LimitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |rate: Option<Rate>| rate.map_or("no limit".to_owned(), |rate| rate.to_string());
        for window in &self.windows {
            write!(f, "{window} {}, ", words(window.rate))?;
        }
        let otherwise = if self.has_windows() { "else " } else { "" };
        write!(f, "{otherwise}{}", words(self.otherwise))
    }
}

/// `22:00-04:00`
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.from, self.to);
        write!(
            f,
            "{:02}:{:02}-{:02}:{:02}",
            from / 60,
            from % 60,
            to / 60,
            to % 60
        )
    }
}

/// The minute of the day of `HH:MM`, up to `24:00`.
fn minutes(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let is_number = |digits: &str| digits.len() <= 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if minutes.len() != 2 || !is_number(hours) || !is_number(minutes) {
        return None;
    }
    let (hours, minutes) = (hours.parse::<u16>().ok()?, minutes.parse::<u16>().ok()?);
    let of_day = hours * 60 + minutes;
    (minutes < 60 && of_day <= DAY).then_some(of_day)
}

fn minute(time: Time) -> u16 {
    u16::from(time.hour().unsigned_abs()) * 60 + u16::from(time.minute().unsigned_abs())
}

fn clock(minute: u16) -> Result<Time, jiff::Error> {
    let part = |number: u16| i8::try_from(number).unwrap_or_default();
    Time::new(part(minute / 60), part(minute % 60), 0, 0)
}

#[cfg(test)]
mod tests {
    use jiff::civil::time;

    use super::*;

    fn shown(text: &str, (hour, minute): (i8, i8)) -> String {
        let limit: LimitRate = text.parse().expect("a schedule");
        let rate = |at| {
            limit
                .at(at)
                .map_or("unlimited".to_owned(), |rate| rate.to_string())
        };
        let now = time(hour, minute, 30, 0);
        match limit.next_change(now) {
            Some(until) => format!(
                "{} until {}, then {}",
                rate(now),
                until.strftime("%H:%M"),
                rate(until)
            ),
            None => rate(now),
        }
    }

    #[test]
    fn the_rate_follows_the_time_of_day() {
        let night = "22:00-04:00=50Mbit,else=5Mbit";
        for (text, at, expected) in [
            ("20Mbit", (12, 0), "20 Mbit/s"),
            ("unlimited", (12, 0), "unlimited"),
            ("else=20Mbit", (12, 0), "20 Mbit/s"),
            (night, (21, 59), "5 Mbit/s until 22:00, then 50 Mbit/s"),
            (night, (22, 0), "50 Mbit/s until 04:00, then 5 Mbit/s"),
            (night, (0, 0), "50 Mbit/s until 04:00, then 5 Mbit/s"),
            (night, (3, 59), "50 Mbit/s until 04:00, then 5 Mbit/s"),
            (night, (4, 0), "5 Mbit/s until 22:00, then 50 Mbit/s"),
            ("8:00-18:00=2MB", (7, 0), "unlimited until 08:00, then 16 Mbit/s"),
            ("8:00-18:00=2MB", (18, 0), "unlimited until 08:00, then 16 Mbit/s"),
            (
                " 08:00 - 24:00 = 2MB , 00:00-08:00 = unlimited ",
                (23, 59),
                "16 Mbit/s until 00:00, then unlimited",
            ),
            // A window boundary that does not change the rate.
            (
                "08:00-12:00=2MB,12:00-13:00=2MB",
                (9, 0),
                "16 Mbit/s until 13:00, then unlimited",
            ),
            ("08:00-12:00=2MB,else=2MB", (9, 0), "16 Mbit/s"),
        ] {
            assert_eq!(shown(text, at), expected, "{text} at {at:?}");
        }
    }

    #[test]
    fn an_invalid_schedule_is_refused_with_a_hint() {
        let own = str::to_owned;
        for (text, error) in [
            ("20Mbit,else=5Mbit", LimitRateError::Part(own("20Mbit"))),
            ("else=5Mbit,", LimitRateError::Part(own(""))),
            (
                "22:00-04:00=5",
                LimitRateError::Rate(RateError::Unitless(own("5"))),
            ),
            ("else=", LimitRateError::Rate(RateError::Number(own("")))),
            ("22:00=5Mbit", LimitRateError::Window(own("22:00"))),
            ("22-04=5Mbit", LimitRateError::Window(own("22-04"))),
            ("22:00-24:01=5Mbit", LimitRateError::Window(own("22:00-24:01"))),
            ("24:00-04:00=5Mbit", LimitRateError::Window(own("24:00-04:00"))),
            ("22:60-04:00=5Mbit", LimitRateError::Window(own("22:60-04:00"))),
            ("22:0-04:00=5Mbit", LimitRateError::Window(own("22:0-04:00"))),
            ("+2:00-04:00=5Mbit", LimitRateError::Window(own("+2:00-04:00"))),
            ("04:00-04:00=5Mbit", LimitRateError::Empty(own("04:00-04:00"))),
            (
                "22:00-04:00=5Mbit,03:00-05:00=6Mbit",
                LimitRateError::Overlap(own("22:00-04:00"), own("03:00-05:00")),
            ),
            (
                "03:00-05:00=6Mbit,22:00-4:00=5Mbit",
                LimitRateError::Overlap(own("03:00-05:00"), own("22:00-04:00")),
            ),
            (
                "08:00-18:00=6Mbit,12:00-13:00=5Mbit",
                LimitRateError::Overlap(own("08:00-18:00"), own("12:00-13:00")),
            ),
            ("else=5Mbit,else=5Mbit", LimitRateError::ElseAgain),
        ] {
            assert_eq!(text.parse::<LimitRate>(), Err(error.clone()), "{text}");
            assert!(error.to_string().contains("\nhint: "), "{error}");
        }
        let adjacent = "00:00-04:00=5Mbit,04:00-24:00=6Mbit";
        assert!(adjacent.parse::<LimitRate>().is_ok());
    }
}
