//! Implements the server side of SOCKS 5 that reqwest needs: RFC 1928 with the password of RFC 1929.
//!
//! ```text
//! 5 1 2                                     → only with a password
//!                                       5 2 ←
//! 1 length user length password             →
//!                                       1 0 ←  or 1 1, and the connection ends
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

/// The host that a client asks to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
}

/// Reads the target from a client that has the password.
pub(super) async fn read_target(client: &mut TcpStream, password: &str) -> io::Result<Target> {
    expect(client, VERSION).await?;
    let methods = read_short(client).await?;
    if !methods.contains(&BY_PASSWORD) {
        client.write_all(&[VERSION, NONE_ACCEPTABLE]).await?;
        return Err(invalid("the client offers no password"));
    }
    client.write_all(&[VERSION, BY_PASSWORD]).await?;
    expect(client, PASSWORD_VERSION).await?;
    let (_user, given) = (read_short(client).await?, read_short(client).await?);
    // Constant time, wherever the passwords differ.
    let differs = given
        .iter()
        .zip(password.as_bytes())
        .fold(0, |sum, (one, other)| sum | (one ^ other));
    if given.len() != password.len() || differs != 0 {
        client.write_all(&[PASSWORD_VERSION, 1]).await?;
        return Err(invalid("the password is wrong"));
    }
    client.write_all(&[PASSWORD_VERSION, 0]).await?;
    for byte in [VERSION, CONNECT, 0] {
        expect(client, byte).await?;
    }
    let host = match client.read_u8().await? {
        1 => IpAddr::from(Ipv4Addr::from(client.read_u32().await?)).to_string(),
        3 => {
            String::from_utf8(read_short(client).await?).map_err(|_| invalid("the host name is not UTF-8"))?
        }
        4 => IpAddr::from(Ipv6Addr::from(client.read_u128().await?)).to_string(),
        _ => return Err(invalid("the address type is unknown")),
    };
    let port = client.read_u16().await?;
    Ok(Target { host, port })
}

/// Replies that the connection is open, or why not.
pub(super) async fn reply(client: &mut TcpStream, failure: Option<&io::Error>) -> io::Result<()> {
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
        false => Err(invalid("the client does not speak SOCKS 5")),
    }
}

/// Reads a length byte and as many bytes.
async fn read_short(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; client.read_u8().await?.into()];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
