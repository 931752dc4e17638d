//! Compares the signatures that are downloaded with those that skopeo downloads, after skopeo signed the image.
//!
//! Debian 12's skopeo is built without sigstore, so this needs the one of `SPOKE_STOCK_ROOT`. That root has no gpg, so this
//! machine's skopeo makes the simple signing signature.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use spoke_precache::cancel::Cancel;
use spoke_precache::oci::Platform;
use spoke_precache::registry::{ConfText, RegistrySettings};
use spoke_precache::signature::Signature;

use crate::daemon::{Daemon, PASSWORD, USER};
use crate::notice;
use crate::{insecure, noise, reference, registries, settings};

const SIGNER: &str = "signer@example.com";

/// Arguments: the tools' root, the directory that both see, the command.
const ENTER: &str = r#"
set -e
top=$1 dir=$2; shift 2
mount -t tmpfs tmpfs "$top/tmp"
mkdir -p "$top$dir"
mount --bind "$dir" "$top$dir"
exec chroot "$top" "$@"
"#;

#[track_caller]
fn ok(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    output
}

/// The skopeo of the Debian at `top`.
pub(crate) fn stock(top: &Path, dir: &Path, arguments: &[&str]) {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", ENTER, "sh"]);
    command.args([top, dir]).arg("skopeo").args(arguments);
    ok(&mut command);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_signatures_are_those_that_skopeo_downloads() {
    let Some(top) = std::env::var_os("SPOKE_STOCK_ROOT") else {
        return notice::print(
            "LEFT OUT",
            "this needs a skopeo with sigstore, which SPOKE_STOCK_ROOT may name",
        );
    };
    if let Err(why) = notice::root() {
        return notice::skip(&why);
    }
    let Some(daemon) = Daemon::start(false).await else {
        return;
    };
    daemon.push(&noise(1000, 1)).await;
    let (top, dir) = (Path::new(&top), daemon.certificates.0.path());
    let path = |name: &str| dir.join(name).display().to_string();
    let lookaside = format!("lookaside: 'file://{}'", path("lookaside"));
    let both = format!("default-docker: {{use-sigstore-attachments: true, {lookaside}}}");
    for (name, text) in [
        ("both.d", &both),
        ("simple.d", &format!("default-docker: {{{lookaside}}}")),
    ] {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("d.yaml"), text).unwrap();
    }
    fs::create_dir(dir.join("lookaside")).unwrap();
    fs::write(dir.join("passphrase"), "").unwrap();

    let image = format!("docker://{}/team/a:1", daemon.host);
    let login = format!("{USER}:{PASSWORD}");
    let (both_d, simple_d, passphrase) = (path("both.d"), path("simple.d"), path("passphrase"));
    let copy_with = |registries_d: &'static str| {
        let registries_d = if registries_d == "both.d" {
            &both_d
        } else {
            &simple_d
        };
        let options = ["--insecure-policy", "--registries.d", registries_d, "copy"];
        let source = ["--src-tls-verify=false", "--src-creds", &login, &image];
        [options, source].concat()
    };
    let to_registry = ["--dest-tls-verify=false", "--dest-creds", &login, &image];
    for key in ["first", "second"] {
        let (prefix, private) = (path(key), path(&format!("{key}.private")));
        let generate = ["generate-sigstore-key", "--output-prefix", &prefix];
        stock(
            top,
            dir,
            &[&generate[..], &["--passphrase-file", &passphrase]].concat(),
        );
        let sign = [
            "--sign-by-sigstore-private-key",
            &private,
            "--sign-passphrase-file",
            &passphrase,
        ];
        stock(
            top,
            dir,
            &[&copy_with("both.d")[..], &sign, &to_registry].concat(),
        );
    }
    let home = dir.join("gnupg");
    fs::create_dir(&home).unwrap();
    let gpg = |program: &str| {
        let mut command = Command::new(program);
        command.env("GNUPGHOME", &home);
        command
    };
    let generate = [
        "--batch",
        "--quiet",
        "--passphrase",
        "",
        "--quick-generate-key",
        SIGNER,
    ];
    ok(gpg("gpg").args(generate).args(["rsa2048", "sign", "never"]));
    let sign = ["--sign-by", SIGNER];
    ok(gpg("skopeo").args([&copy_with("simple.d")[..], &sign, &to_registry].concat()));
    ok(gpg("gpgconf").args(["--kill", "all"]));

    let (out, to_dir) = (dir.join("out"), format!("dir:{}", path("out")));
    stock(top, dir, &[&copy_with("both.d")[..], &[&to_dir]].concat());
    let numbers = 1..=3;
    let theirs = numbers.map(|number| fs::read(out.join(format!("signature-{number}"))).unwrap());
    assert!(!out.join("signature-4").exists());

    let (registries, _) = registries(RegistrySettings {
        registries_d: vec![ConfText {
            path: "d.yaml".into(),
            text: both,
        }],
        auth_files: vec![daemon.auth_file()],
        ..settings(&insecure(&[&daemon.host]))
    });
    let (name, cancel) = (reference(&format!("{}/team/a:1", daemon.host)), Cancel::default());
    let platform = "linux/amd64".parse::<Platform>().unwrap();
    let resolved = registries
        .resolve(&name, &platform, &|_| None, &cancel)
        .await
        .unwrap();
    let manifest = resolved.image.manifest.digest();
    let found = registries
        .signatures(&name, resolved.source.as_ref(), manifest, &cancel)
        .await;
    let ours = found.unwrap();
    assert_eq!(
        ours.iter().map(Signature::to_blob).collect::<Vec<_>>(),
        theirs.collect::<Vec<_>>()
    );
    assert!(matches!(
        ours[..],
        [
            Signature::Simple(_),
            Signature::Sigstore(_),
            Signature::Sigstore(_)
        ]
    ));
}
