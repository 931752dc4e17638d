//! Reads what the layers and images of the releases consist of: `contents.txt`.

use anyhow::{Context as _, bail, ensure};

/// One of the three releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// The last one of the minor version before.
    Minor,
    /// The patch release before.
    Old,
    New,
}

impl Generation {
    pub(crate) const ALL: [Self; 3] = [Self::Minor, Self::Old, Self::New];

    /// When its images were built, in seconds: the time of all files that the builds made or touched.
    pub(crate) fn build_time(self) -> i64 {
        match self {
            Self::Minor => 1_786_000_000,
            Self::Old => 1_792_000_000,
            Self::New => 1_793_200_000,
        }
    }

    /// The version of the release.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Minor => "4.98.20",
            Self::Old => "4.99.7",
            Self::New => "4.99.8",
        }
    }
}

/// Where the files of a layer come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Deb,
    Wheel,
    Go,
}

/// Files from one package.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) kind: Kind,
    pub(crate) package: String,
    versions: [Option<String>; 3],
    /// All if empty.
    pub(crate) files: Vec<String>,
}

impl Part {
    pub(crate) fn version(&self, generation: Generation) -> Option<&str> {
        self.versions[generation as usize].as_deref()
    }
}

/// A layer.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) name: String,
    pub(crate) parts: Vec<Part>,
}

impl Recipe {
    /// Whether that release has the layer.
    pub(crate) fn is_in(&self, generation: Generation) -> bool {
        self.parts.iter().all(|part| part.version(generation).is_some())
    }
}

/// An image: its layers, base layer first.
#[derive(Clone, Debug)]
pub(crate) struct ImageRecipe {
    pub(crate) name: String,
    pub(crate) layers: Vec<String>,
}

/// All layers and images.
pub(crate) struct Contents {
    pub(crate) layers: Vec<Recipe>,
    pub(crate) images: Vec<ImageRecipe>,
}

impl Contents {
    pub(crate) fn read() -> anyhow::Result<Self> {
        let (mut layers, mut images) = (Vec::<Recipe>::new(), Vec::new());
        for line in include_str!("contents.txt").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match *words.as_slice() {
                [] | ["#", ..] => {}
                ["layer", name] => layers.push(Recipe {
                    name: name.to_owned(),
                    parts: Vec::new(),
                }),
                ["image", name, ref names @ ..] => images.push(ImageRecipe {
                    name: name.to_owned(),
                    layers: names.iter().map(ToString::to_string).collect(),
                }),
                [kind, package, minor, old, new, ref files @ ..] => {
                    let layer = layers.last_mut().context("a `layer` line comes first")?;
                    layer.parts.push(Part {
                        kind: kind_of(kind)?,
                        package: package.to_owned(),
                        versions: versions([minor, old, new]),
                        files: files.iter().map(ToString::to_string).collect(),
                    });
                }
                _ => bail!("cannot read this line of contents.txt: `{line}`"),
            }
        }
        for name in images.iter().flat_map(|image| &image.layers) {
            ensure!(
                layers.iter().any(|layer| layer.name == *name),
                "contents.txt has no layer `{name}`"
            );
        }
        Ok(Self { layers, images })
    }
}

fn kind_of(word: &str) -> anyhow::Result<Kind> {
    Ok(match word {
        "deb" => Kind::Deb,
        "wheel" => Kind::Wheel,
        "go" => Kind::Go,
        _ => bail!("contents.txt has no kind `{word}`"),
    })
}

fn versions(words: [&str; 3]) -> [Option<String>; 3] {
    let mut last = None;
    words.map(|word| {
        match word {
            "." => {}
            "-" => last = None,
            version => last = Some(version.to_owned()),
        }
        last.clone()
    })
}
