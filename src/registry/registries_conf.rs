//! Parses registries.conf: version 2, its drop-ins, and version 1 as containers/image converts it.
//!
//! The format is that of containers-registries.conf(5), and the checks are those of containers/image
//! (`pkg/sysregistriesv2`): a file that containers/image refuses, and CRI-O with it, is refused here too. Lookups are in
//! `mirrors`; names without a registry are completed in `short_names`. `short-name-mode` is checked and then ignored: CRI-O
//! overrides it with its own (`types.SystemContext`), and no mode asks a person here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::oci::is_domain;

use super::aliases::Aliases;

/// The entry of `credential-helpers` that means the pull secrets; every other entry is a program.
pub(super) const AUTH_FILES: &str = "containers-auth.json";

/// A configuration file's text and where it was read, for errors.
#[derive(Clone)]
pub struct ConfText {
    /// The file.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

/// Without the content: a URL in it may contain a password.
impl fmt::Debug for ConfText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConfText").field(&self.path).finish()
    }
}

/// The configuration merged from all files.
#[derive(Clone, Debug, Default)]
pub struct RegistriesConf {
    /// By prefix, each once.
    pub(super) registries: BTreeMap<String, Registry>,
    pub(super) aliases: Aliases,
    /// The last file's that has any, an empty list included.
    pub(super) search: Option<SearchRegistries>,
    /// The last file's that has any, an empty list included.
    pub(super) credential_helpers: Option<CredentialHelpers>,
}

/// `unqualified-search-registries`: the registries that a name without one may mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SearchRegistries {
    pub(super) hosts: Vec<String>,
    /// The file with the list.
    pub(super) origin: PathBuf,
}

/// Where containers/image finds credentials, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CredentialHelpers {
    /// [`AUTH_FILES`] or the name of a program. Never empty.
    pub(super) names: Vec<String>,
    /// The file with the list.
    pub(super) origin: PathBuf,
}

/// A `[[registry]]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registry {
    /// `example.com`, `example.com/team`, or `*.example.com`.
    pub(super) prefix: String,
    /// Its location, which replaces the prefix. Empty: the prefix stays.
    pub(super) endpoint: Endpoint,
    /// It must not be contacted under its own name, but its mirrors may be.
    pub(super) blocked: bool,
    /// In order of preference.
    pub(super) mirrors: Vec<Endpoint>,
}

/// A location that images are pulled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) location: String,
    pub(super) insecure: bool,
    pub(super) serves: Serves,
}

/// The references that a mirror is asked for.
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
        /// The parser's error, with line and column.
        source: Box<toml::de::Error>,
    },
    /// TOML, but not a valid configuration.
    #[error("`{}`: {why}", path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// Which entry, and what is wrong with it.
        why: String,
    },
    /// A `location` turns a reference into something that is not one.
    #[error("`registries.conf` turns `{reference}` into `{rewritten}`, which is not a reference")]
    Rewrite {
        /// The original.
        reference: String,
        /// The result.
        rewritten: String,
    },
    /// No source is left to pull from.
    #[error("registry `{prefix}` is blocked in `registries.conf` and has no mirror for `{reference}`")]
    Blocked {
        /// The prefix of the table that blocks it.
        prefix: String,
        /// The image.
        reference: String,
    },
}

impl RegistriesConf {
    /// Merges the main file, first in `files`, and its drop-ins: a later table or alias replaces an earlier one of the
    /// same prefix or name, whole, and a later list the whole earlier list.
    pub fn parse(files: &[ConfText]) -> Result<Self, RegistriesConfError> {
        let mut merged = Self::default();
        for (position, file) in files.iter().enumerate() {
            let tables: File = toml::from_str(&file.text).map_err(|source| RegistriesConfError::Toml {
                path: file.path.clone(),
                source: Box::new(source),
            })?;
            let is_drop_in = position > 0;
            let checked = tables.check(is_drop_in, &file.path);
            let checked = checked.map_err(|why| RegistriesConfError::Invalid {
                path: file.path.clone(),
                why,
            })?;
            merged.registries.extend(checked.registries);
            merged.aliases.extend(checked.aliases);
            merged.search = checked.search.or(merged.search);
            merged.credential_helpers = checked.credential_helpers.or(merged.credential_helpers);
        }
        Ok(merged)
    }
}

/// The configuration of a single file.
#[cfg(test)]
pub(super) fn parse_text(text: &str) -> Result<RegistriesConf, RegistriesConfError> {
    RegistriesConf::parse(&[ConfText {
        path: Path::new("registries.conf").into(),
        text: text.into(),
    }])
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct File {
    registry: Option<Vec<Table>>,
    unqualified_search_registries: Option<Vec<String>>,
    credential_helpers: Option<Vec<String>>,
    pub(super) short_name_mode: Option<String>,
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
    fn check(self, is_drop_in: bool, path: &Path) -> Result<RegistriesConf, String> {
        let is_v2 = self.registry.is_some()
            || self.unqualified_search_registries.is_some()
            || self.credential_helpers.is_some()
            || self.short_name_mode.as_ref().is_some_and(|mode| !mode.is_empty())
            || self.aliases.is_some();
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
                self.unqualified_search_registries,
            ),
        };
        match self.short_name_mode.as_deref() {
            None | Some("" | "enforcing" | "permissive" | "disabled") => {}
            Some(mode) => return Err(format!("`short-name-mode` cannot be `{mode}`")),
        }
        let tables: Vec<Registry> = tables.into_iter().map(Table::check).collect::<Result<_, _>>()?;
        for table in &tables {
            refuse_conflicts(table, &tables)?;
        }
        let mut registries = BTreeMap::new();
        for table in tables {
            // Of several in one file the first counts; of several files the last.
            registries.entry(table.prefix.clone()).or_insert(table);
        }
        Ok(RegistriesConf {
            registries,
            aliases: Aliases::check(self.aliases.unwrap_or_default(), path)?,
            search: search.map(|hosts| search_registries(hosts, path)).transpose()?,
            credential_helpers: self.credential_helpers.map(|names| CredentialHelpers {
                names: if names.is_empty() {
                    vec![AUTH_FILES.to_owned()]
                } else {
                    names
                },
                origin: path.to_owned(),
            }),
        })
    }
}

fn search_registries(hosts: Vec<String>, path: &Path) -> Result<SearchRegistries, String> {
    let hosts = hosts.iter().map(|entry| match trimmed(entry)? {
        host if is_domain(host) => Ok(host.to_owned()),
        _ => Err(format!(
            "`unqualified-search-registries` has `{entry}`, which is not a host"
        )),
    });
    Ok(SearchRegistries {
        hosts: hosts.collect::<Result<_, String>>()?,
        origin: path.to_owned(),
    })
}

impl Version1 {
    fn convert(self) -> Result<(Vec<Table>, Option<Vec<String>>), String> {
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
        Ok((tables, self.search.registries))
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
        if prefix.starts_with("*.") && prefix.contains(['/', '@', ':']) {
            return Err(format!("prefix `{prefix}` must be a host alone after the `*.`"));
        }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parse(texts: &[&str]) -> Result<RegistriesConf, RegistriesConfError> {
        let files = texts.iter().map(|text| ConfText {
            path: "registries.conf".into(),
            text: (*text).to_owned(),
        });
        RegistriesConf::parse(&files.collect::<Vec<_>>())
    }

    /// `postProcessRegistries` keeps the first, `updateWithConfigurationFrom` takes the last.
    #[test]
    fn of_two_tables_in_one_file_the_first_counts_and_of_two_files_the_last() {
        let table = |mirror: &str| {
            format!("[[registry]]\nlocation = 'a.io'\n[[registry.mirror]]\nlocation = '{mirror}'\n")
        };
        let mirror = |texts: &[&str]| {
            parse(texts).unwrap().registries["a.io"].mirrors[0]
                .location
                .clone()
        };
        let twice = table("first.io") + &table("second.io");
        assert_eq!(mirror(&[&twice]), "first.io");
        assert_eq!(mirror(&["", &twice]), "first.io");
        assert_eq!(mirror(&[&twice, &table("third.io"), ""]), "third.io");
    }

    #[test]
    fn a_later_list_replaces_an_earlier_one_also_by_nothing() {
        let main = "unqualified-search-registries = ['a.io', 'b.io']\ncredential-helpers = ['x']";
        let conf = parse(&[main, "short-name-mode = 'disabled'"]).unwrap();
        assert_eq!(conf.search.unwrap().hosts, ["a.io", "b.io"]);
        assert_eq!(conf.credential_helpers.unwrap().names, ["x"]);
        let conf = parse(&[
            main,
            "unqualified-search-registries = []\ncredential-helpers = []",
        ])
        .unwrap();
        assert!(conf.search.unwrap().hosts.is_empty());
        assert_eq!(conf.credential_helpers.unwrap().names, [AUTH_FILES]);
    }

    /// What no file of the corpus has.
    #[test]
    fn refuses_what_containers_image_refuses() {
        let v1 = "[registries.search]\nregistries = ['a.io']\n";
        for (texts, why) in [
            (
                &["[[registry]]\nprefix = '*.a.io/b'\nlocation = 'c.io'"][..],
                "a host alone after the `*.`",
            ),
            (
                &["[[registry]]\nprefix = '*.a.io:5000'\nlocation = 'c.io'"],
                "a host alone after the `*.`",
            ),
            (&["unqualified-search-registries = ['/']"], "not a host"),
            (&["unqualified-search-registries = ['a_b.io']"], "not a host"),
            (
                &["unqualified-search-registries = ['https://a.io']"],
                "must not have a scheme",
            ),
            (&[&format!("{v1}[aliases]")], "versions 1 and 2"),
            (&["", v1], "a drop-in must be of version 2"),
            (
                &["[[registry]]\nlocation = 'a.io'\ninsecure = 'true'"],
                "invalid type",
            ),
            (&["[registry]\nlocation = 'a.io'"], "invalid type"),
        ] {
            let error = parse(texts).unwrap_err().to_string();
            assert!(error.contains(why), "{texts:?}: {error}");
        }
        assert!(parse(&["\u{feff}short-name-mode = 'disabled'\nunknown = 1\r\n"]).is_ok());
    }
}
