//! A registry on loopback, images made from shell lines, and podman's own stores beside ours.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use flate2::Compression as Level;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use spoke_precache::cancel::Cancel;
use spoke_precache::oci::{Content, DiffId, Digest, LayerDescriptor, LayerId, Reference, ResolvedImage};
use spoke_precache::store::{
    Compression, ImageCommit, LayerCommit, LayerSpec, Stage, StagedLayer, StorageConf, Store, Unpacked,
};

/// False, with a line in the log, where the tests cannot run. In CI that is a failure.
pub(crate) fn stock_tools() -> bool {
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if run("podman", &["--version"]).is_err() || run("skopeo", &["--version"]).is_err() {
        "podman and skopeo"
    } else {
        return true;
    };
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "CI has to have {missing}"
    );
    eprintln!("SKIPPED: no {missing}");
    false
}

pub(crate) fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| program.to_owned())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(
        output.status.success(),
        "{program} {args:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    Ok(text(&output.stdout))
}

pub(crate) fn bash(script: &str, args: &[&Path]) -> Result<String> {
    let mut all = vec!["-euo", "pipefail", "-c", script, "bash"];
    all.extend(args.iter().map(|arg| arg.to_str().expect("test paths are UTF-8")));
    run("bash", &all)
}

/// A layer as it was built, and as its blob travels.
#[derive(Clone)]
pub(crate) struct Layer {
    pub(crate) diff_id: DiffId,
    pub(crate) diff_size: u64,
    pub(crate) descriptor: LayerDescriptor,
    blob: Vec<u8>,
}

/// One instance of an image.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) resolved: ResolvedImage,
    pub(crate) layers: Vec<Layer>,
}

/// Runs `script` in an empty directory and makes a gzipped tar of what it leaves. Whiteouts are files named
/// so.
pub(crate) fn layer(script: &str) -> Result<Layer> {
    let dir = tempfile::tempdir()?;
    bash(&format!("cd \"$1\"; {script}"), &[dir.path()])?;
    let tar = Command::new("tar")
        .args([
            "--numeric-owner",
            "--sort=name",
            "--format=posix",
            "--xattrs",
            "--xattrs-include=*",
            "-C",
        ])
        .arg(dir.path())
        .args(["-c", "."])
        .output()?
        .stdout;
    let mut gzip = GzEncoder::new(Vec::new(), Level::fast());
    gzip.write_all(&tar)?;
    let blob = gzip.finish()?;
    let diff_id = DiffId(Digest::of(&tar));
    let descriptor = LayerDescriptor {
        blob: Digest::of(&blob),
        size: blob.len() as u64,
        media_type: "application/vnd.oci.image.layer.v1.tar+gzip".into(),
        diff_id,
    };
    Ok(Layer {
        diff_id,
        diff_size: tar.len() as u64,
        descriptor,
        blob,
    })
}

pub(crate) fn image(architecture: &str, layers: &[Layer]) -> Image {
    let created = "2024-06-19T19:22:45.120000000Z";
    let config = json!({
        "created": created, "architecture": architecture, "os": "linux", "config": {"Cmd": ["/bin/cat"]},
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|layer| layer.diff_id.to_string()).collect::<Vec<_>>()},
        "history": layers.iter().map(|_| json!({"created": created, "created_by": "test"})).collect::<Vec<_>>(),
    });
    let config = content(&config);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config.digest(), "size": config.bytes().len()},
        "layers": layers.iter().map(|layer| json!({"mediaType": layer.descriptor.media_type, "digest": layer.descriptor.blob, "size": layer.descriptor.size})).collect::<Vec<_>>(),
    });
    let resolved = ResolvedImage {
        list: None,
        manifest: content(&manifest),
        config,
        layers: layers.iter().map(|layer| layer.descriptor.clone()).collect(),
        created: Some(created.into()),
    };
    Image {
        resolved,
        layers: layers.to_vec(),
    }
}

/// The same image, found through a list of all `instances`.
pub(crate) fn list_of(instances: &[&Image]) -> Content {
    let entry = |image: &&Image| {
        let config: Value = serde_json::from_slice(image.resolved.config.bytes()).expect("made above");
        json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": image.resolved.manifest.digest(),
            "size": image.resolved.manifest.bytes().len(), "platform": {"os": "linux", "architecture": config["architecture"]}})
    };
    content(
        &json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": instances.iter().map(entry).collect::<Vec<_>>()}),
    )
}

fn content(json: &Value) -> Content {
    Content::new(Bytes::from(json.to_string()))
}

pub(crate) struct World {
    dir: tempfile::TempDir,
    registry: Child,
    port: u16,
}

/// Stages a layer with the files and the tar-split that podman made of the same blob in the store `from`.
pub(crate) fn stage(stage: &Stage, from: &Path, spec: LayerSpec, layer: &Layer) -> Result<StagedLayer> {
    let id = spec.id();
    let staging = stage.layer(spec)?;
    let diff = from.join(format!("overlay/{id}/diff"));
    bash(
        r#"cp -a "$1/." "$2"; chmod 0555 "$2""#,
        &[&diff, &staging.diff_path()],
    )?;
    let tar_split = fs::read(from.join(format!("overlay-layers/{id}.tar-split.gz")))?;
    staging.create_tar_split()?.write_all(&tar_split)?;
    let records: Vec<Value> = serde_json::from_slice(&fs::read(from.join("overlay-layers/layers.json"))?)?;
    let record = records
        .iter()
        .find(|record| record["id"] == id.to_string())
        .context("podman has the layer")?;
    let set = |key: &str| -> BTreeSet<u32> {
        record[key]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64)
            .map(|id| id as u32)
            .collect()
    };
    Ok(staging.finish(Unpacked {
        diff_id: layer.diff_id,
        diff_size: layer.diff_size,
        compression: Compression::Gzip,
        uids: set("uidset"),
        gids: set("gidset"),
    })?)
}

/// Everything the product does for an image, with podman's store `from` in the place of the unpacker.
pub(crate) fn store_image(store: &Store, from: &Path, image: &Image, name: &Reference) -> Result<()> {
    let cancel = Cancel::default();
    for _ in 0..20 {
        let area = store.stage()?;
        let inventory = store.inventory()?;
        let mut staged = Vec::new();
        let mut parent = None;
        for layer in &image.layers {
            let spec = LayerSpec::new(parent, &layer.descriptor);
            parent = Some(spec.id());
            if inventory.layer(&spec.id()).is_none() {
                staged.push(stage(&area, from, spec, layer)?);
            }
        }
        let outcomes = store.commit_layers(staged, &cancel)?;
        if outcomes
            .iter()
            .any(|(_, outcome)| matches!(outcome, LayerCommit::ParentMissing(_)))
        {
            continue;
        }
        if let ImageCommit::Committed(id) = store.commit_image(&image.resolved, name, &cancel)? {
            ensure!(id == image.resolved.id());
            return Ok(());
        }
    }
    anyhow::bail!("an image could not be stored in 20 attempts")
}

/// The image `name` as the store at `path` has it; its blobs are not known.
pub(crate) fn image_in(path: &Path, name: &Reference) -> Result<Image> {
    let inventory = Store::open(path, &StorageConf::default())?.inventory()?;
    let found = inventory
        .image_by_name(&name.to_string())
        .context("the image is stored")?;
    let read = |key: String| -> Result<Content> {
        let digest = key.parse().context("a digest")?;
        inventory.content(&digest)?.context("the content is stored")
    };
    let manifest = found.digests.iter().next().context("the image has a manifest")?;
    let manifest = read(manifest.to_string())?;
    let parsed: Value = serde_json::from_slice(manifest.bytes())?;
    let config = read(
        parsed["config"]["digest"]
            .as_str()
            .context("a config")?
            .to_owned(),
    )?;
    let parsed_config: Value = serde_json::from_slice(config.bytes())?;
    let mut layers = Vec::new();
    let mut parent = None;
    let blobs = parsed["layers"].as_array().into_iter().flatten();
    for (blob, diff_id) in blobs.zip(
        parsed_config["rootfs"]["diff_ids"]
            .as_array()
            .into_iter()
            .flatten(),
    ) {
        let diff_id = DiffId(diff_id.as_str().context("a diffID")?.parse()?);
        let id = LayerId::of(parent, diff_id);
        let record = inventory.layer(&id).context("the layer is stored")?;
        parent = Some(id);
        let descriptor = LayerDescriptor {
            blob: blob["digest"].as_str().context("a digest")?.parse()?,
            size: blob["size"].as_u64().context("a size")?,
            media_type: String::new(),
            diff_id,
        };
        layers.push(Layer {
            diff_id,
            diff_size: record.diff_size.unwrap_or(0),
            descriptor,
            blob: Vec::new(),
        });
    }
    let created = parsed_config["created"].as_str().map(str::to_owned);
    let descriptors = layers.iter().map(|layer| layer.descriptor.clone()).collect();
    Ok(Image {
        resolved: ResolvedImage {
            list: None,
            manifest,
            config,
            layers: descriptors,
            created,
        },
        layers,
    })
}

impl World {
    pub(crate) fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let conf = format!(
            "version: 0.1\nlog:\n  accesslog:\n    disabled: false\nstorage:\n  filesystem:\n    rootdirectory: {}/registry\nhttp:\n  addr: 127.0.0.1:{port}\n",
            dir.path().display()
        );
        fs::write(dir.path().join("registry.yml"), conf)?;
        let log = fs::File::create(dir.path().join("registry.log"))?;
        let registry = Command::new("docker-registry")
            .arg("serve")
            .arg(dir.path().join("registry.yml"))
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let since = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(
                since.elapsed() < Duration::from_secs(20),
                "docker-registry does not listen"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { dir, registry, port })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn access_log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.path("registry.log"))?)
    }

    pub(crate) fn name(&self, rest: &str) -> String {
        format!("127.0.0.1:{}/{rest}", self.port)
    }

    pub(crate) fn reference(&self, rest: &str) -> Result<Reference> {
        Ok(self.name(rest).parse()?)
    }

    /// Pushes an image, or a list with its instances, under `repository:tag`.
    pub(crate) fn push(&self, rest: &str, top: &Content, instances: &[&Image]) -> Result<()> {
        let layout = tempfile::tempdir()?;
        let blobs = layout.path().join("blobs/sha256");
        fs::create_dir_all(&blobs)?;
        let put = |digest: Digest, bytes: &[u8]| fs::write(blobs.join(digest.hex()), bytes);
        put(top.digest(), top.bytes())?;
        for image in instances {
            put(image.resolved.manifest.digest(), image.resolved.manifest.bytes())?;
            put(image.resolved.config.digest(), image.resolved.config.bytes())?;
            for layer in &image.layers {
                put(layer.descriptor.blob, &layer.blob)?;
            }
        }
        let media: Value = serde_json::from_slice(top.bytes())?;
        let index = json!({"schemaVersion": 2, "manifests": [{"mediaType": media["mediaType"], "digest": top.digest(),
            "size": top.bytes().len(), "annotations": {"org.opencontainers.image.ref.name": "t"}}]});
        fs::write(layout.path().join("index.json"), index.to_string())?;
        fs::write(
            layout.path().join("oci-layout"),
            r#"{"imageLayoutVersion":"1.0.0"}"#,
        )?;
        let from = format!("oci:{}:t", layout.path().display());
        let to = format!("docker://{}", self.name(rest));
        run(
            "skopeo",
            &[
                "copy",
                "--quiet",
                "--all",
                "--preserve-digests",
                "--insecure-policy",
                "--dest-tls-verify=false",
                &from,
                &to,
            ],
        )?;
        Ok(())
    }

    pub(crate) fn podman(&self, store: &str, args: &[&str]) -> Result<String> {
        let (root, run_root) = (self.path(store), self.path(&format!("{store}.run")));
        let mut all = vec![
            "--root",
            root.to_str().expect("UTF-8"),
            "--runroot",
            run_root.to_str().expect("UTF-8"),
        ];
        all.extend(["--storage-driver", "overlay"]);
        all.extend(args);
        run("podman", &all)
    }

    pub(crate) fn pull(&self, store: &str, rest: &str) -> Result<()> {
        self.podman(
            store,
            &["pull", "--quiet", "--tls-verify=false", &self.name(rest)],
        )
        .map(drop)
    }

    pub(crate) fn store(&self, name: &str) -> Result<Store> {
        let store = Store::open(&self.path(name), &StorageConf::default())?;
        store.create_if_missing()?;
        Ok(store)
    }

    /// Stores `image` in `store` under `rest`, out of podman's store `theirs`.
    pub(crate) fn store_image(&self, store: &Store, image: &Image, rest: &str) -> Result<()> {
        store_image(store, &self.path("theirs"), image, &self.reference(rest)?)
    }

    /// Pushes `image` and has podman pull it into its own store `theirs`.
    pub(crate) fn publish(&self, rest: &str, image: &Image) -> Result<()> {
        self.push(rest, &image.resolved.manifest, &[image])?;
        self.pull("theirs", rest)
    }

    /// As many layers' records as directories, links and tar-splits, and nothing else.
    pub(crate) fn assert_consistent(&self, store: &str) -> Result<()> {
        bash(
            r#"cd "$1"
            records=$(jq -r '.[].id' overlay-layers/layers.json | sort)
            [ "$(jq '[.[]|select(.flags.incomplete)]|length' overlay-layers/layers.json)" = 0 ]
            same() { [ "$1" = "$records" ] || { echo "$2 differ:"; diff <(echo "$1") <(echo "$records"); exit 1; }; }
            same "$(ls overlay | { grep -E '^[0-9a-f]{64}$' || true; } | sort)" directories
            same "$(for l in overlay/l/*; do [ ! -L "$l" ] || readlink "$l" | cut -d/ -f2; done | sort)" links
            same "$(ls overlay-layers | sed -n 's/[.]tar-split[.]gz$//p' | sort)" tar-splits
            images=$({ cat overlay-images/images.json 2>/dev/null || echo '[]'; } | jq -r '.[].id' | sort)
            [ "$(ls overlay-images | { grep -E '^[0-9a-f]{64}$' || true; } | sort)" = "$images" ]
            ! ls -A . overlay-layers overlay-images | grep -E '^[.](spoke|tmp)'"#,
            &[&self.path(store)],
        )
        .map(drop)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.registry.kill();
        let _ = self.registry.wait();
        // podman leaves overlay/ mounted on itself, and shm of containers.
        let script = r#"awk -v d="$1/" 'index($5, d) == 1 {print $5}' /proc/self/mountinfo | sort -r | xargs -r umount"#;
        let _ = bash(script, &[self.dir.path()]);
    }
}
