//! The registry that everybody uses, to push to: a second opinion on what stock tools read out of our store.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub(crate) const PROGRAM: &str = "/usr/bin/docker-registry";
/// It listens within a second on a busy machine.
const START: Duration = Duration::from_secs(20);

/// A running docker-registry with an empty store.
pub(crate) struct DockerRegistry {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl DockerRegistry {
    /// Starts it on a free loopback port and waits until it listens.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        // Freed here and taken again by the registry: it cannot be told to choose one itself and say which.
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = port.expect("a free loopback port").port();
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\n\
             http: {{addr: 127.0.0.1:{port}}}\n",
            dir.path().display()
        );
        let path = dir.path().join("config.yml");
        std::fs::write(&path, config).expect("writing to a temporary directory");
        let child = Command::new(PROGRAM)
            .arg("serve")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry can be started");
        let registry = Self {
            child,
            port,
            _dir: dir,
        };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begin.elapsed() < START, "docker-registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }

    /// `127.0.0.1:port`
    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        // It is gone already, or goes now; there is nothing else to be done about it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
