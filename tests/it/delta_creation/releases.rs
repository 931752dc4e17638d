//! Makes two releases of which the second differs little from the first, and runs `delta create`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;

use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;
use spoke_precache::delta::artifact::{DeltaArtifact, DeltaIndex};

use crate::image::release::{COMPONENTS, RELEASE, image_references, release_image_of};
use crate::image::{Compression, Format, Image, Layer, layer};
use crate::registry::Registry;
use crate::stock::docker_registry::DockerRegistry;
use crate::test_node::{Run, TestNode};

/// Bytes of a component's program.
const PROGRAM: usize = 300_000;

/// A release with its components.
pub(crate) struct TinyRelease {
    pub(crate) release: Image,
    pub(crate) components: Vec<(&'static str, Image)>,
}

/// Bytes of a seed, in which every version changes a few. They compress to half: of what does not compress, only the beginning
/// and the end are compared.
pub(crate) fn program(seed: u64, version: u64) -> Vec<u8> {
    let mut random = rand::rngs::SmallRng::seed_from_u64(seed);
    let mut bytes = vec![0; PROGRAM];
    random.fill(bytes.as_mut_slice());
    let mut random = rand::rngs::SmallRng::seed_from_u64(seed * 1_000 + version);
    for _ in 0..20 * version.min(1) {
        let at = random.random_range(0..PROGRAM - 16);
        random.fill(&mut bytes[at..at + 16]);
    }
    bytes.iter_mut().for_each(|byte| *byte &= 0x0f);
    bytes
}

fn layer_of(name: &str, content: &[u8]) -> Layer {
    layer_with(&[(name, content)])
}

/// A layer with these files in `/usr`.
fn layer_with(files: &[(&str, &[u8])]) -> Layer {
    let entries = files
        .iter()
        .map(|(name, _)| format!("file /usr/{name} 0755 0:0 bytes={name}\n"));
    let text = format!("dir /usr 0755 0:0\n{}", entries.collect::<String>());
    Layer::of_tar(&layer::tar_of(&text, files), Compression::Gzip)
}

/// An image of these layers.
pub(crate) fn image(name: &str, layers: Vec<Layer>) -> Image {
    Image::build(name, Format::Docker, "amd64", layers, |_, _| {})
}

/// A component: a base, and its program above it.
pub(crate) fn component(name: &'static str, base: u64, seed: u64, version: u64) -> Image {
    let programs = [(name, program(seed, version))];
    component_with(name, (name, base), &programs)
}

/// A component built from a source: a base, and these programs above it.
fn component_with(name: &str, (source, base): (&str, u64), programs: &[(&str, Vec<u8>)]) -> Image {
    let programs: Vec<(&str, &[u8])> = programs
        .iter()
        .map(|(name, content)| (*name, content.as_slice()))
        .collect();
    let layers = vec![layer_of("base", &program(1, base)), layer_with(&programs)];
    Image::build(name, Format::Docker, "amd64", layers, |config, _| {
        let source = format!("https://example.com/{source}");
        config["config"]["Labels"]["io.openshift.build.source-location"] = source.into();
    })
}

impl TinyRelease {
    /// Version `version` of a release: `etcd` and `cli` have changed since version 0, and so has their common base.
    /// `pod` never changes, and `added` is new in version 1. It is built from the source of `etcd`.
    pub(crate) fn build(host: &str, version: u64) -> Self {
        let mut components = vec![
            ("etcd", component("etcd", version, 2, version)),
            ("cli", component("cli", version, 3, version)),
            ("pod", component("pod", 0, 4, 0)),
        ];
        if version > 0 {
            let programs = [("etcd", program(2, 7))];
            let added = component_with("added", ("etcd", version), &programs);
            components.push(("added", added));
        }
        Self::of(host, version, components)
    }

    /// Version `version` of a release in which `tools` gets the program of `cli`, which is built from the same source, and
    /// in which `foreign` is new, which no old image resembles.
    pub(crate) fn with_a_moved_program(host: &str, version: u64) -> Self {
        let mut programs = vec![("tools", program(2, version))];
        let mut others = Vec::new();
        if version > 0 {
            programs.push(("cli", program(3, 7)));
            let layers = vec![layer_of("foreign", &program(8, 0))];
            others.push(("foreign", image("foreign", layers)));
        }
        let cli = component_with("cli", ("cli", 0), &[("cli", program(3, 0))]);
        let tools = component_with("tools", ("cli", 0), &programs);
        let components = [("cli", cli), ("tools", tools)].into_iter().chain(others);
        Self::of(host, version, components.collect())
    }

    fn of(host: &str, version: u64, components: Vec<(&'static str, Image)>) -> Self {
        let pull_specs = components
            .iter()
            .map(|(name, image)| (*name, format!("{host}/{COMPONENTS}@{}", image.digest())));
        let mut references = image_references(pull_specs);
        let version = format!("4.99.{version}");
        references["metadata"]["name"] = version.clone().into();
        let base = layer_of("cvo", &program(6, 0));
        let mut release = release_image_of(&version, &base, &references.to_string());
        release.architecture = "amd64".to_owned();
        Self { release, components }
    }

    pub(crate) fn component(&self, name: &str) -> &Image {
        let found = self.components.iter().find(|(known, _)| *known == name);
        &found.expect("a component of the release").1
    }

    pub(crate) fn push(&self, registry: &Registry) {
        registry.push(RELEASE, None, &self.release);
        for (_, image) in &self.components {
            registry.push(COMPONENTS, None, image);
        }
    }

    pub(crate) fn reference(&self, registry: &Registry) -> String {
        registry.at(RELEASE, &self.release.digest())
    }
}

/// A source registry with versions of a release, a docker-registry for the deltas, and the host of the creator.
pub(crate) struct Hub {
    pub(crate) source: Registry,
    pub(crate) deltas: DockerRegistry,
    pub(crate) host: TestNode,
    pub(crate) releases: Vec<TinyRelease>,
}

/// The repository for deltas.
pub(crate) const REPOSITORY: &str = "ocp/deltas";

impl Hub {
    /// A hub with this many versions of the release.
    pub(crate) fn with_versions(versions: u64) -> Self {
        Self::of(versions, TinyRelease::build)
    }

    /// A hub with so many versions that `build` makes.
    pub(crate) fn of(versions: u64, build: fn(&str, u64) -> TinyRelease) -> Self {
        let (source, deltas) = (Registry::start(), DockerRegistry::start());
        let host = TestNode::trusting(&[source.host(), deltas.host()]);
        let releases: Vec<TinyRelease> = (0..versions)
            .map(|version| build(&source.host(), version))
            .collect();
        for release in &releases {
            release.push(&source);
        }
        Self {
            source,
            deltas,
            host,
            releases,
        }
    }

    pub(crate) fn release(&self, version: usize) -> String {
        self.releases[version].reference(&self.source)
    }

    pub(crate) fn repository(&self) -> String {
        format!("{}/{REPOSITORY}", self.deltas.host())
    }

    pub(crate) fn work_dir(&self) -> PathBuf {
        self.host.out("work")
    }

    /// `delta create ARGS` to its end.
    pub(crate) fn create(&self, args: &[&str]) -> Run {
        let work_dir = self.work_dir();
        let work_dir = ["--work-dir", work_dir.to_str().expect("UTF-8")];
        self.host
            .start("delta create", &[&work_dir, args].concat())
            .wait()
    }

    /// From version 0 to version 1, into the repository.
    pub(crate) fn create_and_push(&self) -> Run {
        let (from, to, repository) = (self.release(0), self.release(1), self.repository());
        self.create(&["--from", &from, "--to", &to, "--push", &repository])
    }

    /// What the docker-registry answers to a GET below the repository.
    pub(crate) fn get(&self, path: &str) -> (u16, Vec<u8>) {
        let host = self.deltas.host();
        let mut socket = TcpStream::connect(&host).expect("docker-registry listens");
        let accept =
            "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, */*";
        let request =
            format!("GET /v2/{REPOSITORY}/{path} HTTP/1.0\r\nHost: {host}\r\nAccept: {accept}\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("sending a request");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).expect("reading an answer");
        let head = answer
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("an answer has a head");
        let status = String::from_utf8_lossy(&answer[..head]);
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.expect("a status"), answer.split_off(head + 4))
    }

    /// The index at the tag of two images, and its JSON.
    pub(crate) fn index(&self, from: &Image, to: &Image) -> Option<(DeltaIndex, Value)> {
        let (status, body) = self.get(&format!("manifests/{}", tag(from, to)));
        let json = serde_json::from_slice(&body).ok()?;
        (status == 200).then(|| (DeltaIndex::parse(&body).expect("an index"), json))
    }

    /// The artifact with this digest.
    pub(crate) fn artifact(&self, digest: &str) -> DeltaArtifact {
        let (status, body) = self.get(&format!("manifests/{digest}"));
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        DeltaArtifact::parse(&body).expect("an artifact")
    }
}

/// The tag of the index from one image to another.
pub(crate) fn tag(from: &Image, to: &Image) -> String {
    let [from, to] = [from, to].map(|image| image.digest()["sha256:".len()..][..12].to_owned());
    format!("delta-{from}-{to}")
}
