//! Finds old files with similar names: the same base name in another directory, or other numbers in the name.
//!
//! `libfoo.so.1.2` is similar to `libfoo.so.1.3`, and `python3.9/foo-1.2.dist-info/RECORD` to
//! `python3.12/foo-1.3.dist-info/RECORD`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::old_files::OldFile;

/// The names of an old image's files, by base name with all version numbers replaced.
#[derive(Debug)]
pub(super) struct NameIndex(HashMap<Vec<u8>, Vec<Named>>);

/// A file by one of its names.
#[derive(Clone, Debug)]
pub(super) struct Named {
    /// The whole path without numbers, by which candidates are sorted.
    plain: Vec<u8>,
    pub(super) path: Arc<[u8]>,
    pub(super) file: OldFile,
    size: u64,
}

/// There are thousands of `__init__.py`; only those in the nearest directories are examined.
const EXAMINED: usize = 32;

impl NameIndex {
    pub(super) fn new(paths: &BTreeMap<Arc<[u8]>, OldFile>, size: impl Fn(OldFile) -> u64) -> Self {
        let mut by_base: HashMap<Vec<u8>, Vec<Named>> = HashMap::new();
        for (path, &file) in paths {
            let named = Named {
                plain: without_numbers(path),
                path: Arc::clone(path),
                file,
                size: size(file),
            };
            by_base
                .entry(without_numbers(base(path)))
                .or_default()
                .push(named);
        }
        for candidates in by_base.values_mut() {
            candidates.sort_by(|a, b| (&a.plain, &a.path).cmp(&(&b.plain, &b.path)));
        }
        Self(by_base)
    }

    /// The file with the most similar name that is not empty.
    pub(super) fn most_similar(&self, path: &[u8], size: u64) -> Option<&Named> {
        let candidates = self.0.get(&without_numbers(base(path)))?;
        let plain = without_numbers(path);
        let here = candidates.partition_point(|candidate| candidate.plain < plain);
        let near = here.saturating_sub(EXAMINED)..candidates.len().min(here + EXAMINED);
        candidates[near]
            .iter()
            .filter(|candidate| candidate.size > 0)
            .max_by_key(|candidate| {
                let same_base = base(&candidate.path) == base(path);
                let shared = shared_directories(&candidate.plain, &plain);
                let difference = candidate.size.abs_diff(size);
                // Of equals the last one wins, in an order that does not depend on the run.
                (
                    candidate.plain == plain,
                    shared,
                    same_base,
                    std::cmp::Reverse(difference),
                )
            })
    }
}

fn base(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// The text with each version number replaced by `#`: digits, and what joins them.
fn without_numbers(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    for (at, &byte) in text.iter().enumerate() {
        let after_number = plain.last() == Some(&b'#');
        match byte {
            b'0'..=b'9' if after_number => {}
            b'0'..=b'9' => plain.push(b'#'),
            b'.' | b'-' | b'_' if after_number && text.get(at + 1).is_some_and(u8::is_ascii_digit) => {}
            _ => plain.push(byte),
        }
    }
    plain
}

/// How many components two paths share at their starts and, before the base name, at their ends.
fn shared_directories(a: &[u8], b: &[u8]) -> usize {
    let components = |path: &[u8]| path.split(|&byte| byte == b'/').count() - 1;
    let (a_parts, b_parts) = (a.split(|&byte| byte == b'/'), b.split(|&byte| byte == b'/'));
    let equal = |(a, b): &(&[u8], &[u8])| a == b;
    let first = a_parts.clone().zip(b_parts.clone()).take_while(equal).count();
    let last = a_parts.rev().zip(b_parts.rev()).skip(1).take_while(equal).count();
    (first + last).min(components(a)).min(components(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_numbers_in_names_do_not_matter() {
        for (text, plain) in [
            ("usr/lib64/libfoo.so.1.2.3", "usr/lib#/libfoo.so.#"),
            ("5.14.0-427.13.1.el9_4.x86_64", "#.el#.x#"),
            ("foo-1.2.dist-info", "foo-#.dist-info"),
            ("a.-b_", "a.-b_"),
        ] {
            assert_eq!(String::from_utf8_lossy(&without_numbers(text.as_bytes())), plain);
        }
    }

    #[test]
    fn the_most_similar_name_is_in_the_nearest_directory() {
        let names = [
            "bin/foo",
            "opt/x/bin/foo",
            "usr/lib/python3.9/a-1.0/METADATA",
            "usr/lib/python3.9/b-1.0/METADATA",
            "usr/lib64/libz.so.1.2.11",
            "usr/lib64/libz.so.1.2.13",
        ];
        let file = |index| OldFile {
            layer: 0,
            file: index,
        };
        let paths = names.iter().enumerate();
        let paths = paths
            .map(|(index, name)| (name.as_bytes().into(), file(index)))
            .collect();
        let index = NameIndex::new(&paths, |file| file.file as u64 + 1);
        let similar = |path: &str, size| {
            let named = index.most_similar(path.as_bytes(), size)?;
            Some(names[named.file.file])
        };
        assert_eq!(similar("opt/y/bin/foo", 1), Some("opt/x/bin/foo"));
        assert_eq!(similar("usr/bin/foo", 1), Some("bin/foo"));
        assert_eq!(
            similar("usr/lib/python3.12/b-2.0.1/METADATA", 1),
            Some("usr/lib/python3.9/b-1.0/METADATA")
        );
        assert_eq!(
            similar("usr/lib64/libz.so.1.3", 6),
            Some("usr/lib64/libz.so.1.2.13")
        );
        assert_eq!(
            similar("usr/lib64/libz.so.1.3", 5),
            Some("usr/lib64/libz.so.1.2.11")
        );
        assert_eq!(similar("usr/lib64/liby.so.1", 5), None);
    }
}
