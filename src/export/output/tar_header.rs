//! Writes and reads the headers of the tar of an export (POSIX ustar, with pax headers for long names).

/// The unit of a tar.
pub(super) const BLOCK: usize = 512;

/// Fields of a header: offset and length (POSIX `pax`, "ustar Interchange Format").
const NAME: (usize, usize) = (0, 100);
const MODE: (usize, usize) = (100, 8);
const UID: (usize, usize) = (108, 8);
const GID: (usize, usize) = (116, 8);
const SIZE: (usize, usize) = (124, 12);
const MTIME: (usize, usize) = (136, 12);
const CHECKSUM: (usize, usize) = (148, 8);
const KIND: usize = 156;
const MAGIC: (usize, usize) = (257, 8);
const OWNER: (usize, usize) = (265, 32);
const PREFIX: (usize, usize) = (345, 155);

/// The magic number and the version.
const USTAR: &[u8] = b"ustar\x0000";

/// The owner of every member: only a tar that an export began is continued.
const SPOKE_PRECACHE: &[u8] = b"spoke-precache";

const FILE: u8 = b'0';
const PAX: u8 = b'x';

/// The name in a pax header, which precedes the member with a long name.
const PATH: &str = "path=";

/// The longest pax header that is read.
pub(super) const MAX_PAX: u64 = 64 << 10;

/// What a header describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TarHeader {
    /// A file with this name and length.
    File(String, u64),
    /// The pax header of the next member, of this length.
    Pax(u64),
}

/// The headers of a file.
pub(super) fn headers(name: &str, size: u64) -> Vec<u8> {
    if let Some(header) = ustar(name, size, FILE) {
        return header.to_vec();
    }
    // The length counts itself.
    let rest = format!(" {PATH}{name}\n");
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    let mut record = format!("{length}{rest}").into_bytes();
    let pax = ustar("pax", record.len() as u64, PAX).expect("the name is short");
    record.resize(record.len().next_multiple_of(BLOCK), 0);
    // Readers without pax see a shortened name.
    let short: String = name.chars().filter(char::is_ascii).take(NAME.1).collect();
    let header = ustar(&short, size, FILE).expect("the name is short");
    [pax.to_vec(), record, header.to_vec()].concat()
}

/// A header; nothing if the name is too long.
fn ustar(name: &str, size: u64, kind: u8) -> Option<[u8; BLOCK]> {
    let (prefix, name) = split(name)?;
    let mut block = [0; BLOCK];
    let mut put = |(offset, length): (usize, usize), bytes: &[u8]| {
        let bytes = &bytes[..bytes.len().min(length)];
        block[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    put(NAME, name.as_bytes());
    put(PREFIX, prefix.as_bytes());
    put(MODE, b"0000644\0");
    put(UID, b"0000000\0");
    put(GID, b"0000000\0");
    put(MTIME, b"00000000000\0");
    put(MAGIC, USTAR);
    put(OWNER, SPOKE_PRECACHE);
    match size < 1 << 33 {
        true => put(SIZE, format!("{size:011o}\0").as_bytes()),
        // GNU's form of numbers that do not fit.
        false => put(SIZE, &[&[0x80, 0, 0, 0], &size.to_be_bytes()[..]].concat()),
    }
    block[KIND] = kind;
    let sum = checksum(&block);
    let text = format!("{sum:06o}\0 ");
    block[CHECKSUM.0..CHECKSUM.0 + CHECKSUM.1].copy_from_slice(text.as_bytes());
    Some(block)
}

/// The prefix and the name.
fn split(name: &str) -> Option<(&str, &str)> {
    if name.len() <= NAME.1 {
        return Some(("", name));
    }
    let slashes = name.match_indices('/').map(|(at, _)| at);
    let mut fitting = slashes.filter(|&at| at <= PREFIX.1 && name.len() - at - 1 <= NAME.1);
    fitting.next_back().map(|at| (&name[..at], &name[at + 1..]))
}

/// The sum of the bytes, with spaces in place of the sum itself.
fn checksum(block: &[u8; BLOCK]) -> u32 {
    let field = CHECKSUM.0..CHECKSUM.0 + CHECKSUM.1;
    let bytes = block.iter().enumerate();
    bytes
        .map(|(at, &byte)| u32::from(if field.contains(&at) { b' ' } else { byte }))
        .sum()
}

/// Reads a header that [`headers`] wrote; nothing if it is anything else.
pub(super) fn parse(block: &[u8; BLOCK]) -> Option<TarHeader> {
    let field = |(offset, length): (usize, usize)| &block[offset..offset + length];
    let text = |at| {
        let bytes: &[u8] = field(at);
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        std::str::from_utf8(&bytes[..end]).ok()
    };
    let number = |at| u64::from_str_radix(text(at)?.trim(), 8).ok();
    if number(CHECKSUM)? != u64::from(checksum(block))
        || field(MAGIC) != USTAR
        || text(OWNER)?.as_bytes() != SPOKE_PRECACHE
    {
        return None;
    }
    let size = match field(SIZE)[0] {
        0x80 => u64::from_be_bytes(field(SIZE)[4..].try_into().ok()?),
        _ => number(SIZE)?,
    };
    match block[KIND] {
        PAX => Some(TarHeader::Pax(size)),
        FILE => Some(TarHeader::File(
            match text(PREFIX)? {
                "" => text(NAME)?.to_owned(),
                prefix => format!("{prefix}/{}", text(NAME)?),
            },
            size,
        )),
        _ => None,
    }
}

/// The name in a pax header that [`headers`] wrote.
pub(super) fn pax_name(record: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(record).ok()?;
    let (_, record) = text.split_once(' ')?;
    Some(record.strip_prefix(PATH)?.strip_suffix('\n')?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let long = format!("{}/{}", "d".repeat(120), "n".repeat(90));
        for (name, size) in [("blobs/sha256/00", 0), ("n", 1 << 33), (&long, (1 << 33) - 1)] {
            let written = headers(name, size);
            let block: &[u8; BLOCK] = written[..].try_into().expect("one block");
            assert_eq!(parse(block), Some(TarHeader::File(name.to_owned(), size)));
            let mut damaged = *block;
            damaged[7] ^= 1;
            assert_eq!(parse(&damaged), None);
        }
        assert_eq!(parse(&[0; BLOCK]), None);
    }

    #[test]
    fn a_name_that_is_too_long_has_a_pax_header() {
        for length in [101, 996, 997, 998, 999, 1000] {
            let name = "n".repeat(length);
            let written = headers(&name, 7);
            let Some(TarHeader::Pax(size)) = parse(written[..BLOCK].try_into().expect("a block")) else {
                panic!("no pax header for {length}");
            };
            let record = &written[BLOCK..BLOCK + usize::try_from(size).expect("a few bytes")];
            assert_eq!(pax_name(record), Some(name));
            let stated: usize = String::from_utf8_lossy(record)
                .split(' ')
                .next()
                .and_then(|number| number.parse().ok())
                .expect("a length");
            assert_eq!(stated, record.len());
        }
    }
}
