//! Parses `--io-budget`.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// How many bytes are written to the disk at once, before the sync of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoBudget {
    /// A default number of bytes, as far as processors are idle. What comes faster is left to the sync.
    #[default]
    Auto,
    /// So many. What comes faster waits.
    Bytes(NonZeroU64),
    /// Small files and blobs are left to the sync.
    Off,
}

/// Why a text is no valid budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be `auto`, `off`, or a number of bytes from `64kB` to `1GB`, such as `2MB`")]
pub struct IoBudgetError;

const MIN: u64 = 64_000;
const MAX: u64 = 1_000_000_000;

impl IoBudget {
    /// Some milliseconds of a disk.
    pub(super) const DEFAULT: NonZeroU64 = NonZeroU64::new(2_000_000).expect("it is not 0");

    /// The default under TALM's Job, where no person waits for the end.
    pub const TALM: Self = Self::Bytes(Self::DEFAULT);
}

impl FromStr for IoBudget {
    type Err = IoBudgetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => return Ok(Self::Auto),
            "off" => return Ok(Self::Off),
            _ => {}
        }
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit = match unit {
            "kB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            _ => return Err(IoBudgetError),
        };
        let bytes = number
            .parse()
            .ok()
            .and_then(|number: u64| number.checked_mul(unit));
        let bytes = bytes.filter(|bytes| (MIN..=MAX).contains(bytes));
        bytes
            .and_then(NonZeroU64::new)
            .map(Self::Bytes)
            .ok_or(IoBudgetError)
    }
}

impl fmt::Display for IoBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Bytes(bytes) => write!(f, "{bytes} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_budget_has_a_unit_and_a_sensible_size() {
        let bytes = |bytes| Ok(IoBudget::Bytes(NonZeroU64::new(bytes).unwrap()));
        for (text, expected) in [
            ("auto", Ok(IoBudget::Auto)),
            ("off", Ok(IoBudget::Off)),
            ("2MB", bytes(2_000_000)),
            ("512KiB", bytes(512 << 10)),
            ("1GB", bytes(1_000_000_000)),
        ] {
            assert_eq!(text.parse::<IoBudget>(), expected, "{text}");
        }
        for text in [
            "",
            "2",
            "MB",
            "63kB",
            "2GB",
            "-2MB",
            "2 MB",
            "2mb",
            "99999999999999999999GB",
        ] {
            assert_eq!(text.parse::<IoBudget>(), Err(IoBudgetError), "{text}");
        }
    }
}
