//! Measures the lower bound: what the same bytes cost the machine, for files with the right content and nothing else.
//!
//! One thread per core takes blobs from the page cache: SHA-256 of the blob, inflate, SHA-256 of the tar, and creation of the
//! tar's files and directories, which is the least that a store needs. No network, no spool, no tar-split, no
//! owners, modes or times, no records, and nothing is durable until the one sync at the end.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write as _};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use flate2::bufread::MultiGzDecoder;
use sha2::{Digest as _, Sha256};

use crate::rig::cpu_seconds;

/// Bytes that are inflated, hashed and written at once.
const PIECE: usize = 128 << 10;
/// Of a tar.
const BLOCK: usize = 512;

/// The layers of a registry's directory, and what their tars hold.
pub(crate) struct Bare {
    layers: Vec<Layer>,
}

struct Layer {
    blob: PathBuf,
    tar_length: u64,
    /// In the tar's order.
    entries: Vec<Entry>,
}

enum Entry {
    Directory(String),
    File(String, usize),
}

/// What is done to each blob.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    hash_blob: bool,
    inflate: bool,
    hash_tar: bool,
    files: bool,
}

impl Parts {
    pub(crate) const ALL: Self = Self {
        hash_blob: true,
        inflate: true,
        hash_tar: true,
        files: true,
    };
    const NONE: Self = Self {
        hash_blob: false,
        inflate: false,
        hash_tar: false,
        files: false,
    };
    /// Each alone.
    pub(crate) const EACH: [(&'static str, Self); 4] = [
        (
            "SHA-256 of the blobs",
            Self {
                hash_blob: true,
                ..Self::NONE
            },
        ),
        (
            "inflate",
            Self {
                inflate: true,
                ..Self::NONE
            },
        ),
        (
            "SHA-256 of the tars",
            Self {
                hash_tar: true,
                ..Self::NONE
            },
        ),
        (
            "files",
            Self {
                files: true,
                ..Self::NONE
            },
        ),
    ];
}

/// Seconds until the last thread ended, seconds until everything was on the disk, and CPU seconds.
pub(crate) struct Took {
    pub(crate) wall: f64,
    pub(crate) on_disk: f64,
    pub(crate) cpu: f64,
}

impl Bare {
    /// Finds the layers in docker-registry's directory.
    pub(crate) fn of(registry: &Path) -> anyhow::Result<Self> {
        let blobs = registry.join("docker/registry/v2/blobs/sha256");
        let mut layers = Vec::new();
        for group in fs::read_dir(&blobs).with_context(|| blobs.display().to_string())? {
            for blob in fs::read_dir(group?.path())? {
                let blob = blob?.path().join("data");
                let mut magic = [0; 2];
                File::open(&blob)?.read_exact(&mut magic)?;
                if magic == [0x1f, 0x8b] {
                    layers.push(Layer::read(blob)?);
                }
            }
        }
        // The largest first, so that no thread works alone at the end.
        layers.sort_by_key(|layer| std::cmp::Reverse(layer.tar_length));
        Ok(Self { layers })
    }

    /// Does these parts of it to all layers, with the files below `root`.
    pub(crate) fn run(&self, parts: Parts, root: &Path) -> anyhow::Result<Took> {
        let (begin, cpu) = (Instant::now(), cpu_seconds());
        let next = AtomicUsize::new(0);
        let work = || -> anyhow::Result<()> {
            while let Some(number) =
                Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < self.layers.len())
            {
                self.layers[number].process(parts, &root.join(number.to_string()))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        let wall = begin.elapsed().as_secs_f64();
        rustix::fs::syncfs(File::open(root)?)?;
        Ok(Took {
            wall,
            on_disk: begin.elapsed().as_secs_f64(),
            cpu: cpu_seconds() - cpu,
        })
    }
}

impl Layer {
    fn read(blob: PathBuf) -> anyhow::Result<Self> {
        let mut tar = Vec::new();
        MultiGzDecoder::new(BufReader::new(File::open(&blob)?)).read_to_end(&mut tar)?;
        let (mut entries, mut at) = (Vec::new(), 0);
        while let Some(header) = tar.get(at..at + BLOCK).filter(|header| header[0] != 0) {
            let text = |field: &[u8]| {
                let field = field.split(|byte| *byte == 0).next().unwrap_or_default();
                String::from_utf8_lossy(field).trim().to_owned()
            };
            let (name, size) = (
                text(&header[..100]),
                usize::from_str_radix(&text(&header[124..136]), 8)?,
            );
            let name = name.trim_matches('/').to_owned();
            ensure!(
                !name.is_empty() && name.split('/').all(|part| part != ".."),
                "an odd tar in {}",
                blob.display()
            );
            match header[156] {
                b'5' => entries.push(Entry::Directory(name)),
                b'0' | 0 => entries.push(Entry::File(name, size)),
                _ => {}
            }
            at += BLOCK + size.next_multiple_of(BLOCK);
        }
        let tar_length = tar.len() as u64;
        Ok(Self {
            blob,
            tar_length,
            entries,
        })
    }

    fn process(&self, parts: Parts, root: &Path) -> anyhow::Result<()> {
        let (mut blob, mut tar) = (Sha256::new(), Sha256::new());
        let mut piece = vec![0; PIECE];
        if parts.hash_blob {
            let mut file = File::open(&self.blob)?;
            loop {
                match file.read(&mut piece)? {
                    0 => break,
                    length => blob.update(&piece[..length]),
                }
            }
        }
        if parts.inflate {
            let mut decoder = MultiGzDecoder::new(BufReader::with_capacity(PIECE, File::open(&self.blob)?));
            loop {
                match decoder.read(&mut piece)? {
                    0 => break,
                    length if parts.hash_tar => tar.update(&piece[..length]),
                    _ => {}
                }
            }
        } else if parts.hash_tar {
            let mut left = self.tar_length;
            while left > 0 {
                let length = left.min(PIECE as u64);
                tar.update(&piece[..length as usize]);
                left -= length;
            }
        }
        if parts.files {
            self.make_files(root, &piece)?;
        }
        std::hint::black_box((blob.finalize(), tar.finalize()));
        Ok(())
    }

    /// With any content: what is written costs the same.
    fn make_files(&self, root: &Path, content: &[u8]) -> io::Result<()> {
        let mut made = HashMap::new();
        for entry in &self.entries {
            let (Entry::Directory(name) | Entry::File(name, _)) = entry;
            let path = root.join(name);
            if let Some(parent) = path.parent()
                && made.insert(parent.to_owned(), ()).is_none()
            {
                fs::create_dir_all(parent)?;
            }
            let Entry::File(_, size) = entry else {
                fs::create_dir_all(&path)?;
                continue;
            };
            let (mut file, mut left) = (File::create(&path)?, *size);
            while left > 0 {
                let length = left.min(content.len());
                file.write_all(&content[..length])?;
                left -= length;
            }
        }
        Ok(())
    }
}
