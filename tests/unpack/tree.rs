//! A directory as text, so that two can be compared and a difference read.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use spoke_precache::oci::Digest;

/// A line for each thing in `root`, and one for the root itself, sorted by name. Times of the last day are "now":
/// those are implicit directories and whiteouts.
pub fn list(root: &Path) -> Vec<String> {
    let mut lines = BTreeMap::new();
    let mut links = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let name = path
            .strip_prefix(root)
            .expect("below the root")
            .as_os_str()
            .as_bytes()
            .escape_ascii()
            .to_string();
        let meta = fs::symlink_metadata(&path).expect("stat");
        let kind = meta.file_type();
        if kind.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .expect("read")
                    .map(|entry| entry.expect("entry").path()),
            );
        }
        let first = links.entry(meta.ino()).or_insert_with(|| name.clone()).clone();
        let content = if kind.is_file() {
            format!("{} {}", meta.len(), Digest::of(&fs::read(&path).expect("read")))
        } else if kind.is_symlink() {
            format!(
                "-> {}",
                fs::read_link(&path)
                    .expect("link")
                    .as_os_str()
                    .as_bytes()
                    .escape_ascii()
            )
        } else if kind.is_char_device() || kind.is_block_device() {
            format!("device {:x}", meta.rdev())
        } else {
            String::new()
        };
        let time = if is_now(meta.mtime()) || name.is_empty() {
            "now".to_owned()
        } else {
            format!("{}.{:09}", meta.mtime(), meta.mtime_nsec())
        };
        let owner = if name.is_empty() {
            String::new()
        } else {
            format!("{}:{}", meta.uid(), meta.gid())
        };
        let same = if first != name && !kind.is_dir() {
            format!(" same as {first}")
        } else {
            String::new()
        };
        let xattrs = xattrs(&path);
        let line = format!("{:o} {owner} {time} {content}{same} {xattrs:?}", meta.mode());
        lines.insert(name, line);
    }
    lines
        .into_iter()
        .map(|(name, line)| format!("`{name}` {line}"))
        .collect()
}

fn is_now(secs: i64) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_secs() as i64;
    (secs - now).abs() < 86_400
}

fn xattrs(path: &Path) -> Vec<String> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(&path, &mut names[..]).unwrap_or(0);
    let mut all: Vec<String> = names[..length]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::lgetxattr(&path, name, &mut value[..]).unwrap_or(0);
            format!("{}={}", name.escape_ascii(), value[..length].escape_ascii())
        })
        .collect();
    all.sort();
    all
}
