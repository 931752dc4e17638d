//! Adds TLS in front of a registry that has none.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::fake_api::tls_config;
use crate::network::certificates::Authority;

/// An address where the registry at `host` is reached by TLS, with a certificate of `authority`; until the tests end.
pub(super) fn front(host: String, authority: &Authority) -> SocketAddr {
    let acceptor = TlsAcceptor::from(Arc::new(tls_config(authority, "registry", "IP:127.0.0.1")));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free loopback port");
    listener.set_nonblocking(true).expect("a listener");
    let address = listener.local_addr().expect("a bound listener has an address");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it is non-blocking");
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, host) = (acceptor.clone(), host.clone());
                tokio::spawn(async move {
                    // Who does not trust us goes away, as does who has heard enough.
                    if let Ok(mut outer) = acceptor.accept(stream).await
                        && let Ok(mut inner) = TcpStream::connect(host).await
                    {
                        let _ = copy_bidirectional(&mut outer, &mut inner).await;
                    }
                });
            }
        });
    });
    address
}
