//! Tars that others wrote, as layers: what podman unpacks we unpack to the same tree, and what we store saves.

use std::fs;
use std::path::{Path, PathBuf};

use crate::compare::{census, compare};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::needs;
use crate::registry::Registry;
use crate::world::World;

/// Where the corpus lies beside a checkout; it is not ours to copy.
pub(crate) fn corpus() -> Result<PathBuf, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("there is no `{}`", path.display()))
    }
}

/// Every tar below the corpus, by a name that a repository may have.
fn tars(corpus: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut directories = vec![corpus.join("tar"), corpus.join("layers")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory of the corpus can be read") {
            let path = entry.expect("an entry of a directory").path();
            if path.is_dir() {
                directories.push(path);
            } else if path
                .file_stem()
                .is_some_and(|stem| stem.to_string_lossy().ends_with("sparse-big"))
            {
                // 60 GB of zeros from a few KB, which podman writes out; what we do with such is a test of its own.
            } else if path.extension().is_some_and(|extension| extension == "tar") {
                let stem = path
                    .file_stem()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .to_lowercase();
                let name = format!("tar/{}-{}", stem.replace('_', "-"), found.len());
                found.push((name, fs::read(path).expect("a file of the corpus can be read")));
            }
        }
    }
    found
}

#[test]
fn tars_of_the_corpus_become_what_podman_makes_of_them() {
    needs!(root(), stock());
    let corpus = match corpus() {
        Ok(corpus) => corpus,
        Err(why) => return crate::needs::skip(&why),
    };
    let registry = Registry::start();
    let (ours, theirs) = (
        World::trusting(&[registry.host()]),
        World::trusting(&[registry.host()]),
    );
    let mut names = Vec::new();
    for (name, tar) in tars(&corpus) {
        let layer = Layer::of_tar(&tar, Compression::Gzip);
        let image = Image::build(&name, Format::Docker, node_architecture(), vec![layer], |_, _| {});
        registry.push(&name, Some("latest"), &image);
        names.push(registry.tagged(&name));
    }
    let args: Vec<&str> = names.iter().flat_map(|name| ["--image", name]).collect();
    let run = ours.run(&args);
    let mut wrong = census(&ours.graph_root());
    let pulled = run.images("pulled");
    for name in &names {
        let answer = theirs.podman(&["pull", "--quiet", name]);
        match (pulled.contains(&name.as_str()), answer.is_ok()) {
            // Neither is in the way of the comparison, whichever of the two unpacks more.
            (true, true) | (false, false) => {}
            (true, false) => drop(ours.podman(&["rmi", name]).ok()),
            (false, true) => wrong.push(format!("podman unpacks {name}, we do not: {run}")),
        }
    }
    // Where podman's tar-splits are wrong, ours are not; that they rebuild the tar was seen above.
    let differences = compare(&ours.graph_root(), &theirs.graph_root(), &[]);
    wrong.extend(
        differences
            .into_iter()
            .filter(|line| !line.contains(" tar-split ")),
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
