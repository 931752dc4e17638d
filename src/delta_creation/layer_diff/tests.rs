//! Layers and old images with every kind of change: both deltas make the layer again.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use flate2::write::ZlibEncoder;
use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::delta::{Operation, SourceName};

const BLOCK: usize = 512;

/// One entry of a tar.
#[derive(Clone, Debug)]
enum Entry {
    File(String, Vec<u8>),
    Link(String, String),
    Other(u8, String, String),
}

fn file(path: &str, data: impl Into<Vec<u8>>) -> Entry {
    Entry::File(path.to_owned(), data.into())
}

fn link(path: &str, target: &str) -> Entry {
    Entry::Link(path.to_owned(), target.to_owned())
}

fn other(kind: u8, path: &str) -> Entry {
    Entry::Other(kind, path.to_owned(), "target".to_owned())
}

/// The bytes of a tar.
fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut tar = Vec::new();
    for entry in entries {
        let (kind, path, target, data) = match entry {
            Entry::File(path, data) => (b'0', path, "", data.as_slice()),
            Entry::Link(path, target) => (b'1', path, target.as_str(), &[][..]),
            Entry::Other(kind, path, target) => (*kind, path, target.as_str(), &[][..]),
        };
        let mut header = [0; BLOCK];
        header[..path.len()].copy_from_slice(path.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
        header[148..156].copy_from_slice(b"        ");
        header[156] = kind;
        header[157..157 + target.len()].copy_from_slice(target.as_bytes());
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        tar.extend_from_slice(&header);
        tar.extend_from_slice(data);
        tar.resize(tar.len().next_multiple_of(BLOCK), 0);
    }
    tar.extend_from_slice(&[0; 2 * BLOCK]);
    tar
}

/// What was made of a new layer: the result, and both files.
struct Made {
    diff: LayerDiff,
    tar_diff: Vec<u8>,
    further: Vec<u8>,
}

fn make(images: &[Vec<Vec<Entry>>], new: &[Entry], params: DiffParams) -> Made {
    let work = TempDir::new().expect("a directory");
    let cancel = Cancel::default();
    let layer = |name: &str, entries: &[Entry]| {
        let path = work.path().join(name);
        std::fs::write(&path, tar(entries)).expect("a file");
        Arc::new(LayerFiles::read(&path, &cancel).expect("a tar"))
    };
    let new = layer("new", new);
    let old = images.iter().enumerate().map(|(image, layers)| {
        let layers = layers.iter().enumerate();
        layers
            .map(|(index, entries)| layer(&format!("old-{image}-{index}"), entries))
            .collect()
    });
    let old = OldFiles::new(old.collect(), work.path().to_owned());
    let plan = LayerPlan::new(new, old, &cancel).expect("a plan");
    let outputs = Variant::ALL.map(|_| output(work.path()));
    // This applies all deltas.
    let diff = diff_layer(&plan, params, outputs.each_ref(), &cancel).expect("deltas that apply");
    let bytes = |mut file: &File| {
        let mut bytes = Vec::new();
        std::io::Seek::rewind(&mut file).expect("a file");
        file.read_to_end(&mut bytes).expect("a file");
        bytes
    };
    Made {
        diff,
        tar_diff: bytes(&outputs[0]),
        further: bytes(&outputs[2]),
    }
}

fn output(directory: &Path) -> File {
    tempfile::tempfile_in(directory).expect("a file")
}

/// Quick, for tests.
fn params() -> DiffParams {
    DiffParams {
        level: 3,
        ..DiffParams::default()
    }
}

/// Bytes that do not compress.
fn noise(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 16) as u8
    };
    (0..length).map(step).collect()
}

/// Text-like bytes, which compress.
fn prose(length: usize, seed: u32) -> Vec<u8> {
    let words = noise(length, seed);
    words
        .iter()
        .flat_map(|byte| [b'a' + byte % 4, b' ', b'x', b'y'])
        .take(length)
        .collect()
}

/// Whether the delta opens this source.
fn opens(delta: &[u8], source: &SourceName) -> bool {
    let operations = zstd::decode_all(&delta[8..]).expect("zstd");
    let mut open = Vec::new();
    Operation::Open(source.clone()).encode(&mut open);
    operations.windows(open.len()).any(|window| window == open)
}

#[test]
fn a_changed_file_takes_about_its_changes() {
    let old = prose(200_000, 1);
    let mut new = old.clone();
    new.splice(1000..1000, noise(50, 2));
    new[150_000] ^= 1;
    let made = make(
        &[vec![vec![file("usr/bin/x", old)]]],
        &[file("./usr/bin/x", new)],
        params(),
    );
    assert!(made.tar_diff.len() < 500, "{}", made.tar_diff.len());
    assert_eq!(made.diff.inflated, None);
    assert_eq!(made.diff.standard.size, made.tar_diff.len() as u64);
    assert_eq!(made.diff.standard.digest, crate::oci::Digest::of(&made.tar_diff));
    assert!(opens(&made.tar_diff, &SourceName::file("usr/bin/x")));
}

#[test]
fn compressed_content_is_compared_if_parts_of_it_are_equal() {
    let members = [1, 2, 3].map(|seed| noise(20_000, seed));
    let old = members.concat();
    let new = [
        &noise(3000, 4),
        &members[2],
        &noise(3000, 5),
        &members[0],
        &members[1],
    ]
    .map(Vec::as_slice)
    .concat();
    let made = make(
        &[vec![vec![file("a.jar", old.clone())]]],
        &[file("a.jar", new)],
        params(),
    );
    assert!(made.tar_diff.len() < 7000, "{}", made.tar_diff.len());
    let unrelated = noise(60_000, 6);
    let made = make(
        &[vec![vec![file("a.gz", old)]]],
        &[file("a.gz", unrelated)],
        params(),
    );
    assert!(made.tar_diff.len() > 60_000);
}

#[test]
fn the_source_is_what_the_path_means_after_all_layers() {
    let (data, changed) = (noise(9000, 1), noise(9000, 2));
    let base = vec![
        file("replaced", data.clone()),
        file("hidden/by/whiteout", data.clone()),
        file("opaque/file", data.clone()),
        file("directory", data.clone()),
        file("lib/file", data.clone()),
    ];
    let upper = vec![
        file("replaced", changed.clone()),
        other(b'0', "hidden/.wh.by"),
        other(b'0', "opaque/.wh..wh..opq"),
        file("directory/now", changed.clone()),
        other(b'2', "lib"),
    ];
    let images = [vec![base.clone(), upper]];
    let made = make(
        &images,
        &[file("new", data.clone()), file("other", changed)],
        params(),
    );
    assert!(opens(&made.tar_diff, &SourceName::file("replaced")));
    assert!(
        made.tar_diff.len() > data.len(),
        "nothing has this content any more"
    );
    let made = make(&[vec![base]], &[file("new", data.clone())], params());
    assert!(made.tar_diff.len() < 500);
}

#[test]
fn a_hard_link_finds_the_predecessor_and_the_delta_names_the_object() {
    let old = prose(50_000, 1);
    let new = [&old[..25_000], b"more", &old[25_000..]].concat();
    let object = "sysroot/ostree/repo/objects/aa/aaaa.file";
    let old = vec![file(object, old), link("usr/bin/x", object)];
    let object_now = "sysroot/ostree/repo/objects/bb/bbbb.file";
    let new = [file(object_now, new), link("usr/bin/x", object_now)];
    let made = make(&[vec![old.clone()]], &new, params());
    assert!(opens(&made.tar_diff, &SourceName::file(object)));
    assert!(made.tar_diff.len() < 500, "{}", made.tar_diff.len());
    let removed = vec![other(b'0', "sysroot/.wh.ostree")];
    let made = make(&[vec![old, removed]], &new, params());
    assert!(opens(&made.tar_diff, &SourceName::file("usr/bin/x")));
}

#[test]
fn only_the_own_format_reads_other_images() {
    let data = noise(100_000, 1);
    let images = [
        vec![vec![file("a", "a")]],
        vec![vec![file("usr/lib/b", data.clone())]],
    ];
    let made = make(&images, &[file("c", data.clone())], params());
    assert!(made.tar_diff.len() > data.len());
    assert!(made.diff.further.is_some() && made.diff.inflated.is_none());
    assert!(opens(&made.further, &SourceName::file_in(1, "usr/lib/b")));
}

#[test]
fn another_image_is_read_only_for_a_large_file_that_the_predecessor_lacks() {
    let (data, other) = (noise(100_000, 1), noise(100_000, 2));
    let further = vec![vec![
        file("usr/lib/b", data.clone()),
        file("usr/lib/small", noise(60_000, 3)),
    ]];
    let reads_further = |old: Entry, new: &[Entry]| {
        let made = make(&[vec![vec![old]], further.clone()], new, params());
        made.diff.further.is_some()
    };
    let (unrelated, new) = (file("a", "a"), file("c", data.clone()));
    let only = std::slice::from_ref(&new);
    assert!(reads_further(unrelated.clone(), only));
    let small = file("small", noise(60_000, 3));
    assert!(!reads_further(unrelated.clone(), &[small]));
    let at_path = file("usr/lib/b", other);
    assert!(!reads_further(at_path, &[file("usr/lib/b", data.clone())]));
    let equal = file("elsewhere", data);
    assert!(!reads_further(equal, only));
    // It would save less than a tenth of the delta.
    assert!(!reads_further(
        unrelated,
        &[new, file("large", noise(1_500_000, 4))]
    ));
}

/// An ELF file with text and one section that is compressed.
fn elf(text: &[u8], debug: &[u8]) -> Vec<u8> {
    elf_with(text, debug.len(), &stock_zlib(debug))
}

/// The same with this zlib stream, which inflates to `length` bytes.
fn elf_with(text: &[u8], length: usize, zlib: &[u8]) -> Vec<u8> {
    // Elf64_Chdr: ELFCOMPRESS_ZLIB, size, alignment.
    let mut stream = vec![0; 24];
    stream[0] = 1;
    stream[8..16].copy_from_slice(&(length as u64).to_le_bytes());
    stream[16] = 1;
    stream.extend_from_slice(zlib);
    let names = b"\0.text\0.debug_info\0.shstrtab\0";
    let mut elf = vec![0; 64];
    let mut sections = vec![[0_u8; 64]];
    for (name, kind, flags, data) in [
        (1_u32, 1_u32, 6_u64, text),
        (7, 1, 0x800, &stream),
        (19, 3, 0, &names[..]),
    ] {
        let mut header = [0; 64];
        header[..4].copy_from_slice(&name.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[8..16].copy_from_slice(&flags.to_le_bytes());
        header[24..32].copy_from_slice(&(elf.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(data.len() as u64).to_le_bytes());
        header[48] = 1;
        sections.push(header);
        elf.extend_from_slice(data);
    }
    let table = elf.len() as u64;
    elf.extend(sections.concat());
    elf[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    elf[16..24].copy_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
    elf[40..48].copy_from_slice(&table.to_le_bytes());
    elf[52..64].copy_from_slice(&[64, 0, 56, 0, 0, 0, 64, 0, 4, 0, 3, 0]);
    elf
}

fn stock_zlib(content: &[u8]) -> Vec<u8> {
    let codec = crate::delta::Codec::from_byte(6).expect("zlib's default level");
    let (mut deflater, mut stream) = (crate::delta::Deflater::new(codec), Vec::new());
    deflater.write(content, &mut stream);
    deflater.finish(&mut stream);
    stream
}

#[test]
fn compressed_debug_sections_are_compared_by_their_contents() {
    let (text, debug) = (prose(30_000, 1), prose(40_000, 2).repeat(5));
    let mut debug_now = debug.clone();
    debug_now.splice(10..10, *b"one more name");
    let mut text_now = text.clone();
    text_now.splice(15_000..15_000, *b"some code");
    let old = vec![file("usr/bin/x", elf(&text, &debug))];
    let made = make(
        &[vec![old]],
        &[file("usr/bin/x", elf(&text_now, &debug_now))],
        params(),
    );
    let inflated = made.diff.inflated.expect("it is smaller");
    assert!(inflated.size < 1000, "{}", inflated.size);
    assert!(made.diff.standard.size > 10_000, "{}", made.diff.standard.size);
    // Another compressor's bytes cannot be made again.
    let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(&debug_now).expect("memory");
    let foreign = encoder.finish().expect("memory");
    assert!(foreign != stock_zlib(&debug_now));
    let program = elf_with(&text, debug_now.len(), &foreign);
    let made = make(
        &[vec![vec![file("x", elf(&text, &debug))]]],
        &[file("x", program)],
        params(),
    );
    assert_eq!(made.diff.inflated, None);
}

#[test]
fn little_memory_makes_windows_and_threads_make_no_difference() {
    let old = prose(5 << 20, 1);
    let mut new = old[1000..].to_vec();
    new.splice(3 << 20..3 << 20, noise(1000, 2));
    let (old, new) = (
        [vec![vec![file("x", old)]]],
        [file("x", new), file("y", noise(5, 1))],
    );
    let whole = make(&old, &new, params());
    let little = DiffParams {
        memory: 0,
        ..params()
    };
    let windows = make(&old, &new, little);
    assert!(whole.tar_diff.len() < 3000, "{}", whole.tar_diff.len());
    assert!(windows.tar_diff.len() < 6000, "{}", windows.tar_diff.len());
    let threads = make(
        &old,
        &new,
        DiffParams {
            threads: 3,
            ..params()
        },
    );
    assert!(threads.tar_diff == whole.tar_diff);
}

#[test]
fn a_node_without_the_further_image_still_inflates() {
    let (text, debug) = (prose(30_000, 1), prose(40_000, 2).repeat(5));
    let mut debug_now = debug.clone();
    debug_now.splice(10..10, *b"one more name");
    let images = [
        vec![vec![file("x", elf(&text, &debug))]],
        vec![vec![file("y", noise(70_000, 1))]],
    ];
    let new = [file("x", elf(&text, &debug_now)), file("y", noise(70_000, 1))];
    let LayerDiff {
        standard,
        inflated,
        further,
    } = make(&images, &new, params()).diff;
    let (inflated, further) = (inflated.expect("sections"), further.expect("`y`"));
    assert!(
        further.size < 2000 && inflated.size > 70_000 && standard.size > inflated.size + 8000,
        "{} {} {}",
        further.size,
        inflated.size,
        standard.size
    );
}

/// Contents with little variety, so that files are often equal or similar.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let piece = (0_u32..6, 1_usize..2000, any::<bool>());
    let piece = piece.prop_map(|(seed, length, is_noise)| match is_noise {
        true => noise(length, seed),
        false => prose(length, seed),
    });
    prop_oneof![
        vec(piece.clone(), 0..5).prop_map(|pieces| pieces.concat()),
        // Only of such a size is a file read from another image than the first one.
        (0_u32..3, 70_000_usize..80_000).prop_map(|(seed, length)| noise(length, seed)),
        (vec(piece.clone(), 1..4), piece).prop_map(|(debug, text)| elf(&text, &debug.concat())),
    ]
}

fn path() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("a"),
        Just("b"),
        Just("lib-1.2"),
        Just("lib-1.3"),
        Just(".wh.a"),
        Just(".wh.b"),
        Just(".wh..wh..opq")
    ];
    vec(name, 1..4).prop_map(|names| names.join("/"))
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        4 => (path(), content()).prop_map(|(path, data)| Entry::File(path, data)),
        1 => (path(), path()).prop_map(|(path, target)| Entry::Link(path, target)),
        1 => (prop_oneof![Just(b'2'), Just(b'5'), Just(b'6')], path(), path())
            .prop_map(|(kind, path, target)| Entry::Other(kind, path, target)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_delta_makes_its_layer_again(
        images in vec(vec(vec(entry(), 0..6), 0..3), 0..3),
        new in vec(entry(), 0..8),
        copied in any::<bool>(),
    ) {
        let mut new = new;
        if copied && let Some(layer) = images.first().and_then(|layers| layers.first()) {
            new.extend(layer.iter().cloned());
        }
        make(&images, &new, params());
    }
}
