//! Applies one delta in a process of its own, to measure time and memory of that alone.
//!
//! The old images are unpacked and in the page cache. The tar is hashed and not written.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use spoke_precache::cancel::Cancel;
use spoke_precache::delta::{Format, PatchedTar, ScratchFile, SourceError, SourceFile, Sources};
use spoke_precache::oci::Hasher;

use crate::archives::{call, output_of};
use crate::layers::Made;
use crate::rig::cpu_seconds;

/// The first argument of the process.
pub(crate) const ARGUMENT: &str = "--apply-one";
/// Bytes that are read at once.
const PIECE: usize = 128 << 10;

/// What it costs to apply a delta.
pub(crate) struct Cost {
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
    /// MiB
    pub(crate) memory: f64,
}

/// The layers of the old release, unpacked.
pub(crate) struct Unpacked {
    dir: tempfile::TempDir,
}

impl Unpacked {
    pub(crate) fn new(layers: &[Made]) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        for layer in layers {
            let root = dir.path().join(&layer.name);
            fs::create_dir(&root)?;
            call(Command::new("tar").arg("-xf").arg(&layer.tar).arg("-C").arg(root))?;
        }
        Ok(Self { dir })
    }

    /// The directories of an image with these layers, top layer first.
    pub(crate) fn image(&self, layers: &[String]) -> Vec<PathBuf> {
        layers
            .iter()
            .rev()
            .map(|layer| self.dir.path().join(layer))
            .collect()
    }
}

/// Applies `delta` to the old `images`, and checks the result.
pub(crate) fn apply(
    delta: &Path,
    format: Format,
    images: &[Vec<PathBuf>],
    target: &Made,
) -> anyhow::Result<Cost> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(ARGUMENT).arg(format.media_type()).arg(delta);
    for image in images {
        let dirs: Vec<OsString> = image.iter().map(|dir| dir.clone().into_os_string()).collect();
        command.arg(dirs.join(std::ffi::OsStr::new(":")));
    }
    let answer = String::from_utf8(output_of(&mut command)?)?;
    let words: Vec<&str> = answer.split_whitespace().collect();
    let [digest, wall, cpu, memory] = words.as_slice() else {
        anyhow::bail!("the process printed no result: `{answer}`");
    };
    ensure!(
        *digest == target.diff_id,
        "the delta of {} makes {digest}, not {}",
        target.name,
        target.diff_id
    );
    Ok(Cost {
        wall: wall.parse()?,
        cpu: cpu.parse()?,
        memory: memory.parse()?,
    })
}

/// Runs in the process: prints the digest of the tar, seconds, CPU seconds, and the peak of resident memory in MiB.
pub(crate) fn process(words: &[OsString]) -> anyhow::Result<()> {
    let [media_type, delta, images @ ..] = words else {
        anyhow::bail!("{ARGUMENT} MEDIA-TYPE DELTA IMAGE…");
    };
    let format = media_type
        .to_str()
        .and_then(Format::of_media_type)
        .context("an unknown format")?;
    let images = images.iter().map(|dirs| std::env::split_paths(dirs).collect());
    let images = UnpackedImages(images.collect());
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    let cancel = Cancel::default();
    let mut tar = PatchedTar::open(File::open(delta)?, format, Box::new(images), &cancel)?;
    let (mut digest, mut piece) = (Hasher::default(), vec![0; PIECE]);
    loop {
        match tar.read(&mut piece)? {
            0 => break,
            length => digest.update(&piece[..length]),
        }
    }
    let (wall, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    writeln!(
        io::stdout(),
        "{} {wall} {cpu} {}",
        digest.finish(),
        peak_memory()?
    )?;
    Ok(())
}

/// Directories of each image, top layer first.
struct UnpackedImages(Vec<Vec<PathBuf>>);

impl Sources for UnpackedImages {
    fn open(&self, image: usize, path: &[u8]) -> Result<Box<dyn SourceFile>, SourceError> {
        let missing = || SourceError::Missing(String::from_utf8_lossy(path).into_owned());
        let layers = self.0.get(image).ok_or_else(missing)?;
        let name = Path::new(std::ffi::OsStr::from_bytes(path));
        let mut files = layers
            .iter()
            .filter_map(|layer| File::open(layer.join(name)).ok());
        Ok(Box::new(files.next().ok_or_else(missing)?))
    }

    fn scratch_file(&self, _: u64) -> io::Result<ScratchFile> {
        Ok(tempfile::tempfile()?.into())
    }
}

/// `VmHWM` of proc_pid_status(5): unlike `ru_maxrss`, it does not include the parent.
fn peak_memory() -> anyhow::Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmHWM")?;
    Ok(kib.parse::<f64>()? / 1024.0)
}
