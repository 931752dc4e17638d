//! Tests that debug sections get their bytes back: the linkers that wrote them are the oracle.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use spoke_precache::delta::debug_sections::{CompressedSection, compressed_sections};
use spoke_precache::delta::{Codec, Deflater, find_codec};

use crate::needs::{leave_out, needs, note};

/// Compresses its input as Go's linker compresses debug sections.
const GO_PROGRAM: &str = r#"package main

import (
	"compress/zlib"
	"io"
	"os"
)

func main() {
	z, _ := zlib.NewWriterLevel(os.Stdout, zlib.BestSpeed)
	io.Copy(z, os.Stdin)
	z.Close()
}
"#;

/// With macros, so that there is much to compress.
const C_PROGRAM: &str = "#include <stdio.h>\n#include <sys/socket.h>\nint main(void) { return EOF; }\n";

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn inflate(stream: &[u8]) -> Vec<u8> {
    let mut inflated = Vec::new();
    std::io::copy(&mut flate2::read::ZlibDecoder::new(stream), &mut inflated).unwrap();
    inflated
}

/// The codec of each compressed section of a file; every one must have one.
fn codecs(path: &Path) -> Vec<Codec> {
    let file = fs::read(path).unwrap();
    let sections = compressed_sections(&file);
    assert!(!sections.is_empty(), "{}", path.display());
    let codec = |section: &CompressedSection| {
        let stream = &file[section.offset as usize..][..section.length as usize];
        let inflated = inflate(stream);
        assert_eq!(inflated.len() as u64, section.inflated_length, "{section:?}");
        find_codec(stream, &inflated).unwrap_or_else(|| panic!("{}: {section:?}", path.display()))
    };
    sections.iter().map(codec).collect()
}

#[test]
fn what_gnu_binutils_compress_gets_its_bytes_back() {
    needs!(compiler());
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("main.c"), C_PROGRAM).unwrap();
    let compile = |flags: &[&str], out: &str| {
        run(Command::new("gcc")
            .arg("-g3")
            .args(flags)
            .arg(path("main.c"))
            .arg("-o")
            .arg(path(out)));
    };
    compile(&["-Wl,--compress-debug-sections=zlib"], "ld");
    compile(&["-Wl,--compress-debug-sections=zlib-gnu"], "ld-gnu");
    compile(&["-gz=zlib", "-c"], "as");
    compile(&[], "plain");
    let flag = "--compress-debug-sections=zlib";
    run(Command::new("objcopy")
        .arg(flag)
        .arg(path("plain"))
        .arg(path("objcopy")));

    for name in ["ld", "ld-gnu", "as", "objcopy"] {
        let zlib_6 = Codec::from_byte(6).unwrap();
        assert!(codecs(&path(name)).iter().all(|&codec| codec == zlib_6), "{name}");
    }
}

#[test]
fn what_go_compresses_gets_its_bytes_back() {
    let go = std::env::var_os("SPOKE_GO").unwrap_or_else(|| "go".into());
    let Ok(version) = Command::new(&go).arg("version").output() else {
        return leave_out("there is no `go`; SPOKE_GO may name one");
    };
    note(String::from_utf8_lossy(&version.stdout).trim());
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("main.go"), GO_PROGRAM).unwrap();
    run(Command::new(&go)
        .args(["build", "-o", "compress", "main.go"])
        .current_dir(dir.path())
        .envs([
            ("CGO_ENABLED", "0"),
            ("GOTOOLCHAIN", "local"),
            ("GO111MODULE", "off"),
        ])
        .env("GOCACHE", path("cache")));

    let codecs = codecs(&path("compress"));
    let codec = codecs[0];
    assert!(codecs.iter().all(|&other| other == codec), "{codecs:?}");
    let mut random = SmallRng::seed_from_u64(1);
    for round in 0..60 {
        let content = mixture(&mut random);
        let mut program = Command::new(path("compress"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = program.stdin.take().unwrap();
        let written = content.clone();
        let writer = std::thread::spawn(move || input.write_all(&written).unwrap());
        let expected = program.wait_with_output().unwrap().stdout;
        writer.join().unwrap();

        let mut deflater = Deflater::new(codec);
        let mut stream = Vec::new();
        for write in content.chunks(random.random_range(1..100_000)) {
            deflater.write(write, &mut stream);
        }
        deflater.finish(&mut stream);
        assert!(
            stream == expected,
            "round {round}, {} bytes, {codec}",
            content.len()
        );
    }
}

/// Noise, bytes of few values, repetitions near and far, of all lengths.
fn mixture(random: &mut SmallRng) -> Vec<u8> {
    let length = [200, 3_000, 70_000, 500_000][random.random_range(0..4)];
    let length = random.random_range(0..length);
    let mut content: Vec<u8> = Vec::new();
    while content.len() < length {
        let limit = [10, 300, 5_000, 70_000][random.random_range(0..4)];
        let part = random.random_range(0..limit);
        let values = [2, 17, 90, 256][random.random_range(0..4)];
        match random.random_range(0..3) {
            0 => content.extend((0..part).map(|_| random.random_range(0..values) as u8)),
            1 => content.extend(std::iter::repeat_n(values as u8, part)),
            _ => {
                let from = content.len() - random.random_range(0..=content.len().min(70_000));
                content.extend_from_within(from..content.len().min(from + part));
            }
        }
    }
    content.truncate(length);
    content
}
