//! Writes deltas from a list of operations, without the product's writer.
//!
//! The format is that of containers/tar-diff (`file-format.md`), and for other headers that of this project.

/// The header of containers/tar-diff.
pub(super) const STANDARD: &[u8] = b"tardf1\n\0";

/// The header of this project's format.
pub(super) const INFLATED: &[u8] = b"itrdf1\n\0";

/// An operation.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Data(Vec<u8>),
    Open(Vec<u8>),
    Copy(u64),
    AddData(Vec<u8>),
    Seek(u64),
    /// In another old image than number 0.
    OpenIn(u64, Vec<u8>),
    /// Any byte, number and data.
    Any(u8, u64, Vec<u8>),
}

/// The delta with these operations.
pub(super) fn delta(header: &[u8], ops: &[Op]) -> Vec<u8> {
    let mut plain = Vec::new();
    for op in ops {
        match op {
            Op::Data(data) => push(&mut plain, 0, data.len() as u64, data),
            Op::Open(path) => push(&mut plain, 1, path.len() as u64, path),
            Op::Copy(length) => push(&mut plain, 2, *length, &[]),
            Op::AddData(data) => push(&mut plain, 3, data.len() as u64, data),
            Op::Seek(position) => push(&mut plain, 4, *position, &[]),
            Op::OpenIn(image, path) => {
                let mut data = Vec::new();
                uvarint(&mut data, *image);
                data.extend_from_slice(path);
                push(&mut plain, 7, data.len() as u64, &data);
            }
            Op::Any(byte, number, data) => push(&mut plain, *byte, *number, data),
        }
    }
    let stream = zstd::encode_all(&plain[..], 3).expect("compressing in memory");
    [header, &stream].concat()
}

fn push(plain: &mut Vec<u8>, byte: u8, number: u64, data: &[u8]) {
    plain.push(byte);
    uvarint(plain, number);
    plain.extend_from_slice(data);
}

/// As Go's `binary.PutUvarint`.
fn uvarint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
