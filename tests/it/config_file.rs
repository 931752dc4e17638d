//! Tests `--config` with a file, a pipe or standard input, and `spec`, which prints the resulting version spec.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::image::samples::sample_images;
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

/// A document among the results of a world.
fn document(world: &TestNode, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = world.out(name);
    fs::write(&path, text).unwrap();
    path
}

fn config_map(data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\ndata:\n{data}")
}

/// `VERB --config PATH ARGS`
fn with(world: &TestNode, verb: &str, config: &Path, args: &[&str]) -> Run {
    let config = ["--config", config.to_str().unwrap()];
    world.start(verb, &[&config, args].concat()).wait()
}

/// A script that ends in `"$@"`, which is the product with its arguments.
fn by_script(world: &TestNode, script: &str) -> Run {
    world
        .start_under(&["bash", "-c", script, "bash"], "spec", &[])
        .wait()
}

#[test]
fn nonsense_is_refused_with_a_word() {
    let world = TestNode::trusting(&[]);
    let cases: [(&str, Vec<u8>, &str); 15] = [
        (
            "binary",
            b"\x7fELF\x02\0\0\xff\xfe".to_vec(),
            "line 1: not UTF-8 text",
        ),
        (
            "utf-16",
            b"\xff\xfek\0i\0n\0d\0:\0".to_vec(),
            "hint: save it as UTF-8",
        ),
        ("empty", Vec::new(), "no version spec; found: nothing"),
        (
            "comments",
            b"# a\n---\n# b\n".to_vec(),
            "no version spec; found: nothing",
        ),
        (
            "text",
            b"platform.image".to_vec(),
            "no version spec; found: a text",
        ),
        ("large", vec![b'a'; 10_000_000], "longer than 4194304 bytes"),
        (
            "tabs",
            config_map("\tadditionalImages: a\n").into(),
            "not YAML: tabs disallowed within this context",
        ),
        (
            "cut",
            br#"{"apiVersion": "v1", "kind": "Conf"#.to_vec(),
            "not JSON: EOF while parsing a string at line 1",
        ),
        (
            "list",
            config_map("  additionalImages:\n  - a\n").into(),
            "line 7, column 5: it is a list, not a text",
        ),
        (
            "number",
            config_map("  spaceRequired: 40\n").into(),
            "`data.spaceRequired`, line 6, column 18: it is a number",
        ),
        (
            "twice",
            config_map("  spaceRequired: '1'\n  spaceRequired: '1'\n").into(),
            "`spaceRequired` occurs twice at line 7",
        ),
        (
            "image",
            config_map("  additionalImages: |\n    quay.io/a\n    quay.io/B\n").into(),
            "`additionalImages`, line 2: `quay.io/B`",
        ),
        (
            "nothing",
            config_map("  spaceRequired: '1'\n").into(),
            "the version spec requests no images",
        ),
        ("brackets", vec![b'['; 1 << 20], "recursion limit exceeded"),
        (
            "escape",
            b"kind: \"\\e[2J\"\napiVersion: v1".to_vec(),
            "found: \u{fffd}[2J without a name of `v1`",
        ),
    ];
    for (name, bytes, says) in cases {
        let run = with(&world, "spec", &document(&world, name, bytes), &[])
            .exits(2)
            .says(says);
        assert!(run.stdout.is_empty(), "{run}");
        assert!(run.memory < 64 << 20, "{} bytes for `{name}`", run.memory);
        // A megabyte of brackets is not repeated.
        assert!(run.stderr.len() < 2_000, "{run}");
    }
    for (path, says) in [
        ("/dev/null", "found: nothing"),
        ("/dev/zero", "longer than 4194304 bytes"),
        (
            "/nonexistent/spec.yaml",
            "there is no version spec in `/nonexistent/spec.yaml`: No such file",
        ),
    ] {
        with(&world, "spec", Path::new(path), &[]).exits(2).says(says);
    }
    let empty = world.out("directory");
    fs::create_dir(&empty).unwrap();
    with(&world, "spec", &empty, &[])
        .exits(2)
        .says("the directory contains no keys");
    // A bad pattern gives the same error as a run.
    let bad = document(
        &world,
        "bad",
        config_map("  additionalImages: a\n  excludePrecachePatterns: '[a'\n"),
    );
    with(&world, "spec", &bad, &[])
        .exits(5)
        .says("exclude pattern 1, `[a`: unmatched `[`");
    let good = document(&world, "good", config_map("  additionalImages: a\n"));
    let full = format!("\"$@\" --config {} >/dev/full", good.display());
    by_script(&world, &full)
        .exits(1)
        .says("cannot write to standard output");
}

/// The report has the same message as standard error.
#[test]
fn a_document_that_is_no_version_spec_ends_a_run_at_its_first_step() {
    needs!(root());
    let world = TestNode::trusting(&[]);
    let path = document(
        &world,
        "secret.yaml",
        "apiVersion: v1\nkind: Secret\nstringData: {token: hunter2}\n",
    );
    let run = with(&world, "run", &path, &[]).exits(2);
    let step = &run.report["conditions"][0];
    assert_eq!(
        (&step["type"], &step["reason"]),
        (&"Spec".into(), &"InvalidSpec".into()),
        "{run}"
    );
    let message = step["message"].as_str().unwrap();
    assert!(
        message.contains("secret.yaml`: no version spec; found: Secret without a name of `v1`"),
        "{run}"
    );
    assert!(!format!("{run}").contains("hunter2"), "{run}");
}

#[test]
fn a_document_is_read_from_a_pipe() {
    let world = TestNode::trusting(&[]);
    let text = config_map("  additionalImages: quay.io/a:1\n");
    let path = document(&world, "spec.yaml", text);
    let file = path.display();
    let fifo = world.out("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let expected = with(&world, "spec", &path, &[]).exits(0).stdout;
    assert!(
        expected.contains("additionalImages\n  quay.io/a:1\n"),
        "{expected}"
    );
    for script in [
        format!("(sleep 0.2; cat {file}) | \"$@\" --config -"),
        format!("\"$@\" --config - <{file}"),
        format!("cat {file} | \"$@\" --config /dev/stdin"),
        format!("\"$@\" --config <(cat {file})"),
        format!("SPOKE_PRECACHE_CONFIG=<(cat {file}) \"$@\""),
        format!("cat {file} >{0} & \"$@\" --config {0}", fifo.display()),
        // From a writer that ends without a document.
        format!("(cat {file}; sleep 0.2; echo ---; sleep 0.2) | \"$@\" --config -"),
    ] {
        let run = by_script(&world, &script).exits(0);
        assert_eq!(run.stdout, expected, "{script}");
    }
    let endless = by_script(&world, "yes | \"$@\" --config -").exits(2);
    assert!(
        endless.stderr.contains("cannot read `-`: longer than"),
        "{endless}"
    );
}

/// A pipe may never get a writer; a run that waits for one still obeys signals.
#[test]
fn a_signal_ends_a_run_that_waits_for_its_document() {
    needs!(root());
    let world = TestNode::trusting(&[]);
    let fifo = world.out("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for (verb, code) in [("run", 143), ("spec", 1015)] {
        let running = world.start(verb, &["--config", fifo.to_str().unwrap()]);
        std::thread::sleep(Duration::from_millis(300));
        let told = Instant::now();
        running.signal(Signal::TERM);
        running.wait().exits(code);
        assert!(told.elapsed() < Duration::from_secs(3), "{:?}", told.elapsed());
    }
}

#[test]
fn spec_merges_flags_and_prints_what_it_reads_again() {
    let world = TestNode::trusting(&[]);
    let config = "apiVersion: ran.openshift.io/v1alpha1\nkind: PreCachingConfig\nmetadata: {name: c}\nspec:\n  \
        overrides: {platformImage: 'quay.io/ocp:1', preCacheImage: 'quay.io/x:1'}\n  \
        additionalImages: ['quay.io/a:1']\n  excludePrecachePatterns: ['# \"aws.']\n  spaceRequired: 1500 MB\n  sapceRequired: x\n";
    let config = document(&world, "config.yaml", config);
    let flags = [
        "--image",
        "quay.io/b:2",
        "--exclude",
        "gcp",
        "--platform-image",
        "quay.io/ocp:2",
    ];
    let text = with(&world, "spec", &config, &flags).exits(0);
    assert_eq!(
        text.stdout,
        "platform.image\n  quay.io/ocp:2\noperators.indexes\n  (nothing)\noperators.packagesAndChannels\n  (nothing)\n\
         excludePrecachePatterns\n  # \"aws.\n  gcp\nadditionalImages\n  quay.io/a:1\n  quay.io/b:2\nspaceRequired\n  2\n"
    );
    for says in [
        "INFO the version spec is PreCachingConfig `c` in",
        "WARN PreCachingConfig `c`: the field `spec.sapceRequired` is unknown and ignored",
        "WARN PreCachingConfig `c`: `spec.overrides.platformImage` is used as `platform.image` here, but TALM's hub",
        "WARN PreCachingConfig `c`: `spec.overrides.preCacheImage` names",
    ] {
        assert!(text.stderr.contains(says), "{says}: {text}");
    }
    let mut forms = Vec::new();
    for form in ["yaml", "json"] {
        let first = with(&world, "spec", &config, &[&flags[..], &["-o", form]].concat())
            .exits(0)
            .stdout;
        let printed = document(&world, form, &first);
        let again = with(&world, "spec", &printed, &["-o", form]).exits(0);
        assert_eq!(again.stdout, first);
        assert!(!again.stderr.contains("WARN"), "{again}");
        forms.push(with(&world, "spec", &printed, &[]).exits(0).stdout);
    }
    assert_eq!(forms, [&text.stdout[..], &text.stdout[..]]);
    // Flags alone, and a mount.
    world
        .start("spec", &flags)
        .wait()
        .exits(0)
        .says("spaceRequired\n  0\n");
    world.spec(&[("additionalImages", "quay.io/z:1"), ("spaceRequired", "35")]);
    world
        .start("spec", &[])
        .wait()
        .exits(0)
        .says("additionalImages\n  quay.io/z:1\n");
}

/// Where there is no store, no host and no network.
#[test]
fn spec_touches_nothing_but_the_document() {
    needs!(strace());
    let world = TestNode::trusting(&[]);
    let config = document(
        &world,
        "config.yaml",
        config_map("  additionalImages: quay.io/a:1\n"),
    );
    let trace = world.out("trace");
    let strace = [
        "/usr/bin/strace",
        "-f",
        "-qq",
        "-e",
        "trace=%network,%file",
        "-o",
        trace.to_str().unwrap(),
    ];
    let args = [
        "--config",
        config.to_str().unwrap(),
        "--authfile",
        "/nonexistent/auth",
        "--storage-conf",
        "/nonexistent/s",
    ];
    world.start_under(&strace, "spec", &args).wait().exits(0);
    let trace = fs::read_to_string(trace).unwrap();
    assert!(trace.contains("config.yaml"), "{trace}");
    let host = world.host();
    for line in trace.lines() {
        // The one `execve` names the arguments.
        let other = [
            "socket(",
            "nonexistent",
            "/etc/containers",
            "kubelet",
            host.to_str().unwrap(),
        ];
        let touched = other.iter().any(|word| line.contains(word));
        assert!(!touched || line.contains("execve("), "{line}");
    }
    assert!(!world.graph_root().exists());
}

#[test]
fn a_pre_caching_config_is_carried_out() {
    needs!(root());
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    let world = TestNode::trusting(&[registry.host()]);
    let image = registry.tagged("zoo/base");
    let config = format!(
        "apiVersion: ran.openshift.io/v1alpha1\nkind: PreCachingConfig\nmetadata: {{name: c}}\nspec:\n  \
         additionalImages: ['{image}']\n  spaceRequired: 0 GiB\n  overrides: {{preCacheImage: 'quay.io/x:1'}}\n"
    );
    let config = document(&world, "config.yaml", config);
    let run = with(&world, "run", &config, &[]).exits(0);
    assert_eq!(run.images("pulled"), [&image[..]]);
    let run = run.says("WARN PreCachingConfig `c`: `spec.overrides.preCacheImage` names");
    // What `spec` printed asks for the same.
    let printed = with(&world, "spec", &config, &["-o", "yaml"]).exits(0).stdout;
    let again = with(&world, "verify", &document(&world, "printed.yaml", printed), &[]).exits(0);
    assert_eq!(again.images("present"), [&image[..]], "{run}{again}");
}
