//! Writes tar bytes without a library.
//!
//! The product parses tars with a crate; its tests must not write them with one, and no crate writes the odd forms that
//! real layers have. One [`Entry`] becomes: an optional PAX header (`x`) or GNU long name (`L`, `K`), its own header,
//! its data, padding to 512.

/// The magic that names the format of the tar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Magic {
    /// POSIX `ustar\0` `00`; long names and large numbers go to PAX records.
    Ustar,
    /// `ustar  \0`; long names go to `L` and `K` entries, large numbers are written in base 256.
    Gnu,
    /// None at all.
    V7,
}

/// One member of a tar, close to the fields of its header.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Bytes of the name exactly as written.
    pub(crate) name: Vec<u8>,
    pub(crate) link: Vec<u8>,
    pub(crate) typeflag: u8,
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    pub(crate) seconds: i64,
    /// Not zero: the time goes to a PAX record.
    pub(crate) nanos: u32,
    pub(crate) device: (u32, u32),
    pub(crate) data: Vec<u8>,
    /// Overrides the length of `data` in the header.
    pub(crate) size: Option<u64>,
    /// PAX records, raw, in order; xattrs are among them.
    pub(crate) pax: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) magic: Magic,
    /// Fields of the old GNU sparse header, at offset 386: (offset, length) of each piece, and the real size.
    pub(crate) old_sparse: Option<(Vec<(u64, u64)>, u64)>,
    /// Bytes put over the finished header at an offset; the checksum is computed after that, unless it is among them.
    pub(crate) patches: Vec<(usize, Vec<u8>)>,
}

/// An entry of this type and name, root's, 0644, of September 2020: long ago, so that a time of "now" shows.
pub(crate) fn entry(typeflag: u8, name: impl AsRef<[u8]>) -> Entry {
    Entry {
        name: name.as_ref().to_vec(),
        link: Vec::new(),
        typeflag,
        mode: 0o644,
        uid: 0,
        gid: 0,
        seconds: 1_600_000_000,
        nanos: 0,
        device: (0, 0),
        data: Vec::new(),
        size: None,
        pax: Vec::new(),
        magic: Magic::Ustar,
        old_sparse: None,
        patches: Vec::new(),
    }
}

const BLOCK: usize = 512;
const NAME_FIELD: usize = 100;
const CHECKSUM: usize = 148;
/// The largest number of a 7-digit octal field.
const OCTAL_7: u64 = 0o7_777_777;

impl Entry {
    /// Appends this member to `tar`.
    pub(crate) fn write(&self, tar: &mut Vec<u8>) {
        let mut pax = Vec::new();
        if self.magic != Magic::Gnu {
            if self.name.len() > NAME_FIELD {
                pax.push((b"path".to_vec(), self.name.clone()));
            }
            if self.link.len() > NAME_FIELD {
                pax.push((b"linkpath".to_vec(), self.link.clone()));
            }
        }
        let is_gnu = self.magic == Magic::Gnu;
        if self.nanos != 0 || self.seconds < 0 && !is_gnu {
            pax.push((b"mtime".to_vec(), pax_time(self.seconds, self.nanos).into_bytes()));
        }
        for (key, id) in [("uid", self.uid), ("gid", self.gid)] {
            if id > OCTAL_7 && !is_gnu {
                pax.push((key.into(), id.to_string().into_bytes()));
            }
        }
        pax.extend(self.pax.iter().cloned());

        if self.typeflag == b'g' {
            return self.write_global(tar, &pax);
        }
        if !pax.is_empty() {
            let mut name = b"PaxHeaders.0/".to_vec();
            let base = self
                .name
                .rsplit(|byte| *byte == b'/')
                .find(|part| !part.is_empty());
            name.extend(base.unwrap_or(b"root").iter().take(NAME_FIELD - name.len()));
            let records = pax_records(&pax);
            tar.extend(Self::extension(&name, b'x', Magic::Ustar).header(records.len() as u64));
            data(tar, &records);
        }
        if self.magic == Magic::Gnu {
            for (typeflag, text) in [(b'K', &self.link), (b'L', &self.name)] {
                if text.len() > NAME_FIELD {
                    let mut text = text.clone();
                    text.push(0);
                    tar.extend(
                        Self::extension(b"././@LongLink", typeflag, Magic::Gnu).header(text.len() as u64),
                    );
                    data(tar, &text);
                }
            }
        }
        tar.extend(self.header(self.size.unwrap_or(self.data.len() as u64)));
        data(tar, &self.data);
    }

    fn write_global(&self, tar: &mut Vec<u8>, pax: &[(Vec<u8>, Vec<u8>)]) {
        let records = pax_records(pax);
        tar.extend(Self::extension(&self.name, b'g', Magic::Ustar).header(records.len() as u64));
        data(tar, &records);
    }

    fn extension(name: &[u8], typeflag: u8, magic: Magic) -> Self {
        Self {
            seconds: 0,
            magic,
            ..entry(typeflag, name)
        }
    }

    /// ```text
    /// 0 name 100 | 100 mode 8 | 108 uid 8 | 116 gid 8 | 124 size 12 | 136 mtime 12 | 148 checksum 8 | 156 type 1
    /// 157 link 100 | 257 magic 8 | 265 uname 32 | 297 gname 32 | 329 major 8 | 337 minor 8 | 345 prefix 155
    /// ```
    fn header(&self, size: u64) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let name = &self.name[..self.name.len().min(NAME_FIELD)];
        block[..name.len()].copy_from_slice(name);
        octal(&mut block[100..108], u64::from(self.mode));
        let is_gnu = self.magic == Magic::Gnu;
        let id = |id: u64| if id > OCTAL_7 && !is_gnu { 0 } else { id as i64 };
        number(&mut block[108..116], id(self.uid));
        number(&mut block[116..124], id(self.gid));
        number(&mut block[124..136], size as i64);
        let seconds = if is_gnu { self.seconds } else { self.seconds.max(0) };
        number(&mut block[136..148], seconds);
        block[156] = self.typeflag;
        let link = &self.link[..self.link.len().min(NAME_FIELD)];
        block[157..157 + link.len()].copy_from_slice(link);
        match self.magic {
            Magic::Ustar => block[257..265].copy_from_slice(b"ustar\x0000"),
            Magic::Gnu => block[257..265].copy_from_slice(b"ustar  \0"),
            Magic::V7 => {}
        }
        if self.magic != Magic::V7 && matches!(self.typeflag, b'3' | b'4') {
            octal(&mut block[329..337], u64::from(self.device.0));
            octal(&mut block[337..345], u64::from(self.device.1));
        }
        if let Some((pieces, real_size)) = &self.old_sparse {
            for (index, (offset, length)) in pieces.iter().take(4).enumerate() {
                let at = 386 + index * 24;
                number(&mut block[at..at + 12], *offset as i64);
                number(&mut block[at + 12..at + 24], *length as i64);
            }
            number(&mut block[483..495], *real_size as i64);
        }
        for (offset, bytes) in &self.patches {
            block[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        if !self.patches.iter().any(|(offset, _)| *offset == CHECKSUM) {
            block[CHECKSUM..CHECKSUM + 8].fill(b' ');
            let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
            octal(&mut block[CHECKSUM..CHECKSUM + 7], sum);
        }
        block
    }
}

/// Appends `bytes` and the padding to the next block.
fn data(tar: &mut Vec<u8>, bytes: &[u8]) {
    tar.extend(bytes);
    tar.resize(tar.len().next_multiple_of(BLOCK), 0);
}

/// Octal digits with leading zeros and a final NUL.
fn octal(field: &mut [u8], value: u64) {
    let width = field.len() - 1;
    let digits = format!("{value:0width$o}");
    assert_eq!(
        digits.len(),
        width,
        "{value} does not fit into {width} octal digits"
    );
    field[..width].copy_from_slice(digits.as_bytes());
    field[width] = 0;
}

/// Octal when it fits, else GNU's base-256.
fn number(field: &mut [u8], value: i64) {
    if (0..1 << (3 * (field.len() - 1))).contains(&value) {
        return octal(field, value as u64);
    }
    let at = field.len() - 8;
    field[..at].fill(if value < 0 { 0xff } else { 0 });
    field[at..].copy_from_slice(&value.to_be_bytes());
    field[0] |= 0x80;
}

/// `seconds.nanos` as PAX writes it: a sign before the whole number, so -4.5 is second -5 and half a second.
fn pax_time(seconds: i64, nanos: u32) -> String {
    let total = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    let sign = if total < 0 { "-" } else { "" };
    let (whole, rest) = (
        total.unsigned_abs() / 1_000_000_000,
        total.unsigned_abs() % 1_000_000_000,
    );
    if rest == 0 {
        return format!("{sign}{whole}");
    }
    format!("{sign}{whole}.{rest:09}")
        .trim_end_matches('0')
        .to_owned()
}

/// `<length> <key>=<value>\n`, where the length counts itself.
pub(crate) fn pax_records(records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        bytes.extend(format!("{length} ").as_bytes());
        bytes.extend(key);
        bytes.push(b'=');
        bytes.extend(value);
        bytes.push(b'\n');
    }
    bytes
}
