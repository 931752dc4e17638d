//! Why a proxy gives no tunnel.
//!
//! reqwest asks for a tunnel and tells no more than that there is none, be it for a moment, for good, or for want of a
//! password: tinyproxy 1.11 answers 401 to a wrong one and not 407. So the proxy is asked once more, to hear its answer.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::dns::DnsResolver;
use super::proxy::Proxy;

/// How long the answer may take: it took the last one less than a connection may.
const PATIENCE: Duration = Duration::from_secs(10);

/// The first line of an answer is shorter.
const MAX_LINE: u64 = 256;

/// The status with which `proxy` refuses a tunnel to the host of `url`; nothing if it grants one now, cannot be asked, or
/// is to be asked by TLS, for which it is not worth the trouble.
pub(super) async fn refusal(proxy: &Proxy, url: &Url, names: &DnsResolver) -> Option<u16> {
    let asked = tokio::time::timeout(PATIENCE, ask(proxy, url, names)).await;
    asked.ok()?.filter(|status| !(200..300).contains(status))
}

async fn ask(proxy: &Proxy, url: &Url, names: &DnsResolver) -> Option<u16> {
    let (host, port) = proxy.plain_address()?;
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = match literal.parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) => names.addresses(host).await.ok()?,
    };
    let addresses: Vec<_> = addresses
        .into_iter()
        .map(|address| SocketAddr::new(address, port))
        .collect();
    let mut connection = TcpStream::connect(addresses.as_slice()).await.ok()?;
    let question = proxy.question(url)?;
    connection.write_all(question.as_bytes()).await.ok()?;
    let (mut line, mut limited) = (Vec::new(), connection.take(MAX_LINE));
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
    fn a_status_is_three_digits_in_the_first_line() {
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
