//! Starts docker-registry, to which podman and skopeo push what they read from our store.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) const PROGRAM: &str = "/usr/bin/docker-registry";
/// It listens within a second on a busy machine.
const START: Duration = Duration::from_secs(20);

/// A running docker-registry.
pub(crate) struct DockerRegistry {
    child: Child,
    host: String,
    /// Its content, perhaps another's too; none if it is kept.
    dir: Option<Arc<TempDir>>,
}

impl DockerRegistry {
    /// Starts an empty one on a free loopback port and waits until it listens.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self::sharing(Arc::new(dir), "127.0.0.1")
    }

    /// Another one with the same content, on `[::1]`.
    pub(crate) fn twin_on_ipv6(&self) -> Self {
        let dir = self.dir.clone().expect("a registry that keeps nothing");
        Self::sharing(dir, "[::1]")
    }

    fn sharing(dir: Arc<TempDir>, address: &str) -> Self {
        let mut registry = Self::keeping(dir.path(), &free_host(address));
        registry.dir = Some(dir);
        registry
    }

    /// One with the content of `dir`, which stays, on a free loopback port.
    pub(crate) fn at(dir: &Path) -> Self {
        Self::keeping(dir, &free_host("127.0.0.1"))
    }

    /// One with the content of `dir`, which stays. `host` is an address with a port.
    pub(crate) fn keeping(dir: &Path, host: &str) -> Self {
        let host = host.to_owned();
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\n\
             http: {{addr: '{host}'}}\n",
            dir.display()
        );
        let path = dir.join(format!("{}.yml", host.replace([':', '[', ']'], "-")));
        std::fs::write(&path, config).expect("writing to a temporary directory");
        let child = Command::new(PROGRAM)
            .arg("serve")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry can be started");
        let dir = None;
        let registry = Self { child, host, dir };
        let begin = Instant::now();
        while TcpStream::connect(&registry.host).is_err() {
            assert!(begin.elapsed() < START, "docker-registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }

    /// Removes a tag, which exists.
    pub(crate) fn remove_tag(&self, repository: &str, tag: &str) {
        let dir = self.dir.as_ref().expect("a registry that keeps nothing").path();
        let tags = dir.join(format!(
            "docker/registry/v2/repositories/{repository}/_manifests/tags"
        ));
        std::fs::remove_dir_all(tags.join(tag)).expect("a tag");
    }

    /// `127.0.0.1:port`, `[::1]:port`
    pub(crate) fn host(&self) -> String {
        self.host.clone()
    }
}

/// An address with a free port, freed here and taken again by the registry: it cannot choose one and print it.
fn free_host(address: &str) -> String {
    let free = TcpListener::bind(format!("{address}:0")).and_then(|listener| listener.local_addr());
    free.expect("a free loopback port").to_string()
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        // It is gone already, or goes now; there is nothing else to be done about it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
