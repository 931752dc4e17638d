//! Parses and prints a transfer rate, such as `20Mbit` or `2.5MB`.

use std::fmt;
use std::str::FromStr;

/// The lowest rate, in bits per second: a TLS handshake takes a second at it, and several connections still receive enough
/// not to count as stalled.
const MIN: u128 = 64_000;

/// The highest rate, in bits per second: above that of any network card, so a larger number is a mistake.
const MAX: u128 = 1_000_000_000_000;

/// The most digits before or after the decimal point; more could overflow.
const DIGITS: usize = 12;

/// Units, and their size in bits.
const UNITS: [(&str, u128); 11] = [
    ("bit", 1),
    ("kbit", 1_000),
    ("Mbit", 1_000_000),
    ("Gbit", 1_000_000_000),
    ("B", 8),
    ("kB", 8_000),
    ("MB", 8_000_000),
    ("GB", 8_000_000_000),
    ("KiB", 8 << 10),
    ("MiB", 8 << 20),
    ("GiB", 8 << 30),
];

/// A rate above zero, in bits per second as links are sold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate {
    bits: u64,
}

/// Why a text is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// `fast`, `-1Mbit`, `1e6bit`
    #[error(
        "`{0}` is not a rate\nhint: write a number and its unit: `20Mbit`, `500kbit`, `2.5MB` (bytes), or `unlimited`"
    )]
    Number(String),
    /// `20`, without a unit.
    #[error("`{0}` has no unit\nhint: write `{0}Mbit` for megabits per second, `{0}MB` for megabytes")]
    Unitless(String),
    /// `20Mb`, `20Mbps`
    #[error(
        "`{unit}` in `{text}` is not a unit of a rate\nhint: write `kbit`, `Mbit`, `Gbit` for bits, `kB`, `MB`, `GB` for bytes"
    )]
    Unit {
        /// The rate as written.
        text: String,
        /// Its unit.
        unit: String,
    },
    /// `0`, and other rates too low to work.
    #[error("`{0}` is too low\nhint: the lowest rate is `64kbit`")]
    Low(String),
    /// A typing mistake.
    #[error("`{0}` is more than any link can carry\nhint: write `unlimited` for no limit")]
    High(String),
}

impl Rate {
    /// Bytes per second.
    pub(in crate::registry) fn bytes(self) -> f64 {
        self.bits as f64 / 8.0
    }

    /// Parses a rate; `None` for `unlimited`.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, RateError> {
        match text.trim() {
            "unlimited" => Ok(None),
            text => text.parse().map(Some),
        }
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let end = text
            .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let no_number = || RateError::Number(text.to_owned());
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        if [whole, part]
            .iter()
            .any(|digits| digits.is_empty() || digits.len() > DIGITS)
        {
            return Err(no_number());
        }
        let parse = |digits: &str| digits.parse::<u128>().map_err(|_| no_number());
        let scale = 10u128.pow(u32::try_from(part.len()).map_err(|_| no_number())?);
        let thousandths = parse(whole)? * scale + parse(part)?;
        let unit = unit.trim_start();
        if unit.is_empty() {
            return Err(RateError::Unitless(text.to_owned()));
        }
        // `/s` is optional.
        let name = unit.strip_suffix("/s").unwrap_or(unit);
        let factor = UNITS
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, factor)| factor);
        let factor = factor.ok_or_else(|| RateError::Unit {
            text: text.to_owned(),
            unit: unit.to_owned(),
        })?;
        match thousandths * factor / scale {
            ..MIN => Err(RateError::Low(text.to_owned())),
            bits @ MIN..=MAX => u64::try_from(bits)
                .map(|bits| Self { bits })
                .map_err(|_| no_number()),
            _ => Err(RateError::High(text.to_owned())),
        }
    }
}

/// `2.5 Mbit/s`
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            (1_000_000_000, "Gbit/s"),
            (1_000_000, "Mbit/s"),
            (1_000, "kbit/s"),
        ];
        match units.iter().find(|(factor, _)| self.bits >= *factor) {
            // Three decimals are enough.
            Some((factor, unit)) => write!(f, "{} {unit}", (self.bits * 1000 / factor) as f64 / 1000.0),
            None => write!(f, "{} bit/s", self.bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_with_units_are_parsed() {
        for (text, bits, shown) in [
            ("20Mbit", 20_000_000, "20 Mbit/s"),
            ("500kbit", 500_000, "500 kbit/s"),
            ("500 kbit/s", 500_000, "500 kbit/s"),
            ("2.5MB", 20_000_000, "20 Mbit/s"),
            ("1.5Gbit", 1_500_000_000, "1.5 Gbit/s"),
            ("1MiB/s", 8_388_608, "8.388 Mbit/s"),
            ("64000bit", 64_000, "64 kbit/s"),
            ("0.0640005Mbit", 64_000, "64 kbit/s"),
            ("125GB", 1_000_000_000_000, "1000 Gbit/s"),
        ] {
            let rate = text.parse::<Rate>().map_err(|error| error.to_string());
            assert_eq!(rate, Ok(Rate { bits }), "{text}");
            assert_eq!(Rate { bits }.to_string(), shown);
        }
        assert_eq!(Rate::parse("unlimited"), Ok(None));
    }

    #[test]
    fn an_invalid_rate_is_refused_with_a_hint() {
        let own = str::to_owned;
        let unit = |text: &str, unit: &str| RateError::Unit {
            text: own(text),
            unit: own(unit),
        };
        for (text, error) in [
            ("", RateError::Number(own(""))),
            ("fast", RateError::Number(own("fast"))),
            ("-1Mbit", RateError::Number(own("-1Mbit"))),
            (".5Mbit", RateError::Number(own(".5Mbit"))),
            ("5.Mbit", RateError::Number(own("5.Mbit"))),
            ("1.2.3Mbit", RateError::Number(own("1.2.3Mbit"))),
            ("1234567890123bit", RateError::Number(own("1234567890123bit"))),
            ("20", RateError::Unitless(own("20"))),
            ("20Mb", unit("20Mb", "Mb")),
            ("20Mbps", unit("20Mbps", "Mbps")),
            ("20mbit", unit("20mbit", "mbit")),
            ("1e6bit", unit("1e6bit", "e6bit")),
            ("0Mbit", RateError::Low(own("0Mbit"))),
            ("63999bit", RateError::Low(own("63999bit"))),
            ("126GB", RateError::High(own("126GB"))),
            ("999999999999GiB", RateError::High(own("999999999999GiB"))),
        ] {
            assert_eq!(text.parse::<Rate>(), Err(error.clone()), "{text}");
            assert!(error.to_string().contains("\nhint: "), "{error}");
        }
    }
}
