//! Tests the space check's arithmetic and texts, and compares its numbers with `df` and `stat` on real file systems.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;
use std::process::Command;

use super::*;

const GIB: u64 = 1 << 30;

/// A file system on a device of its own, in GiB.
fn space(device: u64, capacity: u64, available: u64) -> Space {
    Space {
        path: "/var/lib/containers".into(),
        device,
        capacity: capacity * GIB,
        available: available * GIB,
        mount: Some(Mount {
            name: format!("/dev/sda{device}"),
            file_system: "xfs".into(),
            mount_point: "/var".into(),
        }),
    }
}

fn one(capacity: u64, available: u64) -> Spaces {
    Spaces {
        store: space(4, capacity, available),
        spool: space(4, capacity, available),
    }
}

fn demand(spool: u64, store: u64, required: u64, cached: u64) -> Demand {
    Demand {
        spool: spool * GIB,
        store: store * GIB,
        required: required * GIB,
        cached: cached * GIB,
    }
}

#[test]
fn on_one_file_system_everything_has_to_fit_together() {
    // 100 GiB with the threshold at 85 %: 16 GiB stay free. (available, demand, fits, needed, headroom, shortfall)
    for (available, demand, fits, needed, headroom, shortfall) in [
        (50, demand(10, 20, 0, 0), true, 30, 34, 0),
        (46, demand(10, 20, 0, 0), true, 30, 30, 0),
        (45, demand(10, 20, 0, 0), false, 30, 29, 1),
        // spaceRequired counts where it is more than the plan ...
        (50, demand(1, 2, 34, 0), true, 34, 34, 0),
        (50, demand(1, 2, 40, 0), false, 40, 34, 6),
        // ... less what is cached already, of whatever size.
        (50, demand(1, 2, 40, 10), true, 30, 34, 0),
        (50, demand(1, 2, 40, 90), true, 3, 34, 0),
        // It never makes the plan's need smaller.
        (20, demand(3, 3, 4, 4), false, 6, 4, 2),
        // Nothing to do fits on a full disk, whatever is required.
        (0, demand(0, 0, 500, 0), true, 0, 0, 0),
        // Whole blobs in the spool need nothing there but have yet to be unpacked.
        (16, demand(0, 1, 0, 0), false, 1, 0, 1),
        (10, demand(1, 0, 0, 0), false, 1, 0, 1),
    ] {
        let check = check_space(&one(100, available), demand, Threshold::default());
        let [filesystem] = check.filesystems.as_slice() else {
            panic!("{check:?}");
        };
        assert_eq!(
            (
                check.fits,
                filesystem.needed,
                filesystem.headroom,
                filesystem.shortfall
            ),
            (fits, needed * GIB, headroom * GIB, shortfall * GIB),
            "{available} {demand:?}"
        );
    }
}

#[test]
fn the_threshold_decides_the_headroom() {
    for (percent, headroom) in [(1, 0), (50, 0), (51, 0), (60, 9), (85, 34), (99, 48), (100, 50)] {
        let threshold = Threshold::new(percent).unwrap();
        assert_eq!(space(4, 100, 50).headroom(threshold), headroom * GIB, "{percent}");
    }
}

#[test]
fn on_two_file_systems_each_is_checked_on_its_own() {
    let spaces = |store, spool| Spaces {
        store: space(4, 100, store),
        spool: space(5, 100, spool),
    };
    for (store, spool, demand, shortfalls) in [
        (36, 26, demand(10, 20, 0, 0), [0, 0]),
        (35, 26, demand(10, 20, 0, 0), [1, 0]),
        (36, 25, demand(10, 20, 0, 0), [0, 1]),
        (20, 20, demand(10, 20, 0, 0), [16, 6]),
        // `spaceRequired` counts for the store.
        (36, 26, demand(10, 20, 25, 0), [5, 0]),
    ] {
        let check = check_space(&spaces(store, spool), demand, Threshold::default());
        let found: Vec<u64> = check.filesystems.iter().map(|check| check.shortfall).collect();
        assert_eq!(
            found,
            shortfalls.map(|gib| gib * GIB),
            "{store} {spool} {demand:?}"
        );
        assert_eq!(check.fits, shortfalls == [0, 0]);
    }
}

#[test]
fn absurd_demands_do_not_overflow() {
    let absurd = Demand {
        spool: u64::MAX,
        store: u64::MAX,
        required: u64::MAX,
        cached: 0,
    };
    let check = check_space(&one(100, 100), absurd, Threshold::default());
    assert_eq!(check.filesystems[0].needed, u64::MAX);
    assert!(!check.fits);
}

#[test]
fn a_disk_near_the_threshold_gets_a_warning() {
    let warning =
        |available, percent| space(5, 100, available).threshold_warning(Threshold::new(percent).unwrap());
    // At 85 % the kubelet wants 16 % available.
    assert_eq!(warning(19, 85), None);
    let text = warning(18, 85).unwrap();
    assert!(
        text.contains(" is 82 % full; from 85 % on the kubelet removes"),
        "{text}"
    );
    assert!(warning(0, 85).unwrap().contains(" is 100 % full"));
    assert_eq!(warning(0, 100), None, "it never removes images");
}

#[test]
fn a_passed_check_gives_its_numbers() {
    let check = check_space(&one(100, 50), demand(10, 20, 0, 0), Threshold::default());
    assert_eq!(
        check.to_string(),
        "\
space suffices: store and spool may need 30.00 GiB; 34.00 GiB can be filled before the kubelet removes images at 85 % \
of 100.00 GiB on /dev/sda4 (xfs at /var)
highThresholdPercent: 85 diskSize: 100.00 GiB used: 50.00 GiB
"
    );
}

#[test]
fn a_failed_check_gives_its_numbers_and_hints() {
    let mut tight = demand(10, 20, 0, 0);
    tight.store += 1;
    let error = check_space(&one(100, 46), tight, Threshold::default())
        .into_result()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "\
not enough space for precaching: store and spool may need 30.01 GiB; 30.00 GiB can be filled before the kubelet \
removes images at 85 % of 100.00 GiB on /dev/sda4 (xfs at /var): 0.01 GiB short
highThresholdPercent: 85 diskSize: 100.00 GiB used: 54.00 GiB
hint: exclude images (`excludePrecachePatterns`, `--exclude`), or enlarge the file system, or remove unneeded images one \
by one: `podman images --filter dangling=true` lists images without a name, `crictl images --pinned` shows which are \
pinned, `crictl ps --all` which are in use; images cached for an update are neither pinned nor in use"
    );

    let required = check_space(&one(100, 46), demand(3, 9, 40, 5), Threshold::default());
    assert!(
        required.to_string().ends_with(
            "images cached for an update are neither pinned nor in use\n"
        ) && required.to_string().contains(
            "hint: lower `spaceRequired` (40.00 GiB, of which 5.00 GiB are cached; the plan itself needs 12.00 GiB), or \
             enlarge the file system, or remove unneeded images one by one"
        ),
        "{required}"
    );
    // `prune` removes cached images, too.
    assert!(!format!("{error}{required}").contains("prune"), "{error}");
}

#[test]
fn the_json_has_bytes() {
    let check = check_space(&one(100, 46), demand(10, 30, 35, 0), Threshold::default());
    assert_eq!(
        serde_json::to_value(&check).unwrap(),
        serde_json::json!({
            "fits": false, "highThresholdPercent": 85, "required": 35 * GIB, "cached": 0,
            "fileSystems": [{
                "holds": ["store", "spool"], "path": "/var/lib/containers", "mount": "/dev/sda4 (xfs at /var)",
                "capacity": 100 * GIB, "available": 46 * GIB, "headroom": 30 * GIB,
                "needed": 40 * GIB, "cause": "plan", "shortfall": 10 * GIB,
            }],
        })
    );
}

fn output(program: &str, arguments: &[&str], path: &Path) -> String {
    let output = Command::new(program).args(arguments).arg(path).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// A loop-mounted file system that goes away with the test.
struct LoopMount(tempfile::TempDir);

impl LoopMount {
    fn new(kind: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        // The least that mkfs.xfs accepts is 300 MiB.
        std::fs::File::create(&image).unwrap().set_len(512 << 20).unwrap();
        output(&format!("mkfs.{kind}"), &["-q"], &image);
        let mounted = directory.path().join("mounted");
        std::fs::create_dir(&mounted).unwrap();
        output("mount", &["-o", "loop", image.to_str().unwrap()], &mounted);
        Self(directory)
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("mounted")
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.path()).status();
        assert!(
            unmounted.is_ok_and(|status| status.success()),
            "still mounted: {:?}",
            self.path()
        );
    }
}

#[test]
fn the_numbers_are_those_of_df_and_stat_on_real_file_systems() {
    if let Err(why) = crate::notice::root() {
        return crate::notice::skip(&why);
    }
    for kind in ["xfs", "ext4"] {
        let mount = LoopMount::new(kind);
        let before = Space::of(&mount.path().join("lib/containers/storage")).unwrap();

        let [size, blocks, available] =
            numbers(&output("stat", &["-f", "-c", "%S %b %a"], &mount.path()))[..]
        else {
            panic!("stat");
        };
        assert_eq!(
            (before.capacity, before.available),
            (size * blocks, size * available),
            "{kind}"
        );
        let [size, available] = numbers(&output("df", &["-B1", "--output=size,avail"], &mount.path()))[..]
        else {
            panic!("df");
        };
        assert_eq!((before.capacity, before.available), (size, available), "{kind}");
        let at = before.mount.clone().unwrap();
        assert_eq!((at.file_system.as_str(), at.mount_point), (kind, mount.path()));
        assert!(at.name.starts_with("/dev/loop"), "{}", at.name);

        // Another file system than the one around it, whatever lies in between.
        let around = Space::of(mount.0.path()).unwrap();
        assert!(!before.shares_blocks_with(&around), "{kind}");

        // A file of 64 MiB takes 64 MiB of the headroom, and some for itself.
        let file = mount.path().join("file");
        output("fallocate", &["-l", "64MiB"], &file);
        let after = Space::of(&file).unwrap();
        let taken = before.headroom(Threshold::default()) - after.headroom(Threshold::default());
        assert!((64 << 20..65 << 20).contains(&taken), "{kind}: {taken}");
    }
}
