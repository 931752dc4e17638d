//! Tests long-running programs on the same store, as CRI-O is: they see new images at once and do not write back an old state.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::compare::inconsistencies;
use crate::image::samples::sample_images;
use crate::needs::needs;
use crate::registry::Registry;
use crate::stock::top;
use crate::test_node::TestNode;

/// It listens within a few seconds on a busy machine.
const START: Duration = Duration::from_secs(20);

/// A running `podman system service`.
struct Service {
    child: Child,
    socket: PathBuf,
}

impl Service {
    fn start(world: &TestNode) -> Self {
        let socket = world.out("podman.sock");
        let address = format!("unix://{}", socket.display());
        let mut command = world.tool_command(
            &top(),
            "pull",
            &["podman", "system", "service", "--time=0", &address],
        );
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let service = Self { child, socket };
        let begin = Instant::now();
        while UnixStream::connect(&service.socket).is_err() {
            assert!(begin.elapsed() < START, "the service does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        service
    }

    fn ask(&self, method: &str, path: &str) -> String {
        ask(&self.socket, method, path).unwrap()
    }
}

/// One request; HTTP 1.0, so that the answer ends with the connection.
fn ask(socket: &Path, method: &str, path: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    write!(
        stream,
        "{method} /v4.0.0/libpod/images/{path} HTTP/1.0\r\nHost: d\r\nContent-Length: 0\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    assert!(answer.starts_with("HTTP/1.0 200"), "{method} {path}: {answer}");
    Ok(answer)
}

impl Drop for Service {
    fn drop(&mut self) {
        // To `timeout`, which passes this on and ends with podman; SIGKILL would leave podman behind.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Row 12 of storage-format.md 12.2.
#[test]
fn a_running_service_sees_an_image_at_once_and_keeps_it() {
    needs!(root(), stock());
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    let world = TestNode::trusting(&[registry.host()]);
    let names = ["zoo/whiteouts", "zoo/links", "zoo/base"].map(|name| registry.tagged(name));
    world.run(&["--image", &names[0]]).exits(0);

    let service = Service::start(&world);
    assert!(service.ask("GET", "json").contains(&names[0]));
    world.run(&["--image", &names[1]]).exits(0);
    let listed = service.ask("GET", "json");
    assert!(
        listed.contains(&names[1]),
        "the service does not see the second image: {listed}"
    );
    // A service that had kept its old list would write it back now.
    service.ask("POST", &format!("pull?reference={}&tlsVerify=false", names[2]));
    let listed = service.ask("GET", "json");
    for name in &names {
        assert!(listed.contains(name), "{name} is gone: {listed}");
    }
    drop(service);
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}
