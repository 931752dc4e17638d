//! Which URL goes through which proxy: the cases of Go's `golang.org/x/net/http/httpproxy`, file `proxy_test.go`.

use reqwest::Url;
use spoke_precache::registry::{NoProxy, Proxies, Proxy, ProxyError};

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
fn urls_go_where_go_sends_them() {
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
