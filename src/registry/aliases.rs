//! Checks and merges the `[aliases]` tables of registries.conf: short names and the repositories that they stand for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::oci::Reference;

/// Short repository names and the repositories that they stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct Aliases(BTreeMap<String, Alias>);

#[derive(Clone, Debug)]
struct Alias {
    /// A repository with its registry. None where a file removes an earlier file's alias by an empty text.
    repository: Option<String>,
    /// The file of the alias.
    origin: PathBuf,
}

impl Aliases {
    /// Refuses the whole table if one alias is not valid, as containers/image does.
    pub(super) fn check(table: BTreeMap<String, String>, path: &Path) -> Result<Self, String> {
        let aliases = table.into_iter().map(|(alias, name)| {
            if !alias.parse::<Reference>().is_ok_and(|parsed| parsed.is_short()) || has_target(&alias) {
                return Err(format!("alias `{alias}` must be a name without registry, tag or digest"));
            }
            let repository = match name.as_str() {
                "" => None,
                name => match name.parse::<Reference>() {
                    Ok(parsed) if !parsed.is_short() && !has_target(name) => Some(parsed.repository()),
                    _ => {
                        return Err(format!(
                            "alias `{alias}` must stand for a registry and a repository without tag or digest, not `{name}`"
                        ));
                    }
                },
            };
            let origin = path.to_owned();
            Ok((alias, Alias { repository, origin }))
        });
        Ok(Self(aliases.collect::<Result<_, _>>()?))
    }

    /// Adds a later file's aliases, which replace those of earlier files.
    pub(super) fn extend(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// The repository that a short name stands for, and the file of the alias.
    pub(super) fn find(&self, repository: &str) -> Option<(&str, &Path)> {
        let alias = self.0.get(repository)?;
        Some((alias.repository.as_deref()?, &alias.origin))
    }
}

/// Whether a tag or a digest follows the repository.
fn has_target(name: &str) -> bool {
    name.rsplit('/')
        .next()
        .is_some_and(|last| last.contains([':', '@']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_checked_as_containers_image_checks_them() {
        let digest = format!("@sha256:{}", "d3".repeat(32));
        let check = |alias: &str, name: &str| {
            let table = BTreeMap::from([(alias.to_owned(), name.to_owned())]);
            Aliases::check(table, Path::new("")).is_ok()
        };
        for (name, valid) in [
            ("docker.io/library/fedora", true),
            ("localhost/fedora", true),
            ("localhost:5000/namespace/fedora", true),
            ("", true),
            ("docker.io/library/fedora:latest", false),
            (&format!("docker.io/library/fedora{digest}"), false),
            ("fedora", false),
            ("library/fedora:latest", false),
            ("library/fedora", false),
            ("$$4455%%", false),
            ("docker://foo", false),
            (" ", false),
        ] {
            assert_eq!(check("x", name), valid, "{name}");
        }
        for (alias, valid) in [
            ("fedora", true),
            ("library/fedora", true),
            ("1234567489", true),
            ("docker.io/library/fedora", false),
            ("localhost/fedora", false),
            ("fedora:latest", false),
            (&format!("fedora{digest}"), false),
            ("$$4455%%", false),
            ("", false),
        ] {
            assert_eq!(check(alias, "quay.io/x"), valid, "{alias}");
        }
    }
}
