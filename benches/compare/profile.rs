//! Defines the images to pull: the sizes of a synthetic release.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::image::release::Release;
use crate::image::sha256;
use crate::stock::docker_registry::DockerRegistry;
use crate::{rig, synthetic};

const MB: usize = 1 << 20;

/// Bytes in the files of the layers; compressed they are less than half of it.
#[derive(Debug)]
pub(crate) struct Profile {
    /// Of the layers that images share, in turn.
    bases: &'static [usize],
    /// Of the layer that each image has of its own.
    own: Vec<usize>,
    /// Of the layer between; none if 0.
    tiny: usize,
}

impl Profile {
    /// `small`, `large` (the shape of a release: 41 images, 82 layers of a component, 1.5 GiB), or a number of images, which
    /// are of less than a MB each.
    pub(crate) fn named(name: &str) -> anyhow::Result<Self> {
        Ok(match name {
            "small" => Self {
                bases: &[40 * MB],
                own: [40, 6, 20, 10, 32, 8, 40, 12, 24, 4, 28, 2]
                    .map(|own| own * MB)
                    .into(),
                tiny: 0,
            },
            "large" => Self {
                bases: &[80 * MB, 80 * MB],
                own: [
                    20, 5, 40, 10, 2, 300, 10, 20, 60, 5, 10, 40, 150, 20, 2, 10, 5, 40, 10, 110, 20, 2, 10,
                    60, 5, 20, 40, 10, 90, 20, 10, 5, 60, 10, 40, 20, 80, 5, 10, 2,
                ]
                .map(|own| own * MB)
                .into(),
                tiny: 4 << 10,
            },
            number => {
                let images: usize = number
                    .parse()
                    .context("a profile is `small`, `large` or a number")?;
                if !(1..=2000).contains(&images) {
                    bail!("1 to 2000 images");
                }
                Self {
                    bases: &[8 * MB],
                    own: (0..images).map(|number| (1 + number % 4) * MB / 4).collect(),
                    tiny: 4 << 10,
                }
            }
        })
    }

    fn build(&self, registry: &str) -> Release {
        let names = (0..self.own.len()).map(|number| &*format!("component-{number}").leak());
        let own: Vec<(&'static str, usize)> = names.zip(self.own.iter().copied()).collect();
        synthetic::shaped(registry, self.bases, &own, self.tiny)
    }

    /// A registry's directory with such a release for a registry at `host`, made when first asked for.
    pub(crate) fn content(&self, host: &str) -> anyhow::Result<Content> {
        let recipe = format!("{self:?} {host} {}", include_str!("../synthetic/mod.rs"));
        let name = format!("release-{}", &sha256(recipe.as_bytes())["sha256:".len()..][..16]);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let list = dir.join("images");
        if !list.exists() {
            // Left by an interrupted run.
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir_all(&dir)?;
            println!(
                "making a release in `{}`, for this and later times",
                dir.display()
            );
            let release = self.build(host);
            let registry = DockerRegistry::keeping(&dir, "127.0.0.1:5099");
            rig::fill(&registry, &release);
            let components = release.components.iter().map(|(name, _)| release.component(name));
            let mut lines = vec![synthetic::unique_bytes(&release).to_string(), release.by_digest()];
            lines.extend(components);
            std::fs::write(&list, lines.join("\n"))?;
        }
        let text = std::fs::read_to_string(&list)?;
        let mut lines = text.lines();
        let bytes = lines.next().context("an empty list")?.parse()?;
        let images = lines.map(str::to_owned).collect();
        Ok(Content { dir, images, bytes })
    }
}

/// A release in a registry's directory.
pub(crate) struct Content {
    pub(crate) dir: PathBuf,
    /// Pull specs, of which the first is the release image's.
    pub(crate) images: Vec<String>,
    /// Of all distinct layers, compressed.
    pub(crate) bytes: u64,
}
