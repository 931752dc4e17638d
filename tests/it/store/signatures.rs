//! Tests signatures in the store, with podman and skopeo as the reference.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use spoke_precache::cancel::Cancel;
use spoke_precache::oci::Digest;
use spoke_precache::signature::Signature;
use spoke_precache::store::{StorageConf, Store, StoreError};

use super::{put, put_signed, resolved, store, three_layers};
use crate::compare::{compare, inconsistencies};
use crate::image::{Compression, Format, Image, Images, Layer, node_architecture};
use crate::needs::{leave_out, needs};
use crate::registry::Registry;
use crate::stock::docker_registry::DockerRegistry;
use crate::stock::signer::Signer;
use crate::test_node::TestNode;

/// The same config and layers under another manifest.
fn with_another_manifest(image: &Image) -> Image {
    let mut manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
    manifest["annotations"] = json!({"another": "manifest"});
    Image {
        manifest: manifest.to_string().into(),
        ..image.clone()
    }
}

/// Without compression: skopeo reads tars from a store, and refuses to change the layers of a signed image.
fn oci_image() -> Image {
    let layer = Layer::of("file /a 0644 0:0 \"a\"", Compression::None);
    Image::build("signed", Format::Oci, node_architecture(), vec![layer], |_, _| {})
}

fn digest(image: &Image) -> Digest {
    image.digest().parse().unwrap()
}

/// Signatures as the store sees them: any bytes.
fn blobs(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// What the store returns for `image`.
fn read(store: &Store, image: &Image) -> Result<Vec<Vec<u8>>, StoreError> {
    let inventory = store.inventory().unwrap();
    let stored = inventory.image(&resolved(image, None).id()).unwrap();
    inventory.signatures(stored, digest(image))
}

/// Every damage that the check finds in the only image.
fn damages(store: &Store) -> Vec<String> {
    let inventory = store.inventory().unwrap();
    let damages = inventory.check_data(&inventory.images()[0]).unwrap();
    let text = |damage: &spoke_precache::store::Damage| {
        assert!(damage.is_of_signatures(), "{damage}");
        damage.to_string()
    };
    damages.iter().map(text).collect()
}

/// The only record in images.json, with its `metadata` as JSON.
fn record(root: &Path) -> Value {
    let text = fs::read(root.join("overlay-images/images.json")).unwrap();
    let mut records: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let mut record = records.remove(0);
    assert!(records.is_empty());
    record["metadata"] = serde_json::from_str(record["metadata"].as_str().unwrap()).unwrap();
    record
}

fn put_signatures(store: &Store, image: &Image, signatures: &[Vec<u8>]) -> Result<bool, StoreError> {
    let id = resolved(image, None).id();
    store.put_signatures(&id, digest(image), signatures, &Cancel::default())
}

/// A registry with signed images, and a node where podman has pulled some.
struct Signed {
    docker: DockerRegistry,
    theirs: TestNode,
}

impl Signed {
    /// `None` where skopeo cannot sign with sigstore keys.
    fn new(images: &Images) -> Option<Self> {
        let (registry, docker) = (Registry::start(), DockerRegistry::start());
        let theirs = TestNode::trusting(&[registry.host(), docker.host()]);
        if theirs.podman_version().starts_with("4.") {
            leave_out("Debian 12 builds skopeo without sigstore; set SPOKE_STOCK_ROOT");
            return None;
        }
        registry.push_all(images);
        let signed = Self { docker, theirs };
        let signer = Signer::on(&signed.theirs);
        let lists = images.lists.iter().map(|list| &list.name);
        for name in images.images.iter().map(|image| &image.name).chain(lists) {
            signer.copy(&registry.tagged(name), &signed.name(name));
        }
        Some(signed)
    }

    fn name(&self, repository: &str) -> String {
        format!("{}/{repository}:latest", self.docker.host())
    }

    /// The signatures that podman has stored for `image`.
    fn signatures(&self, image: &Image) -> Vec<Vec<u8>> {
        let signatures = read(&store(&self.theirs), image).unwrap();
        assert!(signatures.len() >= 2, "podman has stored {}", signatures.len());
        for signature in &signatures {
            assert_eq!(Signature::from_blob(signature).unwrap().to_blob(), *signature);
        }
        signatures
    }

    #[track_caller]
    fn assert_same(&self, ours: &TestNode) {
        let mut wrong = inconsistencies(&ours.graph_root());
        wrong.extend(compare(&ours.graph_root(), &self.theirs.graph_root(), &[]));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        // As text: the order of the keys too.
        let [ours, theirs] = [ours, &self.theirs].map(|node| record(&node.graph_root()).to_string());
        assert_eq!(ours, theirs);
    }
}

#[test]
fn signatures_are_stored_as_podman_stores_them_and_stock_tools_read_them() {
    needs!(root(), stock(), docker_registry());
    let image = oci_image();
    let images = Images {
        images: vec![image.clone()],
        lists: Vec::new(),
    };
    let Some(signed) = Signed::new(&images) else {
        return;
    };
    let name = signed.name("signed");
    signed.theirs.podman_pull(&name);
    let signatures = signed.signatures(&image);

    // With the image, and later.
    let nodes = [(); 2].map(|()| TestNode::trusting(&[signed.docker.host()]));
    put_signed(&store(&nodes[0]), &image, None, &name, signatures.clone());
    put(&store(&nodes[1]), &image, None, &name);
    assert_eq!(record(&nodes[1].graph_root())["metadata"], json!({}));
    assert!(put_signatures(&store(&nodes[1]), &image, &signatures).unwrap());
    assert!(!put_signatures(&store(&nodes[1]), &image, &signatures).unwrap());
    for node in &nodes {
        signed.assert_same(node);
        assert_eq!(read(&store(node), &image).unwrap(), signatures);
        node.podman(&["image", "inspect", &name]).ok();
        let stored =
            format!("containers-storage:[overlay@/var/lib/containers/storage+/run/containers/storage]{name}");
        let directory = node.out("copied");
        node.skopeo(&[
            "copy",
            "--quiet",
            &stored,
            &format!("dir:{}", directory.display()),
        ])
        .ok();
        for (index, signature) in signatures.iter().enumerate() {
            let copied = fs::read(directory.join(format!("signature-{}", index + 1))).unwrap();
            assert_eq!(copied, *signature, "signature {index}");
        }
        if node.has_system_check() {
            node.podman(&["system", "check", "--quick"]).ok();
        }
    }

    // A pull that looks for no signatures forgets them and leaves the items.
    let node = &nodes[1];
    node.podman_pull(&name);
    assert_eq!(record(&node.graph_root())["metadata"], json!({}));
    assert_eq!(read(&store(node), &image).unwrap(), Vec::<Vec<u8>>::new());
    assert_eq!(damages(&store(node)), Vec::<String>::new());
    assert!(put_signatures(&store(node), &image, &signatures).unwrap());
    signed.assert_same(node);
}

#[test]
fn signatures_of_an_instance_are_stored_as_podman_stores_them() {
    needs!(root(), stock(), docker_registry());
    let text = "image multi-amd64 oci
        layer gzip
        file /a 0644 0:0 \"a\"";
    let image = Images::of(text, &[]).images.remove(0);
    let list = crate::image::List::build("multi", Format::Oci, vec![image.clone()]);
    let images = Images {
        images: vec![image.clone()],
        lists: vec![list.clone()],
    };
    let Some(signed) = Signed::new(&images) else {
        return;
    };
    let name = signed.name("multi");
    signed
        .theirs
        .podman(&["pull", "--quiet", "--arch", "amd64", &name])
        .ok();
    let signatures = signed.signatures(&image);
    let ours = TestNode::trusting(&[]);
    put_signed(&store(&ours), &image, Some(&list), &name, signatures);
    signed.assert_same(&ours);
}

/// podman forgets the signatures of the first manifest; they are kept here, and otherwise everything is the same.
#[test]
fn one_image_under_two_manifests_has_the_signatures_of_both() {
    needs!(root(), stock(), docker_registry());
    let first = oci_image();
    let second = Image {
        name: "second".to_owned(),
        ..with_another_manifest(&first)
    };
    let images = Images {
        images: vec![first.clone(), second.clone()],
        lists: Vec::new(),
    };
    let Some(signed) = Signed::new(&images) else {
        return;
    };
    let ours = TestNode::trusting(&[]);
    let mut stored = Vec::new();
    for image in [&first, &second] {
        let name = signed.name(&image.name);
        signed.theirs.podman_pull(&name);
        stored.push(signed.signatures(image));
        put_signed(
            &store(&ours),
            image,
            None,
            &name,
            stored[stored.len() - 1].clone(),
        );
    }
    let [mut our, mut their] = [&ours, &signed.theirs].map(|node| record(&node.graph_root()));
    let [our_metadata, their_metadata] = [&mut our, &mut their].map(|it| it["metadata"].take());
    assert_eq!(our, their);
    let lengths = |index: usize| stored[index].iter().map(Vec::len).collect::<Vec<usize>>();
    let of = |image: &Image| image.digest();
    assert_eq!(
        their_metadata,
        json!({"signature-sizes": lengths(1), "signatures-sizes": {of(&second): lengths(1)}})
    );
    let both: BTreeMap<String, Vec<usize>> = [(of(&first), lengths(0)), (of(&second), lengths(1))].into();
    assert_eq!(
        our_metadata,
        json!({"signature-sizes": lengths(1), "signatures-sizes": both})
    );
    assert_eq!(read(&store(&ours), &first).unwrap(), stored[0]);
    assert_eq!(read(&store(&ours), &second).unwrap(), stored[1]);
    assert_eq!(inconsistencies(&ours.graph_root()), Vec::<String>::new());
}

#[test]
fn later_commits_names_and_sweeps_keep_signatures() {
    needs!(root());
    let (world, image) = (TestNode::trusting(&[]), three_layers());
    let (store, two) = (store(&world), with_another_manifest(&image));
    let signatures = blobs(&["one", "another"]);
    put_signed(&store, &image, None, "localhost/a:1", signatures.clone());
    let root = world.graph_root();
    let before = record(&root);

    put(&store, &image, None, "localhost/a:2");
    let by_digest = format!("localhost/a@{}", image.digest()).parse().unwrap();
    let named = store.add_names(&[(resolved(&image, None).id(), by_digest)], &Cancel::default());
    named.unwrap();
    store.remove_leftovers();
    assert!(!put_signatures(&store, &image, &[]).unwrap());
    let resolved = resolved(&image, None);
    let repaired = store.repair_image(&resolved, &"localhost/a:3".parse().unwrap(), &Cancel::default());
    repaired.unwrap();
    let mut after = record(&root);
    assert_eq!(after["names"].as_array().unwrap().len(), 4);
    for key in ["names", "names-history"] {
        after[key] = before[key].clone();
    }
    assert_eq!(after, before);
    assert_eq!(read(&store, &image).unwrap(), signatures);

    // Another manifest without signatures has none, and the first one keeps its own.
    put(&store, &two, None, "localhost/b:1");
    assert_eq!(read(&store, &two).unwrap(), Vec::<Vec<u8>>::new());
    assert_eq!(read(&store, &image).unwrap(), signatures);
    assert_eq!(damages(&store), Vec::<String>::new());
    // It is the image's own manifest again.
    put(&store, &image, None, "localhost/a:1");
    assert_eq!(read(&store, &image).unwrap(), signatures);
    assert_eq!(record(&root)["metadata"], before["metadata"]);
    assert_eq!(inconsistencies(&root), Vec::<String>::new());
}

#[test]
fn damaged_signatures_are_named_and_replaced_or_removed() {
    needs!(root());
    let image = three_layers();
    let own = format!("signature-{}", digest(&image).hex());
    let replace_metadata = |text: &str| {
        format!(
            "jq -c --arg text '{text}' '.[0].metadata = $text' overlay-images/images.json > x; \
             cat x > overlay-images/images.json; rm x"
        )
    };
    let both = ["signatures", &own];
    let file = "$(ls overlay-images/*/=c2lnbmF0dXJl*)";
    for (script, items, is_readable) in [
        ("rm overlay-images/*/signatures".to_owned(), &both[..1], false),
        (
            "echo >> overlay-images/*/signatures".to_owned(),
            &both[..1],
            false,
        ),
        (": > overlay-images/*/signatures".to_owned(), &both[..1], false),
        (
            "printf x | dd of=$(ls overlay-images/*/signatures) conv=notrunc".to_owned(),
            &both[..1],
            false,
        ),
        (format!("rm {file}"), &both[1..], true),
        (format!("truncate --size 70M {file}"), &both[1..], true),
        (replace_metadata("x"), &["metadata"], false),
        (replace_metadata(r#"{"signature-sizes":[3]}"#), &both[..1], false),
        (
            replace_metadata(r#"{"signature-sizes":[10,0]}"#),
            &both[..1],
            false,
        ),
    ] {
        let world = TestNode::trusting(&[]);
        let (store, root) = (store(&world), world.graph_root());
        let signatures = blobs(&["one", "another"]);
        put_signed(&store, &image, None, "localhost/a:1", signatures.clone());
        let before = record(&root);
        let status = Command::new("bash")
            .args(["-euc", &script])
            .current_dir(&root)
            .status();
        assert!(status.unwrap().success(), "{script}");

        let found = damages(&store);
        let names = items.iter().map(|item| format!("`{item}`: "));
        let is_named = |(damage, name): (&String, String)| damage.starts_with(&name);
        assert!(
            found.len() == items.len() && found.iter().zip(names).all(is_named),
            "{script}: {found:?}"
        );
        let error = read(&store, &image).err();
        assert_eq!(error.is_none(), is_readable, "{script}: {error:?}");
        if let Some(error) = error {
            assert!(
                matches!(&error, StoreError::DamagedSignatures { item, .. } if item == items[0]),
                "{error}"
            );
        }
        // Without other ones, what is intact stays.
        assert!(put_signatures(&store, &image, &[]).is_ok());
        assert_eq!(damages(&store), Vec::<String>::new(), "{script}");
        assert_eq!(inconsistencies(&root), Vec::<String>::new(), "{script}");
        // One of two items is enough, if it is known where one signature ends.
        let expected = if script.contains("metadata") {
            Vec::new()
        } else {
            signatures.clone()
        };
        assert_eq!(read(&store, &image).unwrap(), expected, "{script}");
        put_signatures(&store, &image, &signatures).unwrap();
        assert_eq!(read(&store, &image).unwrap(), signatures, "{script}");
        assert_eq!(record(&root)["metadata"], before["metadata"], "{script}");
        assert_eq!(inconsistencies(&root), Vec::<String>::new(), "{script}");
    }
}

#[test]
fn signatures_that_cannot_be_stored_are_refused() {
    needs!(root());
    let (world, image) = (TestNode::trusting(&[]), three_layers());
    let store = store(&world);
    let refused = |signatures: &[Vec<u8>]| match put_signatures(&store, &image, signatures) {
        Err(error @ StoreError::Unsignable { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refused(&blobs(&["one"])).contains("is not in the store"));
    put(&store, &image, None, "localhost/a:1");
    let before = record(&world.graph_root());
    assert!(refused(&blobs(&["one", ""])).contains("empty"));
    assert!(refused(&vec![b"x".to_vec(); 5000]).contains("5000 signatures"));
    assert!(refused(&[vec![0; 65 << 20]]).contains("bytes"));
    let id = resolved(&image, None).id();
    let other = store.put_signatures(&id, Digest::of(b"x"), &blobs(&["one"]), &Cancel::default());
    assert!(matches!(other, Err(StoreError::Unsignable { .. })), "{other:?}");
    assert_eq!(record(&world.graph_root()), before);
}

#[test]
fn an_image_of_an_additional_store_cannot_get_signatures_and_keeps_its_own_in_the_graph_root() {
    needs!(root());
    let (more, world, image) = (TestNode::trusting(&[]), TestNode::trusting(&[]), three_layers());
    let signatures = blobs(&["one", "another"]);
    put_signed(&store(&more), &image, None, "localhost/a:1", signatures.clone());
    let conf = StorageConf {
        additional_image_stores: vec![more.graph_root()],
        ..StorageConf::default()
    };
    let store = Store::open(&world.graph_root(), &conf).unwrap();
    store.create_if_missing().unwrap();
    assert_eq!(read(&store, &image).unwrap(), signatures);
    let before = record(&more.graph_root());
    match put_signatures(&store, &image, &blobs(&["new"])) {
        Err(error @ StoreError::Unsignable { .. }) => {
            let root = more.graph_root().display().to_string();
            assert!(error.to_string().contains(&root), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // Its record in the graph root hides the other one.
    put(&store, &image, None, "localhost/a:2");
    assert_eq!(read(&store, &image).unwrap(), signatures);
    assert_eq!(record(&world.graph_root())["metadata"], before["metadata"]);
    assert_eq!(record(&more.graph_root()), before);
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}

/// Names the store in which [`replacing_signatures`] works; it does nothing otherwise.
const ROOT: &str = "SPOKE_SIGNATURES_ROOT";
const OLD: [&str; 2] = ["old", "older"];
const NEW: [&str; 1] = ["the new signature"];

/// Is killed by the next test, at each of its system calls.
#[test]
fn replacing_signatures() {
    let Some(root) = std::env::var_os(ROOT) else {
        return;
    };
    let image = three_layers();
    let store = Store::open(Path::new(&root), &StorageConf::default()).unwrap();
    let _ = put_signatures(&store, &image, &blobs(&NEW)).unwrap();
}

/// containers/storage would leave a record that differs from its items, for which CRI-O removes the image.
#[test]
fn a_kill_while_signatures_are_replaced_leaves_old_ones_none_or_new_ones() {
    needs!(root(), strace());
    let image = three_layers();
    let mut seen = BTreeMap::new();
    for call in ["rename", "fdatasync", "fsync", "pwrite64", "openat"] {
        for nth in 1..400 {
            let world = TestNode::trusting(&[]);
            let (store, root) = (store(&world), world.graph_root());
            put_signed(&store, &image, None, "localhost/a:1", blobs(&OLD));
            let killed = Command::new("/usr/bin/strace")
                .args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")])
                .args(["-e", &format!("inject={call}:signal=KILL:when={nth}")])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", "store::signatures::replacing_signatures"])
                .env(ROOT, &root)
                .output()
                .unwrap();
            assert_eq!(damages(&store), Vec::<String>::new(), "{call} {nth}");
            let stored = read(&store, &image).unwrap();
            let state = [blobs(&OLD), Vec::new(), blobs(&NEW)]
                .iter()
                .position(|it| *it == stored);
            *seen.entry(state.expect("one of three states")).or_insert(0) += 1;
            put_signatures(&store, &image, &blobs(&NEW)).unwrap();
            assert_eq!(read(&store, &image).unwrap(), blobs(&NEW));
            if killed.status.success() {
                assert_eq!(state, Some(2), "{call} {nth}");
                break;
            }
        }
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}
