//! Finds names that are similar to a name that does not exist.

/// The most suggestions.
const MOST: usize = 3;

/// The longest name that is compared: the time is the product of the lengths.
const NAME_LIMIT: usize = 253;

/// Names must be more similar than this. `ptp` and `ptp-operator` have 0.85, `acm` and `odf` 0.55.
const LEAST_SIMILARITY: f64 = 0.8;

/// Those of `names` that are most similar to `requested`, the most similar first.
pub(super) fn similar<'a>(requested: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let requested = requested.to_lowercase();
    if requested.is_empty() || requested.len() > NAME_LIMIT {
        return Vec::new();
    }
    let mut scored: Vec<(f64, &str)> = names
        .into_iter()
        .filter(|name| !name.is_empty() && name.len() <= NAME_LIMIT)
        .map(|name| (similarity(&requested, &name.to_lowercase()), name))
        .filter(|(score, _)| *score > LEAST_SIMILARITY)
        .collect();
    scored.sort_by(|a, b| a.0.total_cmp(&b.0).reverse().then_with(|| a.1.cmp(b.1)));
    scored
        .into_iter()
        .take(MOST)
        .map(|(_, name)| name.to_owned())
        .collect()
}

/// 1 for equal names. A name that is a whole word of the other is similar too.
fn similarity(requested: &str, name: &str) -> f64 {
    let (short, long) = match requested.len() <= name.len() {
        true => (requested, name),
        false => (name, requested),
    };
    let is_word = long.split(['-', '.', '_']).any(|word| word == short);
    let words = if is_word { 0.81 } else { 0.0 };
    strsim::jaro_winkler(requested, name)
        .max(strsim::normalized_damerau_levenshtein(requested, name))
        .max(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_names_are_found() {
        let names = [
            "ptp-operator",
            "sriov-network-operator",
            "local-storage-operator",
            "lvms-operator",
            "advanced-cluster-management",
        ];
        for (requested, expected) in [
            ("ptp-oprator", Some("ptp-operator")),
            ("PTP-operator", Some("ptp-operator")),
            ("ptp", Some("ptp-operator")),
            ("sriov-operator", Some("sriov-network-operator")),
            ("storage", Some("local-storage-operator")),
            ("local-storage-operators", Some("local-storage-operator")),
            ("zzz", None),
            ("", None),
        ] {
            let found = similar(requested, names);
            assert_eq!(
                found.first().map(String::as_str),
                expected,
                "{requested}: {found:?}"
            );
        }
        assert!(similar(&"a".repeat(100_000), names).is_empty());
    }
}
