//! Prints a layer's directory as lines, one for each path, with everything that a container can see.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::image::sha256;

/// A time this close to the clock means "when it was unpacked". Fixtures are years away from it.
const NOW: Duration = Duration::from_secs(24 * 60 * 60);

/// Lines for `overlay/<id>`: the tree under `diff/`, and the directories and files beside it.
pub(super) fn lines(directory: &Path) -> BTreeMap<String, String> {
    let mut lines = below(&directory.join("diff"));
    for name in ["diff", "work", "merged", "empty", "link", "lower"] {
        let path = directory.join(name);
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        let mut line = format!("{} {:o}", kind(&metadata), metadata.mode() & 0o7777);
        match name {
            "diff" => line = root(&path),
            // Link ids are random; how many of them, and that they end without a newline, is not.
            "link" | "lower" => {
                let text = fs::read(&path).expect("a file of the store can be read");
                let shape: Vec<usize> = text.split(|byte| *byte == b':').map(<[u8]>::len).collect();
                line.push_str(&format!(" {shape:?}"));
            }
            _ => {}
        }
        lines.insert(format!("../{name}"), line);
    }
    lines
}

/// Lines for everything below `top`, by name.
pub(crate) fn below(top: &Path) -> BTreeMap<String, String> {
    let (mut lines, mut first_names) = (BTreeMap::new(), BTreeMap::new());
    // No recursion: layers may be deeper than a thread's stack.
    let mut left = vec![(top.to_owned(), String::new())];
    while let Some((directory, prefix)) = left.pop() {
        let entries = fs::read_dir(&directory).into_iter().flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry of a directory").file_name())
            .collect();
        // Which of several hard links is the first one must not depend on the directory's order.
        names.sort();
        for name in names {
            let path = directory.join(&name);
            let shown = format!("{prefix}{}", name.as_bytes().escape_ascii());
            let metadata = fs::symlink_metadata(&path).expect("an entry that was just read");
            lines.insert(shown.clone(), line(&path, &shown, &metadata, &mut first_names));
            if metadata.is_dir() {
                left.push((path, format!("{shown}/")));
            }
        }
    }
    lines
}

/// The line for a layer's `diff/` itself, whose owner and time mean nothing.
pub(crate) fn root(diff: &Path) -> String {
    let metadata = fs::symlink_metadata(diff).expect("a layer has a directory");
    format!(
        "{} {:o}{}",
        kind(&metadata),
        metadata.mode() & 0o7777,
        xattrs(diff)
    )
}

fn line(
    path: &Path,
    shown: &str,
    metadata: &fs::Metadata,
    first_names: &mut BTreeMap<u64, String>,
) -> String {
    let mut line = format!(
        "{} {:04o} {}:{} links={} mtime={}",
        kind(metadata),
        metadata.mode() & 0o7777,
        metadata.uid(),
        metadata.gid(),
        metadata.nlink(),
        time(metadata)
    );
    let file_type = metadata.file_type();
    if file_type.is_symlink() {
        let target = fs::read_link(path).expect("a symbolic link");
        line.push_str(&format!(" -> {}", target.as_os_str().as_bytes().escape_ascii()));
    } else if file_type.is_char_device() || file_type.is_block_device() {
        let device = metadata.rdev();
        line.push_str(&format!(
            " device={}:{}",
            libc::major(device),
            libc::minor(device)
        ));
    } else if metadata.is_file() {
        let content = fs::read(path).expect("a file of the store can be read");
        line.push_str(&format!(" size={} {}", content.len(), sha256(&content)));
    }
    if metadata.nlink() > 1 && !metadata.is_dir() {
        let first = first_names
            .entry(metadata.ino())
            .or_insert_with(|| shown.to_owned());
        line.push_str(&format!(" same-as={first}"));
    }
    line + &xattrs(path)
}

fn kind(metadata: &fs::Metadata) -> &'static str {
    let file_type = metadata.file_type();
    if file_type.is_dir() {
        "dir"
    } else if file_type.is_symlink() {
        "symlink"
    } else if file_type.is_char_device() {
        "char"
    } else if file_type.is_block_device() {
        "block"
    } else if file_type.is_fifo() {
        "fifo"
    } else if file_type.is_socket() {
        "socket"
    } else {
        "file"
    }
}

fn time(metadata: &fs::Metadata) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the clock is past 1970")
        .as_secs();
    if metadata.mtime().abs_diff(now as i64) < NOW.as_secs() {
        return "now".to_owned();
    }
    format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec())
}

/// All extended attributes but the SELinux label, in hexadecimal where they are no text.
fn xattrs(path: &Path) -> String {
    let mut buffer = vec![0; 64 * 1024];
    let length = rustix::fs::llistxattr(path, &mut buffer[..]).expect("listing extended attributes");
    let mut names: Vec<&[u8]> = buffer[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .collect();
    names.sort_unstable();
    let mut text = String::new();
    for name in names {
        if name == b"security.selinux" {
            continue;
        }
        let mut value = vec![0; 64 * 1024];
        let length =
            rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).expect("an attribute");
        text.push_str(&format!(
            " {}={}",
            name.escape_ascii(),
            value[..length].escape_ascii()
        ));
    }
    text
}
