//! Parses registries.d, which states where the signatures of an image are stored, and looks images up in it.
//!
//! ```yaml
//! default-docker:                          # for all images without a scope of their own
//!   lookaside: file:///var/lib/signatures
//! docker:
//!   registry.redhat.io:                    # a scope: a registry, a namespace, a repository, or `*.example.com`
//!     lookaside: https://registry.redhat.io/containers/sigstore
//!   quay.io/openshift-release-dev:
//!     use-sigstore-attachments: true
//! ```
//!
//! The format is that of containers-registries.d(5), and the rules are those of containers/image
//! (`docker/registries_d.go`): each key is taken from the most specific scope that has it, unknown keys are ignored, and a
//! scope in two files is an error. The keys for writing (`lookaside-staging`) have no effect here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_saphyr::Error;

use crate::http::excerpt;
use crate::oci::Reference;

use super::lookaside::Lookaside;
use super::registries_conf::ConfText;

/// The deepest nesting; the parser recurses. Valid files need three levels.
const DEPTH_LIMIT: usize = 64;

/// The configuration merged from all files.
#[derive(Clone, Default)]
pub struct RegistriesD {
    default: Option<Namespace>,
    /// By scope.
    namespaces: BTreeMap<String, Namespace>,
}

/// Where the signatures of an image are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureSources {
    /// The lookaside store, which has simple signing signatures.
    pub lookaside: Lookaside,
    /// Whether sigstore attachments are read from the image's repository.
    pub attachments: bool,
}

/// What one file configures for one scope.
#[derive(Clone)]
struct Namespace {
    keys: Keys,
    origin: PathBuf,
}

/// Why registries.d cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistriesDError {
    /// Not YAML, or a key has a value of another type.
    #[error("`{}`: {why}", path.display())]
    Yaml {
        /// Which file.
        path: PathBuf,
        /// The parser's message, with the line.
        why: String,
    },
    /// Two files configure the same images.
    #[error("`{}` and `{}` both configure {scope}\nhint: remove it from one of them, CRI-O cannot pull with both", first.display(), second.display())]
    Twice {
        /// The scope, or `default-docker`.
        scope: String,
        /// The files, in the order of their names.
        first: PathBuf,
        /// The other one.
        second: PathBuf,
    },
    /// The lookaside store has no usable URL, which may contain a password.
    #[error("`{}`: `{key}` of {scope} is not a URL of a lookaside store: {why}\nhint: let it begin with `https://`, `http://` or `file:///`", path.display())]
    Lookaside {
        /// Which file.
        path: PathBuf,
        /// `lookaside` or its old name.
        key: &'static str,
        /// The scope, or `default-docker`.
        scope: String,
        /// What is wrong with it.
        why: String,
    },
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct File {
    default_docker: Option<Keys>,
    docker: Option<BTreeMap<String, Option<Keys>>>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Keys {
    lookaside: Option<String>,
    /// The old name of `lookaside`, which is taken before it.
    sigstore: Option<String>,
    use_sigstore_attachments: Option<bool>,
}

impl Keys {
    /// The URL of the lookaside store, with the name of its key. An empty text counts as no text.
    fn lookaside(&self) -> Option<(&'static str, &str)> {
        let both = [("lookaside", &self.lookaside), ("sigstore", &self.sigstore)];
        let mut set = both
            .into_iter()
            .filter_map(|(key, text)| Some((key, text.as_deref()?)));
        set.find(|(_, text)| !text.is_empty())
    }
}

impl RegistriesD {
    /// Merges the files, in the order of their names.
    pub fn parse(files: &[ConfText]) -> Result<Self, RegistriesDError> {
        let mut merged = Self::default();
        for ConfText { path, text } in files {
            let File {
                default_docker,
                docker,
            } = parse_file(path, text)?;
            let namespace = |keys| Namespace {
                keys,
                origin: path.clone(),
            };
            if let Some(keys) = default_docker
                && let Some(first) = merged.default.replace(namespace(keys))
            {
                return Err(twice("`default-docker`".to_owned(), first, path));
            }
            for (scope, keys) in docker.unwrap_or_default() {
                let keys = namespace(keys.unwrap_or_default());
                if let Some(first) = merged.namespaces.insert(scope.clone(), keys) {
                    return Err(twice(format!("`{scope}`"), first, path));
                }
            }
        }
        Ok(merged)
    }

    /// Where the signatures of `physical` are, an image by the name that it has at the mirror or registry that it is pulled
    /// from.
    pub fn signature_sources(&self, physical: &Reference) -> Result<SignatureSources, RegistriesDError> {
        let scopes = physical.scopes().into_iter();
        let found = scopes.filter_map(|scope| Some((format!("`{scope}`"), self.namespaces.get(&scope)?)));
        let default = self.default.as_ref();
        let default = default.map(|default| ("`default-docker`".to_owned(), default));
        let found: Vec<_> = found.chain(default).collect();

        let mut lookasides = found.iter().filter_map(|(scope, it)| {
            let (key, text) = it.keys.lookaside()?;
            Some((scope, &it.origin, key, text))
        });
        let lookaside = match lookasides.next() {
            None => Lookaside::default_of(physical),
            Some((scope, origin, key, text)) => {
                Lookaside::parse(text, physical).map_err(|why| RegistriesDError::Lookaside {
                    path: origin.clone(),
                    key,
                    scope: scope.clone(),
                    why,
                })?
            }
        };
        let attachments = found.iter().find_map(|(_, it)| it.keys.use_sigstore_attachments);
        Ok(SignatureSources {
            lookaside,
            attachments: attachments.unwrap_or_default(),
        })
    }
}

/// Without the URLs, which may contain passwords.
impl fmt::Debug for RegistriesD {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.namespaces.keys()).finish()
    }
}

fn twice(scope: String, first: Namespace, second: &Path) -> RegistriesDError {
    RegistriesDError::Twice {
        scope,
        first: first.origin,
        second: second.to_owned(),
    }
}

/// Reads the first document of a file, like Go's `yaml.Unmarshal`.
fn parse_file(path: &Path, text: &str) -> Result<File, RegistriesDError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_LIMIT,
        },
    };
    let documents = serde_saphyr::from_multiple_with_options::<File>(text, options);
    let documents = documents.map_err(|error| RegistriesDError::Yaml {
        path: path.to_owned(),
        why: message(&error),
    })?;
    Ok(documents.into_iter().next().unwrap_or_default())
}

/// The parser's message, without the key that occurs twice, which may be anything.
fn message(error: &Error) -> String {
    match (error, error.location()) {
        (Error::DuplicateMappingKey { .. }, Some(location)) => {
            format!("a key occurs twice in a mapping, line {}", location.line())
        }
        _ => excerpt(&error.to_string()),
    }
}

#[cfg(test)]
mod tests {
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
}
