//! Pulls from a real registry: docker-registry (distribution), as packaged by Debian.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use spoke_precache::cancel::Cancel;
use spoke_precache::oci::{Digest, Platform};
use spoke_precache::registry::RegistrySettings;
use spoke_precache::spool::Spool;

use crate::tls::Certificates;
use crate::{fetcher, insecure, noise, reference, registries, request, settings};

pub(crate) const USER: &str = "user";
pub(crate) const PASSWORD: &str = "hunter2";

/// bcrypt of the password, with the least work.
const HTPASSWD: &str = "user:$2b$04$3FWQHDV5TLZGKYK4uqq3Ae8bi/PhXzqXALdsxMnsDiZJMZd1dF61W\n";

/// docker-registry with a password, over TLS if there is a certificate.
pub(crate) struct Daemon {
    process: Child,
    pub(crate) host: String,
    scheme: &'static str,
    pub(crate) certificates: Certificates,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Daemon {
    /// Nothing where there is no such program.
    pub(crate) async fn start(is_tls: bool) -> Option<Self> {
        let certificates = Certificates::new();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let host = format!("127.0.0.1:{port}");
        std::fs::write(certificates.path("htpasswd"), HTPASSWD).unwrap();
        certificates.self_signed("own", "-addext subjectAltName=IP:127.0.0.1");
        let path = |name| certificates.path(name).display().to_string();
        let mut http = json!({"addr": host});
        if is_tls {
            http["tls"] = json!({"certificate": path("own.crt"), "key": path("own.key")});
        }
        let config = json!({
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": path("data")}},
            "http": http,
            "auth": {"htpasswd": {"realm": "fake", "path": path("htpasswd")}},
        });
        std::fs::write(certificates.path("config.json"), config.to_string()).unwrap();
        let started = Command::new("docker-registry")
            .args(["serve", &path("config.json")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(process) = started else {
            crate::notice::print("SKIPPED", "no docker-registry");
            return None;
        };
        let scheme = if is_tls { "https" } else { "http" };
        let daemon = Self {
            process,
            host,
            scheme,
            certificates,
        };
        for _ in 0..200 {
            if daemon.client().get(daemon.url("")).send().await.is_ok() {
                return Some(daemon);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("docker-registry does not come up");
    }

    fn client(&self) -> reqwest::Client {
        let builder = reqwest::Client::builder().no_proxy();
        builder.tls_danger_accept_invalid_certs(true).build().unwrap()
    }

    fn url(&self, path: &str) -> String {
        format!("{}://{}/v2/{path}", self.scheme, self.host)
    }

    async fn push_blob(&self, bytes: &Bytes) {
        let (client, digest) = (self.client(), Digest::of(bytes));
        let begun = client
            .post(self.url("team/a/blobs/uploads/"))
            .basic_auth(USER, Some(PASSWORD))
            .send()
            .await;
        let location = begun.unwrap().headers()["location"].to_str().unwrap().to_owned();
        let put = client
            .put(format!("{location}&digest={digest}"))
            .basic_auth(USER, Some(PASSWORD));
        assert_eq!(put.body(bytes.clone()).send().await.unwrap().status(), 201);
    }

    /// Pushes an image with one layer under `team/a:1`.
    pub(crate) async fn push(&self, layer: &Bytes) {
        let config = json!({"architecture": "amd64", "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [Digest::of(layer)]}});
        let config = Bytes::from(config.to_string());
        self.push_blob(layer).await;
        self.push_blob(&config).await;
        let kind = "application/vnd.docker.distribution.manifest.v2+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": kind,
            "config": {"mediaType": "application/vnd.docker.container.image.v1+json",
                "digest": Digest::of(&config), "size": config.len()},
            "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                "digest": Digest::of(layer), "size": layer.len()}]});
        let put = self
            .client()
            .put(self.url("team/a/manifests/1"))
            .basic_auth(USER, Some(PASSWORD));
        let put = put
            .header("content-type", kind)
            .body(manifest.to_string())
            .send()
            .await;
        assert_eq!(put.unwrap().status(), 201);
    }

    pub(crate) fn auth_file(&self) -> std::path::PathBuf {
        let path = self.certificates.path("auth.json");
        let auths = json!({"auths": {&self.host: {"username": USER, "password": PASSWORD}}});
        std::fs::write(&path, auths.to_string()).unwrap();
        path
    }

    async fn pull(&self, layer: &Bytes, settings: RegistrySettings) {
        let name = format!("{}/team/a:1", self.host);
        let (resolver, _) = registries(settings.clone());
        let platform = "linux/amd64".parse::<Platform>().unwrap();
        let nothing = |_: &Digest| None;
        let resolved = resolver
            .resolve(&reference(&name), &platform, &nothing, &Cancel::default())
            .await
            .unwrap();
        assert_eq!(resolved.image.layers[0].blob, Digest::of(layer));

        // Half of the blob is there from an earlier run.
        let dir = tempfile::tempdir().unwrap();
        drop(Spool::open(dir.path()).unwrap());
        let partial = dir.path().join(format!("{}.partial", Digest::of(layer)));
        std::fs::write(partial, &layer[..layer.len() / 2]).unwrap();
        let (fetcher, log) = fetcher(settings, dir.path());
        let blob = fetcher
            .fetch(request(layer, &[name]), &Cancel::default())
            .await
            .unwrap();
        assert_eq!(blob.size(), layer.len() as u64);
        assert_eq!(log.received(), (layer.len() - layer.len() / 2) as u64);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_over_http2_and_tls_with_a_password() {
    let Some(daemon) = Daemon::start(true).await else {
        return;
    };
    let layer = noise(3_000_001, 9);
    daemon.push(&layer).await;
    let settings = RegistrySettings {
        auth_files: vec![daemon.auth_file()],
        ca_certificates: vec![daemon.certificates.pem("own.crt")],
        ..settings("")
    };
    daemon.pull(&layer, settings).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_by_plain_http_when_insecure() {
    let Some(daemon) = Daemon::start(false).await else {
        return;
    };
    let layer = noise(3_000_001, 9);
    daemon.push(&layer).await;
    let settings = RegistrySettings {
        auth_files: vec![daemon.auth_file()],
        ..settings(&insecure(&[&daemon.host]))
    };
    daemon.pull(&layer, settings).await;
}
