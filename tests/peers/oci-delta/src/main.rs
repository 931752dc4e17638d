//! Applies a delta artifact in an OCI layout with the crate oci-delta: `oci-delta-peer LAYOUT DIGEST OLD-TREE OUTPUT`.
//!
//! Writes the tar of each layer that the artifact makes to `OUTPUT/<hex of the diffID>`. The crate compares the diffIDs.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use oci_delta::{
    BlobStream, BlobStreamFuture, DeltaBlobReader, DeltaDataSource, is_delta_artifact, parse_delta_manifest,
    reconstruct_layer_to,
};
use oci_spec::image::{Descriptor, Digest, ImageManifest};

/// The blobs of an OCI layout.
struct Layout(PathBuf);

impl Layout {
    fn open(&self, digest: &Digest) -> Result<File> {
        let path = self
            .0
            .join("blobs")
            .join(digest.algorithm().to_string())
            .join(digest.digest());
        File::open(&path).with_context(|| format!("cannot open {}", path.display()))
    }
}

impl DeltaBlobReader for Layout {
    fn open_blob(&self, descriptor: &Descriptor) -> BlobStreamFuture<'_> {
        let opened = self.open(descriptor.digest());
        Box::pin(async move { Ok(Box::new(opened?) as Box<dyn BlobStream>) })
    }
}

/// The files of the old image.
struct Tree {
    root: PathBuf,
    current: Option<File>,
}

impl Tree {
    fn current(&mut self) -> Result<&mut File> {
        self.current.as_mut().context("no file is open")
    }
}

impl DeltaDataSource for Tree {
    fn set_current_file(&mut self, path: &str) -> Result<()> {
        ensure!(!Path::new(path).is_absolute(), "absolute path: {path}");
        let path = self.root.join(path);
        self.current = Some(File::open(&path).with_context(|| format!("cannot open {}", path.display()))?);
        Ok(())
    }

    fn read_exact_current(&mut self, buffer: &mut [u8]) -> Result<()> {
        Ok(self.current()?.read_exact(buffer)?)
    }

    fn seek_current(&mut self, offset: u64) -> Result<u64> {
        Ok(self.current()?.seek(SeekFrom::Start(offset))?)
    }

    fn read_current_to_end(&mut self, _: u64) -> Result<Vec<u8>> {
        anyhow::bail!("only `tardf2` reads whole files")
    }

    fn copy_to(&mut self, out: &mut dyn Write, length: u64) -> Result<()> {
        let copied = io::copy(&mut Read::by_ref(self.current()?).take(length), out)?;
        ensure!(copied == length, "the file ends after {copied} of {length} bytes");
        Ok(())
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [layout, artifact, tree, output] = &arguments[..] else {
        anyhow::bail!("usage: oci-delta-peer LAYOUT DIGEST OLD-TREE OUTPUT");
    };
    let layout = Layout(layout.into());
    let manifest = ImageManifest::from_reader(layout.open(&artifact.parse()?)?)?;
    ensure!(is_delta_artifact(&manifest), "not an oci-delta artifact");
    let parsed = futures::executor::block_on(parse_delta_manifest(&manifest, &layout))?;
    let layers = parsed.target_manifest.layers().iter();
    for (layer, diff_id) in layers.zip(parsed.target_config.rootfs().diff_ids()) {
        let Some(delta) = parsed.delta_layer_by_to.get(layer.digest()) else {
            continue;
        };
        let diff_id: Digest = diff_id.parse()?;
        let mut tar = File::create(Path::new(output).join(diff_id.digest()))?;
        let mut tree = Tree {
            root: tree.into(),
            current: None,
        };
        let blob = layout.open(delta.digest())?;
        reconstruct_layer_to(blob, delta.media_type(), &mut tree, &diff_id, &mut tar)
            .with_context(|| format!("layer {}", layer.digest()))?;
        println!("{}", diff_id.digest());
    }
    Ok(())
}
