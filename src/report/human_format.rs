//! Formats bytes, durations and counts for people.

use std::fmt;
use std::time::Duration;

const MIB: u128 = 1 << 20;
const GIB: u128 = 1 << 30;

/// Bytes in MiB, from 1 GiB on in GiB, with one decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.0);
        let tenths = |unit: u128| (bytes * 10 + unit / 2) / unit;
        // A size that rounds to 1024.0 MiB is 1.0 GiB.
        let (tenths, unit) = match tenths(MIB) {
            10_240.. => (tenths(GIB), "GiB"),
            0 if bytes > 0 => return f.pad("<0.1 MiB"),
            few => (few, "MiB"),
        };
        f.pad(&format!("{}.{} {unit}", tenths / 10, tenths % 10))
    }
}

/// A number and its noun, given in the singular: `1 image`, `2 images`, `2 operator indexes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub usize, pub &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, thing) = self;
        let plural = match thing {
            _ if *count == 1 => "",
            thing if thing.ends_with('x') => "es",
            _ => "s",
        };
        write!(f, "{count} {thing}{plural}")
    }
}

/// A duration in its two largest units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
            (0, 0, seconds) => write!(f, "{seconds} s"),
            (0, minutes, seconds) => write!(f, "{minutes} min {seconds} s"),
            (hours, minutes, _) => write!(f, "{hours} h {minutes} min"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_a_tenth() {
        for (bytes, text) in [
            (0, "0.0 MiB"),
            (1, "<0.1 MiB"),
            (52_428, "<0.1 MiB"),
            (52_429, "0.1 MiB"),
            (1 << 20, "1.0 MiB"),
            ((1 << 30) - (1 << 20), "1023.0 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (20 << 30, "20.0 GiB"),
            (u64::MAX, "17179869184.0 GiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text, "{bytes}");
        }
    }

    #[test]
    fn nouns_follow_their_number() {
        let texts = [0, 1, 2].map(|count| Count(count, "image").to_string());
        assert_eq!(texts, ["0 images", "1 image", "2 images"]);
        assert_eq!(Count(2, "operator index").to_string(), "2 operator indexes");
    }

    #[test]
    fn durations_have_two_units() {
        for (seconds, text) in [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7_260, "2 h 1 min")] {
            assert_eq!(Span(Duration::from_secs(seconds)).to_string(), text);
        }
    }
}
