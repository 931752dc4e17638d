//! Chooses the proxy for a URL, with the cases of Go (`golang.org/x/net/http/httpproxy`, `proxy_test.go`), and checks which
//! host gets the proxy's password.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use reqwest::Url;
use spoke_precache::cancel::Cancel;
use spoke_precache::fetch::FetchError;
use spoke_precache::registry::{Kind, NoProxy, Proxies, Proxy, ProxyError, RegistrySettings};

use crate::{fetcher, insecure, noise, request, settings};

/// `HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`, the URL, and the proxy.
const FOR_URL: [(&str, &str, &str, &str, Option<&str>); 20] = [
    (
        "127.0.0.1:8080",
        "",
        "",
        "http://example.com",
        Some("http://127.0.0.1:8080"),
    ),
    (
        "cache.example:1234",
        "",
        "",
        "http://example.com",
        Some("http://cache.example:1234"),
    ),
    (
        "cache.example",
        "",
        "",
        "http://example.com",
        Some("http://cache.example:80"),
    ),
    // A single label is a scheme to a parser of URLs.
    (
        "localhost",
        "",
        "",
        "http://example.com",
        Some("http://localhost:80"),
    ),
    (
        "https://cache.example",
        "",
        "",
        "http://example.com",
        Some("https://cache.example:443"),
    ),
    (
        "http://127.0.0.1:8080",
        "",
        "",
        "http://example.com",
        Some("http://127.0.0.1:8080"),
    ),
    (
        "https://127.0.0.1:8080",
        "",
        "",
        "http://example.com",
        Some("https://127.0.0.1:8080"),
    ),
    (
        "http.proxy.tld",
        "secure.proxy.tld",
        "",
        "http://insecure.tld/",
        Some("http://http.proxy.tld:80"),
    ),
    (
        "http.proxy.tld",
        "secure.proxy.tld",
        "",
        "https://secure.tld/",
        Some("http://secure.proxy.tld:80"),
    ),
    (
        "http.proxy.tld",
        "https://secure.proxy.tld",
        "",
        "https://secure.tld/",
        Some("https://secure.proxy.tld:443"),
    ),
    ("http.proxy.tld", "", "", "https://secure.tld/", None),
    ("http.proxy.tld", "", "", "ftp://insecure.tld/", None),
    ("", "", "", "http://example.com", None),
    ("proxy", "", "example.com", "http://example.com/", None),
    (
        "proxy",
        "",
        ".example.com",
        "http://example.com/",
        Some("http://proxy:80"),
    ),
    (
        "proxy",
        "",
        "ample.com",
        "http://example.com/",
        Some("http://proxy:80"),
    ),
    ("proxy", "", "example.com", "http://foo.example.com/", None),
    (
        "proxy",
        "",
        ".foo.com",
        "http://example.com/",
        Some("http://proxy:80"),
    ),
    ("proxy", "", "xn--fsq092h.com", "http://www.示例.com", None),
    ("proxy", "", "示例.com", "http://www.xn--fsq092h.com", None),
];

/// With port 80 and [`LIST`]: the host, and whether it goes through the proxy.
const USE_PROXY: [(&str, bool); 26] = [
    ("localhost", false),
    ("127.0.0.1", false),
    ("127.0.0.2", false),
    ("[::1]", false),
    ("[::2]", true),
    ("192.168.1.1", false),
    ("192.168.1.2", true),
    ("192.168.1.3", false),
    ("192.168.1.4", true),
    ("10.0.0.2", false),
    ("[2001:db8::52:0:1]", false),
    ("[2001:db8::52:0:2]", true),
    ("[2001:db8::52:0:3]", false),
    ("[2002:db8:a::123]", false),
    ("[fe80::424b:c8be:1643:a1b6]", true),
    ("barbaz.net", true),
    ("www.barbaz.net", false),
    ("foobar.com", false),
    ("www.foobar.com", false),
    ("foofoobar.com", true),
    ("baz.com", true),
    ("localhost.net", true),
    ("local.localhost", true),
    ("barbarbaz.net", true),
    ("wildcard.io", true),
    ("nested.wildcard.io", false),
];

const LIST: &str = "foobar.com, .barbaz.net, *.wildcard.io, 192.168.1.1, 192.168.1.2:81, 192.168.1.3:80, 10.0.0.0/30, \
    2001:db8::52:0:1, [2001:db8::52:0:2]:443, [2001:db8::52:0:3]:80, 2002:db8:a::45/64";

/// Not in Go's file, but in its code: the list, the URL, and whether it goes through the proxy.
const OURS: [(&str, &str, bool); 22] = [
    ("example.com:5000", "http://example.com:5000/", false),
    ("example.com:5000", "http://example.com/", true),
    (".example.com:5000", "http://a.example.com:5000/", false),
    ("Example.COM", "http://EXAMPLE.com/", false),
    (" , ,example.com ", "http://example.com/", false),
    (".示例.com", "http://www.示例.com", false),
    (":1", "http://example.com/", true),
    ("*", "http://10.1.2.3/", false),
    ("a,*,b", "http://[fd00::1]/", false),
    ("0.0.0.0/0", "http://10.1.2.3/", false),
    ("0.0.0.0/0", "http://[fd00::1]/", true),
    ("::/0", "http://[fd00::1]/", false),
    ("10.0.0.0/8", "http://10.0.0.1.nip.io/", true),
    ("10.0.0.0/33", "http://10.0.0.1/", true),
    ("10.0.0.0/+8", "http://10.0.0.1/", true),
    ("10.0.0.0/", "http://10.0.0.1/", true),
    ("::ffff:10.0.0.0/104", "http://10.9.9.9/", false),
    ("10.1.2.3", "http://[::ffff:10.1.2.3]/", false),
    // Without a port there is nothing that brackets are for.
    ("[fd00::1]", "http://[fd00::1]/", true),
    ("fd00::1", "http://[fd00::1]:5000/", false),
    ("[fd00::1]:5000", "http://[fd00::1]:5000/", false),
    ("", "http://[::ffff:127.0.0.1]/", false),
];

fn url(text: &str) -> Url {
    text.parse().expect(text)
}

fn proxy(text: &str) -> Option<Proxy> {
    (!text.is_empty()).then(|| text.parse().expect(text))
}

#[test]
fn urls_use_the_proxy_that_go_chooses() {
    for (http, https, no, to, expected) in FOR_URL {
        let proxies = Proxies {
            http: proxy(http),
            https: proxy(https),
            except: NoProxy::parse(no),
        };
        let found = proxies.for_url(&url(to)).map(ToString::to_string);
        assert_eq!(found.as_deref(), expected, "{http} {https} {no} {to}");
    }
    let through = |list: &str, to: &str| {
        let proxies = Proxies {
            http: proxy("proxy"),
            https: None,
            except: NoProxy::parse(list),
        };
        proxies.for_url(&url(to)).is_some()
    };
    for (host, expected) in USE_PROXY {
        let to = format!("http://{host}:80/");
        assert_eq!(through(LIST, &to), expected, "{host}");
        assert!(!through("*", &to), "{host}");
    }
    assert!(through(LIST, "http://awildcard.io/"));
    for (list, to, expected) in OURS {
        assert_eq!(through(list, to), expected, "{list} {to}");
    }
    // What Go keeps until it is used, we refuse at once; an address with a zone is no URL to us.
    for text in ["socks5://127.0.0.1", "foo://host"] {
        assert!(matches!(text.parse::<Proxy>(), Err(ProxyError::Scheme)), "{text}");
    }
    assert!("http://[1000::%25.example.com]:123".parse::<Url>().is_err());
    eprintln!(
        "COUNTED: {} cases of Go's and {} more",
        FOR_URL.len() + 2 * USE_PROXY.len() + 1 + 3,
        OURS.len()
    );
}

/// Keeps what it is asked and answers each connection's first request as `answer` says.
fn listener(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (host, heads) = (listener.local_addr().unwrap().to_string(), Arc::default());
    let kept = Arc::clone(&heads);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            // A client that goes away is no trouble.
            let _ = serve(connection.unwrap(), &answer, &kept);
        }
    });
    (host, heads)
}

fn serve(
    mut connection: TcpStream,
    answer: &impl Fn(&str) -> Vec<u8>,
    heads: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        connection.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    connection.write_all(&answer(&head))?;
    heads.lock().unwrap().push(head);
    Ok(())
}

async fn fetch(name: &str, body: &Bytes, settings: RegistrySettings) -> Result<(), FetchError> {
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, _) = fetcher(settings, dir.path());
    let wanted = request(body, &[format!("{name}/a:1")]);
    fetcher.fetch(wanted, &Cancel::default()).await.map(|_| ())
}

fn through(host: &str, registries_conf: &str) -> RegistrySettings {
    let proxy = proxy(&format!("http://me:hunter2@{host}"));
    let settings = RegistrySettings {
        proxies: Proxies {
            http: proxy.clone(),
            https: proxy,
            except: NoProxy::default(),
        },
        ..settings(registries_conf)
    };
    assert!(!format!("{settings:?}").contains("hunter2"));
    settings
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_past_the_proxy_gets_no_proxy_password() {
    let body = noise(1000, 1);
    let content = body.clone();
    let (target, at_target) = listener(move |_| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len());
        [head.as_bytes(), &content].concat()
    });
    let (proxy, at_proxy) = listener(move |head| match head.starts_with("connect ") {
        true => b"HTTP/1.1 403 Forbidden\r\n\r\n".to_vec(),
        false => format!("HTTP/1.1 302 Found\r\nLocation: http://{target}/x\r\nContent-Length: 0\r\n\r\n")
            .into_bytes(),
    });
    fetch(
        "registry.test",
        &body,
        through(&proxy, &insecure(&["registry.test"])),
    )
    .await
    .unwrap();
    let (at_proxy, at_target) = (at_proxy.lock().unwrap(), at_target.lock().unwrap());
    // "me:hunter2", in small letters.
    assert!(
        at_proxy
            .iter()
            .all(|head| head.contains("proxy-authorization: basic bwu6ahvudgvymg==")),
        "{at_proxy:?}"
    );
    assert!(
        at_proxy
            .last()
            .unwrap()
            .starts_with("get http://registry.test/v2/a/blobs/")
    );
    assert!(at_target[0].starts_with("get /x"), "{at_target:?}");
    assert!(!at_target[0].contains("authorization"), "{at_target:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ipv6_address_behind_a_tunnel_is_refused_with_a_hint() {
    let (proxy, at_proxy) = listener(|_| b"HTTP/1.1 200 OK\r\n\r\n".to_vec());
    let error = fetch("[fd00::1]:5000", &noise(10, 1), through(&proxy, ""))
        .await
        .unwrap_err();
    assert!(at_proxy.lock().unwrap()[0].starts_with("connect [fd00::1]:5000 "));
    assert!(
        error.to_string().contains("hint: list the address in `NO_PROXY`"),
        "{error}"
    );
    assert_eq!(error.kind(), Kind::Refused);
}
