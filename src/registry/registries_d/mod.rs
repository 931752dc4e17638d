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

#[cfg(test)]
mod tests;

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
    /// Of a user other than root, which has a default store.
    home: Option<PathBuf>,
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

    /// The same for a user other than root with this home.
    pub fn of_user(self, home: Option<PathBuf>) -> Self {
        Self { home, ..self }
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
            None => Lookaside::default_of(physical, self.home.as_deref()),
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
