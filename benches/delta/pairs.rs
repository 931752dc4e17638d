//! Combines layers to pairs of releases, in a registry.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::archives::Archives;
use crate::contents::{Contents, Generation, ImageRecipe};
use crate::image::release::{COMPONENTS, RELEASE, Release, image_references, release_image_of};
use crate::image::{Format, Image, node_architecture, sha256};
use crate::layers::{self, Made};
use crate::stock::docker_registry::DockerRegistry;
use crate::{rig, synthetic};

/// Where images are copied to a registry's directory, before a measurement.
const FILLING: &str = "127.0.0.1:5098";

/// A program in two versions, as files: `--pair NAME OLD NEW`.
pub(crate) struct ProgramPair {
    pub(crate) name: String,
    pub(crate) old: PathBuf,
    pub(crate) new: PathBuf,
}

/// Two releases.
pub(crate) struct Pair {
    pub(crate) name: &'static str,
    pub(crate) old: Side,
    pub(crate) new: Side,
}

/// A release: its layers, and its images, by name.
pub(crate) struct Side {
    pub(crate) layers: Vec<Made>,
    images: Vec<ImageRecipe>,
    generation: Generation,
}

/// A layer of the new release that the old one does not have, and its predecessor.
pub(crate) struct LayerPair<'a> {
    pub(crate) old: &'a Made,
    pub(crate) new: &'a Made,
}

impl Pair {
    /// The releases of packages.
    pub(crate) fn of_packages(
        name: &'static str,
        old: Generation,
        contents: &Contents,
        archives: &Archives,
    ) -> anyhow::Result<Self> {
        let side = |generation| {
            let both = |layer: &&str| {
                let recipe = contents.layers.iter().find(|recipe| recipe.name == **layer);
                recipe.is_some_and(|recipe| recipe.is_in(old) && recipe.is_in(Generation::New))
            };
            let has_all =
                |image: &&ImageRecipe| image.layers.iter().map(String::as_str).all(|name| both(&name));
            let images: Vec<ImageRecipe> = contents.images.iter().filter(has_all).cloned().collect();
            let recipes = contents
                .layers
                .iter()
                .filter(|recipe| both(&recipe.name.as_str()));
            let recipes: Vec<_> = recipes.collect();
            let make = |number: usize| layers::make(recipes[number], generation, archives);
            let layers = synthetic::in_parallel(recipes.len(), make);
            anyhow::Ok(Side {
                layers: layers.into_iter().collect::<anyhow::Result<_>>()?,
                images,
                generation,
            })
        };
        Ok(Self {
            name,
            old: side(old)?,
            new: side(Generation::New)?,
        })
    }

    /// The releases of given programs, with nothing else.
    pub(crate) fn of_programs(name: &'static str, programs: &[ProgramPair]) -> anyhow::Result<Self> {
        let side = |generation, file: fn(&ProgramPair) -> &Path| {
            let layers = programs
                .iter()
                .map(|program| layers::of_program(&program.name, file(program), generation));
            let images = programs.iter().map(|program| ImageRecipe {
                name: program.name.clone(),
                layers: vec![program.name.clone()],
            });
            anyhow::Ok(Side {
                layers: layers.collect::<anyhow::Result<_>>()?,
                images: images.collect(),
                generation,
            })
        };
        Ok(Self {
            name,
            old: side(Generation::Old, |program| &program.old)?,
            new: side(Generation::New, |program| &program.new)?,
        })
    }

    /// The layers to make deltas for.
    pub(crate) fn layers(&self) -> impl Iterator<Item = LayerPair<'_>> {
        let pairs = self.old.layers.iter().zip(&self.new.layers);
        pairs
            .filter(|(old, new)| old.diff_id != new.diff_id)
            .map(|(old, new)| LayerPair { old, new })
    }

    /// A registry's directory with both releases for a registry at `host`, made when first asked for.
    pub(crate) fn content(&self, host: &str) -> anyhow::Result<Content> {
        let (old, new) = (self.old.release(host)?, self.new.release(host)?);
        let key = sha256(format!("{}{}", old.by_digest(), new.by_digest()).as_bytes());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let dir = dir.join(format!("delta-{}", &key["sha256:".len()..][..16]));
        let done = dir.join("complete");
        if !done.exists() {
            println!(
                "making the releases of `{}` in `{}`, for this and later times",
                self.name,
                dir.display()
            );
            // Left by an interrupted run.
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir)?;
            let registry = DockerRegistry::keeping(&dir, FILLING);
            rig::fill(&registry, &old);
            rig::fill(&registry, &new);
            fs::write(done, "")?;
        }
        Ok(Content { dir, old, new })
    }
}

impl Side {
    /// Names of the layers of an image, which is given by its id.
    pub(crate) fn layers_of(&self, release: &Release, id: &str) -> Vec<String> {
        let components = self.images.iter().zip(&release.components);
        let mut found = components.filter(|(_, (_, image))| image.id() == id);
        let base = || self.layers.first().map(|layer| layer.name.clone());
        // The release image has the first layer, and files that no other image needs.
        found.next().map_or_else(
            || base().into_iter().collect(),
            |(recipe, _)| recipe.layers.clone(),
        )
    }

    fn release(&self, host: &str) -> anyhow::Result<Release> {
        let version = self.generation.version();
        let component = |recipe: &ImageRecipe| {
            let layers = recipe.layers.iter().map(|name| {
                let made = self.layers.iter().find(|made| made.name == *name);
                made.context("a layer of the release")?.layer()
            });
            let layers: Vec<_> = layers.collect::<anyhow::Result<_>>()?;
            let image = Image::build(
                &recipe.name,
                Format::Docker,
                node_architecture(),
                layers,
                |config, _| {
                    config["config"]["Labels"]["version"] = version.into();
                },
            );
            anyhow::Ok((&*recipe.name.clone().leak(), image))
        };
        let components: Vec<(&'static str, Image)> =
            self.images.iter().map(component).collect::<anyhow::Result<_>>()?;
        let pull_specs = components
            .iter()
            .map(|(name, image)| (*name, format!("{host}/{COMPONENTS}@{}", image.digest())));
        let mut references = image_references(pull_specs);
        references["metadata"]["name"] = version.into();
        let base = self.layers.first().context("a release without layers")?.layer()?;
        Ok(Release {
            release: release_image_of(version, &base, &references.to_string()),
            components,
            registry: host.to_owned(),
        })
    }
}

/// Both releases in a registry's directory.
pub(crate) struct Content {
    pub(crate) dir: PathBuf,
    pub(crate) old: Release,
    pub(crate) new: Release,
}

impl Content {
    /// A copy to which deltas may be pushed.
    pub(crate) fn copy(&self) -> anyhow::Result<tempfile::TempDir> {
        let parent = self.dir.parent().context("a directory in another")?;
        let copy = tempfile::tempdir_in(parent)?;
        // Hard links: a registry never writes into an existing blob.
        let mut cp = std::process::Command::new("cp");
        crate::archives::call(cp.arg("-al").arg(self.dir.join("docker")).arg(copy.path()))?;
        Ok(copy)
    }

    /// The repository of the release images.
    pub(crate) fn repository(&self) -> String {
        format!("{}/{RELEASE}", self.new.registry)
    }
}
