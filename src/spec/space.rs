//! `spaceRequired`: an amount of disk space.
//!
//! The hub writes whole GiB without a unit; people write Kubernetes quantities (`40Gi`, `500M`) or `40 GiB`. A unit
//! with an `i` counts in powers of 1024, one without in powers of 1000.

const GIB: u128 = 1 << 30;
/// Digits of a number, so that no product overflows; more are no amount of disk space.
const MAX_DIGITS: usize = 18;

/// A text that is no amount of space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an amount of space: {why}\nhint: whole GiB, or a number and a unit, as in `40`, `40Gi`, `500 MiB`"
)]
pub struct SpaceError {
    text: String,
    why: &'static str,
}

/// Parses an amount of space into bytes, rounded up; without a unit it is in GiB.
pub fn parse_space(text: &str) -> Result<u64, SpaceError> {
    let text = text.trim();
    parse(text).map_err(|why| SpaceError {
        text: super::shown(text),
        why,
    })
}

fn parse(text: &str) -> Result<u64, &'static str> {
    if text.starts_with('-') {
        return Err("it is negative");
    }
    let number_ends = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err("it does not begin with a number");
    }
    if whole.len() + fraction.len() > MAX_DIGITS {
        return Err("it has too many digits");
    }
    let unit = unit_bytes(unit.trim_start()).ok_or("its unit is unknown")?;
    let digits: u128 = format!("{whole}{fraction}")
        .parse()
        .map_err(|_| "it does not begin with a number")?;
    let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    u64::try_from((digits * unit).div_ceil(scale)).map_err(|_| "it is more than 16 EiB")
}

fn unit_bytes(unit: &str) -> Option<u128> {
    let prefix = match unit {
        "" => return Some(GIB),
        "B" => return Some(1),
        // Kubernetes knows `G` and `Gi`, people also `GB` and `GiB`.
        _ => unit.strip_suffix('B').unwrap_or(unit),
    };
    let (letter, base) = match prefix.strip_suffix('i') {
        Some(letter) => (letter, 1024_u128),
        None => (prefix, 1000),
    };
    let power = match letter {
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        "E" => 6,
        _ => return None,
    };
    Some(base.pow(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_amounts() {
        for (text, expected) in [
            ("0", 0),
            ("35", 35 << 30),
            (" 40 GiB\r", 40 << 30),
            ("40Gi", 40 << 30),
            ("40GiB", 40 << 30),
            ("40G", 40_000_000_000),
            ("40 GB", 40_000_000_000),
            ("500Mi", 500 << 20),
            ("500M", 500_000_000),
            ("1.5Gi", 3 << 29),
            ("0.5", 1 << 29),
            ("1.0000000001k", 1_001),
            ("7 B", 7),
            ("1Ti", 1 << 40),
        ] {
            assert_eq!(parse_space(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_amount() {
        for (text, expected) in [
            ("", "does not begin with a number"),
            ("-3", "negative"),
            ("GiB", "does not begin with a number"),
            (".5", "does not begin with a number"),
            ("1.2.3", "does not begin with a number"),
            ("40 gallons", "unit is unknown"),
            ("40m", "unit is unknown"),
            ("40i", "unit is unknown"),
            ("1e3", "unit is unknown"),
            ("35\n40", "unit is unknown"),
            ("99999999999999999", "16 EiB"),
            ("1000E", "16 EiB"),
            ("9999999999999999999", "too many digits"),
        ] {
            let error = parse_space(text).map_err(|error| error.to_string());
            assert!(
                error.as_ref().is_err_and(|error| error.contains(expected)),
                "{text}: {error:?}"
            );
        }
    }
}
