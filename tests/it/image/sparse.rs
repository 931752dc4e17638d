//! Makes tar entries of a sparse file, in the four forms that tar programs write.

use super::tar::Entry;

/// Turns `entry` into a sparse file of `real_size` bytes that has `pieces` (offset, bytes) and holes elsewhere.
///
/// ```text
/// 0.0  PAX records GNU.sparse.size, numblocks, then offset and numbytes of each piece; data is the pieces
/// 0.1  the same with one record GNU.sparse.map `offset,length,offset,length`
/// 1.0  records major, minor, name, realsize; data begins with a block of decimal lines: count, offset, length…
/// old  typeflag S, the map in the header
/// ```
pub(crate) fn make(entry: &mut Entry, format: &str, real_size: u64, pieces: &[(u64, Vec<u8>)]) {
    let map: Vec<(u64, u64)> = pieces
        .iter()
        .map(|(offset, bytes)| (*offset, bytes.len() as u64))
        .collect();
    let data: Vec<u8> = pieces.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let mut pax = |key: &str, value: String| {
        entry
            .pax
            .push((format!("GNU.sparse.{key}").into_bytes(), value.into_bytes()));
    };
    match format {
        "0.0" => {
            pax("size", real_size.to_string());
            pax("numblocks", map.len().to_string());
            for (offset, length) in &map {
                pax("offset", offset.to_string());
                pax("numbytes", length.to_string());
            }
            entry.data = data;
        }
        "0.1" => {
            let list: Vec<String> = map
                .iter()
                .map(|(offset, length)| format!("{offset},{length}"))
                .collect();
            pax("size", real_size.to_string());
            pax("numblocks", map.len().to_string());
            pax("map", list.join(","));
            entry.data = data;
        }
        "1.0" => {
            let name = String::from_utf8(entry.name.clone()).expect("a sparse file's name is UTF-8 here");
            pax("major", "1".into());
            pax("minor", "0".into());
            pax("name", name.clone());
            pax("realsize", real_size.to_string());
            let mut lines = format!("{}\n", map.len());
            for (offset, length) in &map {
                lines.push_str(&format!("{offset}\n{length}\n"));
            }
            entry.data = lines.into_bytes();
            entry.data.resize(entry.data.len().next_multiple_of(512), 0);
            entry.data.extend(data);
            entry.name = format!("GNUSparseFile.0/{name}").into_bytes();
        }
        "old" => {
            entry.typeflag = b'S';
            entry.magic = super::tar::Magic::Gnu;
            entry.old_sparse = Some((map, real_size));
            entry.data = data;
        }
        other => panic!("`{other}` is no sparse format"),
    }
}
