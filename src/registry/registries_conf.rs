//! `registries.conf`, version 2, its drop-ins, and version 1 as containers/image converts it.
//!
//! What is read is what a pull by full name needs: prefixes, locations, mirrors, `insecure`, `blocked`. The rest
//! (unqualified search, short names) is checked as containers/image checks it, so that a file that CRI-O refuses
//! is refused here too, and then left.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A configuration file's text and where it was read, for errors.
#[derive(Clone, Debug)]
pub struct ConfText {
    /// Where it lies.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}

/// All files in one.
#[derive(Clone, Debug, Default)]
pub struct RegistriesConf {
    /// In file order; sorted by prefix once a drop-in was merged, as containers/image does.
    pub(super) registries: Vec<Registry>,
}

/// A `[[registry]]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registry {
    /// `example.com`, `example.com/team`, or `*.example.com`.
    pub(super) prefix: String,
    /// Where it is to be had: with this location instead of the prefix. Empty: as it is.
    pub(super) endpoint: Endpoint,
    /// Not to be contacted under its own name; its mirrors may be.
    pub(super) blocked: bool,
    /// In order of preference.
    pub(super) mirrors: Vec<Endpoint>,
}

/// A place that images are pulled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) location: String,
    pub(super) insecure: bool,
    pub(super) serves: Serves,
}

/// What a mirror is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    All,
    DigestOnly,
    TagOnly,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistriesConfError {
    /// Not TOML, or a key has a value of another type.
    #[error("`{}`: {source}", path.display())]
    Toml {
        /// Which file.
        path: PathBuf,
        /// As the parser says it, with line and column.
        source: Box<toml::de::Error>,
    },
    /// TOML, but without sense.
    #[error("`{}`: {why}", path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// Which entry, and what is wrong with it.
        why: String,
    },
    /// A `location` makes a reference of something that is none.
    #[error("`registries.conf` turns `{reference}` into `{rewritten}`, which is not a reference")]
    Rewrite {
        /// The original.
        reference: String,
        /// What it was turned into.
        rewritten: String,
    },
    /// Nothing is left to pull from.
    #[error("registry `{prefix}` is blocked in `registries.conf` and has no mirror for `{reference}`")]
    Blocked {
        /// The prefix of the table that blocks it.
        prefix: String,
        /// What was asked for.
        reference: String,
    },
}

impl RegistriesConf {
    /// Merges the main file, first in `files`, and its drop-ins: a later table replaces an earlier one of the
    /// same prefix, whole.
    pub fn parse(files: &[ConfText]) -> Result<Self, RegistriesConfError> {
        let mut merged = Self::default();
        for (position, file) in files.iter().enumerate() {
            let is_drop_in = position > 0;
            let tables: File = toml::from_str(&file.text).map_err(|source| RegistriesConfError::Toml {
                path: file.path.clone(),
                source: Box::new(source),
            })?;
            let registries = tables
                .check(is_drop_in)
                .map_err(|why| RegistriesConfError::Invalid {
                    path: file.path.clone(),
                    why,
                })?;
            if is_drop_in {
                let both = merged.registries.into_iter().chain(registries);
                let by_prefix: BTreeMap<_, _> = both.map(|table| (table.prefix.clone(), table)).collect();
                merged.registries = by_prefix.into_values().collect();
            } else {
                merged.registries = registries;
            }
        }
        Ok(merged)
    }

    /// A text without a file, for tests and for callers that made it themselves.
    pub fn parse_one(text: &str) -> Result<Self, RegistriesConfError> {
        Self::parse(&[ConfText {
            path: Path::new("registries.conf").into(),
            text: text.into(),
        }])
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    registry: Option<Vec<Table>>,
    unqualified_search_registries: Option<Vec<String>>,
    credential_helpers: Option<Vec<String>>,
    short_name_mode: Option<String>,
    aliases: Option<BTreeMap<String, String>>,
    /// Version 1.
    registries: Option<Version1>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", default)]
#[derive(Default)]
struct Table {
    prefix: String,
    location: String,
    insecure: bool,
    blocked: bool,
    mirror_by_digest_only: bool,
    pull_from_mirror: String,
    mirror: Vec<Mirror>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct Mirror {
    location: String,
    insecure: bool,
    pull_from_mirror: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Version1 {
    search: Version1List,
    insecure: Version1List,
    block: Version1List,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Version1List {
    registries: Option<Vec<String>>,
}

impl File {
    fn check(self, is_drop_in: bool) -> Result<Vec<Registry>, String> {
        let is_v2 = self.registry.is_some()
            || self.unqualified_search_registries.is_some()
            || self.credential_helpers.is_some()
            || self.short_name_mode.as_ref().is_some_and(|mode| !mode.is_empty())
            || self.aliases.as_ref().is_some_and(|aliases| !aliases.is_empty());
        let v1 = self.registries.filter(|v1| {
            let lists = [&v1.search, &v1.insecure, &v1.block];
            lists.iter().any(|list| list.registries.is_some())
        });
        let (tables, search) = match v1 {
            Some(_) if is_v2 => return Err("versions 1 and 2 of the format are mixed".into()),
            Some(_) if is_drop_in => return Err("a drop-in must be of version 2 of the format".into()),
            Some(v1) => v1.convert()?,
            None => (
                self.registry.unwrap_or_default(),
                self.unqualified_search_registries.unwrap_or_default(),
            ),
        };
        for entry in search {
            if trimmed(&entry)?.contains('/') || entry.is_empty() {
                return Err(format!(
                    "`unqualified-search-registries` has `{entry}`, which is not a host"
                ));
            }
        }
        match self.short_name_mode.as_deref() {
            None | Some("" | "enforcing" | "permissive" | "disabled") => {}
            Some(mode) => return Err(format!("`short-name-mode` cannot be `{mode}`")),
        }
        for (alias, name) in self.aliases.unwrap_or_default() {
            let last = name.rsplit('/').next().unwrap_or_default();
            if last.contains([':', '@']) {
                return Err(format!(
                    "alias `{alias}` must be a name without tag or digest, not `{name}`"
                ));
            }
        }
        let registries: Vec<Registry> = tables.into_iter().map(Table::check).collect::<Result<_, _>>()?;
        for table in &registries {
            refuse_conflicts(table, &registries)?;
        }
        Ok(registries)
    }
}

impl Version1 {
    fn convert(self) -> Result<(Vec<Table>, Vec<String>), String> {
        let mut tables: Vec<Table> = Vec::new();
        let mut set = |list: Version1List, flag: fn(&mut Table)| -> Result<(), String> {
            for location in list.registries.unwrap_or_default() {
                let location = trimmed(&location)?;
                let known = tables.iter().position(|table| table.location == location);
                let index = known.unwrap_or(tables.len());
                if known.is_none() {
                    tables.push(Table {
                        location: location.to_owned(),
                        ..Table::default()
                    });
                }
                flag(&mut tables[index]);
            }
            Ok(())
        };
        set(self.block, |table| table.blocked = true)?;
        set(self.insecure, |table| table.insecure = true)?;
        Ok((tables, self.search.registries.unwrap_or_default()))
    }
}

impl Table {
    fn check(self) -> Result<Registry, String> {
        let location = trimmed(&self.location)?.to_owned();
        let prefix = match trimmed(&self.prefix)? {
            "" if location.is_empty() => {
                return Err("a `[[registry]]` has neither `location` nor `prefix`".into());
            }
            "" => location.clone(),
            prefix if location.is_empty() && !prefix.starts_with("*.") => {
                return Err(format!("`[[registry]]` with prefix `{prefix}` has no `location`"));
            }
            prefix => prefix.to_owned(),
        };
        if !self.pull_from_mirror.is_empty() {
            return Err(format!(
                "`pull-from-mirror` is for mirrors, not for registry `{prefix}`"
            ));
        }
        let mirrors = self.mirror.into_iter().map(|mirror| {
            let location = trimmed(&mirror.location)?.to_owned();
            if location.is_empty() {
                return Err(format!("a mirror of `{prefix}` has no `location`"));
            }
            if self.mirror_by_digest_only && !mirror.pull_from_mirror.is_empty() {
                return Err(format!(
                    "`mirror-by-digest-only` of `{prefix}` and `pull-from-mirror` of its mirror `{location}` \
                     exclude each other"
                ));
            }
            let serves = match mirror.pull_from_mirror.as_str() {
                "" if self.mirror_by_digest_only => Serves::DigestOnly,
                "" | "all" => Serves::All,
                "digest-only" => Serves::DigestOnly,
                "tag-only" => Serves::TagOnly,
                other => {
                    return Err(format!(
                        "`pull-from-mirror` of mirror `{location}` cannot be `{other}`"
                    ));
                }
            };
            Ok(Endpoint {
                location,
                insecure: mirror.insecure,
                serves,
            })
        });
        Ok(Registry {
            mirrors: mirrors.collect::<Result<_, _>>()?,
            endpoint: Endpoint {
                location,
                insecure: self.insecure,
                serves: Serves::All,
            },
            blocked: self.blocked,
            prefix,
        })
    }
}

/// A location, without slashes at its end.
fn trimmed(location: &str) -> Result<&str, String> {
    if location.starts_with("http://") || location.starts_with("https://") {
        return Err(format!("`{location}` must not have a scheme"));
    }
    Ok(location.trim_end_matches('/'))
}

/// Several tables may lead to one location, but they must agree about it.
fn refuse_conflicts(table: &Registry, others: &[Registry]) -> Result<(), String> {
    let place = |table: &Registry| match table.endpoint.location.as_str() {
        "" => table.prefix.clone(),
        location => location.to_owned(),
    };
    let here = place(table);
    for other in others.iter().filter(|other| place(other) == here) {
        if other.endpoint.insecure != table.endpoint.insecure {
            return Err(format!(
                "registry `{here}` is defined twice, with different `insecure`"
            ));
        }
        if other.blocked != table.blocked {
            return Err(format!(
                "registry `{here}` is defined twice, with different `blocked`"
            ));
        }
    }
    Ok(())
}
