//! Runs a SOCKS proxy in this process: all connections of reqwest pass through it while a rate limit is set.
//!
//! # Design
//!
//! The proxy has a thread and a runtime of its own, so that no other task delays a read; it ends with the last
//! [`SocksProxy`]. It listens on ports of loopback:
//!
//! ```text
//! socks5h://spoke:PASSWORD@127.0.0.1:port    for direct connections: any host, by name
//! http://127.0.0.1:port                      in place of the site's HTTP proxy; another port for its HTTPS proxy
//! ```
//!
//! Every process on the node can reach loopback. So the first port asks for a password, random in each run. The others lead
//! only to the site's proxy, which every process can reach anyway and which asks for its own password; they pass reqwest's
//! bytes on unchanged.
//!
//! A site proxy that speaks TLS keeps its name, because its certificate has that name; a proxy with only an address gets a
//! name. The resolver of such a client answers 127.0.0.1 for every name, and only this name is asked for.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{ClientBuilder, Url};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::limiter::RateLimiter;
use super::socks::{self, Target};
use super::throttled_stream::ThrottledStream;
use crate::http::dns_failure;
use crate::registry::dns::DnsResolver;
use crate::registry::proxy::{Proxies, Proxy};

/// How long a client may take to name its target. It is this process, or another one on the node.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long all addresses of a host may take together: reqwest's connect timeout.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a listener waits after it cannot accept a connection, for example without free descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// The running proxy; it stops when this is dropped.
#[derive(Debug)]
pub(in crate::registry) struct SocksProxy {
    proxies: Arc<Proxies>,
    /// The address of the port with the password.
    direct: SocketAddr,
    password: SecretString,
    /// The local addresses that replace the site's proxies.
    http: Option<Proxy>,
    https: Option<Proxy>,
    shared: Arc<Shared>,
    /// Dropping it ends the thread.
    _stop: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Shared {
    limit: Arc<RateLimiter>,
    names: DnsResolver,
    password: SecretString,
    /// Why the last connection to a target failed: SOCKS can tell reqwest less than that.
    failures: Mutex<HashMap<Target, String>>,
    /// The last round trip to an address: that of a new connection is unknown before it is open.
    round_trips: Mutex<HashMap<IpAddr, Duration>>,
}

impl SocksProxy {
    /// Listens and starts the thread.
    pub(in crate::registry) fn start(
        limit: &Arc<RateLimiter>,
        names: &DnsResolver,
        proxies: &Arc<Proxies>,
    ) -> io::Result<Self> {
        let password = SecretString::from(format!("{:032x}", rand::random::<u128>()));
        let shared = Arc::new(Shared {
            limit: Arc::clone(limit),
            names: names.clone(),
            password: password.clone(),
            failures: Mutex::default(),
            round_trips: Mutex::default(),
        });
        let mut listeners = Vec::new();
        let mut listen = |target: Option<Target>| {
            let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            listeners.push((listener, target));
            io::Result::Ok(address)
        };
        let direct = listen(None)?;
        let mut stand_in = |proxy: &Option<Proxy>| {
            let Some(proxy) = proxy else { return Ok(None) };
            let (host, port) = proxy.address();
            let host = host.to_owned();
            let address = listen(Some(Target { host, port }))?;
            io::Result::Ok(Some(proxy.at(address)))
        };
        let (http, https) = (stand_in(&proxies.http)?, stand_in(&proxies.https)?);
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().name("limit".to_owned()).spawn(move || {
            runtime.block_on(async {
                for (listener, target) in listeners {
                    match TcpListener::from_std(listener) {
                        Ok(listener) => drop(tokio::spawn(serve(listener, target, of_thread.clone()))),
                        Err(error) => tracing::error!("`--limit-rate` cannot listen: {error}"),
                    }
                }
                // Ends with an error when the sender is dropped, which is its purpose.
                let _ = stopped.await;
            });
        })?;
        Ok(Self {
            proxies: Arc::clone(proxies),
            direct,
            password,
            http,
            https,
            shared,
            _stop: stop,
        })
    }

    /// Makes a client connect only through this proxy.
    pub(in crate::registry) fn apply(&self, builder: ClientBuilder) -> ClientBuilder {
        let stand_ins = Arc::new(Proxies {
            http: self.http.clone(),
            https: self.https.clone(),
            except: self.proxies.except.clone(),
        });
        let (proxies, password) = (Arc::clone(&self.proxies), self.password.clone());
        let direct = self.direct;
        let direct = reqwest::Proxy::custom(move |url| {
            let url = proxies.for_url(url).is_none().then(|| {
                let password = password.expose_secret();
                Url::parse(&format!("socks5h://spoke:{password}@{direct}"))
            });
            url?.ok()
        });
        stand_ins.set(builder).proxy(direct).dns_resolver(Loopback)
    }

    /// Why the proxy got no connection for `url`, if that is what failed.
    pub(in crate::registry) fn failure(&self, url: &Url) -> Option<String> {
        let target = match self.proxies.for_url(url) {
            Some(proxy) => {
                let (host, port) = proxy.address();
                let host = host.to_owned();
                Target { host, port }
            }
            None => Target {
                host: bare(url.host_str()?).to_owned(),
                port: url.port_or_known_default()?,
            },
        };
        self.shared.failures().get(&target).cloned()
    }
}

/// Without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// A resolver that answers 127.0.0.1 for every name.
struct Loopback;

impl Resolve for Loopback {
    fn resolve(&self, _: Name) -> Resolving {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Box::pin(std::future::ready(Ok(
            Box::new(std::iter::once(loopback)) as Addrs
        )))
    }
}

/// Accepts connections to `target`, or to the target that a client names.
async fn serve(listener: TcpListener, target: Option<Target>, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((near, _)) => {
                let (target, shared) = (target.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    if let Err(error) = shared.forward(near, target).await {
                        tracing::debug!("`--limit-rate`: a connection failed: {error}");
                    }
                });
            }
            Err(error) => {
                tracing::debug!("`--limit-rate` cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

impl Shared {
    fn failures(&self) -> std::sync::MutexGuard<'_, HashMap<Target, String>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn forward(&self, mut near: TcpStream, target: Option<Target>) -> io::Result<()> {
        let (target, is_socks) = match target {
            Some(target) => (target, false),
            None => {
                let request = socks::read_target(&mut near, self.password.expose_secret());
                (timeout(HANDSHAKE, request).await??, true)
            }
        };
        let far = self.connect(&target).await;
        match &far {
            Ok(_) => self.failures().remove(&target),
            Err(error) => self.failures().insert(target, error.to_string()),
        };
        if is_socks {
            socks::reply(&mut near, far.as_ref().err()).await?;
        }
        far?.relay(near, &self.limit).await;
        Ok(())
    }

    async fn connect(&self, target: &Target) -> io::Result<ThrottledStream> {
        let host = bare(&target.host);
        let addresses = match host.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => self
                .names
                .addresses(host)
                .await
                .map_err(|error| io::Error::other(dns_failure(&error)))?,
        };
        let patience = CONNECT / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let mut failure = io::Error::other("the name has no address");
        for address in addresses {
            let known = || self.round_trips.lock().unwrap_or_else(PoisonError::into_inner);
            let round_trip = known().get(&address).copied();
            let socket = SocketAddr::new(address, target.port);
            match timeout(
                patience,
                ThrottledStream::connect(socket, &self.limit, round_trip),
            )
            .await
            {
                Ok(Ok(far)) => {
                    known().insert(address, far.round_trip());
                    return Ok(far);
                }
                Ok(Err(error)) => {
                    failure = io::Error::new(error.kind(), format!("tcp connect error: {error}"))
                }
                Err(elapsed) => failure = elapsed.into(),
            }
        }
        Err(failure)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream as Client;

    use super::super::limiter::LimitSettings;
    use super::*;
    use crate::registry::DnsFiles;

    fn forwarder(proxies: Proxies) -> io::Result<SocksProxy> {
        let limit = LimitSettings {
            rate: "80Mbit".parse().expect("a rate"),
            ..LimitSettings::default()
        };
        let names = DnsResolver::new(DnsFiles::default(), None);
        SocksProxy::start(&Arc::new(RateLimiter::new(limit)), &names, &Arc::new(proxies))
    }

    /// Sends these messages and returns all replies.
    fn replies(forwarder: &SocksProxy, messages: &[&[u8]]) -> anyhow::Result<Vec<u8>> {
        let mut client = Client::connect(forwarder.direct)?;
        client.set_read_timeout(Some(HANDSHAKE))?;
        let mut all = Vec::new();
        for message in messages {
            client.write_all(message)?;
            let mut answer = [0; 16];
            let length = client.read(&mut answer).unwrap_or(0);
            all.extend_from_slice(&answer[..length]);
        }
        assert_eq!(
            client.read(&mut [0; 16]).unwrap_or(0),
            0,
            "the connection is closed"
        );
        Ok(all)
    }

    #[test]
    fn a_client_without_the_password_is_refused() -> anyhow::Result<()> {
        let forwarder = forwarder(Proxies::default())?;
        let by_password = b"\x05\x01\x02";
        assert_eq!(replies(&forwarder, &[b"\x05\x01\x00"])?, b"\x05\xff");
        assert_eq!(
            replies(&forwarder, &[by_password, b"\x01\x01a\x01b"])?,
            b"\x05\x02\x01\x01"
        );
        assert_eq!(
            replies(&forwarder, &[by_password, b"\x01\x01a\x00"])?,
            b"\x05\x02\x01\x01"
        );
        assert_eq!(
            replies(&forwarder, &[b"GET http://registry/ HTTP/1.1\r\n\r\n"])?,
            b""
        );
        let password = forwarder.password.expose_secret();
        assert!(!format!("{forwarder:?}").contains(password));
        Ok(())
    }

    #[test]
    fn a_client_with_the_password_gets_a_connection_or_an_error() -> anyhow::Result<()> {
        let forwarder = forwarder(Proxies::default())?;
        let password = forwarder.password.expose_secret().as_bytes();
        let login = [&[1, 1, b'a', 32], password].concat();
        // Nothing listens on port 1 of loopback.
        let request = b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x01";
        let answer = replies(&forwarder, &[b"\x05\x01\x02", &login, request])?;
        assert_eq!(answer, b"\x05\x02\x01\x00\x05\x05\x00\x01\0\0\0\0\0\0");
        let url = "http://127.0.0.1:1/v2/".parse()?;
        let why = forwarder.failure(&url).unwrap_or_default();
        assert!(why.contains("Connection refused"), "{why}");
        Ok(())
    }

    #[test]
    fn a_tls_proxy_keeps_its_name_or_gets_one() -> anyhow::Result<()> {
        let at = |proxy: &str| {
            forwarder(Proxies {
                https: Some(proxy.parse().expect("a proxy")),
                ..Proxies::default()
            })
        };
        let stand_in = |proxy: &str| Ok::<_, io::Error>(at(proxy)?.https.expect("a proxy").to_string());
        assert!(stand_in("https://user:word@proxy.example:3129")?.starts_with("https://proxy.example:"));
        assert!(stand_in("http://proxy.example:3128")?.starts_with("http://127.0.0.1:"));
        assert!(stand_in("http://[fd00::1]:3128")?.starts_with("http://127.0.0.1:"));
        assert!(stand_in("https://10.0.0.1:3129")?.starts_with("https://0a000001.proxy.invalid:"));
        assert!(stand_in("https://[fd00::1]:3129")?.starts_with("https://fd00"));
        Ok(())
    }
}
