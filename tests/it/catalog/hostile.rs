//! Reads malicious catalogs: each ends soon, with an error or an answer, and with little memory.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use super::file_based::JSON;
use super::{directory, only, read, read_files};

/// Far more than any takes in a debug build on a busy machine.
const SOON: Duration = Duration::from_secs(60);

fn refused(text: &str) -> String {
    let start = Instant::now();
    let error = only(read_files(&[("c", text)], &["p:c"]))
        .unwrap_err()
        .to_string();
    assert!(start.elapsed() < SOON, "{:?} for {error}", start.elapsed());
    error
}

#[test]
fn depth_and_length_are_bounded() {
    let depth = 1_000_000;
    let nested = format!(
        "{{\"schema\": \"x\", \"a\": {}{}}}",
        "[".repeat(depth),
        "]".repeat(depth)
    );
    // Passed over without recursion; it holds nothing of ours.
    assert!(refused(&nested).starts_with("the catalog has no package `p`"));
    for text in [
        "[".repeat(depth),
        "{\"a\":".repeat(depth),
        "- ".repeat(100_000),
        format!("a: {}", "{a: ".repeat(depth)),
        format!(
            "{{\"schema\": \"olm.channel\", \"entries\": {}",
            "[".repeat(depth)
        ),
        format!("{{\"schema\": {{\"schema\": {}", "{\"schema\":".repeat(depth)),
    ] {
        let error = refused(&text);
        assert!(error.contains("of the catalog, line"), "{error}");
    }
}

#[test]
fn aliases_do_not_multiply() {
    let mut bomb = "schema: x\na: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (this, last) in ('b'..='j').zip('a'..) {
        bomb += &format!("{this}: &{this} [{}]\n", vec![format!("*{last}"); 10].join(", "));
    }
    let error = refused(&bomb);
    assert!(error.contains("of the catalog, line"), "{error}");
    let entries = bomb.replace("schema: x", "schema: olm.channel\npackage: p\nname: c") + "entries: *j\n";
    let error = refused(&entries);
    assert!(error.contains("of the catalog, line"), "{error}");
}

#[test]
fn what_is_kept_is_counted() {
    let skips = "\"\",".repeat(1_100_000);
    let text = format!(
        "{{\"schema\": \"olm.channel\", \"package\": \"p\", \"name\": \"c\", \"entries\": [{{\"name\": \"a\", \"skips\": [{skips}\"\"]}}]}}"
    );
    let error = refused(&text);
    assert!(error.contains("have more than 1000000 names"), "{error}");
    // That of others costs nothing, before or after it is known whose it is.
    for package in [("\"package\": \"q\",", ""), ("", ",\"package\": \"q\"")] {
        let text = format!(
            "{{\"schema\": \"olm.channel\", {} \"name\": \"c\", \"entries\": [{}]{}}}\n",
            package.0,
            vec!["{\"name\": \"a\"}"; 100_000].join(","),
            package.1
        );
        let error = refused(&text.repeat(6));
        assert!(error.starts_with("the catalog has no package `p`"), "{error}");
    }
}

#[test]
fn one_document_has_an_end() {
    let long = format!("{{\"schema\": \"{}\"}}", "x".repeat(70 << 20));
    assert_eq!(
        refused(&long),
        "`/c` of the catalog: it has more than 67108864 bytes in one document"
    );
    let yaml = format!("schema: x\na: {}\n", "x".repeat(70 << 20));
    assert_eq!(
        refused(&yaml),
        "`/c` of the catalog: it has more than 67108864 bytes in one document"
    );
    // A file of nothing but blanks or zeros, as long as a file can be.
    let dir = directory(&[]);
    fs::File::create(dir.path().join("c"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let error = only(read(dir.path(), &["p:c"])).unwrap_err().to_string();
    assert_eq!(
        error,
        "`/c` of the catalog: it has more than 67108864 bytes in one document"
    );
}

#[test]
fn names_may_be_anything() {
    for name in [
        "\\u0000",
        "\\u001b[31m",
        "\\ud83d\\ude00",
        "../../etc/passwd",
        "%s%n",
        "",
    ] {
        let text = format!(
            "{{\"schema\": \"olm.package\", \"name\": \"{name}\"}}{{\"schema\": \"olm.channel\", \"package\": \"p\", \
             \"name\": \"{name}\", \"entries\": [{{\"name\": \"{name}\"}}]}}"
        );
        let error = refused(&text);
        assert!(!error.replace('\n', "").contains(char::is_control), "{error:?}");
    }
    let dir = directory(&[]);
    fs::write(dir.path().join("a\u{1b}[31m\nb"), "{").unwrap();
    let error = only(read(dir.path(), &["p:c"])).unwrap_err().to_string();
    assert!(!error.contains(char::is_control), "{error:?}");
}

#[test]
fn what_is_no_file_is_not_opened() {
    for (make, expected) in [
        (
            "mkfifo x",
            "cannot read `/x` of the catalog: it is neither a file nor a directory",
        ),
        (
            "ln -s nowhere x",
            "cannot read `/x` of the catalog: it is a dangling symlink",
        ),
        (
            "mkdir -p ../d; mkdir d; ln -s d x",
            "cannot read `/x` of the catalog: it is a symlink to a directory",
        ),
        (
            "ln -s x x",
            "cannot read `/x` from the image: it leads through more than 40 symlinks",
        ),
        (
            "mkfifo .indexignore",
            "cannot read `/.indexignore` of the catalog: it is neither a file nor a directory",
        ),
        (
            "ln -s /etc/passwd x",
            "cannot read `/x` of the catalog: it is a dangling symlink",
        ),
        (
            "x=.; for i in $(seq 70); do x=$x/d; done; mkdir -p $x",
            "`/` of the catalog: it has more than 64 levels of directories",
        ),
        (
            "for i in $(seq 10001); do echo x$i; done > .indexignore",
            "`/` of the catalog: it has more than 10000 patterns in `.indexignore`",
        ),
        (
            "head -c 1048577 /dev/zero > .indexignore",
            "`/.indexignore` of the catalog: it has more than 1048576 bytes",
        ),
    ] {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("inner");
        fs::create_dir(&dir).unwrap();
        let status = std::process::Command::new("sh")
            .args(["-ec", make])
            .current_dir(&dir)
            .status();
        assert!(status.unwrap().success(), "{make}");
        let error = only(read(&dir, &["p:c"])).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{make}: {error}");
    }
    // A symlink to a file in the image is followed, as a container would.
    let dir = directory(&[("elsewhere/.indexignore", "x"), ("elsewhere/real", JSON)]);
    symlink("/elsewhere/real", dir.path().join("link")).unwrap();
    fs::write(dir.path().join(".indexignore"), "/elsewhere\n").unwrap();
    assert_eq!(only(read(dir.path(), &["p:stable"])).unwrap().bundle, "p.v3");
}

#[test]
fn any_damage_ends_with_an_answer() {
    let mut seed = 1_u64;
    let mut random = |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let dir = directory(&[]);
    for round in 0..400 {
        let mut bytes = JSON.as_bytes().to_vec();
        if round % 2 == 1 {
            bytes.splice(0..0, *b"---\n");
        }
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            match random(3) {
                0 => bytes[at] = random(256) as u8,
                1 => drop(bytes.splice(at..at, b"[{\"\\\n-:&*"[random(9)..].iter().copied())),
                _ => bytes.truncate(at + 1),
            }
        }
        fs::write(dir.path().join("c"), bytes).unwrap();
        let _ = only(read(dir.path(), &["p:stable"]));
    }
}
