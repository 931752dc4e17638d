//! The store against the stock tools: what we write is what podman would have written, and podman, skopeo and
//! containers-storage use it as their own.

#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

#[path = "store/crash.rs"]
mod crash;
#[path = "store/damage.rs"]
mod damage;
#[path = "store/together.rs"]
mod together;
#[path = "store/world.rs"]
mod world;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use spoke_precache::oci::Platform;
use world::{Image, World, bash, image, layer, list_of, run, stock_tools};

const BASE: &str = r#"mkdir -p bin etc/conf.d opt/data usr/lib var; ln -s usr/lib lib
    for f in $(ldd /bin/cat | grep -o '/[^ ]*'); do mkdir -p ".${f%/*}"; cp -L "$f" ".$f"; done
    cp -L /bin/cat bin/cat; ln bin/cat bin/hardlink; chmod 4755 bin/cat; chown 1000:2000 etc/conf.d
    echo base > etc/file; echo gone > etc/gone; echo x > opt/data/hidden; echo lib > usr/lib/z; chmod 0700 ."#;
const MIDDLE: &str = "mkdir -p etc opt/data; touch etc/.wh.gone opt/data/.wh..wh..opq; echo new > opt/data/new
    echo changed > etc/file; setfattr -n user.a -v b etc/file; ln -s /etc/file etc/absolute; ln -s ../etc/absolute etc/loop";
const TOP: &str =
    "mkdir -p release-manifests; echo '{}' > release-manifests/image-references; chown 7:8 release-manifests";

/// A list with our architecture and another, and an image that shares its two lower layers.
fn zoo() -> Result<(Image, Image, Image)> {
    let (base, middle) = (layer(BASE)?, layer(MIDDLE)?);
    let ours = image(
        &Platform::of_this_node().architecture,
        &[base.clone(), middle.clone(), layer(TOP)?],
    );
    let foreign = image("s390x", &[layer("echo other > other")?]);
    let sibling = image(
        &Platform::of_this_node().architecture,
        &[base, middle, layer("echo s > sibling")?, layer("true")?],
    );
    Ok((ours, foreign, sibling))
}

fn through_a_list(image: &Image, foreign: &Image) -> Image {
    let mut image = image.clone();
    image.resolved.list = Some(list_of(&[&image, foreign]));
    image
}

/// Both stores, as sections 12.3 and 12.2 of storage-format.md compare them; prints what differs.
fn compare(ours: &Path, theirs: &Path) -> Result<()> {
    bash(
        r#"A=$1 B=$2
        tree() { ( cd "$1/overlay/$2/diff"
            find . -mindepth 1 -printf '%y %m %U:%G %s n%n %T@ %p -> %l\n' | LC_ALL=C sort -k7
            find . \( -type b -o -type c \) -exec stat -c 'dev %t:%T %n' {} + | sort
            getfattr -h -R -d -m- -e hex .; find . -type f -print0 | sort -z | xargs -0r sha256sum; stat -c 'root %a' . ) }
        for id in $(jq -r '.[].id' "$B/overlay-layers/layers.json"); do
            diff <(tree "$A" $id) <(tree "$B" $id)
            diff <(cd "$A/overlay/$id"; stat -c '%a %n' * | sort) <(cd "$B/overlay/$id"; stat -c '%a %n' * | sort)
            lower() { for link in $(tr ':' '\n' 2>/dev/null < "$1/overlay/$id/lower"); do readlink "$1/overlay/$link"; done; }
            diff <(lower "$A") <(lower "$B")
            [ $(wc -c < "$A/overlay/$id/link") = 26 ]
            [ "$(readlink "$A/overlay/l/$(cat "$A/overlay/$id/link")")" = "../$id/diff" ]
        done
        for S in "$A" "$B"; do jq -c '.[]|keys_unsorted' "$S/overlay-layers/layers.json" > "$S.keys"; done; diff "$A.keys" "$B.keys"
        diff <(jq -S 'map(del(.created))|sort_by(.id)' "$A/overlay-layers/layers.json") <(jq -S 'map(del(.created))|sort_by(.id)' "$B/overlay-layers/layers.json")
        # podman 4.3.1 adds an empty signature item to every image.
        norm() { jq -S 'map(."big-data-names" |= map(select(startswith("signature-")|not))
            | ."big-data-sizes" |= with_entries(select(.key|startswith("signature-")|not))
            | ."big-data-digests" |= with_entries(select(.key|startswith("signature-")|not)) | del(.metadata))|sort_by(.id)' "$1"; }
        diff <(norm "$A/overlay-images/images.json") <(norm "$B/overlay-images/images.json")
        for S in "$A" "$B"; do jq -c '.[]|keys_unsorted' "$S/overlay-images/images.json" > "$S.keys"; done; diff "$A.keys" "$B.keys"
        for id in $(jq -r '.[].id' "$B/overlay-images/images.json"); do
            diff -r -x '=c2lnbmF0dXJl*' "$A/overlay-images/$id" "$B/overlay-images/$id"
            stat -c '%a' "$A/overlay-images/$id" "$A/overlay-images/$id"/* | sort -u | tr '\n' ' ' | grep -qx '600 700 '
        done
        [ "$(stat -c %a "$A/overlay-layers/layers.json" "$A/overlay-images/images.json" | uniq)" = 600 ]"#,
        &[ours, theirs],
    )
    .map(drop)
}

#[test]
fn what_we_store_is_what_podman_stores_and_every_tool_uses_it() -> Result<()> {
    if !stock_tools() {
        return Ok(());
    }
    let world = World::new()?;
    let (ours, foreign, sibling) = zoo()?;
    let listed = through_a_list(&ours, &foreign);
    let list = listed.resolved.list.clone().unwrap();
    world.push("r/list:1", &list, &[&ours, &foreign])?;
    world.push("r/single:1", &sibling.resolved.manifest, &[&sibling])?;
    let by_list = format!("r/list@{}", list.digest());
    let by_instance = format!("r/list@{}", ours.resolved.manifest.digest());

    let store = world.store("ours")?;
    for (name, image) in [
        ("r/list:1", &listed),
        ("r/single:1", &sibling),
        (&by_list, &listed),
    ] {
        world.pull("theirs", name)?;
        world.store_image(&store, image, name)?;
    }
    compare(&world.path("ours"), &world.path("theirs"))?;
    world.assert_consistent("ours")?;

    // Row 1 to 3: listed, inspected and found as podman's own.
    let format = "{{.ID}} {{.Repository}} {{.Tag}} {{.Digest}} {{.Size}}";
    let args = ["images", "--digests", "-a", "--no-trunc", "--format", format];
    assert_eq!(world.podman("ours", &args)?, world.podman("theirs", &args)?);
    for name in ["r/list:1", "r/single:1"] {
        let inspect = |store: &str| -> Result<String> {
            let format = "{{.Id}} {{.RepoTags}} {{.RepoDigests}} {{.Digest}} {{.Size}} {{.RootFS}} {{.Created}} {{.NamesHistory}}";
            world.podman(
                store,
                &["image", "inspect", "--format", format, &world.name(name)],
            )
        };
        assert_eq!(inspect("ours")?, inspect("theirs")?);
    }
    for name in ["r/list:1", &by_list, &by_instance] {
        world.podman("ours", &["image", "exists", &world.name(name)])?;
    }
    let inventory = store.inventory()?;
    for name in ["r/list:1", &by_list, &by_instance, "r/single:1"] {
        let found = inventory
            .find(&world.reference(name)?, &Platform::of_this_node())?
            .expect("stored above");
        assert_eq!(inventory.find_flaw(found)?, None, "{name}");
    }
    assert!(
        inventory
            .find(&world.reference(&by_list)?, &"linux/s390x".parse().unwrap())?
            .is_none()
    );
    assert!(
        inventory
            .find(
                &world.reference(&by_list.replace("r/", "x/"))?,
                &Platform::of_this_node()
            )?
            .is_none()
    );
    assert_eq!(inventory.content(&list.digest())?.as_ref(), Some(&list));

    // Row 4: a container runs on it.
    assert_eq!(
        run_container(&world, "ours", "r/list:1", "/etc/file")?,
        "changed\n"
    );

    // Row 5 to 9: every byte of the layers comes out again.
    let (tag, dir) = (world.name("r/list:1"), world.path("out"));
    for (format, file) in [("oci-archive", "a.tar"), ("docker-archive", "b.tar")] {
        world.podman(
            "ours",
            &[
                "save",
                "--quiet",
                "--format",
                format,
                "-o",
                world.path(file).to_str().unwrap(),
                &tag,
            ],
        )?;
    }
    world.podman(
        "ours",
        &[
            "push",
            "--quiet",
            "--tls-verify=false",
            &tag,
            &world.name("r/pushed:1"),
        ],
    )?;
    for args in [
        &["diff", &tag][..],
        &["image", "diff", &tag],
        &["history", &tag],
        &["image", "mount", &tag],
        &["image", "unmount", &tag],
    ] {
        assert_eq!(
            world.podman("ours", args)?.lines().count(),
            world.podman("theirs", args)?.lines().count(),
            "{args:?}"
        );
    }
    let (root, run_root) = (world.path("ours"), world.path("ours.run"));
    let options = [
        "--graph",
        root.to_str().unwrap(),
        "--run",
        run_root.to_str().unwrap(),
        "--storage-driver",
        "overlay",
    ];
    for command in ["images", "layers"] {
        run("containers-storage", &[&options[..], &[command]].concat())?;
    }
    let stored = format!(
        "containers-storage:[overlay@{}+{}]{tag}",
        root.display(),
        run_root.display()
    );
    run("skopeo", &["--insecure-policy", "inspect", &stored])?;
    run(
        "skopeo",
        &[
            "--insecure-policy",
            "copy",
            "--quiet",
            &stored,
            &format!("dir:{}", dir.display()),
        ],
    )?;

    // Row 10: podman finds every layer, without its cache of blobs.
    let before = world.access_log()?.len();
    run(
        "unshare",
        &[
            "-m",
            "sh",
            "-c",
            "mount -t tmpfs t /var/lib/containers/cache 2>/dev/null; exec \"$@\"",
            "sh",
            "podman",
            "--root",
            root.to_str().unwrap(),
            "--runroot",
            run_root.to_str().unwrap(),
            "--storage-driver",
            "overlay",
            "pull",
            "--quiet",
            "--tls-verify=false",
            &tag,
        ],
    )?;
    let fetched = world.access_log()?[before..].to_owned();
    for layer in &ours.resolved.layers {
        assert!(
            !fetched.contains(&layer.blob.hex()),
            "podman fetched a layer that we had stored"
        );
    }

    // Row 11: nothing is left.
    world.podman("ours", &["rmi", "-f", "-a"])?;
    world.assert_consistent("ours")?;
    assert_eq!(fs::read(world.path("ours/overlay-layers/layers.json"))?, b"[]");
    Ok(())
}

/// In this machine only without a network and without a cgroup, see storage-format.md section 12.1.
fn run_container(world: &World, store: &str, name: &str, file: &str) -> Result<String> {
    let script = r#"umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; exec podman --root "$1" --runroot "$1.run" \
        --storage-driver overlay run --rm --network=none --cgroups=disabled --ulimit nofile=1024:1024 \
        --ulimit nproc=1024:1024 "$2" /bin/cat "$3""#;
    let (root, name) = (world.path(store), world.name(name));
    let sh = ["sh", "-c", script, "sh", root.to_str().unwrap(), &name, file];
    run(
        "unshare",
        &[&["-m", "--propagation", "private"][..], &sh].concat(),
    )
}

#[test]
fn overlay_mounted_on_itself_is_no_obstacle() -> Result<()> {
    if !stock_tools() {
        return Ok(());
    }
    let world = World::new()?;
    let (ours, ..) = zoo()?;
    world.publish("r/a:1", &ours)?;
    let store = world.store("ours")?;
    let overlay = world.path("ours/overlay");
    let overlay = overlay.to_str().unwrap();
    run("mount", &["--bind", overlay, overlay])?;
    run("mount", &["--make-private", overlay])?;
    let renamed = fs::rename(world.path("ours/overlay-images"), world.path("ours/overlay/x"));
    assert_eq!(renamed.unwrap_err().kind(), std::io::ErrorKind::CrossesDevices);
    let stored = world.store_image(&store, &ours, "r/a:1");
    run("umount", &[overlay])?;
    stored?;
    compare(&world.path("ours"), &world.path("theirs"))
}

#[test]
fn names_move_and_what_others_wrote_stays() -> Result<()> {
    if !stock_tools() {
        return Ok(());
    }
    let world = World::new()?;
    let (ours, _, sibling) = zoo()?;
    for (name, image) in [("r/a:1", &ours), ("r/b:1", &sibling)] {
        world.publish(name, image)?;
    }
    let store = world.store("ours")?;
    world.store_image(&store, &ours, "r/a:1")?;
    bash(
        r#"cd "$1"; for f in overlay-layers/layers.json overlay-images/images.json; do
        jq -c '.[0] += {"novel": {"deep": [1.5, null]}}' $f > x; mv x $f; chmod 600 $f; done"#,
        &[&world.path("ours")],
    )?;
    let first = |file: &str| -> Result<serde_json::Value> {
        let records: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(world.path(file))?)?;
        Ok(records[0].clone())
    };
    let layer = first("ours/overlay-layers/layers.json")?;
    world.store_image(&store, &sibling, "r/a:1")?;
    assert_eq!(first("ours/overlay-layers/layers.json")?, layer);
    let image = first("ours/overlay-images/images.json")?;
    assert_eq!(image["novel"], serde_json::json!({"deep": [1.5, null]}));
    assert_eq!(image["names"], serde_json::Value::Null);
    assert_eq!(image["names-history"], serde_json::json!([world.name("r/a:1")]));
    let id = world.podman("ours", &["images", "--no-trunc", "-q", &world.name("r/a:1")])?;
    assert_eq!(id.trim(), format!("sha256:{}", sibling.resolved.id()));
    // Stored again, nothing is written.
    let modified = |file: &str| fs::metadata(world.path(file)).unwrap().modified().unwrap();
    let files = [
        "ours/overlay-layers/layers.json",
        "ours/overlay-images/images.json",
    ];
    let before = files.map(modified);
    world.store_image(&store, &sibling, "r/a:1")?;
    assert_eq!(files.map(modified), before);
    world.assert_consistent("ours")
}

#[test]
fn a_running_service_sees_an_image_at_once_and_keeps_it() -> Result<()> {
    if !stock_tools() {
        return Ok(());
    }
    let world = World::new()?;
    let (ours, foreign, sibling) = zoo()?;
    let node = Platform::of_this_node().architecture;
    for (name, image) in [("r/a:1", &ours), ("r/b:1", &sibling), ("r/c:1", &foreign)] {
        world.push(name, &image.resolved.manifest, &[image])?;
        world.podman(
            "theirs",
            &[
                "pull",
                "--quiet",
                "--tls-verify=false",
                "--arch",
                if name == "r/c:1" { "s390x" } else { &node },
                &world.name(name),
            ],
        )?;
    }
    let store = world.store("ours")?;
    world.store_image(&store, &ours, "r/a:1")?;
    let socket = world.path("s");
    let mut service = Command::new("podman")
        .arg("--root")
        .arg(world.path("ours"))
        .arg("--runroot")
        .arg(world.path("ours.run"))
        .args(["--storage-driver", "overlay", "system", "service", "-t", "0"])
        .arg(format!("unix://{}", socket.display()))
        .spawn()?;
    let seen = (|| -> Result<()> {
        let since = Instant::now();
        while !socket.exists() {
            ensure!(
                since.elapsed() < Duration::from_secs(20),
                "the service does not listen"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        let list = || {
            run(
                "curl",
                &[
                    "-sf",
                    "--unix-socket",
                    socket.to_str().unwrap(),
                    "http://d/v4.0.0/libpod/images/json",
                ],
            )
        };
        ensure!(list()?.contains(&world.name("r/a:1")));
        world.store_image(&store, &sibling, "r/b:1")?;
        ensure!(
            list()?.contains(&world.name("r/b:1")),
            "the service does not see the second image"
        );
        // A service that had kept its old list would write it back now.
        let pull = format!(
            "http://d/v4.0.0/libpod/images/pull?reference={}&tlsVerify=false&arch=s390x",
            world.name("r/c:1")
        );
        run(
            "curl",
            &[
                "-sf",
                "-X",
                "POST",
                "--unix-socket",
                socket.to_str().unwrap(),
                &pull,
            ],
        )?;
        for name in ["r/a:1", "r/b:1", "r/c:1"] {
            ensure!(list()?.contains(&world.name(name)), "{name} is gone");
        }
        Ok(())
    })();
    service.kill()?;
    service.wait()?;
    seen?;
    world.assert_consistent("ours")
}

#[test]
fn files_are_read_through_whiteouts_opaque_directories_and_symlinks() -> Result<()> {
    if !stock_tools() {
        return Ok(());
    }
    let world = World::new()?;
    let (ours, ..) = zoo()?;
    world.publish("r/a:1", &ours)?;
    let store = world.store("theirs")?;
    let chain = ours.resolved.layer_ids();
    for (path, expected) in [
        ("release-manifests/image-references", Some("{}\n")),
        ("/etc/file", Some("changed\n")),
        ("etc/gone", None),
        ("opt/data/hidden", None),
        ("opt/data/new", Some("new\n")),
        ("lib/z", Some("lib\n")),
        ("lib/../lib/z", Some("lib\n")),
        ("../../usr/lib/z", Some("lib\n")),
        ("etc/absolute", Some("changed\n")),
        ("etc/loop", Some("changed\n")),
        ("etc/file/x", None),
        ("nothing/at/all", None),
    ] {
        let read = store
            .read_file(&chain, path, 100)?
            .map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(read.as_deref(), expected, "{path}");
    }
    for (path, limit, expected) in [
        ("etc", 100, "a directory"),
        ("etc/file", 3, "8 bytes, more than 3"),
        ("", 1, "a directory"),
    ] {
        let refused = store.read_file(&chain, path, limit).unwrap_err().to_string();
        assert!(refused.contains(expected), "{path}: {refused}");
    }
    // As the kernel shows it.
    let mounted = world.podman("theirs", &["image", "mount", &world.name("r/a:1")])?;
    let found = bash("cd \"$1\"; find . -type f", &[Path::new(mounted.trim())])?;
    for path in found.lines() {
        let kernel = fs::read(Path::new(mounted.trim()).join(path))?;
        assert!(store.read_file(&chain, path, 1 << 30)? == Some(kernel), "{path}");
    }
    world.podman("theirs", &["image", "unmount", &world.name("r/a:1")])?;
    Ok(())
}
