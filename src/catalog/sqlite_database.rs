//! Reads an SQLite catalog as `opm render` does (operator-registry up to 1.73, `pkg/sqlite`).
//!
//! ```text
//! package         name, default_channel
//! channel         package_name, name
//! channel_entry   entry_id, package_name, channel_name, operatorbundle_name, replaces → entry_id, depth
//! operatorbundle  name, csv; since migration 2 bundlepath, its image; since 5 version
//! related_image   operatorbundle_name, image; since migration 1
//! properties      operatorbundle_name, type; since migration 9; `olm.deprecated` removes a bundle from its channels
//! ```
//!
//! A bundle has one row per bundle that it updates from. Rows that form a chain starting at the least depth are what the
//! bundle replaces, the others what it skips. A bundle without a row in `operatorbundle`, or whose row has no version or no
//! image (null, not empty), is not an entry, although it may be replaced. The exception is a package in which no bundle has
//! both, as after the migration of an old database.
//!
//! The file is opened by its descriptor and as immutable: nothing is locked, and no journal is read or written. SQLite's
//! defensive settings are on, only real tables are read, and a handler ends queries that take too long.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsRawFd as _;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row};

use super::channel_head::{self, ChannelEntry};
use super::cluster_service_version;
use super::collection::{Bundle, Collection};
use super::error::CatalogError;
use super::fbc_document::FbcRelatedImage;
use crate::cancel::Cancel;

/// The tables that every migration has.
const TABLES: [&str; 4] = ["package", "channel", "channel_entry", "operatorbundle"];

/// The longest value: a bundle with its manifests.
const VALUE_LIMIT: i32 = 64 << 20;

/// The most channel entries of one package: 1,000 bundles that replace or skip 500 others each.
const ENTRIES_LIMIT: usize = 500_000;

/// The most rows of any other kind for one package or bundle.
const ROWS_LIMIT: usize = 100_000;

/// The most bytes of texts that are kept.
const TEXT_BYTES_LIMIT: usize = 64 << 20;

/// Steps of SQLite's virtual machine between two checks for cancellation: about a millisecond.
const STEPS: i32 = 100_000;

/// After this many checks, some minutes, a query is ended.
const CHECKS_LIMIT: u32 = 100_000;

/// The size of SQLite's cache, in KiB.
const CACHE: i32 = 8 << 10;

/// An open database.
struct Database<'a> {
    path: &'a str,
    connection: Connection,
    cancel: &'a Cancel,
    /// The bytes of kept texts.
    kept: Cell<usize>,
}

/// Reads the requested packages from `file`; `path` is for messages.
pub(super) fn read(
    path: &str,
    file: &File,
    collection: &mut Collection<'_>,
    cancel: &Cancel,
) -> Result<(), CatalogError> {
    let database = Database::open(path, file, cancel)?;
    let packages = database.column("SELECT name FROM package", [])?;
    for package in &packages {
        collection.add_name(package);
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
            let (cancel, mut checks) = (cancel.clone(), 0);
            let must_stop = move || {
                checks += 1;
                checks > CHECKS_LIMIT || cancel.reason().is_some()
            };
            connection.progress_handler(STEPS, Some(must_stop))?;
            connection.pragma_update(None, "cell_size_check", true)?;
            // Sorting must not create files in /tmp.
            connection.pragma_update(None, "temp_store", "memory")?;
            connection.pragma_update(None, "cache_size", -CACHE)?;
            Ok(connection)
        };
        let connection = open().map_err(|error| sqlite_error(path, &error))?;
        let database = Self {
            path,
            connection,
            cancel,
            kept: Cell::new(0),
        };
        for table in TABLES {
            if !database.has_table(table)? {
                return Err(database.wrong(format!("it has no table `{table}`, so it is not a catalog")));
            }
        }
        Ok(database)
    }

    fn package(&self, package: &str, collection: &mut Collection<'_>) -> Result<(), CatalogError> {
        let default = self.column("SELECT default_channel FROM package WHERE name = ?", [package])?;
        let collected = collection.packages.entry(package.to_owned()).or_default();
        collected.default_channel = default.into_iter().next().unwrap_or_default();
        for channel in self.column("SELECT name FROM channel WHERE package_name = ?", [package])? {
            collected.channels.insert(channel, Vec::new());
        }
        let mut heads = BTreeSet::new();
        for (channel, entries) in self.channels(package)? {
            if !collection.is_channel_wanted(package, &channel) {
                continue;
            }
            heads.extend(channel_head::heads(&entries).into_iter().map(str::to_owned));
            if let Some(collected) = collection.packages.get_mut(package) {
                collected.channels.insert(channel, entries);
            }
        }
        for name in heads {
            let bundle = self.bundle(package, &name)?;
            if let Some(collected) = collection.packages.get_mut(package) {
                collected.bundles.insert(name, bundle);
            }
        }
        Ok(())
    }

    /// The channels of a package, as in a file-based catalog.
    fn channels(&self, package: &str) -> Result<BTreeMap<String, Vec<ChannelEntry>>, CatalogError> {
        let query = "SELECT entry_id, replaces, depth, channel_name, operatorbundle_name FROM channel_entry \
                     WHERE package_name = ?";
        let row = |row: &Row<'_>| {
            let row = EntryRow {
                id: row.get(0)?,
                replaces: row.get(1)?,
                depth: row.get(2)?,
                channel: row.get(3)?,
                bundle: row.get(4)?,
            };
            // A bundle's name may be kept twice, because others skip it.
            let texts = [&row.channel, &row.bundle, &row.bundle];
            let bytes = texts.into_iter().flatten().map(String::len).sum();
            Ok((row, bytes))
        };
        let rows: Vec<EntryRow> = self.rows(query, [package], ENTRIES_LIMIT, row)?;
        let least: Option<i64> = self.one("SELECT min(depth) FROM channel_entry", [])?.flatten();
        let by_id: HashMap<i64, &EntryRow> = rows.iter().map(|row| (row.id, row)).collect();
        let replacing = replacing(&rows, &by_id, least);

        let names: BTreeSet<&str> = rows.iter().filter_map(|row| row.bundle.as_deref()).collect();
        let present = self.present(&names)?;
        let mut channels: BTreeMap<String, BTreeMap<&str, ChannelEntry>> = BTreeMap::new();
        for row in &rows {
            let (Some(channel), Some(bundle)) = (&row.channel, row.bundle.as_deref()) else {
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
            let other = row.replaces.and_then(|id| by_id.get(&id)?.bundle.as_deref());
            let Some(other) = other else { continue };
            if !replacing.contains(&row.id) {
                entry.skips.push(other.to_owned());
            } else if other > entry.replaces.as_str() {
                // Of several, the greatest.
                other.clone_into(&mut entry.replaces);
            }
        }
        let plain = |(channel, entries): (String, BTreeMap<&str, ChannelEntry>)| {
            (channel, entries.into_values().collect())
        };
        Ok(channels.into_iter().map(plain).collect())
    }

    /// The bundles that are entries of their channels.
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

    /// The images of a bundle: those of its ClusterServiceVersion, and others in `related_image`.
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
            // Databases without the table have the operands only in the ClusterServiceVersion.
            Some(csv) => cluster_service_version::images(&csv, !has_table).map_err(|why| {
                self.wrong(format!("bundle `{name}` of package `{package}`, its csv: {why}"))
            })?,
        };
        if has_table {
            let query =
                "SELECT DISTINCT image FROM related_image WHERE operatorbundle_name = ? ORDER BY image";
            let known: HashSet<String> = related_images.iter().map(|image| image.image.clone()).collect();
            let others = self.column(query, [name])?.into_iter();
            related_images.extend(others.filter(|image| !known.contains(image)).map(|image| {
                FbcRelatedImage {
                    name: String::new(),
                    image,
                }
            }));
        }
        Ok(Bundle {
            image: image.unwrap_or_default(),
            related_images,
        })
    }

    /// Whether the table exists. A view or a virtual table is an error, because it could do anything.
    fn has_table(&self, name: &str) -> Result<bool, CatalogError> {
        let query = "SELECT type FROM pragma_table_list(?) WHERE schema = 'main'";
        let kind: Option<String> = self.one(query, [name])?;
        match kind.as_deref() {
            None => Ok(false),
            Some("table") => Ok(true),
            Some(kind) => Err(self.wrong(format!("`{name}` is a {kind}, not a table"))),
        }
    }

    /// The texts of a query's only column, without nulls.
    fn column<P: rusqlite::Params>(&self, query: &str, params: P) -> Result<Vec<String>, CatalogError> {
        let row = |row: &Row<'_>| {
            let text: Option<String> = row.get(0)?;
            let bytes = text.as_ref().map_or(0, String::len);
            Ok((text, bytes))
        };
        let texts = self.rows(query, params, ROWS_LIMIT, row)?;
        Ok(texts.into_iter().flatten().collect())
    }

    /// The rows of a query; `row` also returns the bytes of their texts.
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
                return Err(CatalogError::LimitExceeded {
                    file: self.path.to_owned(),
                    limit: limit as u64,
                    what: "rows for one query",
                });
            }
            let (value, bytes) = row(next).map_err(|error| self.failed(&error))?;
            self.kept.set(self.kept.get().saturating_add(bytes));
            if self.kept.get() > TEXT_BYTES_LIMIT {
                return Err(CatalogError::LimitExceeded {
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
                self.wrong("a query takes too long".to_owned())
            }
            Ok(()) => sqlite_error(self.path, error),
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
struct EntryRow {
    id: i64,
    replaces: Option<i64>,
    depth: Option<i64>,
    channel: Option<String>,
    bundle: Option<String>,
}

/// The ids of the rows in the chains of `replaces` that start at the least depth.
fn replacing(rows: &[EntryRow], by_id: &HashMap<i64, &EntryRow>, least: Option<i64>) -> HashSet<i64> {
    let first = rows
        .iter()
        .filter(|row| row.depth.is_some() && row.depth == least);
    let mut pending: Vec<i64> = first.map(|row| row.id).collect();
    let mut found = HashSet::new();
    while let Some(id) = pending.pop() {
        if found.insert(id)
            && let Some(next) = by_id.get(&id).and_then(|row| row.replaces)
            && by_id.contains_key(&next)
        {
            pending.push(next);
        }
    }
    found
}

fn sqlite_error(path: &str, error: &rusqlite::Error) -> CatalogError {
    CatalogError::Database {
        file: path.to_owned(),
        why: error.to_string(),
    }
}
