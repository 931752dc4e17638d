//! Lists referrers in registries with and without the API, in mirrors, and in hostile registries.

use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use spoke_precache::cancel::Cancel;
use spoke_precache::oci::Digest;
use spoke_precache::registry::{Kind, Referrer, RegistryError, RegistrySettings, referrers_tag};

use crate::fake::{Fake, cut_body};
use crate::{insecure, reference, registries, settings};

const WANTED: &str = "application/vnd.wanted";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Nothing listens there.
const UNREACHABLE: &str = "127.0.0.1:1";

fn subject() -> Digest {
    Digest::of(b"the image's manifest")
}

fn entry(number: usize, artifact_type: &str) -> Value {
    json!({"mediaType": INDEX, "digest": Digest::of(number.to_string().as_bytes()), "size": number,
        "artifactType": artifact_type, "annotations": {"number": number.to_string()}})
}

fn index(entries: &[Value]) -> Bytes {
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
    index.to_string().into()
}

/// Below `/v2/team/a/`.
fn api_path() -> String {
    format!("/v2/team/a/referrers/{}", subject())
}

fn tag_path() -> String {
    format!("/v2/team/a/manifests/{}", referrers_tag(subject()))
}

async fn list(host: &str, settings: RegistrySettings) -> Result<Vec<Referrer>, RegistryError> {
    let (registries, _) = registries(settings);
    let image = reference(&format!("{host}/team/a")).with_digest(subject());
    let cancel = Cancel::default();
    registries.referrers(&image, subject(), WANTED, &cancel).await
}

async fn list_at(fake: &Fake) -> Result<Vec<Referrer>, RegistryError> {
    list(&fake.host(), settings(&insecure(&[&fake.host()]))).await
}

fn numbers(list: &[Referrer]) -> Vec<u64> {
    list.iter().map(|referrer| referrer.size).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_filter_is_applied_even_if_the_registry_ignores_it() {
    let fake = Fake::start().await;
    let entries = [
        entry(1, "other"),
        entry(2, WANTED),
        entry(2, WANTED),
        entry(3, WANTED),
    ];
    fake.put(&api_path(), INDEX, index(&entries));
    let found = list_at(&fake).await.unwrap();
    assert_eq!(numbers(&found), [2, 3]);
    assert_eq!(found[0].digest, Digest::of(b"2"));
    assert_eq!(found[0].annotations["number"], "2");
    let seen = fake.seen("/referrers/");
    assert_eq!(seen[0].query, "artifactType=application%2Fvnd.wanted");
    assert_eq!(fake.seen("/manifests/").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_followed_but_neither_in_circles_nor_to_other_hosts() {
    let (fake, other) = (Fake::start().await, Fake::start().await);
    let foreign = format!("<http://{}{}?n=4>; rel=\"next\"", other.host(), api_path());
    fake.fault(move |seen| {
        let number = match seen.query.rsplit_once("n=") {
            Some((_, number)) => number.parse::<usize>().unwrap(),
            None => 1,
        };
        let link = match number {
            1 => "<?n=2>; a=b; REL=next".to_owned(),
            3 => foreign.clone(),
            number => format!("<?n={}>; rel=\"next\"", number + 1),
        };
        let headers = [(header::CONTENT_TYPE, INDEX.to_owned()), (header::LINK, link)];
        Some((headers, index(&[entry(number, WANTED)])).into_response())
    });
    assert_eq!(numbers(&list_at(&fake).await.unwrap()), [1, 2, 3]);
    assert_eq!(other.seen("").len(), 0);

    let endless = Fake::start().await;
    endless.fault(|_| {
        let headers = [
            (header::CONTENT_TYPE, INDEX),
            (header::LINK, "<?x=1>; rel=\"next\""),
        ];
        Some((headers, index(&[entry(1, WANTED)])).into_response())
    });
    assert_eq!(numbers(&list_at(&endless).await.unwrap()), [1]);
    assert_eq!(endless.seen("").len(), 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tag_is_read_where_there_is_no_api() {
    let answers: [fn() -> Response; 3] = [
        || StatusCode::NOT_FOUND.into_response(),
        || StatusCode::METHOD_NOT_ALLOWED.into_response(),
        || ([(header::CONTENT_TYPE, "text/html")], "<html>").into_response(),
    ];
    for answer in answers {
        let fake = Fake::start().await;
        fake.fault(move |seen| {
            let is_api = seen.path.contains("/referrers/");
            is_api.then(answer)
        });
        assert_eq!(list_at(&fake).await.unwrap(), [], "no such tag");
        fake.put(&tag_path(), INDEX, index(&[entry(1, "other"), entry(2, WANTED)]));
        assert_eq!(numbers(&list_at(&fake).await.unwrap()), [2]);
        // The index itself, as a copy of an OCI layout has it.
        let own = json!({"schemaVersion": 2, "mediaType": INDEX, "artifactType": WANTED, "manifests": [],
            "subject": {"mediaType": "m", "digest": subject(), "size": 7}, "annotations": {"a": "b"}});
        fake.put(&tag_path(), INDEX, own.to_string());
        let found = list_at(&fake).await.unwrap();
        assert_eq!(found[0].digest, Digest::of(own.to_string().as_bytes()));
        assert_eq!(found[0].annotations["a"], "b");
    }
}

/// A registries.conf with a mirror for digests only, as OpenShift's cluster configuration has it.
fn mirrored(origin: &str, mirror: &str) -> RegistrySettings {
    settings(&format!(
        "[[registry]]\nlocation = '{origin}'\ninsecure = true\n[[registry.mirror]]\nlocation = '{mirror}'\n\
         insecure = true\npull-from-mirror = 'digest-only'\n"
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_for_digests_is_asked_for_the_tag_too() {
    let mirror = Fake::start().await;
    mirror.put(&tag_path(), INDEX, index(&[entry(1, WANTED)]));
    let found = list(UNREACHABLE, mirrored(UNREACHABLE, &mirror.host())).await;
    assert_eq!(numbers(&found.unwrap()), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_without_referrers_is_followed_by_the_original_registry() {
    let (origin, mirror) = (Fake::start().await, Fake::start().await);
    origin.put(&api_path(), INDEX, index(&[entry(1, WANTED)]));
    mirror.put(&api_path(), INDEX, index(&[]));
    let settings = mirrored(&origin.host(), &mirror.host());
    assert_eq!(numbers(&list(&origin.host(), settings).await.unwrap()), [1]);

    // Nobody waits for a registry that the site does not reach.
    let settings = RegistrySettings {
        give_up_after: None,
        ..mirrored(UNREACHABLE, &mirror.host())
    };
    assert_eq!(list(UNREACHABLE, settings).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_errors_and_passing_ones_are_retried() {
    let fake = Fake::start().await;
    fake.put(&api_path(), INDEX, index(&[entry(1, WANTED)]));
    let count = std::sync::atomic::AtomicUsize::new(0);
    fake.fault(
        move |_| match count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => Some(StatusCode::SERVICE_UNAVAILABLE.into_response()),
            1 => {
                let page = index(&[entry(1, WANTED)]);
                let head = Response::builder().header(header::CONTENT_TYPE, INDEX);
                let head = head.header(header::CONTENT_LENGTH, page.len());
                Some(head.body(cut_body(page, 20)).unwrap())
            }
            _ => None,
        },
    );
    assert_eq!(numbers(&list_at(&fake).await.unwrap()), [1]);
    assert_eq!(fake.seen("/referrers/").len(), 3);

    for (status, kind) in [
        (StatusCode::FORBIDDEN, Kind::Unauthorized),
        (StatusCode::INTERNAL_SERVER_ERROR, Kind::Network),
    ] {
        fake.fault(move |_| Some(status.into_response()));
        assert_eq!(list_at(&fake).await.unwrap_err().kind(), kind);
    }
    // The tag may be refused, too.
    fake.fault(|seen| {
        let is_api = seen.path.contains("/referrers/");
        let status = if is_api {
            StatusCode::NOT_FOUND
        } else {
            StatusCode::FORBIDDEN
        };
        Some(status.into_response())
    });
    assert_eq!(list_at(&fake).await.unwrap_err().kind(), Kind::Unauthorized);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_registry_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let settings = RegistrySettings {
        give_up_after: Some(Duration::from_millis(800)),
        ..settings(&insecure(&[&host]))
    };
    assert_eq!(list(&host, settings).await.unwrap_err().kind(), Kind::Network);
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_lists_are_bounded() {
    let fake = Fake::start().await;
    let many: Vec<Value> = (0..10_000).map(|number| entry(number, WANTED)).collect();
    fake.put(&api_path(), INDEX, index(&many));
    assert_eq!(list_at(&fake).await.unwrap().len(), 256);
    let huge = format!(r#"{{"manifests":[],"x":"{}"}}"#, "x".repeat(5 << 20));
    let bad_digest =
        json!({"mediaType": INDEX, "digest": "sha256:../../x", "size": 1, "artifactType": WANTED});
    for (body, kind) in [
        (huge.clone().into(), Kind::Malformed),
        ("{".into(), Kind::Malformed),
        ("[]".into(), Kind::Malformed),
        ("[".repeat(100_000).into(), Kind::Malformed),
        (r#"{"manifests":[7]}"#.into(), Kind::Malformed),
        (index(&[bad_digest]), Kind::Malformed),
    ] {
        let start = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        fake.put(&api_path(), INDEX, body.clone());
        assert_eq!(list_at(&fake).await.unwrap_err().kind(), kind, "{start}");
        let tag_only = Fake::start().await;
        tag_only.put(&tag_path(), INDEX, body);
        assert_eq!(list_at(&tag_only).await.unwrap_err().kind(), kind, "{start}");
    }
    // All pages together are not larger than one may be.
    let page = format!(r#"{{"manifests":[],"x":"{}"}}"#, "x".repeat(1 << 20));
    fake.fault(move |_| {
        let headers = [
            (header::CONTENT_TYPE, INDEX),
            (header::LINK, "<?x=1>; rel=\"next\""),
        ];
        Some((headers, page.clone()).into_response())
    });
    assert_eq!(list_at(&fake).await.unwrap_err().kind(), Kind::Malformed);
    assert!(fake.seen("").len() < 20);
}
