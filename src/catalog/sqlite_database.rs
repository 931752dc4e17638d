//! An SQLite catalog, read as `opm render` reads it (operator-registry up to 1.73, `pkg/sqlite`).
//!
//! ```text
//! package         name, default_channel
//! channel         package_name, name
//! channel_entry   entry_id, package_name, channel_name, operatorbundle_name, replaces → entry_id, depth
//! operatorbundle  name, csv; since migration 2 bundlepath, its image; since 5 version
//! related_image   operatorbundle_name, image; since migration 1
//! properties      operatorbundle_name, type; since migration 9; `olm.deprecated` takes a bundle out of its channels
//! ```
//!
//! A bundle has an entry in a channel for each bundle that it updates from: those that hang together from the least depth
//! on are what it replaces, the others what it skips. What is in no row of `operatorbundle`, or has no version or image
//! there (null, not empty), is no entry, though it may be replaced; unless no bundle of the package has both, as a
//! migration of an old database leaves them.
//!
//! The file is opened by its descriptor, as one that nobody changes: nothing is locked, no journal is looked for or
//! written. SQLite is told to distrust it, only real tables are read, and a handler ends what takes too long.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsRawFd as _;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row};

use super::channel_head::{self, Entry};
use super::cluster_service_version;
use super::collection::{Bundle, Collection};
use super::error::CatalogError;
use super::fbc_document::RelatedImage;
use crate::cancel::Cancel;

/// What must be there, whatever the migration.
const TABLES: [&str; 4] = ["package", "channel", "channel_entry", "operatorbundle"];

/// The longest value: a bundle with its manifests.
const VALUE_LIMIT: i32 = 64 << 20;

/// Channel entries of one package: 1,000 bundles that replace or skip 500 others each.
const ENTRIES_LIMIT: usize = 500_000;

/// Rows of any other kind for one package or bundle.
const ROWS_LIMIT: usize = 100_000;

/// Bytes of all texts of the rows that are kept.
const TEXT_BYTES_LIMIT: usize = 64 << 20;

/// Steps of SQLite's machine between two looks at the signal to stop: about a millisecond.
const STEPS: i32 = 100_000;

/// So many looks, some minutes, and the database is taken for one that has no end.
const LOOKS_LIMIT: u32 = 100_000;

/// SQLite's cache, in KiB.
const CACHE: i32 = 8 << 10;

/// Says why a query failed: the signal to stop goes before SQLite's own words.
struct Database<'a> {
    path: &'a str,
    connection: Connection,
    cancel: &'a Cancel,
    /// Bytes of texts so far.
    kept: Cell<usize>,
}

/// Reads what was asked for out of `file`; `path` is for messages.
pub(super) fn read(
    path: &str,
    file: &File,
    collection: &mut Collection<'_>,
    cancel: &Cancel,
) -> Result<(), CatalogError> {
    let database = Database::open(path, file, cancel)?;
    let packages = database.column("SELECT name FROM package", [])?;
    for package in &packages {
        collection.name(package);
    }
    for package in packages {
        if collection.is_wanted(&package) {
            database.package(&package, collection)?;
        }
    }
    Ok(())
}

impl<'a> Database<'a> {
    fn open(path: &'a str, file: &File, cancel: &'a Cancel) -> Result<Self, CatalogError> {
        let uri = format!("file:/proc/self/fd/{}?mode=ro&immutable=1", file.as_raw_fd());
        let flags =
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || -> rusqlite::Result<Connection> {
            let mut connection = Connection::open_with_flags(&uri, flags)?;
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
            connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_LIMIT)?;
            let (cancel, mut looks) = (cancel.clone(), 0);
            let is_enough = move || {
                looks += 1;
                looks > LOOKS_LIMIT || cancel.reason().is_some()
            };
            connection.progress_handler(STEPS, Some(is_enough))?;
            connection.pragma_update(None, "cell_size_check", true)?;
            // No file in /tmp, whatever is sorted.
            connection.pragma_update(None, "temp_store", "memory")?;
            connection.pragma_update(None, "cache_size", -CACHE)?;
            Ok(connection)
        };
        let connection = open().map_err(|error| said(path, &error))?;
        let database = Self {
            path,
            connection,
            cancel,
            kept: Cell::new(0),
        };
        for table in TABLES {
            if !database.has_table(table)? {
                return Err(database.wrong(format!("it has no table `{table}`, and is no catalog")));
            }
        }
        Ok(database)
    }

    fn package(&self, package: &str, collection: &mut Collection<'_>) -> Result<(), CatalogError> {
        let default = self.column("SELECT default_channel FROM package WHERE name = ?", [package])?;
        let known = collection.packages.entry(package.to_owned()).or_default();
        known.default_channel = default.into_iter().next().unwrap_or_default();
        for channel in self.column("SELECT name FROM channel WHERE package_name = ?", [package])? {
            known.channels.insert(channel, Vec::new());
        }
        let mut heads = BTreeSet::new();
        for (channel, entries) in self.channels(package)? {
            if !collection.is_channel_wanted(package, &channel) {
                continue;
            }
            heads.extend(channel_head::heads(&entries).into_iter().map(str::to_owned));
            if let Some(known) = collection.packages.get_mut(package) {
                known.channels.insert(channel, entries);
            }
        }
        for name in heads {
            let bundle = self.bundle(package, &name)?;
            if let Some(known) = collection.packages.get_mut(package) {
                known.bundles.insert(name, bundle);
            }
        }
        Ok(())
    }

    /// The channels of a package as a file-based catalog would have them.
    fn channels(&self, package: &str) -> Result<BTreeMap<String, Vec<Entry>>, CatalogError> {
        let query = "SELECT entry_id, replaces, depth, channel_name, operatorbundle_name FROM channel_entry \
                     WHERE package_name = ?";
        let row = |row: &Row<'_>| {
            let link = Link {
                id: row.get(0)?,
                replaces: row.get(1)?,
                depth: row.get(2)?,
                channel: row.get(3)?,
                bundle: row.get(4)?,
            };
            // A bundle's name is also what others skip.
            let texts = [&link.channel, &link.bundle, &link.bundle];
            let bytes = texts.into_iter().flatten().map(String::len).sum();
            Ok((link, bytes))
        };
        let links: Vec<Link> = self.rows(query, [package], ENTRIES_LIMIT, row)?;
        let least: Option<i64> = self.one("SELECT min(depth) FROM channel_entry", [])?.flatten();
        let by_id: HashMap<i64, &Link> = links.iter().map(|link| (link.id, link)).collect();
        let replacing = replacing(&links, &by_id, least);

        let names: BTreeSet<&str> = links.iter().filter_map(|link| link.bundle.as_deref()).collect();
        let present = self.present(&names)?;
        let mut channels: BTreeMap<String, BTreeMap<&str, Entry>> = BTreeMap::new();
        for link in &links {
            let (Some(channel), Some(bundle)) = (&link.channel, link.bundle.as_deref()) else {
                continue;
            };
            if !present.contains(bundle) {
                continue;
            }
            let entry = channels
                .entry(channel.clone())
                .or_default()
                .entry(bundle)
                .or_default();
            bundle.clone_into(&mut entry.name);
            let other = link.replaces.and_then(|id| by_id.get(&id)?.bundle.as_deref());
            let Some(other) = other else { continue };
            if !replacing.contains(&link.id) {
                entry.skips.push(other.to_owned());
            } else if other > entry.replaces.as_str() {
                // The greatest, where there are several.
                other.clone_into(&mut entry.replaces);
            }
        }
        let plain =
            |(channel, entries): (String, BTreeMap<&str, Entry>)| (channel, entries.into_values().collect());
        Ok(channels.into_iter().map(plain).collect())
    }

    /// Those of these bundles that count as entries.
    fn present<'n>(&self, names: &BTreeSet<&'n str>) -> Result<HashSet<&'n str>, CatalogError> {
        let columns = self.column("SELECT name FROM pragma_table_info('operatorbundle')", [])?;
        let is_set = |column: &str| match columns.iter().any(|known| known == column) {
            true => format!("{column} IS NOT NULL"),
            false => "1".to_owned(),
        };
        let query = format!(
            "SELECT {} AND {} FROM operatorbundle WHERE name = ?",
            is_set("version"),
            is_set("bundlepath")
        );
        let deprecated = match self.has_table("properties")? {
            true => {
                let query = "SELECT operatorbundle_name FROM properties WHERE type = 'olm.deprecated'";
                self.column(query, [])?.into_iter().collect()
            }
            false => HashSet::new(),
        };
        let (mut whole, mut partial) = (HashSet::new(), HashSet::new());
        for &name in names {
            let is_whole: Option<bool> = self.one(&query, [name])?;
            match is_whole {
                None => {}
                Some(true) => _ = whole.insert(name),
                Some(false) => _ = partial.insert(name),
            }
        }
        let mut present = if whole.is_empty() { partial } else { whole };
        present.retain(|name| !deprecated.contains(*name));
        Ok(present)
    }

    /// Images of a bundle: what its ClusterServiceVersion lists, and what `related_image` has besides.
    fn bundle(&self, package: &str, name: &str) -> Result<Bundle, CatalogError> {
        let columns = self.column("SELECT name FROM pragma_table_info('operatorbundle')", [])?;
        let image = match columns.iter().any(|column| column == "bundlepath") {
            true => self
                .one(
                    "SELECT CAST(bundlepath AS TEXT) FROM operatorbundle WHERE name = ?",
                    [name],
                )?
                .flatten(),
            false => None,
        };
        let csv: Option<String> = self
            .one(
                "SELECT CAST(csv AS TEXT) FROM operatorbundle WHERE name = ?",
                [name],
            )?
            .flatten();
        let has_table = self.has_table("related_image")?;
        let mut related_images = match csv.filter(|csv| !csv.trim().is_empty()) {
            None => Vec::new(),
            // Before there was the table, the images that run were found in the ClusterServiceVersion.
            Some(csv) => cluster_service_version::images(&csv, !has_table).map_err(|why| {
                self.wrong(format!("bundle `{name}` of package `{package}`, its csv: {why}"))
            })?,
        };
        if has_table {
            let query =
                "SELECT DISTINCT image FROM related_image WHERE operatorbundle_name = ? ORDER BY image";
            let known: HashSet<String> = related_images.iter().map(|image| image.image.clone()).collect();
            let others = self.column(query, [name])?.into_iter();
            related_images.extend(
                others
                    .filter(|image| !known.contains(image))
                    .map(|image| RelatedImage {
                        name: String::new(),
                        image,
                    }),
            );
        }
        Ok(Bundle {
            image: image.unwrap_or_default(),
            related_images,
        })
    }

    /// A view or a virtual table might do anything.
    fn has_table(&self, name: &str) -> Result<bool, CatalogError> {
        let query = "SELECT type FROM pragma_table_list(?) WHERE schema = 'main'";
        let kind: Option<String> = self.one(query, [name])?;
        match kind.as_deref() {
            None => Ok(false),
            Some("table") => Ok(true),
            Some(kind) => Err(self.wrong(format!("`{name}` is a {kind} and not a table"))),
        }
    }

    /// Texts of a query's only column; nulls are passed over.
    fn column<P: rusqlite::Params>(&self, query: &str, params: P) -> Result<Vec<String>, CatalogError> {
        let row = |row: &Row<'_>| {
            let text: Option<String> = row.get(0)?;
            let bytes = text.as_ref().map_or(0, String::len);
            Ok((text, bytes))
        };
        let texts = self.rows(query, params, ROWS_LIMIT, row)?;
        Ok(texts.into_iter().flatten().collect())
    }

    /// Rows of a query, each with the bytes of its texts.
    fn rows<T, P: rusqlite::Params>(
        &self,
        query: &str,
        params: P,
        limit: usize,
        row: impl Fn(&Row<'_>) -> rusqlite::Result<(T, usize)>,
    ) -> Result<Vec<T>, CatalogError> {
        let mut statement = self
            .connection
            .prepare(query)
            .map_err(|error| self.failed(&error))?;
        let mut rows = statement.query(params).map_err(|error| self.failed(&error))?;
        let mut values = Vec::new();
        while let Some(next) = rows.next().map_err(|error| self.failed(&error))? {
            if values.len() == limit {
                return Err(CatalogError::TooMuch {
                    file: self.path.to_owned(),
                    limit: limit as u64,
                    what: "rows for one question",
                });
            }
            let (value, bytes) = row(next).map_err(|error| self.failed(&error))?;
            self.kept.set(self.kept.get().saturating_add(bytes));
            if self.kept.get() > TEXT_BYTES_LIMIT {
                return Err(CatalogError::TooMuch {
                    file: self.path.to_owned(),
                    limit: TEXT_BYTES_LIMIT as u64,
                    what: "bytes of names",
                });
            }
            values.push(value);
        }
        Ok(values)
    }

    /// The first row, if there is one.
    fn one<T: rusqlite::types::FromSql, P: rusqlite::Params>(
        &self,
        query: &str,
        params: P,
    ) -> Result<Option<T>, CatalogError> {
        let mut statement = self
            .connection
            .prepare(query)
            .map_err(|error| self.failed(&error))?;
        let value = statement.query_row(params, |row| row.get(0)).optional();
        value.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &rusqlite::Error) -> CatalogError {
        match self.cancel.check() {
            Err(stopped) => stopped.into(),
            Ok(()) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted) => {
                self.wrong("a query has no end".to_owned())
            }
            Ok(()) => said(self.path, error),
        }
    }

    fn wrong(&self, why: String) -> CatalogError {
        CatalogError::Database {
            file: self.path.to_owned(),
            why,
        }
    }
}

/// A row of `channel_entry`.
struct Link {
    id: i64,
    replaces: Option<i64>,
    depth: Option<i64>,
    channel: Option<String>,
    bundle: Option<String>,
}

/// Ids of the links that are found from those of the least depth on, by what they replace.
fn replacing(links: &[Link], by_id: &HashMap<i64, &Link>, least: Option<i64>) -> HashSet<i64> {
    let first = links
        .iter()
        .filter(|link| link.depth.is_some() && link.depth == least);
    let mut pending: Vec<i64> = first.map(|link| link.id).collect();
    let mut found = HashSet::new();
    while let Some(id) = pending.pop() {
        if found.insert(id)
            && let Some(next) = by_id.get(&id).and_then(|link| link.replaces)
            && by_id.contains_key(&next)
        {
            pending.push(next);
        }
    }
    found
}

fn said(path: &str, error: &rusqlite::Error) -> CatalogError {
    CatalogError::Database {
        file: path.to_owned(),
        why: error.to_string(),
    }
}
