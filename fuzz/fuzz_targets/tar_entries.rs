//! The same as `tar`, for tars whose entries are made to meet: few names, many kinds, each the other's parent, target
//! or whiteout. Needs root.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use spoke_precache_fuzz::{jail, layer};

const BLOCK: usize = 512;

#[derive(Arbitrary, Debug)]
struct Layer {
    entries: Vec<Entry>,
    /// Blocks of zeros at the end; a tar may have none.
    end: u8,
    /// What comes after the end.
    trailer: Vec<u8>,
    packing: Packing,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Packing {
    None,
    Gzip,
    /// A member, or a frame, for each so many bytes.
    Gzips(u16),
    Zstd,
    Zstds(u16),
}

#[derive(Arbitrary, Debug)]
struct Entry {
    kind: Kind,
    format: Format,
    name: Path,
    link: Path,
    mode: u16,
    owner: Number,
    mtime: Number,
    device: (u8, u8),
    records: Vec<(Key, Value)>,
    /// Goes in front of the header as GNU long names, instead of into it.
    long: (bool, bool),
    data: Vec<u8>,
    /// A size that is not the data's.
    size: Option<Number>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    File,
    OldFile,
    HardLink,
    Symlink,
    CharDevice,
    BlockDevice,
    Directory,
    Fifo,
    Contiguous,
    GlobalHeader,
    OldSparse,
    Any(u8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Format {
    V7,
    Ustar,
    Gnu,
}

#[derive(Arbitrary, Debug)]
struct Path {
    absolute: bool,
    slash: bool,
    parts: Vec<Part>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Part {
    A,
    B,
    C,
    Up,
    Here,
    Nothing,
    WhiteoutA,
    WhiteoutB,
    WhiteoutUp,
    Opaque,
    Sentinel,
    Diff,
    Proc,
    Raw,
    Long,
    Byte(u8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Zero,
    One,
    Id(u16),
    Negative(u8),
    Most,
    Least,
    Any(i64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Key {
    Path,
    LinkPath,
    Size,
    Uid,
    Mtime,
    Atime,
    SparseMajor,
    SparseMinor,
    SparseName,
    SparseSize,
    SparseRealSize,
    SparseMap,
    SparseBlocks,
    SparseOffset,
    SparseNumbytes,
    UserXattr,
    OpaqueXattr,
    Capability,
    Selinux,
    Acl,
    Odd(u8),
}

#[derive(Arbitrary, Debug)]
enum Value {
    Number(Number),
    Numbers(Vec<u8>),
    Path(Path),
    Bytes(Vec<u8>),
    Yes,
}

fuzz_target!(
    init: jail::enter().expect("root"),
    |tar: Layer| layer::check(&tar.blob())
);

impl Layer {
    fn blob(&self) -> Vec<u8> {
        let mut tar = Vec::new();
        for entry in &self.entries {
            entry.write(&mut tar);
        }
        tar.resize(tar.len() + usize::from(self.end % 4) * BLOCK, 0);
        tar.extend_from_slice(&self.trailer);
        let pieces = |length: u16| tar.chunks(usize::from(length).max(64));
        match self.packing {
            Packing::None => tar,
            Packing::Gzip => gzip(&tar),
            Packing::Gzips(length) => pieces(length).flat_map(gzip).collect(),
            Packing::Zstd => zstd(&tar),
            Packing::Zstds(length) => pieces(length).flat_map(zstd).collect(),
        }
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).expect("memory")
}

impl Entry {
    fn write(&self, tar: &mut Vec<u8>) {
        let (name, link) = (self.name.bytes(), self.link.bytes());
        if self.long.0 {
            block(
                tar,
                Format::Gnu,
                b'L',
                b"././@LongLink",
                b"",
                &Fields::of(name.len() + 1),
            );
            data(tar, &[&name[..], b"\0"].concat());
        }
        if self.long.1 {
            block(
                tar,
                Format::Gnu,
                b'K',
                b"././@LongLink",
                b"",
                &Fields::of(link.len() + 1),
            );
            data(tar, &[&link[..], b"\0"].concat());
        }
        let records = self.records();
        let is_global = matches!(self.kind, Kind::GlobalHeader);
        if !records.is_empty() && !is_global {
            block(
                tar,
                Format::Ustar,
                b'x',
                b"PaxHeaders/x",
                b"",
                &Fields::of(records.len()),
            );
            data(tar, &records);
        }
        let body = if is_global { &records } else { &self.data };
        let fields = Fields {
            mode: i64::from(self.mode),
            owner: self.owner.value(),
            size: self.size.map_or(body.len() as i64, Number::value),
            mtime: self.mtime.value(),
            device: self.device,
        };
        block(tar, self.format, self.kind.flag(), &name, &link, &fields);
        data(tar, body);
    }

    fn records(&self) -> Vec<u8> {
        let mut records = Vec::new();
        for (key, value) in &self.records {
            let rest = [b" ", &key.bytes()[..], b"=", &value.bytes(), b"\n"].concat();
            // The length counts its own digits.
            let mut length = rest.len() + 1;
            while length.to_string().len() + rest.len() != length {
                length = length.to_string().len() + rest.len();
            }
            records.extend_from_slice(length.to_string().as_bytes());
            records.extend_from_slice(&rest);
        }
        records
    }
}

struct Fields {
    mode: i64,
    owner: i64,
    size: i64,
    mtime: i64,
    device: (u8, u8),
}

impl Fields {
    fn of(size: usize) -> Self {
        let (mode, owner, size, mtime, device) = (0o644, 0, size as i64, 0, (0, 0));
        Self {
            mode,
            owner,
            size,
            mtime,
            device,
        }
    }
}

fn block(tar: &mut Vec<u8>, format: Format, flag: u8, name: &[u8], link: &[u8], fields: &Fields) {
    let mut block = [0; BLOCK];
    let text = |field: &mut [u8], text: &[u8]| {
        let length = text.len().min(field.len());
        field[..length].copy_from_slice(&text[..length]);
    };
    text(&mut block[..100], name);
    number(&mut block[100..108], fields.mode);
    number(&mut block[108..116], fields.owner);
    number(&mut block[116..124], fields.owner);
    number(&mut block[124..136], fields.size);
    number(&mut block[136..148], fields.mtime);
    block[156] = flag;
    text(&mut block[157..257], link);
    match format {
        Format::V7 => {}
        Format::Ustar => block[257..265].copy_from_slice(b"ustar\x0000"),
        Format::Gnu => block[257..265].copy_from_slice(b"ustar  \0"),
    }
    if !matches!(format, Format::V7) {
        number(&mut block[329..337], fields.device.0.into());
        number(&mut block[337..345], fields.device.1.into());
    }
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.extend_from_slice(&block);
}

/// Octal, or base 256 where that is too short.
fn number(field: &mut [u8], value: i64) {
    let octal = format!("{value:0width$o}", width = field.len() - 1);
    if value >= 0 && octal.len() < field.len() {
        field[..octal.len()].copy_from_slice(octal.as_bytes());
        return;
    }
    field.fill(if value < 0 { 0xff } else { 0 });
    let bytes = value.to_be_bytes();
    let length = bytes.len().min(field.len());
    let start = field.len() - length;
    field[start..].copy_from_slice(&bytes[bytes.len() - length..]);
    field[0] |= 0x80;
}

fn data(tar: &mut Vec<u8>, data: &[u8]) {
    tar.extend_from_slice(data);
    tar.resize(tar.len().next_multiple_of(BLOCK), 0);
}

impl Kind {
    fn flag(self) -> u8 {
        match self {
            Self::File => b'0',
            Self::OldFile => 0,
            Self::HardLink => b'1',
            Self::Symlink => b'2',
            Self::CharDevice => b'3',
            Self::BlockDevice => b'4',
            Self::Directory => b'5',
            Self::Fifo => b'6',
            Self::Contiguous => b'7',
            Self::GlobalHeader => b'g',
            Self::OldSparse => b'S',
            Self::Any(flag) => flag,
        }
    }
}

impl Path {
    fn bytes(&self) -> Vec<u8> {
        let parts: Vec<Vec<u8>> = self.parts.iter().take(8).map(|part| part.bytes()).collect();
        let mut path = parts.join(&b'/');
        if self.absolute {
            path.insert(0, b'/');
        }
        if self.slash {
            path.push(b'/');
        }
        path
    }
}

impl Part {
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::A => b"a".to_vec(),
            Self::B => b"b".to_vec(),
            Self::C => b"c".to_vec(),
            Self::Up => b"..".to_vec(),
            Self::Here => b".".to_vec(),
            Self::Nothing => Vec::new(),
            Self::WhiteoutA => b".wh.a".to_vec(),
            Self::WhiteoutB => b".wh.b".to_vec(),
            Self::WhiteoutUp => b".wh...".to_vec(),
            Self::Opaque => b".wh..wh..opq".to_vec(),
            Self::Sentinel => b"sentinel".to_vec(),
            Self::Diff => b"diff".to_vec(),
            Self::Proc => b"proc/self/root".to_vec(),
            Self::Raw => b"\xff\n\"\\".to_vec(),
            Self::Long => vec![b'l'; 256],
            Self::Byte(byte) => vec![byte],
        }
    }
}

impl Number {
    fn value(self) -> i64 {
        match self {
            Self::Zero => 0,
            Self::One => 1,
            Self::Id(id) => id.into(),
            Self::Negative(number) => -i64::from(number),
            Self::Most => i64::MAX,
            Self::Least => i64::MIN,
            Self::Any(number) => number,
        }
    }
}

impl Key {
    fn bytes(self) -> Vec<u8> {
        let key: &[u8] = match self {
            Self::Path => b"path",
            Self::LinkPath => b"linkpath",
            Self::Size => b"size",
            Self::Uid => b"uid",
            Self::Mtime => b"mtime",
            Self::Atime => b"atime",
            Self::SparseMajor => b"GNU.sparse.major",
            Self::SparseMinor => b"GNU.sparse.minor",
            Self::SparseName => b"GNU.sparse.name",
            Self::SparseSize => b"GNU.sparse.size",
            Self::SparseRealSize => b"GNU.sparse.realsize",
            Self::SparseMap => b"GNU.sparse.map",
            Self::SparseBlocks => b"GNU.sparse.numblocks",
            Self::SparseOffset => b"GNU.sparse.offset",
            Self::SparseNumbytes => b"GNU.sparse.numbytes",
            Self::UserXattr => b"SCHILY.xattr.user.x",
            Self::OpaqueXattr => b"SCHILY.xattr.trusted.overlay.opaque",
            Self::Capability => b"SCHILY.xattr.security.capability",
            Self::Selinux => b"SCHILY.xattr.security.selinux",
            Self::Acl => b"SCHILY.xattr.system.posix_acl_access",
            Self::Odd(byte) => {
                return vec![
                    b'S', b'C', b'H', b'I', b'L', b'Y', b'.', b'x', b'a', b't', b't', b'r', b'.', byte,
                ];
            }
        };
        key.to_vec()
    }
}

impl Value {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Number(number) => number.value().to_string().into_bytes(),
            Self::Numbers(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(u8::to_string).collect();
                numbers.join(",").into_bytes()
            }
            Self::Path(path) => path.bytes(),
            Self::Bytes(bytes) => bytes.clone(),
            Self::Yes => b"y".to_vec(),
        }
    }
}
