//! Starts nginx, which serves signatures from a directory and, at the same address, the content of docker-registry.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// It listens within a second on a busy machine.
const START: Duration = Duration::from_secs(20);

/// A running nginx.
pub(super) struct Server {
    child: Child,
    host: String,
    dir: TempDir,
}

impl Server {
    /// Serves `lookaside` below `/lookaside` and `/old-lookaside`, and docker-registry at `upstream` below `/v2`.
    pub(super) fn start(lookaside: &Path, upstream: &str) -> Self {
        // Freed here and taken again by nginx: it cannot choose a free port and print it.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let host = free.expect("a free loopback port").to_string();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let conf = format!(
            "daemon off; user root; worker_processes 1; pid {0}/pid; error_log {0}/error;\nevents {{}}\nhttp {{\n\
             log_format requests '$request_method $request_uri $status';\naccess_log {0}/access requests;\n\
             client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fastcgi;\n\
             uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi; client_max_body_size 0;\nserver {{\nlisten {host};\n\
             location /v2/ {{ proxy_pass http://{upstream}; proxy_set_header Host $http_host; }}\n\
             location /lookaside/ {{ alias {1}/; }}\nlocation /old-lookaside/ {{ alias {1}/; }}\n}}\n}}\n",
            dir.path().display(),
            lookaside.display(),
        );
        let path = dir.path().join("conf");
        std::fs::write(&path, conf).expect("writing to a temporary directory");
        let child = Command::new("/usr/sbin/nginx")
            .arg("-c")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx can be started");
        let server = Self { child, host, dir };
        let begin = Instant::now();
        while TcpStream::connect(&server.host).is_err() {
            assert!(
                begin.elapsed() < START,
                "nginx does not listen: {}",
                server.read("error")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// `127.0.0.1:port`
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// `GET /v2/… 200`, a line for each answered request, in the order of the answers.
    pub(super) fn requests(&self) -> Vec<String> {
        self.read("access").lines().map(str::to_owned).collect()
    }

    fn read(&self, name: &str) -> String {
        let bytes = std::fs::read(self.dir.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its master ends its worker on this signal; `kill` would leave the worker.
        let process = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}
