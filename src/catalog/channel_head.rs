//! Which entry of a channel is its head: operator-registry's rule (`alpha/model/model.go`, `Channel.Head`).
//!
//! The head is the entry that no entry of the channel replaces or skips, and there must be exactly one. `skipRange` does
//! not count, it adds ways to update and changes nothing about heads; nor does the order of the entries, nor their
//! versions. An entry may name one that the channel does not have, which then hides nothing; one that names itself hides
//! itself.

use std::collections::HashSet;

/// An entry of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// The bundle's name.
    pub(super) name: String,
    /// The bundle that it updates from, or empty.
    pub(super) replaces: String,
    /// Bundles that it updates from too, and that are not to be installed any more.
    pub(super) skips: Vec<String>,
}

/// Names of the entries that nobody replaces or skips, sorted.
pub(super) fn heads(entries: &[Entry]) -> Vec<&str> {
    let mut hidden = HashSet::new();
    for entry in entries {
        // An empty `replaces` is none.
        if !entry.replaces.is_empty() {
            hidden.insert(entry.replaces.as_str());
        }
        hidden.extend(entry.skips.iter().map(String::as_str));
    }
    let names = entries.iter().map(|entry| entry.name.as_str());
    let mut heads: Vec<&str> = names.filter(|name| !hidden.contains(name)).collect();
    heads.sort_unstable();
    heads
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `name<replaces skips,skips`
    fn channel(text: &str) -> Vec<Entry> {
        let entry = |word: &str| {
            let (name, rest) = word.split_once('<').unwrap_or((word, ""));
            let (replaces, skips) = rest.split_once('+').unwrap_or((rest, ""));
            Entry {
                name: name.to_owned(),
                replaces: replaces.to_owned(),
                skips: skips.split_terminator(',').map(str::to_owned).collect(),
            }
        };
        text.split_whitespace().map(entry).collect()
    }

    #[test]
    fn the_rule() {
        for (text, expected) in [
            ("a", &["a"][..]),
            ("", &[]),
            ("a b<a c<b", &["c"]),
            ("c<b a b<a", &["c"]),
            ("a b c<a+b", &["c"]),
            ("a b<a+x,y", &["b"]),
            ("a<gone b<a", &["b"]),
            // No `replaces` at all: only one that skips all others is a head.
            ("a b c", &["a", "b", "c"]),
            ("a b c<+a,b", &["c"]),
            ("a<b b<a", &[]),
            ("a<a", &[]),
            ("a<+a", &[]),
            ("a<b b<a c<b", &["c"]),
            ("a b<a c<a", &["b", "c"]),
        ] {
            assert_eq!(heads(&channel(text)), expected, "{text}");
        }
    }

    fn name() -> impl Strategy<Value = String> {
        "[a-h]"
    }

    prop_compose! {
        fn entries()(
            map in proptest::collection::btree_map(name(), (prop_oneof![name(), Just(String::new())],
                proptest::collection::vec(name(), 0..3)), 0..8)
        ) -> Vec<Entry> {
            map.into_iter().map(|(name, (replaces, skips))| Entry { name, replaces, skips }).collect()
        }
    }

    proptest! {
        /// The rule, said as a person would: for every entry, is there one that names it?
        #[test]
        fn a_head_is_what_nobody_names(entries in entries()) {
            let named = |name: &str| entries.iter().any(|entry| {
                entry.replaces == name || entry.skips.iter().any(|skipped| skipped == name)
            });
            let expected: Vec<&str> =
                entries.iter().map(|entry| entry.name.as_str()).filter(|name| !named(name)).collect();
            prop_assert_eq!(heads(&entries), expected);
        }

        #[test]
        fn order_does_not_matter(entries in entries(), turn in 0_usize..8) {
            let mut turned = entries.clone();
            if !turned.is_empty() {
                let by = turn % turned.len();
                turned.rotate_left(by);
                turned.reverse();
            }
            prop_assert_eq!(heads(&turned), heads(&entries));
        }

        /// An update that replaces the only head, and an old entry that is skipped, leave one head.
        #[test]
        fn a_new_head_takes_over(entries in entries()) {
            let before = heads(&entries);
            prop_assume!(before.len() == 1);
            let mut grown = entries.clone();
            let (old, new) = (before[0].to_owned(), "new".to_owned());
            grown.push(Entry { name: new, replaces: old, skips: Vec::new() });
            prop_assert_eq!(heads(&grown), ["new"]);
        }
    }
}
