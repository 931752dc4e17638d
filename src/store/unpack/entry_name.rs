//! Cleans names of tar entries as Go's `path.Clean` does, and maps them to paths below the layer's root.
//!
//! A name is *cleaned* first (`a//./b/` is `a/b`), keeping a leading `/` or `..`, because containers/storage detects
//! duplicates by the cleaned name. The path *in the root* is the same without that prefix: containers/storage unpacks
//! in a chroot, where `/../x` is `/x`. Both are text operations, before any symbolic link is resolved.

/// Go's `path.Clean`, on bytes.
pub(in crate::store) fn clean(name: &[u8]) -> Vec<u8> {
    let absolute = name.first() == Some(&b'/');
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in name.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => match parts.last() {
                Some(&last) if last != b".." => {
                    parts.pop();
                }
                _ if absolute => {}
                _ => parts.push(part),
            },
            _ => parts.push(part),
        }
    }
    let mut clean = Vec::with_capacity(name.len() + 1);
    if absolute {
        clean.push(b'/');
    }
    clean.extend_from_slice(&parts.join(&b'/'));
    if clean.is_empty() {
        clean.push(b'.');
    }
    clean
}

/// The path of a [`clean`] name in the root, without a leading `/`; empty for the root itself.
pub(in crate::store) fn in_root(clean: &[u8]) -> &[u8] {
    let mut path = clean.strip_prefix(b"/").unwrap_or(clean);
    while let Some(rest) = path.strip_prefix(b"../") {
        path = rest;
    }
    match path {
        b"." | b".." => b"",
        path => path,
    }
}

/// True if Go's `path.Join` of a root and this name leaves the root. When containers/storage reads a tar-split, it
/// opens this path; so it looks for `/../x` next to the root, where unpacking treated it as `/x`.
pub(super) fn climbs(name: &[u8]) -> bool {
    let joined = clean(&[b"./", name].concat());
    joined == b".." || joined.starts_with(b"../")
}

/// Splits a path in the root into its directory (empty for the root) and its last component.
pub(in crate::store) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// The last component of a name in a header, without trailing slashes.
pub(super) fn base(name: &[u8]) -> &[u8] {
    let end = name
        .iter()
        .rposition(|&byte| byte != b'/')
        .map_or(0, |last| last + 1);
    split(&name[..end]).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleans_as_go_does() {
        let cases: &[(&str, &str, &str, bool)] = &[
            ("", ".", "", false),
            (".", ".", "", false),
            ("./", ".", "", false),
            ("/", "/", "", false),
            ("//", "/", "", false),
            ("..", "..", "", true),
            ("/..", "/", "", true),
            ("a", "a", "a", false),
            ("./a", "a", "a", false),
            ("a/", "a", "a", false),
            ("a//b/./c", "a/b/c", "a/b/c", false),
            ("a/../b", "b", "b", false),
            ("a/..", ".", "", false),
            ("a/../../b", "../b", "b", true),
            ("../../b", "../../b", "b", true),
            ("../..", "../..", "", true),
            ("/../b", "/b", "b", true),
            ("//../b", "/b", "b", true),
            ("/a/../../b", "/b", "b", true),
            ("/a/../b", "/b", "b", false),
            ("/a/b", "/a/b", "a/b", false),
            ("..a/b", "..a/b", "..a/b", false),
            ("...", "...", "...", false),
        ];
        for (name, cleaned, path, climbs) in cases {
            let clean = clean(name.as_bytes());
            assert_eq!(String::from_utf8_lossy(&clean), *cleaned, "clean {name:?}");
            assert_eq!(
                String::from_utf8_lossy(in_root(&clean)),
                *path,
                "in the root {name:?}"
            );
            assert_eq!(super::climbs(name.as_bytes()), *climbs, "climbs {name:?}");
        }
    }

    #[test]
    fn the_base_ignores_trailing_slashes() {
        assert_eq!(base(b"a/.wh.b//"), b".wh.b");
        assert_eq!(base(b"/"), b"");
    }
}
