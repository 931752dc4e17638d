//! Finds the head of a channel by operator-registry's rule (`alpha/model/model.go`, `Channel.Head`).
//!
//! The head is the entry that no entry of the channel replaces or skips, and there must be exactly one. `skipRange` has no
//! effect on heads, nor have the order of the entries and their versions. An entry may replace or skip one that the channel
//! does not have. An entry that replaces or skips itself is not a head.

use std::collections::HashSet;

/// An entry of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ChannelEntry {
    /// The bundle's name.
    pub(super) name: String,
    /// The bundle that it replaces, or empty.
    pub(super) replaces: String,
    /// Bundles that it also updates from, and that must not be installed any more.
    pub(super) skips: Vec<String>,
}

/// The names of the entries that no other entry replaces or skips, sorted.
pub(super) fn heads(entries: &[ChannelEntry]) -> Vec<&str> {
    let mut hidden = HashSet::new();
    for entry in entries {
        // An empty `replaces` means no bundle.
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
    fn channel(text: &str) -> Vec<ChannelEntry> {
        let entry = |word: &str| {
            let (name, rest) = word.split_once('<').unwrap_or((word, ""));
            let (replaces, skips) = rest.split_once('+').unwrap_or((rest, ""));
            ChannelEntry {
                name: name.to_owned(),
                replaces: replaces.to_owned(),
                skips: skips.split_terminator(',').map(str::to_owned).collect(),
            }
        };
        text.split_whitespace().map(entry).collect()
    }

    #[test]
    fn heads_follow_the_rule_of_operator_registry() {
        for (text, expected) in [
            ("a", &["a"][..]),
            ("", &[]),
            ("a b<a c<b", &["c"]),
            ("c<b a b<a", &["c"]),
            ("a b c<a+b", &["c"]),
            ("a b<a+x,y", &["b"]),
            ("a<gone b<a", &["b"]),
            // Without `replaces`, only an entry that skips all others is the head.
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
        ) -> Vec<ChannelEntry> {
            map.into_iter().map(|(name, (replaces, skips))| ChannelEntry { name, replaces, skips }).collect()
        }
    }

    proptest! {
        /// The rule in its simplest form: an entry is a head if no entry names it.
        #[test]
        fn a_head_is_an_entry_that_no_entry_names(entries in entries()) {
            let named = |name: &str| entries.iter().any(|entry| {
                entry.replaces == name || entry.skips.iter().any(|skipped| skipped == name)
            });
            let expected: Vec<&str> =
                entries.iter().map(|entry| entry.name.as_str()).filter(|name| !named(name)).collect();
            prop_assert_eq!(heads(&entries), expected);
        }

        #[test]
        fn order_does_not_matter(entries in entries(), offset in 0_usize..8) {
            let mut reordered = entries.clone();
            if !reordered.is_empty() {
                let by = offset % reordered.len();
                reordered.rotate_left(by);
                reordered.reverse();
            }
            prop_assert_eq!(heads(&reordered), heads(&entries));
        }

        /// An update that replaces the only head is the only head.
        #[test]
        fn an_update_becomes_the_head(entries in entries()) {
            let before = heads(&entries);
            prop_assume!(before.len() == 1);
            let mut grown = entries.clone();
            let (old, new) = (before[0].to_owned(), "new".to_owned());
            grown.push(ChannelEntry { name: new, replaces: old, skips: Vec::new() });
            prop_assert_eq!(heads(&grown), ["new"]);
        }
    }
}
