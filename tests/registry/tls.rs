//! Downloads over TLS with the certificates that sites have: private authorities, self-signed, expired, client certificates.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use spoke_precache::cancel::Cancel;
use spoke_precache::fetch::FetchError;
use spoke_precache::registry::{
    ClusterAuthorities, Kind, LimitSettings, Pem, Proxies, Proxy, RegistrySettings, SystemRoots,
};

use crate::{fetcher, insecure, noise, request, settings};

/// Where certificates are made, by `openssl`.
pub(crate) struct Certificates(pub(crate) tempfile::TempDir);

impl Certificates {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn openssl(&self, arguments: &str) {
        let done = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(self.0.path())
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{arguments}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
    }

    /// The usual one of a lab: its own authority, for `127.0.0.1`.
    pub(crate) fn self_signed(&self, name: &str, more: &str) {
        self.openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key \
             -out {name}.crt {more}"
        ));
    }

    /// The same, but its time is over. `req` makes none such.
    fn expired(&self, name: &str) {
        let conf = "[ca]\ndefault_ca=own\n[own]\nnew_certs_dir=.\ndatabase=index\nserial=serial\ndefault_md=sha256\n\
            policy=any\nx509_extensions=extensions\n[any]\ncommonName=supplied\n\
            [extensions]\nbasicConstraints=critical,CA:TRUE\nsubjectAltName=IP:127.0.0.1\n";
        for (file, text) in [("ca.conf", conf), ("index", ""), ("serial", "01")] {
            std::fs::write(self.path(file), text).unwrap();
        }
        self.openssl(&format!(
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out csr"
        ));
        self.openssl(&format!(
            "ca -batch -selfsign -config ca.conf -in csr -keyfile {name}.key -startdate 20200101000000Z \
             -enddate 20210101000000Z -out {name}.crt"
        ));
    }

    /// One that the authority `ca` signed.
    pub(crate) fn signed(&self, name: &str, ca: &str) {
        self.self_signed(
            name,
            &format!("-CA {ca}.crt -CAkey {ca}.key -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=CA:FALSE"),
        );
    }

    pub(crate) fn pem(&self, name: &str) -> Pem {
        let path = self.path(name);
        let bytes = std::fs::read(&path).unwrap();
        Pem { path, bytes }
    }
}

/// Answers every request with `head` and the blob, over TLS with the certificate `name`; with `client_ca`, only to those
/// whom that authority vouches for.
pub(crate) fn serve(
    certificates: &Certificates,
    name: &str,
    client_ca: Option<&str>,
    head: String,
    body: Bytes,
) -> String {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = CertificateDer::pem_file_iter(certificates.path(&format!("{name}.crt"))).unwrap();
    let key = PrivateKeyDer::from_pem_file(certificates.path(&format!("{name}.key"))).unwrap();
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            let ca = CertificateDer::from_pem_file(certificates.path(&format!("{ca}.crt"))).unwrap();
            roots.add(ca).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
            builder.with_client_cert_verifier(verifier.unwrap())
        }
    };
    let config = Arc::new(
        builder
            .with_single_cert(chain.collect::<Result<_, _>>().unwrap(), key)
            .unwrap(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            // A client that refuses us is what the tests are about.
            let _ = answer(connection.unwrap(), config.clone(), &head, &body);
        }
    });
    host
}

fn answer(tcp: TcpStream, config: Arc<ServerConfig>, head: &str, body: &[u8]) -> std::io::Result<()> {
    let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), tcp);
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        tls.read_exact(&mut byte)?;
        request.extend(byte);
    }
    write!(
        tls,
        "{head}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    tls.write_all(body)?;
    tls.conn.send_close_notify();
    tls.flush()
}

pub(crate) fn ok() -> String {
    "HTTP/1.1 200 OK\r\n".into()
}

async fn fetch(host: &str, body: &Bytes, settings: RegistrySettings) -> Result<(), FetchError> {
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, _) = fetcher(settings, dir.path());
    let wanted = request(body, &[format!("{host}/a:1")]);
    fetcher.fetch(wanted, &Cancel::default()).await.map(|_| ())
}

fn trusting(pem: Pem) -> RegistrySettings {
    RegistrySettings {
        ca_certificates: vec![pem],
        ..settings("")
    }
}

const FOR_LOOPBACK: &str = "-addext subjectAltName=IP:127.0.0.1";

#[tokio::test(flavor = "multi_thread")]
async fn a_private_authority_is_trusted_from_the_settings_or_the_system() {
    let (certificates, body) = (Certificates::new(), noise(1000, 1));
    certificates.self_signed("ca", "");
    certificates.signed("leaf", "ca");
    let host = serve(&certificates, "leaf", None, ok(), body.clone());
    fetch(&host, &body, trusting(certificates.pem("ca.crt")))
        .await
        .unwrap();
    let system = RegistrySettings {
        system_roots: SystemRoots::Pem(vec![certificates.pem("ca.crt")]),
        ..settings("")
    };
    fetch(&host, &body, system).await.unwrap();

    let error = fetch(&host, &body, settings("")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    assert!(
        error.to_string().contains("signed by unknown authority"),
        "{error}"
    );
    assert!(
        error.to_string().ends_with("among those that the host trusts"),
        "{error}"
    );
    fetch(&host, &body, settings(&insecure(&[&host]))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_self_signed_leaf_is_trusted_only_if_just_that_is_configured() {
    let (certificates, body) = (Certificates::new(), noise(1000, 1));
    certificates.self_signed("own", FOR_LOOPBACK);
    certificates.self_signed("twin", FOR_LOOPBACK);
    let host = serve(&certificates, "own", None, ok(), body.clone());
    fetch(&host, &body, trusting(certificates.pem("own.crt")))
        .await
        .unwrap();
    let error = fetch(&host, &body, trusting(certificates.pem("twin.crt")))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    let text = error.to_string();
    let expected = "self-signed certificate that is not trusted\nhint: put this certificate into `/etc/containers/certs.d/";
    assert!(text.contains(expected), "{text}");
    // Where OpenShift puts a cluster's additionalTrustBundle.
    let system = |name| RegistrySettings {
        system_roots: SystemRoots::Pem(vec![certificates.pem(name)]),
        ..settings("")
    };
    fetch(&host, &body, system("own.crt")).await.unwrap();
    let error = fetch(&host, &body, system("twin.crt")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn its_name_and_its_dates_must_be_right() {
    let (certificates, body) = (Certificates::new(), noise(1000, 1));
    certificates.self_signed("other", "-addext subjectAltName=DNS:other.example");
    certificates.expired("old");
    for (name, why, hint) in [
        (
            "other",
            "not valid for",
            "hint: name the registry as its certificate does",
        ),
        ("old", "expired", "hint: renew the registry's certificate"),
    ] {
        let host = serve(&certificates, name, None, ok(), body.clone());
        let error = fetch(&host, &body, trusting(certificates.pem(&format!("{name}.crt"))))
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains(why) && text.contains(hint), "{error}");
        assert_eq!(error.kind(), Kind::Refused);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certs_d_has_authorities_and_client_certificates_for_one_host() {
    let (certificates, body) = (Certificates::new(), noise(1000, 1));
    certificates.self_signed("ca", "");
    certificates.signed("leaf", "ca");
    certificates.signed("us", "ca");
    let host = serve(&certificates, "leaf", Some("ca"), ok(), body.clone());
    let certs_d = tempfile::tempdir().unwrap();
    let with_certs_d = || RegistrySettings {
        certs_dirs: vec![Path::new("/nonexistent").into(), certs_d.path().into()],
        ..settings("")
    };
    let dir = certs_d.path().join(&host);
    std::fs::create_dir(&dir).unwrap();
    std::fs::copy(certificates.path("ca.crt"), dir.join("ca.crt")).unwrap();
    let error = fetch(&host, &body, with_certs_d()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Network, "{error}");
    std::fs::copy(certificates.path("us.crt"), dir.join("client.cert")).unwrap();
    let error = fetch(&host, &body, with_certs_d()).await.unwrap_err();
    assert!(
        error.to_string().contains("client.cert`: there is no `.key`"),
        "{error}"
    );
    std::fs::copy(certificates.path("us.key"), dir.join("client.key")).unwrap();
    fetch(&host, &body, with_certs_d()).await.unwrap();

    // As in containers/image: one that cannot be read does not spoil the others, nor does a link into nowhere.
    std::fs::write(
        dir.join("odd.crt"),
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    std::fs::write(
        dir.join("torn.crt"),
        "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    std::fs::write(dir.join("der.crt"), [0x30, 0x82, 0, 0]).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.join("gone.crt")).unwrap();
    std::fs::write(dir.join("README"), "whatever").unwrap();
    // Of several that say who we are, the one whose authority the registry believes.
    certificates.self_signed("other", "");
    certificates.signed("stranger", "other");
    std::fs::copy(certificates.path("stranger.crt"), dir.join("a.cert")).unwrap();
    std::fs::copy(certificates.path("stranger.key"), dir.join("a.key")).unwrap();
    fetch(&host, &body, with_certs_d()).await.unwrap();

    for (remove, says) in [("a.cert", "a.key`: there is no `.cert`"), ("a.key", "")] {
        std::fs::remove_file(dir.join(remove)).unwrap();
        match fetch(&host, &body, with_certs_d()).await {
            Ok(()) => assert_eq!(says, ""),
            Err(error) => assert!(!says.is_empty() && error.to_string().contains(says), "{error}"),
        }
    }
    std::fs::copy(certificates.path("stranger.key"), dir.join("client.key")).unwrap();
    let error = fetch(&host, &body, with_certs_d()).await.unwrap_err();
    assert!(error.to_string().contains("client.cert`"), "{error}");
    assert_eq!(error.kind(), Kind::Local);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_has_authorities_for_all_and_for_one_host_and_invalid_ones_are_skipped() {
    let (certificates, body) = (Certificates::new(), noise(1000, 1));
    certificates.self_signed("ca", "");
    certificates.signed("leaf", "ca");
    certificates.self_signed("own", FOR_LOOPBACK);
    let torn = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
    let of = |name: &str, host: Option<&str>| {
        let mut pem = certificates.pem(name);
        pem.bytes.extend(torn.as_bytes());
        RegistrySettings {
            cluster_authorities: vec![ClusterAuthorities {
                host: host.map(str::to_owned),
                pem,
            }],
            ..settings("")
        }
    };
    for (certificate, authority) in [("leaf", "ca.crt"), ("own", "own.crt")] {
        let host = serve(&certificates, certificate, None, ok(), body.clone());
        fetch(&host, &body, of(authority, None)).await.unwrap();
        fetch(&host, &body, of(authority, Some(&host))).await.unwrap();
        for other in ["127.0.0.1", "127.0.0.1:1", "registry.example.com"] {
            let error = fetch(&host, &body, of(authority, Some(other))).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Refused, "{other}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_is_not_used_instead_of_https_unless_insecure() {
    let (certificates, body) = (Certificates::new(), noise(1000, 1));
    let plain = crate::fake::Fake::start().await;
    let digest = plain.put_blob("a", &body);
    certificates.self_signed("own", FOR_LOOPBACK);
    let head = format!(
        "HTTP/1.1 307 Elsewhere\r\nLocation: http://{}/v2/a/blobs/{digest}\r\n",
        plain.host()
    );
    let host = serve(&certificates, "own", None, head, Bytes::new());
    let error = fetch(&host, &body, trusting(certificates.pem("own.crt")))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("redirects from HTTPS to HTTP"),
        "{error}"
    );
    assert_eq!(plain.seen("").len(), 0);
    fetch(&host, &body, settings(&insecure(&[&host]))).await.unwrap();

    // Nor is a password told to a token server over plain HTTP.
    let head = format!(
        "HTTP/1.1 401 Who\r\nWWW-Authenticate: Bearer realm=\"http://{}/token\"\r\n",
        plain.host()
    );
    let host = serve(&certificates, "own", None, head, Bytes::new());
    let error = fetch(&host, &body, trusting(certificates.pem("own.crt")))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("by plain HTTP"), "{error}");
    assert_eq!(plain.seen("/token").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_of_plain_http_is_recognised() {
    let (plain, body) = (crate::fake::Fake::start().await, noise(1000, 1));
    plain.put_blob("a", &body);
    let error = fetch(&plain.host(), &body, settings("")).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("hint: if the registry speaks plain HTTP"),
        "{error}"
    );
    assert_eq!(error.kind(), Kind::Refused);
}

/// The forwarder stands for the proxy at another address, and the certificate must be for the proxy's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_by_tls_that_has_an_address_is_used_under_a_limit() {
    let certificates = Certificates::new();
    certificates.self_signed("own", "-addext subjectAltName=IP:127.0.0.1");
    certificates.self_signed("other", "-addext subjectAltName=IP:127.0.0.2");
    let body = noise(1000, 1);
    for (name, is_right) in [("own", true), ("other", false)] {
        let proxy = serve(&certificates, name, None, ok(), body.clone());
        let proxy: Option<Proxy> = Some(format!("https://{proxy}").parse().unwrap());
        let settings = RegistrySettings {
            ca_certificates: vec![certificates.pem("own.crt"), certificates.pem("other.crt")],
            proxies: Proxies {
                http: proxy.clone(),
                https: proxy,
                ..Proxies::default()
            },
            limit: LimitSettings {
                rate: "80Mbit".parse().unwrap(),
                ..LimitSettings::default()
            },
            ..settings(&insecure(&["registry.test"]))
        };
        let result = fetch("registry.test", &body, settings).await;
        assert_eq!(result.is_ok(), is_right, "{name}: {result:?}");
    }
}
