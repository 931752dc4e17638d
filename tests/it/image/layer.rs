//! Makes a layer from readable lines.
//!
//! One line is one tar entry, in order. A single leading `/` of a path is dropped, as layers have it; all else is
//! written as it stands, so `./etc`, `../x` and `//absolute` are possible. [`super::token`] has the escapes.
//!
//! ```text
//! dir     /etc 0755 0:0
//! file    /etc/hosts 0644 0:0 "127.0.0.1\n"       or random=5000 seed=7, zeros=9, bytes=NAME (of the caller's),
//!                                                 program=5000 seed=7 (compresses as programs do)
//! link    /bin/su2 -> /bin/su                     hard link
//! symlink /lib -> usr/lib
//! char    /dev/null 1:3 0666                      block, and fifo without a device
//! whiteout /etc/motd                              an empty file etc/.wh.motd
//! opaque  /var/cache                              an empty file var/cache/.wh..wh..opq
//! sparse  /disk 1.0 size=9000 at=0:abc at=8000:z  0.0, 0.1, 1.0 (PAX) or old (type S)
//! global  comment=hello                           a PAX header for all that follows
//! xattr   security.capability=0x0100000200…       of the entry above; 0x… or text
//! pax     GNU.foo=bar                             a raw record for the entry above
//! raw     0x00ff                                  bytes between entries
//! eof     0                                       that many zero blocks at the end, 2 by default; then
//! trailing 700                                    that many bytes after them
//! ```
//!
//! Options of any entry: a mode (`0…`), `uid:gid`, `mtime=[-]seconds[.nanos]`, `type=C` (`type=\0` for the oldest),
//! `size=` (a lie in the header), `gnu`, `v7`, `noslash` (a directory without its final slash).

use super::tar::{self, Entry, Magic};
use super::token::{Token, tokens, unhex};

const BLOCK: usize = 512;

/// The tar that the lines describe. `named` are contents that no text can hold, for `bytes=NAME`.
pub(crate) fn tar_of(text: &str, named: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = Vec::new();
    let mut last: Option<Entry> = None;
    let mut eof = 2;
    let mut trailing = 0;
    for line in text.lines() {
        let words = tokens(line);
        let Some((verb, words)) = words.split_first() else {
            continue;
        };
        let above = |last: &mut Option<Entry>, key: Vec<u8>, value: Vec<u8>| {
            let entry = last.as_mut().expect("an entry above this line");
            entry.pax.push((key, value));
        };
        match verb.text() {
            "xattr" => {
                let (name, value) = words[0].pair().expect("xattr NAME=VALUE");
                let value = value.strip_prefix(b"0x").map_or_else(|| value.to_vec(), unhex);
                above(&mut last, format!("SCHILY.xattr.{name}").into_bytes(), value);
            }
            "pax" => {
                let (name, value) = words[0].pair().expect("pax NAME=VALUE");
                above(&mut last, name.as_bytes().to_vec(), value.to_vec());
            }
            "eof" => eof = number(words[0].text()),
            "trailing" => trailing = number(words[0].text()),
            other => {
                if let Some(entry) = last.take() {
                    entry.write(&mut tar);
                }
                match other {
                    "raw" => tar.extend(unhex(&words[0].bytes[2..])),
                    _ => last = Some(member(other, words, named)),
                }
            }
        }
    }
    if let Some(entry) = last {
        entry.write(&mut tar);
    }
    tar.resize(tar.len() + eof * BLOCK, 0);
    tar.extend(random(trailing, 1));
    tar
}

fn member(verb: &str, words: &[Token], named: &[(&str, &[u8])]) -> Entry {
    let (path, words) = match verb {
        "global" => (b"PaxHeaders.0/global".to_vec(), words),
        _ => (written(&words[0].bytes), &words[1..]),
    };
    let mut entry = tar::entry(b'0', path);
    match verb {
        "file" | "sparse" => {}
        "dir" => (entry.typeflag, entry.mode) = (b'5', 0o755),
        "link" => entry.typeflag = b'1',
        "symlink" => (entry.typeflag, entry.mode) = (b'2', 0o777),
        "char" => entry.typeflag = b'3',
        "block" => entry.typeflag = b'4',
        "fifo" => entry.typeflag = b'6',
        "global" => entry.typeflag = b'g',
        "whiteout" => entry.name = beside(&entry.name, b".wh."),
        "opaque" => entry.name.extend(b"/.wh..wh..opq"),
        other => panic!("a fixture line begins with `{other}`"),
    }
    let mut options = Options::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word.quoted {
            entry.data = word.bytes.clone();
        } else if word.bytes == b"->" {
            let target = &words.next().expect("a target after `->`").bytes;
            // A hard link names another entry; a symbolic link's text is its own.
            entry.link = if verb == "link" {
                written(target)
            } else {
                target.clone()
            };
        } else {
            option(word, &mut entry, &mut options, named);
        }
    }
    if let Some(length) = options.random {
        entry.data = random(length, options.seed);
    }
    if let Some(length) = options.program {
        entry.data = program(length, options.seed);
    }
    if verb == "dir" && !options.noslash && !entry.name.ends_with(b"/") {
        entry.name.push(b'/');
    }
    if verb == "sparse" {
        let real_size = entry.size.take().expect("a sparse file has a size");
        super::sparse::make(&mut entry, &options.format, real_size, &options.pieces);
    }
    entry
}

#[derive(Default)]
struct Options {
    random: Option<usize>,
    program: Option<usize>,
    seed: u64,
    noslash: bool,
    has_device: bool,
    /// Of a sparse file.
    format: String,
    pieces: Vec<(u64, Vec<u8>)>,
}

fn option(word: &Token, entry: &mut Entry, options: &mut Options, named: &[(&str, &[u8])]) {
    if let Some((key, value)) = word.pair() {
        let text = || std::str::from_utf8(value).expect("an option is UTF-8");
        match key {
            "mtime" => (entry.seconds, entry.nanos) = time(text()),
            "type" => entry.typeflag = value[0],
            "size" => entry.size = Some(number(text()) as u64),
            "random" => options.random = Some(number(text())),
            "program" => options.program = Some(number(text())),
            "seed" => options.seed = number(text()) as u64,
            "zeros" => entry.data = vec![0; number(text())],
            "bytes" => {
                let (_, bytes) = named
                    .iter()
                    .find(|(name, _)| *name == text())
                    .expect("bytes of that name");
                entry.data = bytes.to_vec();
            }
            "at" => {
                let colon = value
                    .iter()
                    .position(|byte| *byte == b':')
                    .expect("at=OFFSET:TEXT");
                let offset = std::str::from_utf8(&value[..colon]).expect("an offset");
                options
                    .pieces
                    .push((number(offset) as u64, value[colon + 1..].to_vec()));
            }
            key if entry.typeflag == b'g' => entry.pax.push((key.as_bytes().to_vec(), value.to_vec())),
            other => panic!("`{other}` is no option of a fixture line"),
        }
        return;
    }
    match word.text() {
        "gnu" => entry.magic = Magic::Gnu,
        "v7" => entry.magic = Magic::V7,
        "noslash" => options.noslash = true,
        format @ ("0.0" | "0.1" | "1.0" | "old") => options.format = format.to_owned(),
        pair if pair.contains(':') => {
            let (left, right) = pair.split_once(':').expect("just seen");
            let (left, right) = (number(left) as u64, number(right) as u64);
            // Of a device, the first pair is its number; every other pair is an owner.
            if matches!(entry.typeflag, b'3' | b'4') && !options.has_device {
                options.has_device = true;
                entry.device = (left as u32, right as u32);
            } else {
                (entry.uid, entry.gid) = (left, right);
            }
        }
        mode => entry.mode = u32::from_str_radix(mode, 8).expect("a mode in octal"),
    }
}

fn written(path: &[u8]) -> Vec<u8> {
    path.strip_prefix(b"/").unwrap_or(path).to_vec()
}

/// `a/b` and `.wh.` make `a/.wh.b`.
fn beside(path: &[u8], prefix: &[u8]) -> Vec<u8> {
    let at = path
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |slash| slash + 1);
    [&path[..at], prefix, &path[at..]].concat()
}

fn number(text: &str) -> usize {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

fn time(text: &str) -> (i64, u32) {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().expect("seconds");
    let nanos: u32 = format!("{fraction:0<9}")
        .parse()
        .expect("a fraction of at most nine digits");
    if seconds < 0 && nanos > 0 {
        return (seconds - 1, 1_000_000_000 - nanos);
    }
    (seconds, nanos)
}

/// Bytes that do not compress and are always the same (xorshift64*).
pub(crate) fn random(length: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Bytes that compress as programs do, always the same: words of a fixed vocabulary, some of them common, with new
/// bytes between. gzip makes them 2.6 times smaller; podman's own binary 2.7 times, libc 2.2 times.
pub(crate) fn program(length: usize, seed: u64) -> Vec<u8> {
    const WORDS: usize = 512;
    let vocabulary = random(WORDS * 16, 1);
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(length + 16);
    while bytes.len() < length {
        let draw = random.next() as usize;
        // A product of two even draws prefers small numbers.
        let word = (draw % WORDS) * (draw >> 16 & (WORDS - 1)) / WORDS;
        bytes.extend(&vocabulary[word * 16..][..3 + (draw >> 32) % 10]);
        if draw >> 48 & 3 == 0 {
            bytes.extend(&random.next().to_le_bytes()[..1 + (draw >> 56) % 2]);
        }
    }
    bytes.truncate(length);
    bytes
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
