//! Starts squid, tinyproxy and nginx, each in a network namespace with a directory of its own.

use std::fs::Permissions;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::certificates::Certificate;
use crate::link::Namespace;
use crate::stock::docker_registry;

/// They listen within a second on a busy machine.
const START: Duration = Duration::from_secs(20);

/// bcrypt of [`REGISTRY_LOGIN`]'s password, with the least work.
const HTPASSWD: &str = "user:$2b$04$3FWQHDV5TLZGKYK4uqq3Ae8bi/PhXzqXALdsxMnsDiZJMZd1dF61W\n";
/// The user that docker-registry accepts.
pub(super) const REGISTRY_LOGIN: &str = "user:hunter2";

/// A program that serves until it is dropped.
pub(crate) struct Program {
    child: Child,
    dir: TempDir,
}

impl Program {
    /// Starts it inside of the namespace, and waits until it listens at `address`.
    fn start(namespace: &Namespace, dir: TempDir, words: &[&str], address: SocketAddr) -> Self {
        let said = std::fs::File::create(dir.path().join("said")).expect("a file of our own");
        let child = namespace.within(|| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).current_dir(dir.path()).env_clear();
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
            command.spawn().expect("the program can be started")
        });
        let mut program = Self { child, dir };
        let begin = Instant::now();
        while namespace.within(|| TcpStream::connect(address)).is_err() {
            let ended = program.child.try_wait().expect("waiting for a child");
            assert!(
                begin.elapsed() < START && ended.is_none(),
                "`{}` does not listen at {address}: {}",
                words.join(" "),
                program.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        program
    }

    /// tinyproxy, for everybody or for one `user password`.
    pub(crate) fn tinyproxy(namespace: &Namespace, address: SocketAddr, login: Option<&str>) -> Self {
        let dir = directory();
        let login = login.map_or(String::new(), |login| format!("BasicAuth {login}\n"));
        let conf = format!(
            "Port {}\nListen {}\nTimeout 60\nLogFile \"{}\"\nLogLevel Connect\nPidFile \"{}\"\nMaxClients 100\n{login}",
            address.port(),
            address.ip(),
            dir.path().join("log").display(),
            dir.path().join("pid").display(),
        );
        std::fs::write(dir.path().join("conf"), conf).expect("writing to a temporary directory");
        hosts_file(dir.path());
        Self::start_mounted(
            namespace,
            dir,
            "mount --bind hosts /etc/hosts && exec /usr/bin/tinyproxy -d -c conf",
            address,
        )
    }

    /// Starts what a script mounts and becomes.
    fn start_mounted(namespace: &Namespace, dir: TempDir, script: &str, address: SocketAddr) -> Self {
        let words = [
            "/usr/bin/unshare",
            "--mount",
            "--propagation=private",
            "/bin/sh",
            "-c",
            script,
        ];
        Self::start(namespace, dir, &words, address)
    }

    /// squid for one user, by plain HTTP at `address` and with a certificate also by TLS at the next port.
    pub(super) fn squid(
        namespace: &Namespace,
        address: SocketAddr,
        login: (&str, &str),
        certificate: Option<&Certificate>,
    ) -> Self {
        let dir = directory();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let hash = Command::new("/usr/bin/openssl")
            .args(["passwd", "-apr1", login.1])
            .output()
            .expect("openssl can be started");
        let hash = String::from_utf8_lossy(&hash.stdout).into_owned();
        std::fs::write(dir.path().join("passwd"), format!("{}:{hash}", login.0)).expect("writing");
        hosts_file(dir.path());
        let tls = certificate.map_or(String::new(), |certificate| {
            format!(
                "https_port {}:{} tls-cert={} tls-key={}\n",
                address.ip(),
                address.port() + 1,
                certificate.chain.display(),
                certificate.key.display()
            )
        });
        let conf = format!(
            "http_port {address}\n{tls}auth_param basic program /usr/lib/squid/basic_ncsa_auth {}\n\
             acl known proxy_auth REQUIRED\nacl forbidden dstdomain forbidden.test\nhttp_access deny forbidden\n\
             http_access allow known\nhttp_access deny all\nhosts_file {}\naccess_log stdio:{}\ncache_log {}\n\
             cache deny all\npid_filename none\ncache_effective_user proxy\nshutdown_lifetime 0 seconds\n\
             pinger_enable off\nlogfile_rotate 0\ncoredump_dir {}\nnetdb_filename none\n",
            at("passwd"),
            at("hosts"),
            at("log"),
            at("cache.log"),
            at(""),
        );
        std::fs::write(dir.path().join("conf"), conf).expect("writing to a temporary directory");
        Self::start_mounted(
            namespace,
            dir,
            // Its shared memory has names that another squid has too.
            "mount -t tmpfs tmpfs /dev/shm && exec /usr/sbin/squid -N -f conf",
            address,
        )
    }

    /// docker-registry by TLS, for [`REGISTRY_LOGIN`].
    pub(super) fn docker_registry(
        namespace: &Namespace,
        address: SocketAddr,
        certificate: &Certificate,
    ) -> Self {
        let dir = directory();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(dir.path().join("htpasswd"), HTPASSWD).expect("writing to a temporary directory");
        let conf = serde_json::json!({
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": at("data")}},
            "http": {"addr": address.to_string(), "tls": {"certificate": certificate.chain, "key": certificate.key}},
            "auth": {"htpasswd": {"realm": "site", "path": at("htpasswd")}},
        });
        let path = at("config.json");
        std::fs::write(&path, conf.to_string()).expect("writing to a temporary directory");
        Self::start(
            namespace,
            dir,
            &[docker_registry::PROGRAM, "serve", &path],
            address,
        )
    }

    /// nginx by TLS before a server of plain HTTP, and with an authority, only for clients with a certificate of it.
    pub(crate) fn nginx(
        namespace: &Namespace,
        address: SocketAddr,
        certificate: &Certificate,
        upstream: &str,
        of_clients: Option<&Path>,
    ) -> Self {
        let dir = directory();
        let verify = of_clients.map_or(String::new(), |authority| {
            format!(
                "ssl_client_certificate {}; ssl_verify_client on;",
                authority.display()
            )
        });
        let conf = format!(
            "daemon off; user root; worker_processes 1; pid {0}/pid; error_log {0}/log info;\nevents {{}}\nhttp {{\n\
             access_log {0}/access;\nclient_body_temp_path {0}; proxy_temp_path {0}; fastcgi_temp_path {0}; \
             uwsgi_temp_path {0}; scgi_temp_path {0};\nserver {{\nlisten {address} ssl http2;\n\
             ssl_certificate {1}; ssl_certificate_key {2}; {verify}\n\
             location / {{ proxy_pass http://{upstream}; proxy_set_header Host $http_host; }}\n}}\n}}\n",
            dir.path().display(),
            certificate.chain.display(),
            certificate.key.display(),
        );
        let path = dir.path().join("conf");
        std::fs::write(&path, conf).expect("writing to a temporary directory");
        let path = path.display().to_string();
        Self::start(namespace, dir, &["/usr/sbin/nginx", "-c", &path], address)
    }

    /// What it wrote into its log so far.
    pub(crate) fn log(&self) -> String {
        let read = |name: &str| std::fs::read(self.file(name)).unwrap_or_default();
        [read("log"), read("cache.log"), read("said")]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .concat()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // nginx has a worker, which its master ends on this signal only.
        let process = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(process, rustix::process::Signal::QUIT);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(500) && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // It is gone already, or goes now; there is nothing else to be done about it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn directory() -> TempDir {
    let dir = tempfile::Builder::new().prefix("spoke-program-").tempdir();
    let dir = dir.expect("a temporary directory");
    // squid writes its log as an unprivileged user.
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).expect("it is ours");
    dir
}

/// The names that only a proxy resolves.
fn hosts_file(dir: &Path) {
    let text = format!("127.0.0.1 localhost\n{} registry.test\n", super::site::OUTSIDE);
    std::fs::write(dir.join("hosts"), text).expect("writing to a temporary directory");
}
