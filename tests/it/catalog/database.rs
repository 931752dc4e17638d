//! Reads SQLite catalogs of every schema that operator-registry's migrations have produced.

use std::fs;
use std::path::Path;

use rusqlite::Connection;
use tempfile::TempDir;

use super::{images, normalised, only, read_database};

/// The newest migration.
const NEWEST: u32 = 13;

/// A package `p` with channels `stable` and `beta`, as a database of this migration has it:
///
/// ```text
/// stable   p.v3 replaces p.v2, skips p.v1; p.v2 replaces p.v1       depths 0, 1, 2
/// beta     p.v4 replaces p.gone, which is in no row of `operatorbundle`
/// ```
fn database(migration: u32) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let connection = Connection::open(dir.path().join("index.db")).unwrap();
    let since = |first: u32, text: &'static str| if migration >= first { text } else { "" };
    let columns = format!(
        "name TEXT PRIMARY KEY, csv TEXT, bundle TEXT {} {} {} {}",
        since(2, ", bundlepath TEXT"),
        since(5, ", skiprange TEXT, version TEXT"),
        since(7, ", replaces TEXT, skips TEXT"),
        since(11, ", substitutesfor TEXT"),
    );
    let run = |text: &str| connection.execute_batch(text).unwrap();
    run(&format!(
        "CREATE TABLE schema_migrations (version bigint NOT NULL, timestamp DATETIME);
         INSERT INTO schema_migrations VALUES ({migration}, 0);
         CREATE TABLE operatorbundle ({columns});
         CREATE TABLE package (name TEXT PRIMARY KEY, default_channel TEXT);
         CREATE TABLE channel (name TEXT, package_name TEXT, head_operatorbundle_name TEXT,
             PRIMARY KEY(name, package_name));
         CREATE TABLE channel_entry (entry_id INTEGER PRIMARY KEY, channel_name TEXT, package_name TEXT,
             operatorbundle_name TEXT, replaces INTEGER, depth INTEGER);
         CREATE TABLE api (group_name TEXT, version TEXT, kind TEXT, plural TEXT NOT NULL);
         INSERT INTO package VALUES ('p', 'stable'), ('other', 'x');
         INSERT INTO channel VALUES ('stable', 'p', 'p.v3'), ('beta', 'p', 'p.v4'), ('x', 'other', 'o.v1');
         INSERT INTO channel_entry VALUES
             (1, 'stable', 'p', 'p.v3', 3, 0), (2, 'stable', 'p', 'p.v3', 4, 1), (3, 'stable', 'p', 'p.v2', 5, 1),
             (4, 'stable', 'p', 'p.v1', NULL, 2), (5, 'stable', 'p', 'p.v1', NULL, 2),
             (6, 'beta', 'p', 'p.v4', 7, 0), (7, 'beta', 'p', 'p.gone', NULL, 1), (8, 'x', 'other', 'o.v1', NULL, 0);"
    ));
    if migration >= 1 {
        run("CREATE TABLE related_image (image TEXT, operatorbundle_name TEXT)");
    }
    if migration >= 9 {
        run(
            "CREATE TABLE properties (type TEXT, value TEXT, operatorbundle_name TEXT,
                 operatorbundle_version TEXT, operatorbundle_path TEXT)",
        );
    }
    if migration >= 12 {
        run("CREATE TABLE deprecated (operatorbundle_name TEXT PRIMARY KEY)");
    }
    for version in 1..=4 {
        let name = format!("p.v{version}");
        let csv = serde_json::json!({"kind": "ClusterServiceVersion", "spec": {
            "relatedImages": [{"name": "p", "image": format!("quay.io/p/p:v{version}")}],
            "install": {"strategy": "deployment", "spec": {"deployments": [{"name": "d", "spec": {"template": {"spec": {
                "containers": [{"name": "c", "image": format!("quay.io/p/operand:v{version}")}],
                "initContainers": [{"name": "i", "image": format!("quay.io/p/init:v{version}")}],
            }}}}]}},
        }});
        connection
            .execute(
                "INSERT INTO operatorbundle (name, csv) VALUES (?, ?)",
                [&name, &csv.to_string()],
            )
            .unwrap();
        if migration >= 1 {
            run(&format!(
                "INSERT INTO related_image VALUES ('quay.io/p/p:v{version}', '{name}'),
                 ('quay.io/p/operand:v{version}', '{name}'), ('quay.io/p/init:v{version}', '{name}'), (NULL, '{name}')"
            ));
        }
        if migration >= 2 {
            run(&format!(
                "UPDATE operatorbundle SET bundlepath = 'quay.io/p/bundle:v{version}' WHERE name = '{name}'"
            ));
        }
        if migration >= 5 {
            run(&format!(
                "UPDATE operatorbundle SET version = '{version}.0.0' WHERE name = '{name}'"
            ));
        }
    }
    drop(connection);
    dir
}

fn change(dir: &TempDir, text: &str) {
    Connection::open(dir.path().join("index.db"))
        .unwrap()
        .execute_batch(text)
        .unwrap();
}

fn ask(dir: &Path, line: &str) -> Result<spoke_precache::catalog::Head, String> {
    only(read_database(&dir.join("index.db"), &[line])).map_err(|error| error.to_string())
}

#[test]
fn every_migration_has_the_same_answer() {
    for migration in 0..=NEWEST {
        let dir = database(migration);
        let before = fs::read(dir.path().join("index.db")).unwrap();
        for (line, version) in [("p:stable", 3), ("p:", 3), ("p:beta", 4)] {
            let head = ask(dir.path(), line).unwrap();
            assert_eq!(
                head.bundle,
                format!("p.v{version}"),
                "migration {migration}, {line}"
            );
            let mut expected = vec![
                format!("quay.io/p/p:v{version}"),
                format!("quay.io/p/operand:v{version}"),
                format!("quay.io/p/init:v{version}"),
            ];
            if migration >= 2 {
                expected.push(format!("quay.io/p/bundle:v{version}"));
            }
            let expected = normalised(expected.iter().map(String::as_str));
            assert_eq!(images(&head), expected, "migration {migration}, {line}");
        }
        let names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["index.db"], "nothing was written beside it");
        assert_eq!(fs::read(dir.path().join("index.db")).unwrap(), before);
    }
}

#[test]
fn what_is_not_there_is_named() {
    let dir = database(NEWEST);
    for (line, expected) in [
        ("xyz:stable", "the catalog has no package `xyz`"),
        (
            "othr:x",
            "the catalog has no package `othr`\nhint: did you mean `other`?",
        ),
        (
            "p:stabel",
            "package `p` has no channel `stabel`, it has `beta`, `stable`\nhint: did you mean `stable`?",
        ),
        ("other:x", "channel `x` of package `other` is empty"),
    ] {
        assert_eq!(ask(dir.path(), line).unwrap_err(), expected);
    }
}

#[test]
fn rows_that_are_no_bundles_do_not_count() {
    let head = |change_by: &str| {
        let dir = database(NEWEST);
        change(&dir, change_by);
        ask(dir.path(), "p:stable").map(|head| head.bundle)
    };
    let deprecate =
        "INSERT INTO properties (type, value, operatorbundle_name) VALUES ('olm.deprecated', '{}', 'p.v3')";
    assert_eq!(head(deprecate).unwrap(), "p.v2");
    assert_eq!(
        head("UPDATE operatorbundle SET version = NULL WHERE name = 'p.v3'").unwrap(),
        "p.v2"
    );
    assert_eq!(
        head("UPDATE operatorbundle SET bundlepath = NULL WHERE name = 'p.v3'").unwrap(),
        "p.v2"
    );
    assert_eq!(
        head("UPDATE operatorbundle SET bundlepath = '' WHERE name = 'p.v3'").unwrap(),
        "p.v3"
    );
    assert_eq!(
        head("DELETE FROM operatorbundle WHERE name = 'p.v3'").unwrap(),
        "p.v2"
    );
    // A migration from an old schema leaves all of them so.
    assert_eq!(head("UPDATE operatorbundle SET version = NULL").unwrap(), "p.v3");
    let heads = "UPDATE channel_entry SET replaces = NULL";
    assert!(
        head(heads).unwrap_err().contains("has 3 heads"),
        "{:?}",
        head(heads)
    );
    let circle = "UPDATE channel_entry SET replaces = 1 WHERE entry_id IN (4, 5)";
    assert!(
        head(circle).unwrap_err().contains("has no head"),
        "{:?}",
        head(circle)
    );
}

/// As podman leaves databases that were written to while the image was built.
#[test]
fn a_write_ahead_log_is_neither_needed_nor_made() {
    let dir = database(NEWEST);
    change(&dir, "PRAGMA journal_mode = WAL; CREATE TABLE more (a)");
    for name in ["index.db-wal", "index.db-shm"] {
        let _ = fs::remove_file(dir.path().join(name));
    }
    assert_eq!(ask(dir.path(), "p:stable").unwrap().bundle, "p.v3");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn databases_that_are_none_or_damaged_are_refused() {
    let whole = fs::read(database(NEWEST).path().join("index.db")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index.db");
    for bytes in [
        &b""[..],
        b"no database",
        &whole[..100],
        &whole[..5000],
        &[0; 10_000],
    ] {
        fs::write(&path, bytes).unwrap();
        let error = ask(dir.path(), "p:stable").unwrap_err();
        assert!(
            error.starts_with("the catalog's database `index.db`: "),
            "{error}"
        );
    }
    // Any damage at all: an answer or an error, and never for long.
    let mut seed = 1_u64;
    let mut refused = 0;
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..20 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = (seed >> 20) as usize % bytes.len();
            bytes[at] = (seed >> 50) as u8;
        }
        fs::write(&path, bytes).unwrap();
        refused += usize::from(ask(dir.path(), "p:stable").is_err());
    }
    assert!(refused > 30, "{refused}");
}

#[test]
fn what_is_kept_is_counted() {
    for (trick, expected) in [
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
                 INSERT INTO package SELECT printf('%.*c', 4000000, 'x') || i, '' FROM n",
            "has more than 67108864 bytes of names",
        ),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100001)
                 INSERT INTO package SELECT i, '' FROM n",
            "has more than 100000 rows for one query",
        ),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500001)
                 INSERT INTO channel_entry (package_name) SELECT 'p' FROM n",
            "has more than 500000 rows for one query",
        ),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10001)
                 UPDATE operatorbundle SET csv = '{\"spec\": {\"relatedImages\": [' || (SELECT group_concat('{}') FROM n) || ']}}'",
            "its csv: invalid length 10001, expected a list of at most 10000",
        ),
        (
            "UPDATE operatorbundle SET csv = zeroblob(70000000)",
            "string or blob too big",
        ),
    ] {
        let dir = database(NEWEST);
        change(&dir, trick);
        let error = ask(dir.path(), "p:stable").unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_database_that_computes_is_refused() {
    for (trick, expected) in [
        (
            "DROP TABLE operatorbundle; CREATE VIEW operatorbundle AS WITH RECURSIVE n(i) AS
                 (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS name, '' AS csv, '' AS bundlepath FROM n",
            "`operatorbundle` is a view, not a table",
        ),
        ("DROP TABLE channel_entry; CREATE VIEW channel_entry AS SELECT 1", "`channel_entry` is a view"),
        ("DROP TABLE package", "it has no table `package`, so it is not a catalog"),
        (
            "DROP TABLE related_image; CREATE VIEW related_image AS SELECT name AS operatorbundle_name, csv AS image
                 FROM operatorbundle",
            "`related_image` is a view",
        ),
        (
            "UPDATE operatorbundle SET csv = '{' WHERE name = 'p.v3'",
            "bundle `p.v3` of package `p`, its csv: EOF",
        ),
        ("UPDATE channel_entry SET replaces = 'x'", "Invalid column type"),
    ] {
        let dir = database(NEWEST);
        change(&dir, trick);
        let error = ask(dir.path(), "p:stable").unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
