//! Makes media with the programs that people use for it: skopeo, podman, docker-registry and tar.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::oc_mirror::oc_mirror;
use super::{Source, utf8};
use crate::image::{Image, sha256};
use crate::registry::faults::Fault;
use crate::stock::docker_registry::DockerRegistry;

/// How long a node may take until its spool has everything that it waits for nothing to unpack.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program's way to write images to a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `skopeo copy … oci:`, all images in one layout.
    SkopeoOci,
    /// `skopeo copy … oci-archive:`, a file for each image.
    SkopeoOciArchive,
    /// `skopeo copy … dir:`, a directory for each image.
    SkopeoDir,
    /// `skopeo copy … docker-archive:`, a file for each image.
    SkopeoDockerArchive,
    /// `podman save --format docker-archive`.
    PodmanDockerArchive,
    /// `podman save --format docker-dir`.
    PodmanDockerDir,
    /// `podman save --format oci-archive`.
    PodmanOciArchive,
    /// `podman save --format oci-dir`.
    PodmanOciDir,
    /// `tar` of skopeo's layout: names begin with `./`, and every member has a PAX header.
    OciTar,
    /// The storage directory of a docker-registry.
    Registry,
    /// `tar` of that directory, with GNU's headers for long names.
    RegistryTar,
    /// The archives of `oc-mirror --v2`.
    OcMirror,
    /// Its cache.
    OcMirrorCache,
    /// `oc image mirror … file://`.
    OcImageMirror,
    /// The spool of a node that was stopped before it could unpack anything.
    Spool,
}

/// What a medium has of the images on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Every manifest, config and layer by its digest.
    Everything,
    /// Every layer that is compressed in the registry. The program has compressed the others, and converted manifests and
    /// configs.
    CompressedLayers,
    /// The tar of every layer.
    Tars,
    /// Layers that the program has compressed anew, or not at all.
    OtherLayers,
    /// Every layer but the first of each image.
    UpperLayers,
}

impl Kind {
    pub(crate) fn holds(self) -> Holds {
        match self {
            Self::SkopeoDir
            | Self::Registry
            | Self::RegistryTar
            | Self::OcMirror
            | Self::OcMirrorCache
            | Self::OcImageMirror => Holds::Everything,
            Self::SkopeoOci | Self::SkopeoOciArchive | Self::OciTar => Holds::CompressedLayers,
            Self::SkopeoDockerArchive | Self::PodmanDockerArchive => Holds::Tars,
            Self::PodmanDockerDir | Self::PodmanOciArchive | Self::PodmanOciDir => Holds::OtherLayers,
            Self::Spool => Holds::UpperLayers,
        }
    }

    /// Whether the program can write this image as it is, or at all. podman 4.3 and skopeo 1.9 convert no layers with zstd for
    /// Docker's formats. oc-mirror compresses layers that are not compressed.
    pub(crate) fn takes(self, image: &str) -> bool {
        match self {
            Self::SkopeoDockerArchive | Self::PodmanDockerArchive | Self::PodmanDockerDir => {
                image != "site/compressions"
            }
            Self::OcMirror | Self::OcMirrorCache => image != "site/uncompressed",
            _ => true,
        }
    }
}

impl Source {
    /// Writes the images of these names to new media of this kind, which are given to `--blobs-from`.
    pub(crate) fn media(&self, kind: Kind, names: &[&str]) -> Vec<PathBuf> {
        let place = self.place(&format!("{kind:?}"));
        let each = |write: &dyn Fn(&str, &Path)| {
            let medium = |name: &&str| {
                let medium = place.join(flat(name));
                write(name, &medium);
                medium
            };
            names.iter().map(medium).collect::<Vec<_>>()
        };
        let save = |format: &str| {
            each(&|name, medium| {
                let image = self.registry.tagged(name);
                self.tools.podman_pull(&image);
                let save = [
                    "save",
                    "--quiet",
                    "--format",
                    format,
                    "--output",
                    utf8(medium),
                    &image,
                ];
                self.tools.podman(&save).ok();
            })
        };
        match kind {
            Kind::SkopeoOci => vec![self.oci_layout(&place, names)],
            Kind::SkopeoOciArchive => {
                each(&|name, medium| self.copy(name, &["--all"], "oci-archive", medium, ""))
            }
            Kind::SkopeoDir => each(&|name, medium| self.copy(name, &["--all"], "dir", medium, "")),
            Kind::SkopeoDockerArchive => each(&|name, medium| {
                let tag = format!(":{name}:latest");
                self.copy(name, &[], "docker-archive", medium, &tag);
            }),
            Kind::PodmanDockerArchive => save("docker-archive"),
            Kind::PodmanDockerDir => save("docker-dir"),
            Kind::PodmanOciArchive => save("oci-archive"),
            Kind::PodmanOciDir => save("oci-dir"),
            Kind::OciTar => {
                let layout = self.oci_layout(&place.join("layout"), names);
                vec![tar_of(&layout, ".", "posix", &place.join("layout.tar"))]
            }
            Kind::Registry => vec![self.registry_storage(&place, names)],
            Kind::RegistryTar => {
                let storage = self.registry_storage(&place.join("storage"), names);
                vec![tar_of(&storage, "docker", "gnu", &place.join("registry.tar"))]
            }
            Kind::OcMirror => vec![oc_mirror(self, &place, names).archives],
            Kind::OcMirrorCache => vec![oc_mirror(self, &place, names).cache],
            Kind::OcImageMirror => vec![self.oc_image_mirror(&place, names)],
            Kind::Spool => vec![self.spool(names)],
        }
    }

    fn oci_layout(&self, layout: &Path, names: &[&str]) -> PathBuf {
        for name in names {
            let reference = format!(":{}", flat(name));
            self.copy(name, &["--all"], "oci", layout, &reference);
        }
        layout.to_owned()
    }

    /// `skopeo copy FLAGS docker://NAME TRANSPORT:TO`
    fn copy(&self, name: &str, flags: &[&str], transport: &str, to: &Path, reference: &str) {
        let from = format!("docker://{}", self.registry.tagged(name));
        let to = format!("{transport}:{}{reference}", to.display());
        let copy = [&["copy", "--quiet"], flags, &[&from, &to]].concat();
        self.tools.skopeo(&copy).ok();
    }

    /// Pushes the images to a docker-registry that keeps them at `storage`.
    pub(super) fn registry_storage(&self, storage: &Path, names: &[&str]) -> PathBuf {
        fs::create_dir_all(storage).unwrap();
        let registry = DockerRegistry::at(storage);
        for name in names {
            let from = format!("docker://{}", self.registry.tagged(name));
            let to = format!("docker://{}/{name}:latest", registry.host());
            let flags = [
                "--quiet",
                "--all",
                "--preserve-digests",
                "--dest-tls-verify=false",
            ];
            self.tools
                .skopeo(&[&["copy"], &flags[..], &[&from, &to]].concat())
                .ok();
        }
        storage.to_owned()
    }

    /// As `pkg/cli/image/imagesource/file.go` of openshift/oc writes it, at commit 1054970a. Tags are symbolic links.
    fn oc_image_mirror(&self, place: &Path, names: &[&str]) -> PathBuf {
        for name in names {
            let [blobs, manifests] =
                ["blobs", "manifests"].map(|kind| place.join("v2").join(name).join(kind));
            for dir in [&blobs, &manifests] {
                fs::create_dir_all(dir).unwrap();
            }
            let put_manifest = |bytes: &[u8]| {
                let digest = sha256(bytes);
                fs::write(blobs.join(&digest), bytes).unwrap();
                fs::hard_link(blobs.join(&digest), manifests.join(&digest)).unwrap();
                digest
            };
            let put = |image: &Image| {
                fs::write(blobs.join(sha256(&image.config)), &image.config).unwrap();
                for layer in &image.layers {
                    fs::write(blobs.join(&layer.digest), &layer.blob).unwrap();
                }
                put_manifest(&image.manifest)
            };
            let list = self.images.lists.iter().find(|list| list.name == *name);
            let digest = match list {
                Some(list) => {
                    list.instances.iter().for_each(|image| drop(put(image)));
                    put_manifest(&list.bytes)
                }
                None => put(self.images.image(name)),
            };
            symlink(digest, manifests.join("latest")).unwrap();
        }
        place.to_owned()
    }

    /// Stops a node that has everything but the first layers, without which it can unpack nothing.
    fn spool(&self, names: &[&str]) -> PathBuf {
        let pulled =
            names.iter().map(
                |name| match self.images.lists.iter().find(|list| list.name == *name) {
                    Some(list) => list
                        .instances
                        .iter()
                        .find(|image| image.architecture == crate::image::node_architecture()),
                    None => Some(self.images.image(name)),
                },
            );
        let layers = pulled.map(|image| &image.expect("an instance for this node").layers);
        let (mut first, mut upper) = (BTreeSet::new(), BTreeSet::new());
        for layers in layers {
            first.insert(layers[0].digest.clone());
            upper.extend(layers[1..].iter().map(|layer| layer.digest.clone()));
        }
        let node = self.node();
        for digest in &first {
            self.registry.fault(Fault::on(digest).stall(0));
        }
        let references: Vec<String> = names.iter().map(|name| self.reference(name)).collect();
        let images: Vec<&str> = references.iter().flat_map(|name| ["--image", name]).collect();
        let running = node.start("run", &images);
        let spool = node.host().join("var/lib/containers/spoke-precache");
        let begin = Instant::now();
        while !upper.iter().all(|digest| spool.join(digest).exists()) {
            assert!(
                begin.elapsed() < PATIENCE,
                "the spool is not full: {}",
                running.stderr()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(running);
        self.registry.end_faults();
        // Where it stays after the node.
        let place = self.place("spool");
        copy_files(&spool, &place);
        place
    }
}

/// The files of a directory to another one.
fn copy_files(from: &Path, to: &Path) {
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// `tar --format=FORMAT` of `what` in `dir`.
fn tar_of(dir: &Path, what: &str, format: &str, tar: &Path) -> PathBuf {
    let status = Command::new("tar")
        .arg(format!("--format={format}"))
        .arg("--create")
        .arg("--file")
        .arg(tar)
        .arg("--directory")
        .arg(dir)
        .arg(what)
        .status();
    assert!(
        status.expect("`tar` can be started").success(),
        "tar of {}",
        dir.display()
    );
    tar.to_owned()
}

/// A repository as a name of a file, or of a tag.
fn flat(name: &str) -> String {
    name.replace('/', "-")
}
