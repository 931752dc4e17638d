//! Makes what `oc-mirror --v2` writes for additional images: its archives and its cache.
//!
//! `SPOKE_OC_MIRROR=FILE` uses that oc-mirror. Without it the archives are made by its source (openshift/oc-mirror at commit
//! 855b64a3, `internal/pkg/archive`), which differs from release 4.17's in the order of the members alone:
//!
//! ```text
//! mirror_000001.tar        ustar; members are regular files only, and parents have no entries
//!   docker/registry/v2/repositories/REPOSITORY/…/link     all of the cache; no host in REPOSITORY
//!   docker/registry/v2/blobs/sha256/<2 digits>/<hex>/data those that no earlier archive had
//!   working-dir/…                                         logs and more
//!   isc_2026-01-02T03:04:05Z                              the image set configuration
//! mirror_000002.tar, …     the next members, once a part would become larger than `archiveSize`
//! ```

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Source;

/// What a part has at most, so that there are several; a larger file gets a part of its own. oc-mirror's smallest is 1 GiB.
const PART: u64 = 400 << 10;

/// What oc-mirror left.
pub(super) struct Mirrored {
    /// The directory of `mirror_000001.tar` and further parts.
    pub(super) archives: PathBuf,
    /// With `docker/registry/v2` in it.
    pub(super) cache: PathBuf,
}

/// Mirrors the images of these names to disk, below `place`.
pub(super) fn oc_mirror(source: &Source, place: &Path, names: &[&str]) -> Mirrored {
    let (archives, home) = (place.join("archives"), place.join("home"));
    for dir in [&archives, &home] {
        fs::create_dir_all(dir).unwrap();
    }
    let images: String = names
        .iter()
        .map(|name| format!("  - name: {}\n", source.registry.tagged(name)))
        .collect();
    let config = place.join("isc.yaml");
    let text = format!(
        "apiVersion: mirror.openshift.io/v2alpha1\nkind: ImageSetConfiguration\n\
         mirror:\n  additionalImages:\n{images}"
    );
    fs::write(&config, text).unwrap();
    let cache = home.join(".oc-mirror/.cache");
    match std::env::var_os("SPOKE_OC_MIRROR") {
        Some(program) => {
            // Freed here and taken again by oc-mirror's own registry.
            let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
            let port = free.expect("a free loopback port").port();
            let output = Command::new(program)
                .args(["--v2", "--src-tls-verify=false", "--dest-tls-verify=false"])
                .args(["--port", &port.to_string()])
                .arg("--config")
                .arg(&config)
                .arg(format!("file://{}", archives.display()))
                .env("HOME", &home)
                .env("OC_MIRROR_CACHE", &home)
                .current_dir(place)
                .output();
            let output = output.expect("oc-mirror can be started");
            let log = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{log}");
        }
        None => {
            source.registry_storage(&cache, names);
            archive(&cache, &config, &archives);
        }
    }
    Mirrored { archives, cache }
}

/// Writes the parts of an archive.
fn archive(cache: &Path, config: &Path, archives: &Path) {
    fs::create_dir_all(archives.join("working-dir/logs")).unwrap();
    fs::write(archives.join("working-dir/logs/registry.log"), "serving\n").unwrap();
    let configuration = "isc_2026-01-02T03:04:05Z";
    fs::copy(config, archives.join(configuration)).unwrap();
    let mut members = Vec::new();
    for top in ["docker/registry/v2/repositories", "docker/registry/v2/blobs"] {
        files(cache, top, &mut members);
    }
    files(archives, "working-dir", &mut members);
    members.push((archives.to_owned(), configuration.to_owned()));

    // As its `permissiveAdder`: a file that is too large for any part gets the next number, and the part before it goes on.
    let mut parts: Vec<Vec<(PathBuf, String)>> = vec![Vec::new()];
    let (mut current, mut filled) = (0, 0);
    for member in members {
        let size = fs::metadata(member.0.join(&member.1)).unwrap().len();
        if size > PART {
            parts.push(vec![member]);
            continue;
        }
        if filled + size > PART {
            current = parts.len();
            parts.push(Vec::new());
            filled = 0;
        }
        filled += size;
        parts[current].push(member);
    }
    for (part, number) in parts.iter().zip(1..) {
        let mut tar = Command::new("tar");
        tar.args(["--format=ustar", "--create", "--file"])
            .arg(archives.join(format!("mirror_{number:06}.tar")));
        for (dir, member) in part {
            tar.arg("--directory").arg(dir).arg(member);
        }
        assert!(tar.status().expect("`tar` can be started").success());
    }
}

/// The regular files below `top` in `dir`, in the order of their paths.
fn files(dir: &Path, top: &str, members: &mut Vec<(PathBuf, String)>) {
    let mut names: Vec<_> = fs::read_dir(dir.join(top)).unwrap().flatten().collect();
    names.sort_by_key(fs::DirEntry::file_name);
    for entry in names {
        let path = format!("{top}/{}", entry.file_name().to_string_lossy());
        match entry.file_type().unwrap().is_dir() {
            true => files(dir, &path, members),
            false => members.push((dir.to_owned(), path)),
        }
    }
}
