//! The server's half of SOCKS 5, as far as reqwest speaks it: RFC 1928, and the password of RFC 1929.
//!
//! ```text
//! 5 1 2                                     → only by a password
//!                                       5 2 ←
//! 1 length user length password             →
//!                                       1 0 ←  or 1 1, and that was it
//! 5 1 0 kind address port                   →  kind 1: IPv4, 3: a length and a name, 4: IPv6
//!                      5 status 0 1 0000 00 ←
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const VERSION: u8 = 5;
const BY_PASSWORD: u8 = 2;
const NONE_ACCEPTABLE: u8 = 0xff;
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;

/// Whom a client wants to be connected to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Reads whom to connect it to from a client that knows the password.
pub(super) async fn asked(client: &mut TcpStream, password: &str) -> io::Result<Target> {
    expect(client, VERSION).await?;
    let methods = short(client).await?;
    if !methods.contains(&BY_PASSWORD) {
        client.write_all(&[VERSION, NONE_ACCEPTABLE]).await?;
        return Err(unwanted("it has no password"));
    }
    client.write_all(&[VERSION, BY_PASSWORD]).await?;
    expect(client, PASSWORD_VERSION).await?;
    let (_user, given) = (short(client).await?, short(client).await?);
    // In the same time wherever they differ.
    let differs = given
        .iter()
        .zip(password.as_bytes())
        .fold(0, |sum, (one, other)| sum | (one ^ other));
    if given.len() != password.len() || differs != 0 {
        client.write_all(&[PASSWORD_VERSION, 1]).await?;
        return Err(unwanted("its password is another one"));
    }
    client.write_all(&[PASSWORD_VERSION, 0]).await?;
    for byte in [VERSION, CONNECT, 0] {
        expect(client, byte).await?;
    }
    let host = match client.read_u8().await? {
        1 => IpAddr::from(Ipv4Addr::from(client.read_u32().await?)).to_string(),
        3 => String::from_utf8(short(client).await?).map_err(|_| unwanted("a name that is no text"))?,
        4 => IpAddr::from(Ipv6Addr::from(client.read_u128().await?)).to_string(),
        _ => return Err(unwanted("an address of no known kind")),
    };
    let port = client.read_u16().await?;
    Ok(Target { host, port })
}

/// Tells it that it is connected, or why not.
pub(super) async fn answer(client: &mut TcpStream, failure: Option<&io::Error>) -> io::Result<()> {
    let status = match failure.map(io::Error::kind) {
        None => 0,
        Some(io::ErrorKind::NetworkUnreachable) => 3,
        Some(io::ErrorKind::HostUnreachable) => 4,
        Some(io::ErrorKind::ConnectionRefused) => 5,
        Some(io::ErrorKind::TimedOut) => 6,
        Some(_) => 1,
    };
    client.write_all(&[VERSION, status, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

async fn expect(client: &mut TcpStream, byte: u8) -> io::Result<()> {
    match client.read_u8().await? == byte {
        true => Ok(()),
        false => Err(unwanted("it does not speak SOCKS 5 as we do")),
    }
}

/// Bytes with their number before them.
async fn short(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; client.read_u8().await?.into()];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn unwanted(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
