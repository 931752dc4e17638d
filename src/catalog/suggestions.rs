//! Names that somebody may have meant.

/// How many are told.
const TOLD: usize = 3;

/// Longer names are compared with nothing: the comparison takes the product of the lengths.
const COMPARED: usize = 253;

/// The most similar that are not worth telling. `ptp` for `ptp-operator` has 0.85, `acm` for `odf` 0.55.
const TOO_FAR: f64 = 0.8;

/// Those of `names` that are most like `asked`, the nearest first.
pub(super) fn near<'a>(asked: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let asked = asked.to_lowercase();
    if asked.is_empty() || asked.len() > COMPARED {
        return Vec::new();
    }
    let mut scored: Vec<(f64, &str)> = names
        .into_iter()
        .filter(|name| !name.is_empty() && name.len() <= COMPARED)
        .map(|name| (similarity(&asked, &name.to_lowercase()), name))
        .filter(|(score, _)| *score > TOO_FAR)
        .collect();
    scored.sort_by(|a, b| a.0.total_cmp(&b.0).reverse().then_with(|| a.1.cmp(b.1)));
    scored
        .into_iter()
        .take(TOLD)
        .map(|(_, name)| name.to_owned())
        .collect()
}

/// 1 for the same; a name that is a whole word of the other is near too.
fn similarity(asked: &str, name: &str) -> f64 {
    let (short, long) = match asked.len() <= name.len() {
        true => (asked, name),
        false => (name, asked),
    };
    let is_word = long.split(['-', '.', '_']).any(|word| word == short);
    let words = if is_word { 0.81 } else { 0.0 };
    strsim::jaro_winkler(asked, name)
        .max(strsim::normalized_damerau_levenshtein(asked, name))
        .max(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_keyboard_are_found() {
        let names = [
            "ptp-operator",
            "sriov-network-operator",
            "local-storage-operator",
            "lvms-operator",
            "advanced-cluster-management",
        ];
        for (asked, expected) in [
            ("ptp-oprator", Some("ptp-operator")),
            ("PTP-operator", Some("ptp-operator")),
            ("ptp", Some("ptp-operator")),
            ("sriov-operator", Some("sriov-network-operator")),
            ("storage", Some("local-storage-operator")),
            ("local-storage-operators", Some("local-storage-operator")),
            ("zzz", None),
            ("", None),
        ] {
            let found = near(asked, names);
            assert_eq!(found.first().map(String::as_str), expected, "{asked}: {found:?}");
        }
        assert!(near(&"a".repeat(100_000), names).is_empty());
    }
}
