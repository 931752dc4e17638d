//! Builds tars byte by byte, the impossible ones too.

/// One entry, and what is to be odd about it.
#[derive(Clone, Debug)]
pub struct Entry {
    pub typeflag: u8,
    pub name: Vec<u8>,
    pub link: Vec<u8>,
    pub mode: u32,
    pub owner: (u32, u32),
    pub mtime: i64,
    pub device: (u32, u32),
    pub data: Vec<u8>,
    /// The size in the header, if it is not the data's.
    pub size: Option<u64>,
    /// Records of an extended header before this one.
    pub pax: Vec<(Vec<u8>, Vec<u8>)>,
    /// Raw bytes put over the header before its checksum is computed.
    pub patch: Vec<(usize, Vec<u8>)>,
}

/// An entry of this type and name, root's, 0644, of 2001.
pub fn entry(typeflag: u8, name: impl AsRef<[u8]>) -> Entry {
    Entry {
        typeflag,
        name: name.as_ref().to_vec(),
        link: Vec::new(),
        mode: 0o644,
        owner: (0, 0),
        mtime: 1_000_000_000,
        device: (0, 0),
        data: Vec::new(),
        size: None,
        pax: Vec::new(),
        patch: Vec::new(),
    }
}

pub fn file(name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Entry {
    let data = data.as_ref().to_vec();
    Entry {
        data,
        ..entry(b'0', name)
    }
}

pub fn dir(name: impl AsRef<[u8]>) -> Entry {
    entry(b'5', name).mode(0o755)
}

pub fn symlink(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Entry {
    entry(b'2', name).mode(0o777).link(target)
}

pub fn hard_link(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Entry {
    entry(b'1', name).link(target)
}

impl Entry {
    pub fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    pub fn link(self, link: impl AsRef<[u8]>) -> Self {
        let link = link.as_ref().to_vec();
        Self { link, ..self }
    }

    pub fn owner(self, uid: u32, gid: u32) -> Self {
        let owner = (uid, gid);
        Self { owner, ..self }
    }

    pub fn mtime(self, mtime: i64) -> Self {
        Self { mtime, ..self }
    }

    pub fn device(self, major: u32, minor: u32) -> Self {
        let device = (major, minor);
        Self { device, ..self }
    }

    pub fn size(self, size: u64) -> Self {
        let size = Some(size);
        Self { size, ..self }
    }

    pub fn pax(mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.pax.push((key.as_ref().to_vec(), value.as_ref().to_vec()));
        self
    }

    pub fn xattr(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.pax(format!("SCHILY.xattr.{key}"), value)
    }

    pub fn patch(mut self, offset: usize, bytes: impl AsRef<[u8]>) -> Self {
        self.patch.push((offset, bytes.as_ref().to_vec()));
        self
    }

    /// Headers, data and padding.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.pax.is_empty() {
            let records: Vec<u8> = self
                .pax
                .iter()
                .flat_map(|(key, value)| record(key, value))
                .collect();
            out.extend(file("PaxHeaders/x", records).with_type(b'x').bytes());
        }
        let mut header = [0; 512];
        let mut put = |offset: usize, bytes: &[u8], length: usize| {
            let length = bytes.len().min(length);
            header[offset..offset + length].copy_from_slice(&bytes[..length]);
        };
        put(0, &self.name, 100);
        put(100, format!("{:07o}", self.mode).as_bytes(), 8);
        put(108, &number(i64::from(self.owner.0), 8), 8);
        put(116, &number(i64::from(self.owner.1), 8), 8);
        put(
            124,
            &number(self.size.unwrap_or(self.data.len() as u64) as i64, 12),
            12,
        );
        put(136, &number(self.mtime, 12), 12);
        put(156, &[self.typeflag], 1);
        put(157, &self.link, 100);
        put(257, b"ustar\x0000", 8);
        put(265, b"root", 32);
        put(297, b"root", 32);
        put(329, format!("{:07o}", self.device.0).as_bytes(), 8);
        put(337, format!("{:07o}", self.device.1).as_bytes(), 8);
        for (offset, bytes) in &self.patch {
            put(*offset, bytes, 512);
        }
        if !self.patch.iter().any(|(offset, _)| *offset == 148) {
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        out.extend(header);
        out.extend(&self.data);
        out.resize(out.len().next_multiple_of(512), 0);
        out
    }

    pub fn with_type(self, typeflag: u8) -> Self {
        Self { typeflag, ..self }
    }
}

/// GNU long name or link, `L` or `K`.
pub fn gnu_long(typeflag: u8, name: impl AsRef<[u8]>) -> Entry {
    file("././@LongLink", [name.as_ref(), b"\0"].concat())
        .with_type(typeflag)
        .patch(257, b"ustar  \0")
}

/// Octal if it fits, else base-256.
fn number(value: i64, width: usize) -> Vec<u8> {
    let octal = format!("{value:0width$o}", width = width - 1);
    if value >= 0 && octal.len() < width {
        return octal.into_bytes();
    }
    let mut bytes = vec![if value < 0 { 0xff } else { 0 }; width];
    let digits = value.to_be_bytes();
    let length = width.min(8);
    bytes[width - length..].copy_from_slice(&digits[8 - length..]);
    bytes[0] |= 0x80;
    bytes
}

pub fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = key.len() + value.len() + 3;
    let mut length = body;
    while body + length.to_string().len() != length {
        length = body + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

/// Entries and the two blocks of zeros.
pub fn tar(entries: impl IntoIterator<Item = Entry>) -> Vec<u8> {
    let mut out: Vec<u8> = entries.into_iter().flat_map(|entry| entry.bytes()).collect();
    out.extend([0; 1024]);
    out
}
