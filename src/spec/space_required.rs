//! Parses `spaceRequired`, an amount of disk space.
//!
//! The hub writes whole GiB without a unit; people write Kubernetes quantities (`40Gi`, `500M`) or `40 GiB`. A unit with an
//! `i` means powers of 1024, a unit without one powers of 1000.

const GIB: u128 = 1 << 30;
/// The most digits of a number: as many as 16 EiB in bytes, and so few that no product overflows.
const MAX_DIGITS: usize = 20;

/// A text that is not an amount of space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an amount of space: {why}\nhint: write whole GiB, or a number and a unit, as in `40`, `40Gi`, `500 MiB`"
)]
pub struct SpaceRequiredError {
    text: String,
    why: &'static str,
}

/// Parses an amount of space into bytes, rounded up. A number without a unit is in GiB.
pub fn parse_space(text: &str) -> Result<u64, SpaceRequiredError> {
    let text = text.trim();
    parse(text).map_err(|why| SpaceRequiredError {
        text: super::shown(text),
        why,
    })
}

/// Parses the `spaceRequired` of a PreCachingConfig into whole GiB, rounded up, as TALM's hub does: a number without a unit
/// is in bytes, units may have any case, and an `i` anywhere in the unit means powers of 1024. `30Gi`, which the hub's
/// documentation uses and the hub refuses, is 30.
pub(super) fn quantity_in_gib(text: &str) -> Result<u64, SpaceRequiredError> {
    let text = text.trim();
    let gib = parse_in(text, hub_unit_bytes).and_then(|(amount, scale)| {
        // The hub truncates fractions of a byte.
        let bytes = u64::try_from(amount / scale).map_err(|_| "it is more than 16 EiB")?;
        Ok(bytes.div_ceil(1 << 30))
    });
    gib.map_err(|why| SpaceRequiredError {
        text: super::shown(text),
        why,
    })
}

fn parse(text: &str) -> Result<u64, &'static str> {
    let (amount, scale) = parse_in(text, unit_bytes)?;
    u64::try_from(amount.div_ceil(scale)).map_err(|_| "it is more than 16 EiB")
}

/// An amount of bytes as a fraction.
fn parse_in(text: &str, unit_bytes: fn(&str) -> Option<u128>) -> Result<(u128, u128), &'static str> {
    if text.starts_with('-') {
        return Err("it is negative");
    }
    let number_ends = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || fraction.contains('.') {
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
    Ok((digits * unit, scale))
}

fn unit_bytes(unit: &str) -> Option<u128> {
    let prefix = match unit {
        "" => return Some(GIB),
        "B" => return Some(1),
        // Kubernetes has `G` and `Gi`; people also write `GB` and `GiB`.
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

fn hub_unit_bytes(unit: &str) -> Option<u128> {
    match unit {
        "" => Some(1),
        _ => unit_bytes(&unit.to_ascii_uppercase().replace('I', "i")),
    }
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
            ("18446744073709551615 B", u64::MAX),
        ] {
            assert_eq!(parse_space(text), Ok(expected), "{text}");
        }
    }

    /// The cases of the hub's test `TestPrecache_parseSpaceRequired`, and some more.
    #[test]
    fn reads_quantities_as_the_hub_does() {
        for (text, expected) in [
            ("1073741824", 1),
            ("2500000 KB", 3),
            ("3100 MB", 3),
            ("40 GB", 38),
            ("38.5 GB", 36),
            ("2 TB", 1863),
            ("1 PB", 931_323),
            ("2500000 KiB", 3),
            ("3100 MiB", 4),
            ("40 GiB", 40),
            ("38.5 GiB", 39),
            ("2 TiB", 2048),
            ("1 PiB", 1_048_576),
            ("40GiB", 40),
            ("40g", 38),
            ("40gib", 40),
            ("30Gi", 30),
            ("0", 0),
            ("1", 1),
            // Go's `int64(1073741824.1)`.
            ("1.0000000001 GiB", 1),
        ] {
            assert_eq!(quantity_in_gib(text), Ok(expected), "{text}");
        }
        for text in ["abc 123", "123 ab", "-1 GiB", "40 GiBs", "1000000000000 PB"] {
            assert!(quantity_in_gib(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_an_amount_is_refused() {
        for (text, expected) in [
            ("", "does not begin with a number"),
            ("-3", "negative"),
            ("GiB", "does not begin with a number"),
            (".5", "does not begin with a number"),
            ("1.2.3", "does not begin with a number"),
            ("1.", "does not begin with a number"),
            (".", "does not begin with a number"),
            ("40 gallons", "unit is unknown"),
            ("40m", "unit is unknown"),
            ("40i", "unit is unknown"),
            ("1e3", "unit is unknown"),
            ("35\n40", "unit is unknown"),
            ("99999999999999999", "16 EiB"),
            ("1000E", "16 EiB"),
            ("18446744073709551616 B", "16 EiB"),
            ("99999999999999999999 E", "16 EiB"),
            ("999999999999999999999", "too many digits"),
        ] {
            let error = parse_space(text).map_err(|error| error.to_string());
            assert!(
                error.as_ref().is_err_and(|error| error.contains(expected)),
                "{text}: {error:?}"
            );
        }
    }
}
