//! Reads the entries of a simple tar: that of a Debian package, or one of this benchmark's own.

use anyhow::{Context as _, bail};

use crate::image::tar::{Entry, entry};

const BLOCK: usize = 512;

/// Its entries, with paths from the root.
pub(crate) fn read(tar: &[u8]) -> anyhow::Result<Vec<Entry>> {
    let (mut entries, mut at) = (Vec::new(), 0);
    let (mut long_name, mut long_link) = (None, None);
    while let Some(header) = tar.get(at..at + BLOCK).filter(|header| header[0] != 0) {
        let size = octal(&header[124..136])? as usize;
        let data = tar
            .get(at + BLOCK..at + BLOCK + size)
            .context("a tar that ends too early")?;
        at += BLOCK + size.next_multiple_of(BLOCK);
        match header[156] {
            b'L' => long_name = Some(text(data)),
            b'K' => long_link = Some(text(data)),
            b'x' => {
                long_name = record(data, "path").or(long_name);
                long_link = record(data, "linkpath").or(long_link);
            }
            typeflag @ (b'0' | b'1' | b'2' | b'5') => {
                let name = long_name.take().unwrap_or_else(|| text(&header[..100]));
                let link = long_link.take().unwrap_or_else(|| text(&header[157..257]));
                let name = name.strip_prefix(b"./").unwrap_or(&name);
                if name.is_empty() {
                    continue;
                }
                entries.push(Entry {
                    link: match typeflag {
                        b'1' => link.strip_prefix(b"./").unwrap_or(&link).to_vec(),
                        _ => link,
                    },
                    mode: octal(&header[100..108])? as u32,
                    uid: octal(&header[108..116])?,
                    gid: octal(&header[116..124])?,
                    seconds: octal(&header[136..148])? as i64,
                    data: data.to_vec(),
                    ..entry(typeflag, name)
                });
            }
            typeflag => bail!("a tar with an entry of type {typeflag}"),
        }
    }
    Ok(entries)
}

fn text(field: &[u8]) -> Vec<u8> {
    field.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}

fn octal(field: &[u8]) -> anyhow::Result<u64> {
    let digits = String::from_utf8(text(field))?;
    Ok(u64::from_str_radix(digits.trim(), 8)?)
}

/// The value of a PAX record, `LENGTH KEY=VALUE\n`.
fn record(records: &[u8], key: &str) -> Option<Vec<u8>> {
    let lines = records.split(|byte| *byte == b'\n').map(String::from_utf8_lossy);
    let mut pairs = lines.filter_map(|line| {
        let (found, value) = line.split_once(' ')?.1.split_once('=')?;
        (found == key).then(|| value.as_bytes().to_vec())
    });
    pairs.next()
}
