//! Checks that a scope of a policy suits its transport, as containers/image does (`ValidatePolicyConfigurationScope`).

/// Whether containers/image accepts a scope that is not empty. It does not check the scopes of registries and of transports
/// that it does not know.
pub(super) fn is_valid(transport: &str, scope: &str) -> bool {
    match transport {
        "dir" | "sif" | "oci" | "oci-archive" => is_canonical_path(scope),
        "docker-archive" | "tarball" => false,
        "docker-daemon" => !is_digest(scope),
        "atomic" => is_openshift_name(scope),
        // The rest of it names a driver, a path and an image; a scope that matches nothing is harmless.
        "containers-storage" => scope.starts_with('[') && scope.contains(']'),
        _ => true,
    }
}

/// An absolute path that Go's `filepath.Clean` leaves as it is, and not `/`.
fn is_canonical_path(path: &str) -> bool {
    path.strip_prefix('/')
        .is_some_and(|path| path.split('/').all(|name| !matches!(name, "" | "." | "..")))
}

/// `sha256:…`, of the algorithms that go-digest knows.
fn is_digest(text: &str) -> bool {
    let (algorithm, hex) = text.split_once(':').unwrap_or_default();
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    hex.len() == length && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// `host[/namespace[/stream[:tag]]]` (`openshift_transport.go`: `scopeRegexp`).
fn is_openshift_name(scope: &str) -> bool {
    let mut parts = scope.split('/').skip(1);
    let namespace = parts.next().is_none_or(|namespace| !namespace.contains(':'));
    let stream = parts.next().is_none_or(|stream| stream.matches(':').count() < 2);
    namespace && stream && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_has_its_scopes() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (transport, scope, expected) in [
            ("docker", "*.example.com", true),
            ("docker", "not a scope", true),
            ("unknown", "//", true),
            ("dir", "/var/lib", true),
            ("dir", "/", false),
            ("dir", "/var/", false),
            ("oci", "/var/./lib", false),
            ("oci-archive", "/var//lib", false),
            ("sif", "var", false),
            ("docker-archive", "/a", false),
            ("tarball", "/a", false),
            ("docker-daemon", &digest, false),
            ("docker-daemon", "docker.io/library/busybox", true),
            ("atomic", "example.com:5000", true),
            ("atomic", "example.com/ns/stream:tag", true),
            ("atomic", "example.com/ns:tag", false),
            ("atomic", "example.com/ns/stream:tag:2", false),
            ("atomic", "example.com/ns/stream/more", false),
            (
                "containers-storage",
                "[overlay@/var/lib/containers/storage]",
                true,
            ),
            ("containers-storage", "busybox", false),
        ] {
            assert_eq!(is_valid(transport, scope), expected, "{transport} {scope}");
        }
    }
}
