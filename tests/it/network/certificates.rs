//! Tests certificates of private authorities, and registries that require a client certificate.

use std::fs::Permissions;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::servers::Program;
use super::site;
use crate::compare::inconsistencies;
use crate::link::Namespace;
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::TestNode;

/// An authority, which makes certificates with `openssl`.
pub(crate) struct Authority {
    dir: TempDir,
}

/// A certificate and its key.
pub(crate) struct Certificate {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    /// With a name by which servers recognise it.
    pub(crate) fn new(name: &str) -> Self {
        let dir = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .expect("a temporary directory");
        let authority = Self { dir };
        authority.request("authority", &format!("-subj /CN={name}"));
        authority
    }

    /// Its own certificate.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("authority.crt")
    }

    pub(crate) fn pem(&self) -> String {
        std::fs::read_to_string(self.path()).expect("it was made")
    }

    /// A certificate for these: `DNS:registry.test,IP:10.88.0.1`.
    pub(crate) fn certificate(&self, name: &str, subjects: &str) -> Certificate {
        let more = format!(
            "-CA authority.crt -CAkey authority.key -addext subjectAltName={subjects} -addext basicConstraints=CA:FALSE"
        );
        self.request(name, &format!("-subj /CN={name} {more}"));
        Certificate {
            chain: self.dir.path().join(format!("{name}.crt")),
            key: self.dir.path().join(format!("{name}.key")),
        }
    }

    fn request(&self, name: &str, more: &str) {
        let arguments = format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key \
             -out {name}.crt {more}"
        );
        let done = Command::new("/usr/bin/openssl")
            .args(arguments.split_whitespace())
            .current_dir(self.dir.path())
            .output()
            .expect("openssl can be started");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{arguments}: {said}");
        // squid reads it as an unprivileged user.
        let key = self.dir.path().join(format!("{name}.key"));
        std::fs::set_permissions(key, Permissions::from_mode(0o644)).expect("it was made");
    }
}

#[test]
fn a_registry_that_requires_a_client_certificate_gets_the_one_in_certs_d() {
    needs!(root(), links(), nginx());
    let (authority, stranger) = (Authority::new("site"), Authority::new("stranger"));
    let namespace = Namespace::new().unwrap();
    let plain = namespace.within(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let registry = Registry::on(plain);
    registry.push("image", Some("latest"), &site::image());
    let certificate = authority.certificate("server", "IP:127.0.0.1");
    let address = "127.0.0.1:5443".parse().unwrap();
    let ca = authority.path();
    let nginx = Program::nginx(&namespace, address, &certificate, &registry.host(), Some(&ca));
    let run = |world: &TestNode| {
        let args = ["--image", "127.0.0.1:5443/image:latest", "--give-up-after", "1s"];
        namespace.within(|| world.run(&args))
    };

    let world = TestNode::trusting(&[]);
    run(&world)
        .exits(8)
        .says("signed by unknown authority")
        .says("hint: put the certificate of its authority into");
    // The node trusts the registry, but sends no client certificate.
    world.write(
        "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
        &authority.pem(),
    );
    run(&world).exits(1).says("the registry answers 400");
    // A client certificate that the registry does not trust; and the right one of two.
    let dir = "etc/docker/certs.d/127.0.0.1:5443";
    let put = |name: &str, certificate: &Certificate| {
        for (from, extension) in [(&certificate.chain, "cert"), (&certificate.key, "key")] {
            let text = std::fs::read_to_string(from).unwrap();
            world.write(&format!("{dir}/{name}.{extension}"), &text);
        }
    };
    put("a", &stranger.certificate("stranger", "DNS:node"));
    run(&world).exits(1).says("the registry answers 400");
    put("client", &authority.certificate("node", "DNS:node"));
    run(&world).exits(0);
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
    assert!(!nginx.log().contains("[crit]"), "{}", nginx.log());

    // A directory in etc/containers hides the one in etc/docker, as for CRI-O.
    let other = TestNode::trusting(&[]);
    other.write("etc/containers/certs.d/127.0.0.1:5443/ca.crt", &stranger.pem());
    other.write("etc/docker/certs.d/127.0.0.1:5443/ca.crt", &authority.pem());
    run(&other).exits(8).says("signed by unknown authority");
}

#[test]
fn a_certificate_for_another_name_is_refused_with_both_names() {
    needs!(root(), links(), nginx());
    let (authority, namespace) = (Authority::new("site"), Namespace::new().unwrap());
    let plain = namespace.within(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let registry = Registry::on(plain);
    registry.push("image", Some("latest"), &site::image());
    let certificate = authority.certificate("server", "DNS:other.test");
    let address = "127.0.0.1:5443".parse().unwrap();
    let _nginx = Program::nginx(&namespace, address, &certificate, &registry.host(), None);
    let world = TestNode::trusting(&[]);
    world.write("etc/ssl/certs/ca-certificates.crt", &authority.pem());
    let run = namespace.within(|| world.run(&["--image", "127.0.0.1:5443/image:latest"]));
    run.exits(8)
        .says("127.0.0.1")
        .says("other.test")
        .says("hint: name the registry as its certificate does");
}
