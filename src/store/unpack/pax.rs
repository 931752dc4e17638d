//! Parses PAX extended headers: records of the form `<length> <key>=<value>\n`.
//!
//! A value may contain any bytes, including newlines: `security.capability` often has one. The rules are those of
//! Go's `archive/tar`: the last record of a key counts, an empty value leaves the header's field unchanged, and the
//! pairs of sparse format 0.0 are collected into the map of format 0.1.

use std::collections::BTreeMap;

use super::error::Fault;
use super::tar_header::HeaderFields;
use super::tar_time::TarTime;

const XATTR: &[u8] = b"SCHILY.xattr.";

/// The records of one extended header.
#[derive(Debug, Default)]
pub(super) struct PaxRecords(BTreeMap<Vec<u8>, Vec<u8>>);

impl PaxRecords {
    pub(super) fn parse(mut data: &[u8]) -> Result<Self, Fault> {
        let mut records = BTreeMap::new();
        let mut sparse_map: Vec<&[u8]> = Vec::new();
        while !data.is_empty() {
            let (key, value, rest) = record(data).ok_or(Fault::Header("malformed PAX record"))?;
            data = rest;
            let even = sparse_map.len().is_multiple_of(2);
            match key {
                b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                    if even != (key == b"GNU.sparse.offset") || value.contains(&b',') {
                        return Err(Fault::Header("malformed PAX sparse map"));
                    }
                    sparse_map.push(value);
                }
                _ => {
                    records.insert(key.to_vec(), value.to_vec());
                }
            }
        }
        if !sparse_map.is_empty() {
            records.insert(b"GNU.sparse.map".to_vec(), sparse_map.join(&b','));
        }
        Ok(Self(records))
    }

    /// The value of a key; empty if it is missing.
    pub(super) fn value(&self, key: &str) -> &[u8] {
        self.0.get(key.as_bytes()).map_or(b"", Vec::as_slice)
    }

    /// Overrides the header's fields.
    pub(super) fn apply(&self, fields: &mut HeaderFields) -> Result<(), Fault> {
        let present = |key| Some(self.value(key)).filter(|value| !value.is_empty());
        if let Some(path) = present("path") {
            fields.name = path.to_vec();
        }
        if let Some(link) = present("linkpath") {
            fields.link = link.to_vec();
        }
        for (key, field) in [
            ("uid", &mut fields.uid),
            ("gid", &mut fields.gid),
            ("size", &mut fields.size),
        ] {
            if let Some(value) = present(key) {
                *field = decimal(value).ok_or(Fault::Header("a PAX number is not one"))?;
            }
        }
        let time = |key| {
            let time = |value| TarTime::parse(value).ok_or(Fault::Header("a PAX time is not one"));
            present(key).map(time).transpose()
        };
        time("ctime")?;
        if let Some(atime) = time("atime")? {
            fields.atime = Some(atime);
        }
        if let Some(mtime) = time("mtime")? {
            fields.mtime = mtime;
        }
        Ok(())
    }

    /// The extended attributes, sorted by name.
    pub(super) fn xattrs(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let attribute = |(key, value): (Vec<u8>, _)| Some((key.strip_prefix(XATTR)?.to_vec(), value));
        self.0.into_iter().filter_map(attribute).collect()
    }
}

/// A number as Go's `strconv.ParseInt` reads it.
pub(super) fn decimal(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().position(|&byte| byte == b' ')?;
    let length = usize::try_from(decimal(&data[..space])?).ok()?;
    // The shortest record is `5 a=\n`.
    if length < 5 || length > data.len() {
        return None;
    }
    let (record, rest) = data.split_at(length);
    let record = record.strip_suffix(b"\n")?.get(space + 1..)?;
    let equals = record.iter().position(|&byte| byte == b'=')?;
    let (key, value) = (&record[..equals], &record[equals + 1..]);
    let nul_in = match key {
        b"path" | b"linkpath" | b"uname" | b"gname" => value,
        _ => key,
    };
    (!key.is_empty() && !nul_in.contains(&0)).then_some((key, value, rest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_value_may_hold_newlines_and_nul() {
        let data = b"36 SCHILY.xattr.security.capability=";
        let value = b"\x01\0\0\x02\n5 a=\n\n";
        let length = data.len() + value.len() + 1;
        let data = [format!("{length}").as_bytes(), &data[2..], value, b"\n"].concat();
        let xattrs = PaxRecords::parse(&data).unwrap().xattrs();
        assert_eq!(xattrs, [(b"security.capability".to_vec(), value.to_vec())]);
    }

    #[test]
    fn refuses_what_go_refuses() {
        for data in [
            "x",
            "5",
            "4 a=\n",
            "5 ab\n",
            "6 a=b ",
            "7 a=b\n",
            "5 =a\n",
            "-6 a=b\n",
            "11 path=a\0\n",
            "7 a\0=b\n",
            "99999999999999999999 a=b\n",
            "24 GNU.sparse.numbytes=\n",
            "0 6 a=b\n",
        ] {
            assert!(PaxRecords::parse(data.as_bytes()).is_err(), "{data:?}");
        }
    }

    #[test]
    fn the_last_record_counts_and_an_empty_one_does_not() {
        let records = PaxRecords::parse(b"6 a=1\n6 a=2\n5 b=\n").unwrap();
        assert_eq!((records.value("a"), records.value("b")), (&b"2"[..], &b""[..]));
    }
}
