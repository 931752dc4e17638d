//! Checks whether this machine has what a test needs: root, podman, a network link, a file system.

use std::path::{Path, PathBuf};

use crate::notice::print;
pub(crate) use crate::notice::{root, skip};

/// Skips the test with a notice when a need is not met: `needs!(root(), stock());`.
macro_rules! needs {
    ($($need:ident()),+) => {$(
        if let Err(why) = crate::needs::$need() {
            return crate::needs::skip(&why);
        }
    )+};
}
pub(crate) use needs;

/// Prints that a test belongs to another job, and which; that is no failure anywhere.
pub(crate) fn leave_out(why: &str) {
    print("LEFT OUT", why);
}

/// Prints what a test counted.
pub(crate) fn note(what: &str) {
    print("COUNTED", what);
}

/// podman and its friends, on this machine or in `SPOKE_STOCK_ROOT`.
pub(crate) fn stock() -> Result<(), String> {
    let top = crate::stock::top();
    for tool in ["podman", "skopeo"] {
        let there = |dir: &str| top.join(dir).join(tool).exists();
        if !there("usr/bin") && !there("usr/local/bin") {
            return Err(format!("`{tool}` is not installed under {}", top.display()));
        }
    }
    Ok(())
}

/// What others wrote, beside a checkout; it is not ours to copy.
pub(crate) fn corpus() -> Result<PathBuf, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    if path.exists() {
        return Ok(path);
    }
    Err(format!("there is no `{}`", path.display()))
}

/// Kills a program at a system call that is named.
pub(crate) fn strace() -> Result<(), String> {
    if Path::new("/usr/bin/strace").exists() {
        return Ok(());
    }
    Err("`strace` is not installed".into())
}

/// Compiles and links C.
pub(crate) fn compiler() -> Result<(), String> {
    match ["gcc", "objcopy"]
        .iter()
        .find(|tool| !Path::new("/usr/bin").join(tool).exists())
    {
        Some(tool) => Err(format!("`{tool}` is not installed")),
        None => Ok(()),
    }
}

/// Signs releases and images.
pub(crate) fn gpg() -> Result<(), String> {
    if Path::new("/usr/bin/gpg").exists() {
        return Ok(());
    }
    Err("`gpg` is not installed".into())
}

/// Builds the crate oci-delta, which uses OpenSSL.
pub(crate) fn openssl_headers() -> Result<(), String> {
    let found = std::process::Command::new("pkg-config")
        .args(["--exists", "openssl"])
        .status();
    match found {
        Ok(status) if status.success() => Ok(()),
        _ => Err("`pkg-config` or the development files of OpenSSL are not installed".into()),
    }
}

/// Writes random catalogs and their right answers.
pub(crate) fn python() -> Result<(), String> {
    if Path::new("/usr/bin/python3").exists() {
        return Ok(());
    }
    Err("`python3` is not installed".into())
}

/// Network namespaces, TUN devices and a rate for them.
pub(crate) fn links() -> Result<(), String> {
    for path in ["/usr/sbin/ip", "/usr/sbin/tc", "/dev/net/tun"] {
        if !Path::new(path).exists() {
            return Err(format!("there is no `{path}`"));
        }
    }
    Ok(())
}

/// A file system of our own.
pub(crate) fn fuse() -> Result<(), String> {
    if Path::new("/dev/fuse").exists() {
        return Ok(());
    }
    Err("there is no `/dev/fuse`".into())
}

/// docker-registry, to push to.
pub(crate) fn docker_registry() -> Result<(), String> {
    if Path::new(crate::stock::docker_registry::PROGRAM).exists() {
        return Ok(());
    }
    Err(format!(
        "`{}` is not installed",
        crate::stock::docker_registry::PROGRAM
    ))
}

/// An IPv6 loopback address.
pub(crate) fn ipv6() -> Result<(), String> {
    match std::net::TcpListener::bind("[::1]:0") {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("no IPv6: {error}")),
    }
}

/// A small proxy.
pub(crate) fn tinyproxy() -> Result<(), String> {
    installed("/usr/bin/tinyproxy")
}

/// A large one.
pub(crate) fn squid() -> Result<(), String> {
    installed("/usr/sbin/squid")
}

/// A server with TLS, to stand before others.
pub(crate) fn nginx() -> Result<(), String> {
    installed("/usr/sbin/nginx")
}

/// Makes certificates, keys and signatures.
pub(crate) fn openssl() -> Result<(), String> {
    installed("/usr/bin/openssl")
}

/// A kubectl whose kustomize reads what `oc` of a living OpenShift reads: directories as resources, patches, components.
pub(crate) struct Kubectl(pub(crate) PathBuf);

/// This machine's, or that of `SPOKE_STOCK_ROOT`, which must have one. `None` where neither is named: bookworm's kubectl is
/// of 2020, with a kustomize of 2019.
pub(crate) fn kubectl() -> Result<Option<Kubectl>, String> {
    let in_stock = crate::stock::top().join("usr/bin/kubectl");
    for program in [in_stock.as_path(), Path::new("/usr/bin/kubectl")] {
        let version = std::process::Command::new(program)
            .args(["version", "--client", "--output=json"])
            .output();
        let text = version.map(|output| output.stdout).unwrap_or_default();
        let version: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        // kubectl prints it since 1.24; kustomize 4 is part of it since 1.21.
        if version["kustomizeVersion"].is_string() {
            return Ok(Some(Kubectl(program.to_owned())));
        }
    }
    match std::env::var_os("SPOKE_STOCK_ROOT") {
        Some(_) => Err(format!("`{}` is not there, or too old", in_stock.display())),
        None => Ok(None),
    }
}

fn installed(program: &str) -> Result<(), String> {
    if Path::new(program).exists() {
        return Ok(());
    }
    Err(format!("`{program}` is not installed"))
}

/// File systems whose files can be cloned, and loop devices to have some.
pub(crate) fn xfs() -> Result<(), String> {
    for path in ["/usr/sbin/mkfs.xfs", "/dev/loop-control"] {
        if !Path::new(path).exists() {
            return Err(format!("there is no `{path}`"));
        }
    }
    Ok(())
}

/// A C compiler that links statically, for the program inside of images that are run.
pub(crate) fn static_program() -> Result<(), String> {
    crate::stock::hello::program()
        .map(|_| ())
        .map_err(|why| format!("no static program: {why}"))
}

/// Whether tests may take minutes.
pub(crate) fn long() -> bool {
    std::env::var_os("SPOKE_LONG").is_some()
}
