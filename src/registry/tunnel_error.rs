//! Finds out with which status a proxy refuses a tunnel (CONNECT, RFC 9110, 9.3.6).
//!
//! reqwest requests the tunnel and reports only that there is none: not whether for a moment, for good, or because of a
//! missing password (tinyproxy 1.11 answers 401 to a wrong one, not 407). So the proxy is asked once more for its status.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::dns::DnsResolver;
use super::proxy::Proxy;

/// How long the answer may take. The last one took less than a connection may.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest status line that is read.
const MAX_STATUS_LINE: u64 = 256;

/// The status with which `proxy` refuses a tunnel to the host of `url`. Nothing if it grants one now, cannot be reached, or
/// speaks TLS, which this probe does not.
pub(super) async fn refusal(proxy: &Proxy, url: &Url, dns: &DnsResolver) -> Option<u16> {
    let probed = tokio::time::timeout(TIMEOUT, probe(proxy, url, dns)).await;
    probed.ok()?.filter(|status| !(200..300).contains(status))
}

async fn probe(proxy: &Proxy, url: &Url, dns: &DnsResolver) -> Option<u16> {
    let (host, port) = proxy.plain_address()?;
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = match literal.parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) => dns.addresses(host).await.ok()?,
    };
    let addresses: Vec<_> = addresses
        .into_iter()
        .map(|address| SocketAddr::new(address, port))
        .collect();
    let mut connection = TcpStream::connect(addresses.as_slice()).await.ok()?;
    let request = proxy.connect_request(url)?;
    connection.write_all(request.as_bytes()).await.ok()?;
    let (mut line, mut limited) = (Vec::new(), connection.take(MAX_STATUS_LINE));
    while !line.contains(&b'\n') && limited.read_buf(&mut line).await.ok()? > 0 {}
    status(&line)
}

/// `HTTP/1.1 407 Proxy Authentication Required`
fn status(line: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(line);
    let digits = text.strip_prefix("HTTP/1.")?.get(2..5)?;
    digits.parse().ok().filter(|status| (100..600).contains(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_three_digits_of_the_first_line() {
        for (line, expected) in [
            (&b"HTTP/1.1 407 Proxy Authentication Required\r\n"[..], Some(407)),
            (b"HTTP/1.0 502\r\n", Some(502)),
            (b"HTTP/1.1 99 odd\r\n", None),
            (b"HTTP/1.1 999 odd\r\n", None),
            (b"HTTP/1.1\xff502", None),
            (b"HTTP/2 502", None),
            (b"SSH-2.0", None),
            (b"", None),
        ] {
            assert_eq!(status(line), expected, "{}", String::from_utf8_lossy(line));
        }
    }
}
