//! Lists the scopes of a reference: the keys under which policy.json and registries.d configure it.

use super::Reference;

impl Reference {
    /// The keys for this reference, the most specific first: `scopes_of`.
    pub fn scopes(&self) -> Vec<String> {
        scopes_of(&self.to_string(), &self.repository())
    }
}

/// The keys for a reference in a repository, the most specific first, as containers/image looks them up
/// (`docker/policyconfiguration/naming.go`):
///
/// ```text
/// a.example.com:5000/team/app:1
/// a.example.com:5000/team/app
/// a.example.com:5000/team
/// a.example.com:5000
/// *.example.com                    without the port
/// *.com
/// ```
pub(crate) fn scopes_of(reference: &str, repository: &str) -> Vec<String> {
    let mut scopes = vec![reference.to_owned()];
    let mut name = repository;
    loop {
        scopes.push(name.to_owned());
        match name.rsplit_once('/') {
            Some((parent, _)) => name = parent,
            None => break,
        }
    }
    let mut host = name.split(':').next().unwrap_or_default();
    while let Some((_, domain)) = host.split_once('.') {
        scopes.push(format!("*.{domain}"));
        host = domain;
    }
    scopes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cases of containers/image's `TestDockerReference` (`docker/policyconfiguration/naming_test.go`).
    #[test]
    fn the_scopes_are_those_of_containers_image() {
        let digest = format!("@sha256:{}", "0".repeat(64));
        for (name, expected) in [
            (
                "example.com/ns/repo",
                "example.com/ns/repo example.com/ns example.com *.com",
            ),
            ("example.com/repo", "example.com/repo example.com *.com"),
            ("localhost/ns/repo", "localhost/ns/repo localhost/ns localhost"),
            (
                "docker.io/repo",
                "docker.io/library/repo docker.io/library docker.io *.io",
            ),
            (
                "yet.another.example.com:8443/ns/repo",
                "yet.another.example.com:8443/ns/repo yet.another.example.com:8443/ns \
                 yet.another.example.com:8443 *.another.example.com *.example.com *.com",
            ),
            ("[::1]:5000/a/b", "[::1]:5000/a/b [::1]:5000/a [::1]:5000"),
        ] {
            for suffix in [":tag", &digest] {
                let reference: Reference = format!("{name}{suffix}").parse().expect("a reference");
                let mut expected: Vec<_> = expected.split(' ').map(str::to_owned).collect();
                expected.insert(0, format!("{}{suffix}", expected[0]));
                assert_eq!(reference.scopes(), expected);
            }
        }
    }
}
