//! Makes tars from small blobs that are put together here; `tests/it/zstd_chunked.rs` uses podman's.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::{self, Read as _, Seek as _, SeekFrom};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::cancel::{Cancel, StopReason, Stopped};
use crate::delta::{DeltaSource, ScratchFile, SourceError, SourceFile, Sources};
use crate::oci::{DiffId, Digest, Layer, LayerDescriptor};

/// A blob in memory.
#[derive(Clone)]
struct Blob(Vec<u8>);

impl SourceFile for Blob {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = &self.0[self.0.len().min(offset as usize)..];
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

/// Files of images, by image and path.
#[derive(Clone, Default)]
struct Files(HashMap<(usize, Vec<u8>), Vec<u8>>);

impl Sources for Files {
    fn open(&self, image: usize, path: &[u8]) -> Result<Box<dyn SourceFile>, SourceError> {
        let missing = || SourceError::Missing(String::from_utf8_lossy(path).into_owned());
        let file = self.0.get(&(image, path.to_vec())).ok_or_else(missing)?;
        Ok(Box::new(Blob(file.clone())))
    }

    fn scratch_file(&self, _: u64) -> io::Result<ScratchFile> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A layer with files `a` of one chunk, `b` of three, and `c` with little content.
struct Sample {
    blob: Vec<u8>,
    /// TOC before it is compressed.
    toc: Value,
    tar_split: Vec<u8>,
    tar: Vec<u8>,
    a: Vec<u8>,
    b: Vec<u8>,
}

/// Bytes that do not compress.
fn noise(seed: u8, length: usize) -> Vec<u8> {
    let blocks =
        (0..length.div_ceil(32)).map(|block| Digest::of(&[&[seed][..], &block.to_le_bytes()].concat()).hex());
    let bytes: Vec<u8> = blocks.flat_map(String::into_bytes).collect();
    bytes[..length].to_vec()
}

impl Sample {
    fn new() -> Self {
        let (a, first, last) = (noise(1, 5000), noise(2, 3000), noise(3, 4000));
        let b = [&first[..], &[0; 2048], &last].concat();
        let mut blob = Vec::new();
        let mut put = |bytes: &[u8]| {
            let start = blob.len();
            blob.extend(zstd::encode_all(bytes, 0).unwrap());
            (start, blob.len())
        };
        put(b"header of a");
        let in_a = put(&a);
        put(b"header of b");
        let in_b = [put(&first), put(&[0; 2048]), put(&last)];
        put(b"header of c");
        let in_c = put(b"c");
        let digest = |bytes: &[u8]| Digest::of(bytes).to_string();
        let toc = json!({"version": 1, "entries": [
            {"type": "dir", "name": "d/"},
            {"type": "reg", "name": "a", "size": 5000, "digest": digest(&a), "offset": in_a.0, "endOffset": in_a.1},
            {"type": "reg", "name": "b", "size": b.len(), "digest": digest(&b), "offset": in_b[0].0,
                "endOffset": in_b[2].1, "chunkSize": 3000},
            {"type": "chunk", "name": "b", "offset": in_b[1].0, "chunkSize": 2048, "chunkOffset": 3000, "chunkType": "zeros"},
            {"type": "chunk", "name": "b", "offset": in_b[2].0, "chunkSize": 4000, "chunkOffset": 5048},
            {"type": "reg", "name": "empty"},
            {"type": "reg", "name": "c", "size": 1, "digest": digest(b"c"), "offset": in_c.0, "endOffset": in_c.1},
            {"type": "hardlink", "name": "link", "linkName": "a", "size": 7},
        ]});
        let segment = |bytes: &[u8]| json!({"type": 2, "payload": BASE64.encode(bytes)}).to_string() + "\n";
        let file = |name: &str, size: usize| {
            json!({"type": 1, "name": name, "size": size, "payload": "AAAA"}).to_string() + "\n"
        };
        let tar_split = [
            segment(b"header of a"),
            file("a", 5000),
            segment(b"header of b"),
            file("b", b.len()),
            file("empty", 0),
            segment(b"header of c"),
            file("c", 1),
            segment(b"end"),
        ];
        let tar = [
            b"header of a",
            &a[..],
            b"header of b",
            &b,
            b"header of c",
            b"c",
            b"end",
        ]
        .concat();
        let tar_split = tar_split.concat().into_bytes();
        Self {
            blob,
            toc,
            tar_split,
            tar,
            a,
            b,
        }
    }

    /// The whole blob, and what its layer's annotations state.
    fn finish(&self) -> (Vec<u8>, Metadata) {
        let tar_split = zstd::encode_all(&self.tar_split[..], 0).unwrap();
        let mut toc = self.toc.clone();
        if toc.get("tarSplitDigest").is_none() {
            toc["tarSplitDigest"] = json!(Digest::of(&tar_split));
        }
        let json = toc.to_string().into_bytes();
        let compressed = zstd::encode_all(&json[..], 0).unwrap();
        let start = self.blob.len() as u64 + 8;
        let frame = |bytes: &[u8]| {
            [
                &b"\x50\x2a\x4d\x18"[..],
                &(bytes.len() as u32).to_le_bytes(),
                bytes,
            ]
            .concat()
        };
        let blob = [&self.blob[..], &frame(&compressed), &frame(&tar_split), &[0; 72]].concat();
        let tar_split_start = compressed.len() as u64 + 8;
        let metadata = Metadata {
            range: start..start + tar_split_start + tar_split.len() as u64,
            toc_length: compressed.len() as u64,
            toc_digest: Digest::of(&compressed),
            toc_size: json.len() as u64,
            tar_split_start,
            tar_split_size: self.tar_split.len() as u64,
        };
        (blob, metadata)
    }

    fn parse(&self) -> Result<ChunkedLayer, ChunkedError> {
        let (blob, metadata) = self.finish();
        let range = metadata.range.start as usize..metadata.range.end as usize;
        let layers = Layer::chain([(
            LayerDescriptor {
                blob: Digest::of(&blob),
                // The sample has few bytes for its metadata.
                size: 10 * blob.len() as u64,
                media_type: "application/vnd.oci.image.layer.v1.tar+zstd".into(),
            },
            DiffId(Digest::of(&self.tar)),
        )]);
        ChunkedLayer::parse(
            &layers[0],
            &metadata,
            Bytes::copy_from_slice(&blob[range]),
            &Cancel::default(),
        )
    }

    /// With the files of these names from image 1.
    fn option(&self, local: &[&str]) -> ChunkedOption {
        let find = |file: &TocFile| Ok::<_, Stopped>(local.contains(&&*file.name).then_some(1));
        self.parse().unwrap().choose(images(), find).unwrap().unwrap()
    }
}

fn images() -> Vec<DeltaSource> {
    let image = |name: &[u8]| DeltaSource {
        config: Digest::of(name),
        ostree_commit: None,
    };
    vec![image(b"one"), image(b"two")]
}

/// Reads the tar from these bytes of the blob and these files.
fn make(option: &ChunkedOption, blob: &[u8], files: &Files) -> Result<Vec<u8>, String> {
    let cancel = Cancel::default();
    let opened = ChunkedTar::open(option, Blob(blob.to_vec()), Box::new(files.clone()), &cancel);
    let mut tar = opened.map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let mut read = |tar: &mut ChunkedTar| {
        bytes.clear();
        tar.read_to_end(&mut bytes)
            .map_err(|error| ChunkedError::of(&error).unwrap().to_string())?;
        Ok::<_, String>(bytes.clone())
    };
    let first = read(&mut tar)?;
    tar.seek(SeekFrom::Start(0)).unwrap();
    assert_eq!(read(&mut tar)?, first, "the second time");
    Ok(first)
}

#[test]
fn a_tar_is_made_from_chunks_and_files() {
    let sample = Sample::new();
    let (blob, metadata) = sample.finish();
    let mut files = Files::default();
    for (name, content) in [("a", &sample.a), ("b", &sample.b), ("c", &b"c".to_vec())] {
        files.0.insert((1, name.into()), content.clone());
    }
    for local in [&[][..], &["a"], &["b", "c"], &["a", "b", "c"]] {
        let option = sample.option(local);
        // Only these bytes are downloaded.
        let mut received = vec![0xff; blob.len()];
        for range in &option.ranges {
            let range = range.start as usize..range.end as usize;
            received[range.clone()].copy_from_slice(&blob[range]);
        }
        assert_eq!(
            make(&option, &received, &files),
            Ok(sample.tar.clone()),
            "{local:?}"
        );
        assert_eq!(option.tar_size, sample.tar.len() as u64);
    }
    let all = sample.option(&["a", "b", "c"]);
    assert_eq!(
        (all.ranges, all.bytes),
        (vec![metadata.range.clone()], metadata.length())
    );
}

#[test]
fn a_changed_file_and_a_wrong_chunk_are_told_apart() {
    let sample = Sample::new();
    let (blob, _) = sample.finish();
    let option = sample.option(&["a"]);
    let with = |content: &[u8]| Files(HashMap::from([((1, b"a".to_vec()), content.to_vec())]));
    let mut changed = sample.a.clone();
    changed[17] ^= 1;
    for (content, reason) in [
        (&changed[..], "its content has another digest"),
        (&sample.a[..4999], "it is too short"),
    ] {
        let error = make(&option, &blob, &with(content)).unwrap_err();
        assert_eq!(error, format!("cannot use this node's `a`: {reason}"));
    }
    let error = make(&option, &blob, &Files::default()).unwrap_err();
    assert!(error.starts_with("cannot use this node's `a`: "), "{error}");
    let last = sample.toc["entries"][4]["offset"].as_u64().unwrap() as usize;
    let mut wrong = blob.clone();
    wrong[last + 500] ^= 1;
    let error = make(&option, &wrong, &with(&sample.a)).unwrap_err();
    assert!(error.starts_with("the chunks of `b` are wrong: "), "{error}");
    let metadata = &option.metadata;
    for (position, reason) in [
        (
            metadata.range.start,
            "malformed table of contents: its digest is not that in the manifest",
        ),
        (
            metadata.range.end - 1,
            "malformed tar-split: its digest is not that in the table of contents",
        ),
    ] {
        let mut wrong = blob.clone();
        wrong[position as usize] ^= 1;
        assert_eq!(make(&option, &wrong, &with(&sample.a)).unwrap_err(), reason);
    }
}

#[test]
fn a_layer_without_enough_files_is_not_worthwhile_and_the_search_ends() {
    let sample = Sample::new();
    let (blob, metadata) = sample.finish();
    let layers = Layer::chain([(
        LayerDescriptor {
            blob: Digest::of(&blob),
            size: blob.len() as u64,
            media_type: String::new(),
        },
        DiffId(Digest::of(&sample.tar)),
    )]);
    let bytes = Bytes::copy_from_slice(&blob[metadata.range.start as usize..metadata.range.end as usize]);
    let layer = ChunkedLayer::parse(&layers[0], &metadata, bytes, &Cancel::default()).unwrap();
    let mut asked = Vec::new();
    let found = layer.choose(images(), |file| {
        asked.push(file.name.to_string());
        Ok::<_, Stopped>(None)
    });
    assert_eq!(found, Ok(None));
    assert_eq!(asked, ["a", "b"], "not `c`: these two are too much already");
    let cancel = Cancel::default();
    cancel.stop(StopReason::Deadline);
    assert!(layer.choose(images(), |_| cancel.check().map(|()| None)).is_err());
    let largest: Vec<&str> = layer.largest_files(2).iter().map(|file| &*file.name).collect();
    assert_eq!(largest, ["b", "a"]);
}

#[test]
fn a_hostile_table_of_contents_is_refused() {
    let refusal = |change: &dyn Fn(&mut Sample)| {
        let mut sample = Sample::new();
        change(&mut sample);
        sample.parse().map(|_| ()).unwrap_err().to_string()
    };
    type Change<'a> = (&'a dyn Fn(&mut Value), &'a str);
    let changes: &[Change<'_>] = &[
        (&|toc| toc["version"] = json!(2), "unknown version"),
        (&|toc| toc["tarSplitDigest"] = Value::Null, "it has no tar-split"),
        (&|toc| toc["entries"][1]["size"] = json!(-1), "invalid value"),
        (
            &|toc| toc["entries"][1]["digest"] = json!(""),
            "a file has no digest",
        ),
        (
            &|toc| toc["entries"][1]["endOffset"] = json!(0),
            "one without a position",
        ),
        (
            &|toc| toc["entries"][1]["endOffset"] = json!(100_000),
            "files overlap in the blob",
        ),
        (
            &|toc| toc["entries"][6]["endOffset"] = json!(1_u64 << 40),
            "a file ends behind the files",
        ),
        (
            &|toc| toc["entries"][6]["offset"] = toc["entries"][1]["offset"].clone(),
            "files overlap in the blob",
        ),
        (
            &|toc| toc["entries"][2]["chunkSize"] = json!(1_u64 << 40),
            "a chunk has a wrong size",
        ),
        (
            &|toc| toc["entries"][3]["chunkSize"] = json!(0),
            "a chunk has a wrong size",
        ),
        (
            &|toc| toc["entries"][4]["chunkSize"] = json!(3999),
            "a file lacks chunks",
        ),
        (
            &|toc| toc["entries"][4]["chunkOffset"] = json!(1),
            "a chunk does not continue its file",
        ),
        (
            &|toc| toc["entries"][4]["name"] = json!("c"),
            "a chunk does not continue its file",
        ),
        (
            &|toc| toc["entries"][4]["offset"] = toc["entries"][3]["offset"].clone(),
            "a chunk is empty",
        ),
        (
            &|toc| toc["entries"][0]["type"] = json!("chunk"),
            "a chunk has no file",
        ),
        (
            &|toc| toc["entries"][6]["name"] = json!("a"),
            "a name occurs twice",
        ),
        (
            &|toc| drop(toc["entries"].as_array_mut().unwrap().remove(1)),
            "the tar has a file",
        ),
        (
            &|toc| toc["entries"][1]["size"] = json!(4999),
            "the tar has a file",
        ),
        (&|toc| toc["entries"] = json!({}), "a list of entries"),
        (
            &|toc| toc["entries"] = json!(vec![toc["entries"][1].clone(); 100_001]),
            "too many files",
        ),
    ];
    for (change, reason) in changes {
        let error = refusal(&|sample| change(&mut sample.toc));
        assert!(error.contains(reason), "{error}, not {reason}");
    }
    let error = refusal(&|sample| sample.tar_split.extend(b"{\"type\":3}\n"));
    assert!(error.contains("unknown type 3"), "{error}");
}
