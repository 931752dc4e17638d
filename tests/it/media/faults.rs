//! Pulls from media with wrong, cut and malicious content: every image is right, the registry sends what is missing, and the
//! report names the medium and the blob. Without a registry such a run fails.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::{Kind, Source, utf8};
use crate::image::tar::entry;
use crate::image::{Image, sha256};
use crate::needs::needs;
use crate::registry::faults::Fault;

/// All in OCI's format, which skopeo copies to a layout as they are.
pub(super) const IMAGES: &str = "
    image site/first oci
    layer gzip
    file /base 0644 0:0 random=300000 seed=1
    layer gzip
    file /large 0644 0:0 random=3000000 seed=2

    image site/second oci
    layer gzip
    file /base 0644 0:0 random=300000 seed=1
    layer zstd
    file /other 0644 0:0 random=700000 seed=3
";

/// Members or files that nobody asks for.
const MANY: usize = 100_000;

/// Memory of a run with so many entries in a medium.
const MEMORY: u64 = 256 << 20;

/// The layer of 3 MB, which only the first image has.
pub(super) fn large(source: &Source) -> String {
    source.images.image("site/first").layers[1].digest.clone()
}

/// A blob of an OCI layout.
pub(super) fn blob(layout: &Path, digest: &str) -> PathBuf {
    layout.join("blobs").join(digest.replace(':', "/"))
}

/// A run that gets nothing from the registry fails and names one of these digests, and what is in the store is right.
#[track_caller]
pub(super) fn fails_without_registry(source: &Source, media: &[PathBuf], missing: &[String]) {
    source.registry.fault(Fault::on("/v2/").status(404));
    let node = source.node();
    let run = source.run(&node, media, &source.references());
    source.registry.end_faults();
    assert_ne!(run.code, 0, "{run}");
    let wrong = source.differences(&node);
    assert!(wrong.is_empty(), "{}\n{run}", wrong.join("\n"));
    let named = missing.iter().any(|digest| run.stderr.contains(digest.as_str()));
    assert!(named, "it names none of {missing:#?}: {run}");
}

/// What somebody does to a file of a medium.
type Damage = fn(&mut Vec<u8>);

#[test]
fn wrong_bytes_under_a_right_name_come_from_the_registry() {
    needs!(root(), stock());
    let source = Source::of(IMAGES);
    let media = source.media(Kind::SkopeoOci, &source.names());
    let first = source.images.image("site/first");
    let (manifest, config, layer) = (first.digest(), sha256(&first.config), large(&source));
    let flip: Damage = |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    };
    let cut: Damage = |bytes| bytes.truncate(bytes.len() / 2);
    let empty: Damage = Vec::clear;
    let longer: Damage = |bytes| bytes.push(0);
    for (digest, damage) in [
        (&layer, flip),
        (&layer, cut),
        (&layer, empty),
        (&layer, longer),
        (&config, flip),
        (&config, longer),
        (&manifest, flip),
        (&manifest, cut),
        (&manifest, empty),
    ] {
        let path = blob(&media[0], digest);
        let right = fs::read(&path).unwrap();
        let mut wrong = right.clone();
        damage(&mut wrong);
        fs::write(&path, wrong).unwrap();

        let run = source.pulls(&media, &source.references());
        let asked = source.registry.log().into_iter().map(|access| access.path);
        let others: Vec<String> = asked.filter(|path| !path.ends_with(digest.as_str())).collect();
        assert!(others.is_empty(), "{others:#?}\n{run}");
        run.says(utf8(&media[0])).says(digest);
        fails_without_registry(&source, &media, std::slice::from_ref(digest));

        fs::write(&path, right).unwrap();
    }
}

/// A tag means what the registry says, whatever a medium has under it.
#[test]
fn tags_of_a_medium_name_no_image() {
    needs!(root(), stock(), docker_registry());
    let source = Source::of(IMAGES);
    let media = source.media(Kind::Registry, &source.names());
    let tags = |name: &str| {
        let tags = format!("docker/registry/v2/repositories/{name}/_manifests/tags");
        media[0].join(tags).join("latest/current/link")
    };
    fs::copy(tags("site/first"), tags("site/second")).unwrap();
    let node = source.node();
    let tagged = source.registry.tagged("site/second");
    let run = source.run(&node, &media, std::slice::from_ref(&tagged)).exits(0);
    assert_eq!(source.requested_layers(), Vec::<String>::new(), "{run}");
    let inspected = node.podman(&["image", "inspect", &tagged]).json();
    assert_eq!(inspected[0]["Id"], source.images.image("site/second").id());
}

#[test]
fn cut_archives_serve_what_they_still_have() {
    needs!(root(), stock(), docker_registry());
    let source = Source::of(IMAGES);
    let layout = source.media(Kind::OciTar, &source.names());
    let archives = source.media(Kind::OcMirror, &source.names());
    let mut parts: Vec<PathBuf> = fs::read_dir(&archives[0])
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension() == Some(OsStr::new("tar")))
        .collect();
    parts.sort();
    let largest = parts.iter().max_by_key(|part| fs::metadata(part).unwrap().len());
    for (media, archive) in [(&layout, &layout[0]), (&archives, largest.unwrap())] {
        let whole = fs::read(archive).unwrap();
        for length in [whole.len() / 4, whole.len() / 2, whole.len() * 3 / 4] {
            fs::write(archive, &whole[..length]).unwrap();
            let run = source.pulls(media, &source.references()).says(utf8(archive));
            let requested = source.requested();
            assert!(!requested.is_empty(), "{length} of {} bytes: {run}", whole.len());
            fails_without_registry(&source, media, &requested);
        }
        fs::write(archive, whole).unwrap();
    }
}

#[test]
fn a_damaged_header_costs_what_is_in_its_place() {
    needs!(root(), stock());
    let source = Source::of(IMAGES);
    let layout = source.media(Kind::OciTar, &source.names());
    let tar = fs::read(&layout[0]).unwrap();
    let hex = large(&source)["sha256:".len()..].to_owned();
    // The member's header follows that of its PAX records, where the name stands too.
    let named = |block: &[u8]| block.windows(hex.len()).any(|window| window == hex.as_bytes());
    let blocks: Vec<usize> = (0..tar.len() / 512)
        .filter(|block| tar[block * 512 + 257..].starts_with(b"ustar") && named(&tar[block * 512..][..512]))
        .collect();
    assert_eq!(
        blocks.len(),
        2,
        "the header of the PAX records, and the member's own"
    );
    // Without its PAX records, which have times alone, the member is still there.
    for (block, lost) in blocks.into_iter().zip([vec![], vec![large(&source)]]) {
        let mut damaged = tar.clone();
        damaged[block * 512..][..512].fill(0xff);
        fs::write(&layout[0], damaged).unwrap();
        let run = source.pulls(&layout, &source.references()).says(utf8(&layout[0]));
        assert_eq!(source.requested(), lost, "{run}");
        if !lost.is_empty() {
            fails_without_registry(&source, &layout, &lost);
        }
    }
}

/// What is at the path of a blob in a directory, and cannot or must not be read.
#[test]
fn only_regular_files_below_the_medium_are_read() {
    needs!(root(), stock());
    let source = Source::of(IMAGES);
    let media = source.media(Kind::SkopeoOci, &source.names());
    let path = blob(&media[0], &large(&source));
    let outside = source.place("outside").join("large");
    fs::rename(&path, &outside).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    let node = |kind, device| {
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, device).unwrap();
    };
    let fifo = || node(rustix::fs::FileType::Fifo, 0);
    let zeros = || node(rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 5));
    let link = || symlink(&outside, &path).unwrap();
    let relative = || symlink("../../../outside/large", &path).unwrap();
    let circle = || symlink(path.file_name().unwrap(), &path).unwrap();
    let socket = || node(rustix::fs::FileType::Socket, 0);
    let directory = || fs::create_dir(&path).unwrap();
    let makes: [&dyn Fn(); 7] = [&fifo, &zeros, &link, &relative, &circle, &socket, &directory];
    for make in makes {
        make();
        let run = source.pulls(&media, &source.references());
        assert_eq!(source.requested_layers(), [large(&source)], "{run}");
        fails_without_registry(&source, &media, &[large(&source)]);
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
    }
}

/// Members that are no regular files, and names that lead elsewhere.
#[test]
fn only_regular_members_of_an_archive_are_read() {
    needs!(root(), stock());
    let source = Source::of(IMAGES);
    let first = source.images.image("site/first");
    let outside = source.place("outside").join("large");
    fs::write(&outside, &first.layers[1].blob).unwrap();
    let name = format!("blobs/{}", large(&source).replace(':', "/"));
    for typeflag in [b'1', b'2', b'3', b'4', b'5', b'6', b'7' + 1] {
        let mut tar = archive_of(first, &large(&source));
        let mut odd = entry(typeflag, &name);
        odd.link = utf8(&outside).into();
        odd.write(&mut tar);
        tar.resize(tar.len() + 1024, 0);
        let archive = source.place("odd").join("odd.tar");
        fs::write(&archive, tar).unwrap();
        let media = [archive];
        let first = [source.reference("site/first")];
        let run = source.pulls(&media, &first);
        assert_eq!(
            source.requested_layers(),
            [large(&source)],
            "{}: {run}",
            char::from(typeflag)
        );
    }
}

/// A layout with this image, in a tar without its end, but for one blob.
fn archive_of(image: &Image, without: &str) -> Vec<u8> {
    let mut tar = Vec::new();
    let mut add = |name: String, bytes: &[u8]| {
        let mut file = entry(b'0', name);
        file.data = bytes.to_vec();
        file.write(&mut tar);
    };
    add("oci-layout".into(), br#"{"imageLayoutVersion": "1.0.0"}"#);
    add("index.json".into(), br#"{"schemaVersion": 2, "manifests": []}"#);
    let layers = image.layers.iter().map(|layer| &layer.blob);
    for bytes in layers.chain([&image.manifest, &image.config]) {
        let digest = sha256(bytes);
        if digest != without {
            add(format!("blobs/{}", digest.replace(':', "/")), bytes);
        }
    }
    tar
}

/// Files and members that no image needs cost neither minutes nor memory.
#[test]
fn a_hundred_thousand_other_entries_are_no_obstacle() {
    needs!(root(), stock());
    let source = Source::of(IMAGES);
    let other = |number: usize| sha256(&number.to_le_bytes())["sha256:".len()..].to_owned();
    let layout = source.media(Kind::SkopeoOci, &source.names());
    for number in 0..MANY {
        File::create(layout[0].join("blobs/sha256").join(other(number))).unwrap();
    }
    let mut tar = Vec::new();
    for number in 0..MANY {
        entry(b'0', format!("blobs/sha256/{}", other(number))).write(&mut tar);
    }
    tar.extend(archive_of(source.images.image("site/first"), ""));
    tar.resize(tar.len() + 1024, 0);
    let archive = source.place("many").join("many.tar");
    fs::write(&archive, tar).unwrap();

    let run = source.pulls(&layout, &source.references());
    assert_eq!(source.requested_layers(), Vec::<String>::new(), "{run}");
    assert!(run.memory < MEMORY, "{} bytes of memory: {run}", run.memory);
    let run = source.pulls(&[archive], &[source.reference("site/first")]);
    assert_eq!(source.requested_layers(), Vec::<String>::new(), "{run}");
    assert!(run.memory < MEMORY, "{} bytes of memory: {run}", run.memory);
}

/// A path that the user names must be a medium, and nothing at it may hang the run.
#[test]
fn paths_that_are_no_media_are_refused_by_name() {
    needs!(root(), stock());
    let source = Source::of(IMAGES);
    let place = source.place("paths");
    let [missing, empty, text, fifo] = ["missing", "empty", "text", "fifo"].map(|name| place.join(name));
    fs::create_dir(&empty).unwrap();
    fs::write(&text, "no medium at all\n".repeat(100)).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let zeros = PathBuf::from("/dev/zero");
    for path in [missing, empty, text, fifo, zeros] {
        let media = [path];
        let run = source.run(&source.node(), &media, &source.references()).exits(2);
        run.says(utf8(&media[0]));
        assert!(source.registry.log().is_empty(), "{}", media[0].display());
    }
}

#[test]
fn another_medium_serves_what_the_first_has_damaged() {
    needs!(root(), stock());
    let source = Source::of(IMAGES);
    let mut media = source.media(Kind::SkopeoOci, &source.names());
    media.extend(source.media(Kind::OciTar, &source.names()));
    let path = blob(&media[0], &large(&source));
    let mut bytes = fs::read(&path).unwrap();
    bytes[1_000_000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let run = source.pulls(&media, &source.references());
    assert_eq!(source.requested_layers(), Vec::<String>::new(), "{run}");
    run.says(utf8(&media[0])).says(&large(&source));
}
