//! The registry that everybody uses, to push to: a second opinion on what stock tools read out of our store.

use std::net::{TcpListener, TcpStream};
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
    /// Its content, perhaps another's too.
    dir: Arc<TempDir>,
}

impl DockerRegistry {
    /// Starts an empty one on a free loopback port and waits until it listens.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self::serving(Arc::new(dir), "127.0.0.1")
    }

    /// Another one with the same content, on `[::1]`.
    pub(crate) fn twin_on_ipv6(&self) -> Self {
        Self::serving(self.dir.clone(), "[::1]")
    }

    fn serving(dir: Arc<TempDir>, address: &str) -> Self {
        // Freed here and taken again by the registry: it cannot be told to choose one itself and say which.
        let free = TcpListener::bind(format!("{address}:0")).and_then(|listener| listener.local_addr());
        let host = free.expect("a free loopback port").to_string();
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\n\
             http: {{addr: '{host}'}}\n",
            dir.path().display()
        );
        let path = dir
            .path()
            .join(format!("{}.yml", host.replace([':', '[', ']'], "-")));
        std::fs::write(&path, config).expect("writing to a temporary directory");
        let child = Command::new(PROGRAM)
            .arg("serve")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry can be started");
        let registry = Self { child, host, dir };
        let begin = Instant::now();
        while TcpStream::connect(&registry.host).is_err() {
            assert!(begin.elapsed() < START, "docker-registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }

    /// `127.0.0.1:port`, `[::1]:port`
    pub(crate) fn host(&self) -> String {
        self.host.clone()
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        // It is gone already, or goes now; there is nothing else to be done about it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
