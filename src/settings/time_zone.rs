//! Reads the node's time zone from its `/etc/localtime`, because a container has no time zone database.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use jiff::tz::TimeZone;

use super::host_files::is_present;
use super::host_root::HostRoot;
use crate::registry::{LimitRate, LimitSettings};

/// Usually a link into the database, whose target names the zone. RHCOS has no such file, which means UTC.
const LOCALTIME: &str = "etc/localtime";

/// The part of the link's target before the zone's name.
const DATABASE: &str = "/zoneinfo/";

/// The largest file; the largest zone of the database has 4 KB.
const FILE_LIMIT: u64 = 1 << 20;

impl HostRoot {
    /// The rate limit in the node's time zone. A zone that cannot be read is a warning, and UTC is used.
    pub(super) fn limit(&self, rate: LimitRate) -> LimitSettings {
        if !rate.has_windows() {
            return LimitSettings {
                rate,
                ..LimitSettings::default()
            };
        }
        let path = self.join(LOCALTIME);
        let (zone, zone_name) = match self.zone(&path) {
            Ok((zone, name)) => (zone, format!("{name}, from `{}`", path.display())),
            Err(_) if !is_present(&path) => (TimeZone::UTC, format!("UTC, there is no `{}`", path.display())),
            Err(error) => {
                tracing::warn!(
                    "the times of `--limit-rate` are in UTC: cannot use `{}`: {error}",
                    path.display()
                );
                (TimeZone::UTC, "UTC".to_owned())
            }
        };
        LimitSettings {
            rate,
            zone,
            zone_name,
        }
    }

    fn zone(&self, path: &Path) -> io::Result<(TimeZone, String)> {
        let target = fs::read_link(path).ok();
        let file = match &target {
            // An absolute target starts at the host's root.
            Some(target) if target.is_absolute() => self.join(target),
            _ => path.to_owned(),
        };
        let named = target.as_deref().and_then(Path::to_str);
        let name = named.and_then(|target| Some(target.split_once(DATABASE)?.1));
        let name = name.unwrap_or("local time");
        let mut bytes = Vec::new();
        File::open(file)?.take(FILE_LIMIT).read_to_end(&mut bytes)?;
        let zone = TimeZone::tzif(name, &bytes).map_err(io::Error::other)?;
        Ok((zone, name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::cli::RegistryPaths;

    /// A single line of rules without transitions, as `zic -b slim` writes a zone whose rules never changed.
    fn tzif(rules: &str) -> Vec<u8> {
        let head = |version: u8| {
            let mut head = b"TZif".to_vec();
            head.push(version);
            head.extend([0; 15]);
            // UT and standard indicators, leap seconds, transitions, types, characters.
            for count in [0, 0, 0, 0, 1, 4u32] {
                head.extend(count.to_be_bytes());
            }
            head.extend([0, 0, 0, 0, 0, 0]);
            head.extend(b"UTC\0");
            head
        };
        [head(b'2'), head(b'2'), format!("\n{rules}\n").into_bytes()].concat()
    }

    #[test]
    fn the_time_of_day_is_the_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let paths = RegistryPaths {
            host_root: Some(dir.path().to_owned()),
            ..RegistryPaths::default()
        };
        let host = HostRoot::find(&paths);
        let shown = || {
            let limit = host.limit("22:00-04:00=5Mbit".parse().unwrap());
            let time = |text: &str| {
                let time = text.parse::<jiff::Timestamp>().unwrap();
                time.to_zoned(limit.zone.clone()).strftime("%H:%M").to_string()
            };
            let (winter, summer) = (time("2026-01-01T12:00:00Z"), time("2026-07-01T12:00:00Z"));
            (
                limit.zone_name.replace(dir.path().to_str().unwrap(), ""),
                winter,
                summer,
            )
        };
        let expected = |name: &str, winter: &str, summer: &str| (name.into(), winter.into(), summer.into());
        assert_eq!(
            shown(),
            expected("UTC, there is no `/etc/localtime`", "12:00", "12:00")
        );

        let zones = dir.path().join("usr/share/zoneinfo/Europe");
        fs::create_dir_all(&zones).unwrap();
        fs::create_dir_all(dir.path().join("etc")).unwrap();
        fs::write(zones.join("Berlin"), tzif("CET-1CEST,M3.5.0,M10.5.0/3")).unwrap();
        let link = dir.path().join("etc/localtime");
        for target in [
            "../usr/share/zoneinfo/Europe/Berlin",
            "/usr/share/zoneinfo/Europe/Berlin",
        ] {
            symlink(target, &link).unwrap();
            assert_eq!(
                shown(),
                expected("Europe/Berlin, from `/etc/localtime`", "13:00", "14:00")
            );
            fs::remove_file(&link).unwrap();
        }
        fs::copy(zones.join("Berlin"), &link).unwrap();
        assert_eq!(
            shown(),
            expected("local time, from `/etc/localtime`", "13:00", "14:00")
        );
        // An invalid file is UTC, with a warning in the log.
        fs::write(&link, "no zone").unwrap();
        assert_eq!(shown(), expected("UTC", "12:00", "12:00"));
        let no_windows = host.limit("5Mbit".parse().unwrap());
        assert_eq!(no_windows.zone_name, "UTC");
    }
}
