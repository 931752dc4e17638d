//! Finds the sources of an image in registries.conf: its mirrors in order, then its own registry.
//!
//! The image is stored under its original reference; only requests use [`PullSource::reference`].

use crate::oci::Reference;

use super::registries_conf::{Endpoint, RegistriesConf, RegistriesConfError, Registry, Serves};

/// A mirror, or the registry itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PullSource {
    /// The reference at this source.
    pub reference: Reference,
    /// Its certificate is not verified, and plain HTTP is allowed.
    pub insecure: bool,
}

impl RegistriesConf {
    /// The sources of `reference`, in the order of preference. Never empty: blocked sources are left out, and it is an error
    /// if all are blocked.
    pub fn pull_sources(&self, reference: &Reference) -> Result<Vec<PullSource>, RegistriesConfError> {
        let mut blocked = None;
        let mut sources = self.all_pull_sources(reference)?;
        // `blocked` concerns the location that is contacted: `blocked = true` beside mirrors means mirrors only.
        sources.retain(|source| match self.find(&source.reference.repository()) {
            Some(table) if table.blocked => {
                blocked = Some(table.prefix.clone());
                false
            }
            _ => true,
        });
        match blocked {
            Some(prefix) if sources.is_empty() => Err(RegistriesConfError::Blocked {
                prefix,
                reference: reference.to_string(),
            }),
            _ => Ok(sources),
        }
    }

    /// The same, with blocked sources.
    pub(super) fn all_pull_sources(
        &self,
        reference: &Reference,
    ) -> Result<Vec<PullSource>, RegistriesConfError> {
        let Some(table) = self.find(&reference.repository()) else {
            return Ok(vec![PullSource {
                reference: reference.clone(),
                insecure: false,
            }]);
        };
        let endpoints = table.endpoints(reference);
        endpoints
            .map(|endpoint| {
                Ok(PullSource {
                    reference: rewrite(reference, table, endpoint)?,
                    insecure: endpoint.insecure,
                })
            })
            .collect()
    }

    /// The table with the longest prefix that matches `name`, a reference or the beginning of one.
    pub(super) fn find(&self, name: &str) -> Option<&Registry> {
        let mut best: Option<&Registry> = None;
        for table in self.registries.values() {
            let longest = best.map_or(0, |best| best.prefix.len());
            if match_length(name, &table.prefix).is_some() && table.prefix.len() > longest {
                best = Some(table);
            }
        }
        best
    }
}

impl Registry {
    /// The endpoints for references of this kind: mirrors in their order, then the registry itself.
    pub(super) fn endpoints(&self, reference: &Reference) -> impl Iterator<Item = &Endpoint> {
        let mirrors = self.mirrors.iter().filter(|mirror| match mirror.serves {
            Serves::All => true,
            Serves::DigestOnly => reference.digest().is_some(),
            Serves::TagOnly => reference.digest().is_none(),
        });
        mirrors.chain([&self.endpoint])
    }
}

/// Replaces the matched prefix of the reference by the endpoint's location.
fn rewrite(
    reference: &Reference,
    table: &Registry,
    endpoint: &Endpoint,
) -> Result<Reference, RegistriesConfError> {
    let text = reference.to_string();
    let length = match match_length(&text, &table.prefix) {
        Some(length) if !endpoint.location.is_empty() => length,
        // A wildcard prefix without location: every host as it is.
        _ => return Ok(reference.clone()),
    };
    let rewritten = format!("{}{}", endpoint.location, &text[length..]);
    // A location such as `mirror` makes a name without a registry, which containers/image refuses too (`ParseNamed`).
    match rewritten.parse::<Reference>() {
        Ok(parsed) if !parsed.domain().is_empty() && parsed.to_string() == rewritten => Ok(parsed),
        _ => Err(RegistriesConfError::Rewrite {
            reference: text,
            rewritten,
        }),
    }
}

/// The length of the match, if `name` has this prefix. A prefix ends where a component of the name ends; `*.example.com`
/// matches any host below example.com, without its port.
fn match_length(name: &str, prefix: &str) -> Option<usize> {
    let length = match prefix.strip_prefix('*') {
        Some(domain) if domain.starts_with('.') => {
            let start = name.find(domain)?;
            if name[..start].contains('/') {
                return None;
            }
            start + domain.len()
        }
        _ => name.starts_with(prefix).then_some(prefix.len())?,
    };
    match name.as_bytes().get(length) {
        None | Some(b':' | b'/' | b'@') => Some(length),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::registries_conf::parse_text;
    use super::*;

    #[test]
    fn a_location_must_be_on_a_host() {
        for (location, rewritten) in [
            ("mirror", ""),
            ("docker.io", "docker.io/a/b:1"),
            ("LOCAL", "LOCAL/a/b:1"),
            ("a_b.io", ""),
            ("index.docker.io", ""),
            ("[::1]:5000/q", "[::1]:5000/q/a/b:1"),
        ] {
            let table = format!("[[registry]]\nprefix = 'quay.io'\nlocation = '{location}'");
            let conf = parse_text(&table).expect("valid");
            let found = conf.pull_sources(&"quay.io/a/b:1".parse().expect("a reference"));
            let found = found.map_or(String::new(), |sources| sources[0].reference.to_string());
            assert_eq!(found, rewritten, "{location}");
        }
    }

    #[test]
    fn a_blocked_registry_is_pulled_from_its_mirrors_or_not_at_all() {
        let conf = parse_text(
            "[[registry]]\nlocation = 'quay.io'\nblocked = true\n[[registry.mirror]]\nlocation = 'local:5000/q'\n\
             insecure = true\npull-from-mirror = 'digest-only'",
        )
        .expect("valid");
        let digest = format!("quay.io/a/b@sha256:{}", "0".repeat(64));
        let sources = conf
            .pull_sources(&digest.parse().expect("a reference"))
            .expect("the mirror");
        assert_eq!(sources.len(), 1);
        assert_eq!(sources[0].reference.repository(), "local:5000/q/a/b");
        assert!(sources[0].insecure);
        let error = conf.pull_sources(&"quay.io/a/b:1".parse().expect("a reference"));
        assert!(
            matches!(error, Err(RegistriesConfError::Blocked { .. })),
            "{error:?}"
        );
    }
}
