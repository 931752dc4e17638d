//! Gets single signatures by URL, as for the stores of release signatures.

use std::fs;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect};
use bytes::Bytes;
use spoke_precache::cancel::Cancel;
use spoke_precache::registry::{NoProxy, Proxies, Registries, RegistryError, RegistrySettings};

use crate::fake::{Fake, trickle};
use crate::tls::{Certificates, ok, serve};
use crate::{registries, settings};

const LIMIT: u64 = 50 << 10;

async fn get(registries: &Registries, url: &str) -> Result<Option<Bytes>, RegistryError> {
    let url = url.parse().unwrap();
    registries
        .get_signature_file(&url, LIMIT, &Cancel::default())
        .await
}

fn plain() -> Arc<Registries> {
    registries(settings("")).0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_got_once_and_may_be_missing() {
    let (fake, registries) = (Fake::start().await, plain());
    let url = |path: &str| format!("http://{}/{path}", fake.host());
    fake.put("/a", "x/y", &b"signature"[..]);
    fake.put("/large", "x/y", vec![0; LIMIT as usize + 1]);
    let found = get(&registries, &url("a")).await.unwrap();
    assert_eq!(found.unwrap(), "signature");
    assert_eq!(get(&registries, &url("b")).await.unwrap(), None);
    let error = get(&registries, &url("large")).await.unwrap_err();
    assert!(matches!(error, RegistryError::TooLarge { .. }), "{error}");
    assert_eq!(fake.seen("").len(), 3);

    fake.fault(|_| Some(StatusCode::BAD_GATEWAY.into_response()));
    let error = get(&registries, &url("c")).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::Status { status: 502, .. }),
        "{error}"
    );
    assert_eq!(fake.seen("/c").len(), 1, "one attempt");

    let again = url("d");
    fake.fault(move |_| Some(Redirect::temporary(&again).into_response()));
    let error = get(&registries, &url("d")).await.unwrap_err();
    assert!(error.to_string().contains("more than 10 redirects"), "{error}");

    fake.fault(|seen| Some(trickle(seen, "x/y", &vec![0; 1 << 20].into(), 20 << 10)));
    let error = get(&registries, &url("endless")).await.unwrap_err();
    assert!(matches!(error, RegistryError::TooLarge { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_host_is_below_the_host_root() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("srv/d")).unwrap();
    fs::write(root.path().join("srv/a b"), "signature").unwrap();
    fs::write(root.path().join("srv/large"), vec![0; LIMIT as usize + 1]).unwrap();
    let (registries, _) = registries(RegistrySettings {
        host_root: root.path().into(),
        ..settings("")
    });
    let found = get(&registries, "file:///srv/a%20b").await.unwrap();
    assert_eq!(found.unwrap(), "signature");
    assert_eq!(get(&registries, "file:///srv/c").await.unwrap(), None);
    for (url, why) in [
        ("file:///srv/large", "larger than 51200 bytes"),
        ("file:///srv/d", "it is not a regular file"),
        (
            "file://srv/a",
            "it is not a path of this host\nhint: let it begin with `file:///`",
        ),
        (
            "ftp://u:hunter2@srv/a",
            "signature `ftp://srv/a`: the scheme `ftp` is not supported",
        ),
    ] {
        let error = get(&registries, url).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_proxy_is_used() {
    let fake = Fake::start().await;
    fake.put("/a", "x/y", &b"signature"[..]);
    let proxy = Some(format!("http://{}", fake.host()).parse().unwrap());
    let (registries, _) = registries(RegistrySettings {
        proxies: Proxies {
            http: proxy.clone(),
            https: proxy,
            except: NoProxy::default(),
        },
        ..settings("")
    });
    let found = get(&registries, "http://store.invalid/a").await.unwrap();
    assert_eq!(found.unwrap(), "signature");
}

#[tokio::test(flavor = "multi_thread")]
async fn certs_d_applies_to_the_host_of_the_url() {
    let (certificates, body) = (Certificates::new(), Bytes::from_static(b"signature"));
    certificates.self_signed("ca", "");
    certificates.signed("leaf", "ca");
    let host = serve(&certificates, "leaf", None, ok(), body.clone());
    let url = format!("https://{host}/a");
    let error = get(&plain(), &url).await.unwrap_err();
    assert!(
        error.to_string().contains("signed by unknown authority"),
        "{error}"
    );

    let certs_d = tempfile::tempdir().unwrap();
    fs::create_dir(certs_d.path().join(&host)).unwrap();
    fs::copy(
        certificates.path("ca.crt"),
        certs_d.path().join(&host).join("ca.crt"),
    )
    .unwrap();
    let (registries, _) = registries(RegistrySettings {
        certs_dirs: vec![certs_d.path().into()],
        ..settings("")
    });
    assert_eq!(get(&registries, &url).await.unwrap(), Some(body));
}
