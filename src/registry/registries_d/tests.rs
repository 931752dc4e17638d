//! Checks the parser and the look-up of registries.d against the files and tables of containers/image.

use std::fs;

use super::*;
use crate::notice;

fn file(name: &str, text: &str) -> ConfText {
    ConfText {
        path: name.into(),
        text: text.into(),
    }
}

fn parse(text: &str) -> Result<RegistriesD, RegistriesDError> {
    RegistriesD::parse(&[file("0.yaml", text)])
}

fn sources(registries_d: &RegistriesD, image: &str) -> Result<SignatureSources, RegistriesDError> {
    registries_d.signature_sources(&image.parse().expect("a reference"))
}

fn lookaside(registries_d: &RegistriesD, image: &str) -> String {
    let found = sources(registries_d, image);
    found.map_or_else(|error| error.to_string(), |found| found.lookaside.to_string())
}

/// The files and the table of containers/image's `TestSignatureStorageBaseURL` and `TestLoadAndMergeConfig`.
#[test]
fn the_files_of_containers_image_are_read_as_it_reads_them() {
    let dir = Path::new("../shared/corpus/registries-d/containers-image");
    if !dir.exists() {
        return notice::print("SKIPPED", "no ../shared/corpus");
    }
    let files = [
        "emptyConfig.yaml",
        "internal-example.com.yaml",
        "internet-user.yaml",
    ];
    let files = files.map(|name| ConfText {
        path: name.into(),
        text: fs::read_to_string(dir.join(name)).expect("a file"),
    });
    let registries_d = RegistriesD::parse(&files).expect("valid");
    for (image, expected) in [
        (
            "example.com/my/project",
            "https://lookaside.example.com/my/project",
        ),
        (
            "registry.test.example.com/a",
            "http://registry.test.example.com/lookaside/a",
        ),
        (
            "registry.test.example.com:8888/a",
            "http://registry.test.example.com:8889/lookaside/a",
        ),
        ("localhost/a", "file:///home/mitr/mydevelopment1/a"),
        ("localhost:8080/a", "file:///home/mitr/mydevelopment2/a"),
        (
            "docker.io/contoso/a",
            "https://lookaside.contoso.com/fordocker/contoso/a",
        ),
        ("docker.io/centos/a", "https://lookaside.centos.org//centos/a"),
        (
            "docker.io/centos/mybetaproduct:1",
            "http://localhost:9999/mybetaWIP/lookaside/centos/mybetaproduct",
        ),
        (
            "docker.io/centos/mybetaproduct",
            "https://lookaside.centos.org//centos/mybetaproduct",
        ),
        (
            "other.io/a",
            "file:///mnt/companywide/signatures/for/other/repositories/a",
        ),
    ] {
        assert_eq!(lookaside(&registries_d, image), expected, "{image}");
    }
    for scope in ["invalid/url", "file/path", "relative/path"] {
        let error = lookaside(&registries_d, &format!("localhost/{scope}/test"));
        let expected =
            format!("`internal-example.com.yaml`: `lookaside` of `localhost/{scope}/test` is not a URL");
        assert!(error.starts_with(&expected), "{error}");
    }
}

/// containers/image's `TestRegistryConfigurationSignatureTopLevel`.
#[test]
fn the_most_specific_scope_counts() {
    let scopes = [
        "localhost",
        "localhost:5000",
        "example.com",
        "example.com/ns1",
        "example.com/ns1/ns2",
        "example.com/ns1/ns2/repo",
        "example.com/ns1/ns2/repo:notlatest",
        "'*.example.com'",
    ];
    let entry = |scope: &&str| {
        let path = scope.trim_matches('\'').replace(['*', ':'], "-");
        format!("  {scope}:\n    lookaside: https://s/{path}\n")
    };
    let entries: String = scopes.iter().map(entry).collect();
    let text = format!("default-docker: {{lookaside: 'https://s/default'}}\ndocker:\n{entries}");
    let registries_d = parse(&text).expect("valid");
    for (image, expected) in [
        (
            "example.com/ns1/ns2/repo:notlatest",
            "example.com/ns1/ns2/repo-notlatest",
        ),
        ("example.com/ns1/ns2/repo:unmatched", "example.com/ns1/ns2/repo"),
        ("example.com/ns1/ns2/notrepo:notlatest", "example.com/ns1/ns2"),
        ("example.com/ns1/notns2/repo:notlatest", "example.com/ns1"),
        ("example.com/notns1/ns2/repo:notlatest", "example.com"),
        ("unknown.example.com/busybox", "-.example.com"),
        ("unknown.example.com:5000/busybox", "-.example.com"),
        ("localhost:5000/busybox", "localhost-5000"),
        ("localhost/busybox", "localhost"),
        ("localhost:9999/busybox", "default"),
        ("example.org/busybox", "default"),
    ] {
        let found = lookaside(&registries_d, image);
        assert!(
            found.starts_with(&format!("https://s/{expected}/")),
            "{image}: {found}"
        );
    }
}

#[test]
fn each_key_is_taken_from_the_most_specific_scope_that_has_it() {
    let registries_d = parse(
        "default-docker: {use-sigstore-attachments: true, sigstore-staging: 'file:///x'}\n\
         docker:\n\
         \x20 q.io: {sigstore: 'https://old', lookaside: ''}\n\
         \x20 q.io/a: {use-sigstore-attachments: no, unknown: [1]}\n\
         \x20 q.io/a/b: {lookaside: 'https://new', sigstore: 'https://old'}\n\
         \x20 q.io/a/b:1:\n\
         other: {}\n",
    )
    .expect("valid");
    for (image, lookaside, attachments) in [
        ("q.io/a/b:1", "https://new/a/b", false),
        ("q.io/a/c:1", "https://old/a/c", false),
        ("q.io/d:1", "https://old/d", true),
        ("r.io/d:1", "file:///var/lib/containers/sigstore/d", true),
    ] {
        let found = sources(&registries_d, image).expect("valid");
        assert_eq!(found.lookaside.to_string(), lookaside, "{image}");
        assert_eq!(found.attachments, attachments, "{image}");
    }
    let found = sources(&RegistriesD::default(), "q.io/a").expect("valid");
    assert!(!found.attachments, "they are off by default");
}

#[test]
fn a_scope_in_two_files_is_an_error() {
    for (text, scope) in [
        ("default-docker: {}", "`default-docker`"),
        ("docker: {q.io: {}}", "`q.io`"),
    ] {
        let error = RegistriesD::parse(&[file("0.yaml", text), file("1.yaml", text)]);
        assert_eq!(
            error.expect_err("twice").to_string(),
            format!(
                "`0.yaml` and `1.yaml` both configure {scope}\nhint: remove it from one of them, CRI-O cannot pull \
                 with both"
            )
        );
    }
}

#[test]
fn only_yaml_of_the_right_types_is_accepted() {
    for (text, is_accepted) in [
        ("", true),
        ("# nothing\n", true),
        ("{}", true),
        ("docker:", true),
        ("docker: {q.io: }", true),
        ("docker: {q.io: {lookaside: }}", true),
        ("unknown: 1", true),
        ("{}\n---\ndefault-docker: {}\n", true),
        ("}", false),
        ("docker: [q.io]", false),
        ("docker: {q.io: {use-sigstore-attachments: maybe}}", false),
        ("docker: {q.io: {}, q.io: {}}", false),
        ("default-docker: {lookaside: a, lookaside: b}", false),
        (&"[".repeat(100_000), false),
    ] {
        let parsed = parse(text);
        let shown: String = text.chars().take(80).collect();
        assert_eq!(parsed.is_ok(), is_accepted, "{shown}: {:?}", parsed.err());
    }
}

#[test]
fn a_password_in_a_url_is_never_repeated() {
    for url in [
        "https://user:hunter2@",
        "https://user:hunter2@s/%",
        "user:hunter2@s",
        "ftp://user:hunter2@s",
    ] {
        for yaml in [
            format!("default-docker: {{lookaside: '{url}'}}"),
            format!("default-docker: '{url}'"),
            format!("docker: {{q.io: '{url}'}}"),
            format!("docker: {{'{url}': {{'{url}': 1, '{url}': 1}}}}"),
            format!("default-docker: {{lookaside: ['{url}']}}"),
            format!("default-docker: {{use-sigstore-attachments: '{url}'}}"),
        ] {
            let shown = match parse(&yaml) {
                Ok(registries_d) => {
                    let used = sources(&registries_d, "q.io/a");
                    format!("{used:?} {}", lookaside(&registries_d, "q.io/a"))
                }
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains("hunter2"), "{shown}");
        }
    }
}
