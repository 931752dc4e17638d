//! Completes image names without a registry, such as `ubi8/ubi:8.9` or `busybox`, as CRI-O completes them.
//!
//! ```text
//! busybox:1 ─→ an alias of short-name-aliases.conf, else of registries.conf and its drop-ins ─→ quay.io/x/busybox:1
//!           └→ no alias: each of `unqualified-search-registries` ─→ one: that one; several or none: refused
//! ```
//!
//! An alias stands for a repository, and the tag or digest is added (containers/image `pkg/shortnames`). With several search
//! registries the image that a pod gets depends on CRI-O: up to 1.33 it takes the first registry that answers at that moment;
//! since 1.34 it refuses the name unless crio.conf has `short_name_mode = "disabled"`. A pod could not use an image under a
//! guessed name, so the name is refused. No mode of `short-name-mode` changes that here: the modes differ in whether a person
//! is asked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::oci::Reference;

use super::aliases::Aliases;
use super::registries_conf::{ConfText, RegistriesConf, RegistriesConfError};

/// Why a name without a registry cannot be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShortNameError {
    /// It has no alias, and there is no search registry. CRI-O would refuse it as well.
    #[error(
        "`{name}` names no registry, and the node's registries.conf has neither an alias for it nor a search registry\n\
         hint: write the full name, as in `quay.io/{name}`"
    )]
    Unknown {
        /// As written, with the tag.
        name: String,
    },
    /// It may mean several images.
    #[error(
        "`{name}` names no registry, and `{}` has several to search; which one CRI-O takes depends on its version and on \
         which of them answers\nhint: write the full name: {}", origin.display(), one_of(candidates)
    )]
    Ambiguous {
        /// As written, with the tag.
        name: String,
        /// Where the search registries are listed.
        origin: PathBuf,
        /// What it may mean, in the order in which they are searched.
        candidates: Vec<String>,
    },
    /// The completed name is not an image reference.
    #[error("`{name}` names no registry, and `{}` makes `{candidate}` of it, which is not an image reference", origin.display())]
    NotAName {
        /// As written, with the tag.
        name: String,
        /// The file with the alias or the search registry.
        origin: PathBuf,
        /// The completed name.
        candidate: String,
    },
}

fn one_of(candidates: &[String]) -> String {
    let quoted: Vec<String> = candidates.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(" or ")
}

impl RegistriesConf {
    /// Adds the aliases of `short-name-aliases.conf`, where podman records the choices of its users. They precede those of
    /// registries.conf.
    pub fn with_recorded_aliases(mut self, file: &ConfText) -> Result<Self, RegistriesConfError> {
        #[derive(Deserialize)]
        struct Recorded {
            aliases: Option<BTreeMap<String, String>>,
        }
        let recorded: Recorded = toml::from_str(&file.text).map_err(|source| RegistriesConfError::Toml {
            path: file.path.clone(),
            source: Box::new(source),
        })?;
        let aliases = Aliases::check(recorded.aliases.unwrap_or_default(), &file.path);
        self.aliases
            .extend(aliases.map_err(|why| RegistriesConfError::Invalid {
                path: file.path.clone(),
                why,
            })?);
        Ok(self)
    }

    /// The name by which CRI-O pulls the image, and later finds it in the store. A name with a registry is not changed.
    pub fn full_name(&self, name: &Reference) -> Result<Reference, ShortNameError> {
        if !name.is_short() {
            return Ok(name.clone());
        }
        if let Some((alias, origin)) = self.aliases.find(&name.repository()) {
            return complete(format!("{alias}{}", name.suffix()), name, origin);
        }
        let Some(search) = self.search.as_ref().filter(|search| !search.hosts.is_empty()) else {
            return Err(ShortNameError::Unknown {
                name: name.to_string(),
            });
        };
        let candidates = search.hosts.iter();
        let candidates = candidates.map(|host| complete(format!("{host}/{name}"), name, &search.origin));
        let candidates = candidates.collect::<Result<Vec<_>, _>>()?;
        match <[Reference; 1]>::try_from(candidates) {
            Ok([only]) => Ok(only),
            Err(several) => Err(ShortNameError::Ambiguous {
                name: name.to_string(),
                origin: search.origin.clone(),
                candidates: several.iter().map(Reference::to_string).collect(),
            }),
        }
    }
}

fn complete(candidate: String, name: &Reference, origin: &Path) -> Result<Reference, ShortNameError> {
    match candidate.parse::<Reference>() {
        Ok(full) if !full.is_short() => Ok(full),
        // `Foo/bar`, or a search registry without a dot.
        _ => Err(ShortNameError::NotAName {
            name: name.to_string(),
            origin: origin.to_owned(),
            candidate,
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::registries_conf::parse_text;
    use super::*;

    fn conf_text(text: &str) -> ConfText {
        ConfText {
            path: "registries.conf".into(),
            text: text.into(),
        }
    }

    /// The full name, or the error.
    fn full(conf: &RegistriesConf, name: &str) -> String {
        match conf.full_name(&name.parse().unwrap()) {
            Ok(full) => full.to_string(),
            Err(why) => why.to_string(),
        }
    }

    /// After containers/image's own tests (`pkg/shortnames`, `pkg/sysregistriesv2/shortnames_test.go`) and their files.
    #[test]
    fn completes_as_containers_image_does() {
        let main = "short-name-mode = 'enforcing'\n[aliases]\ndocker = 'docker.io/library/foo'\n\
                    'quay/foo' = 'quay.io/library/foo'\nexample = 'example.com/library/foo'\nempty = ''\nhub = 'docker.io/x'";
        let drop_in = "unqualified-search-registries = ['example-overwrite.com/']\n[aliases]\n\
                       docker = 'docker.io/library/config1'\nexample = ''";
        let digest = format!("@sha256:{}", "d3".repeat(32));
        let alone = RegistriesConf::parse(&[conf_text(main)]).unwrap();
        let with_drop_in = RegistriesConf::parse(&[conf_text(main), conf_text(drop_in)]).unwrap();
        for (name, expected, expected_with_drop_in) in [
            (
                "docker",
                "docker.io/library/foo:latest",
                "docker.io/library/config1:latest",
            ),
            (
                "docker:tag",
                "docker.io/library/foo:tag",
                "docker.io/library/config1:tag",
            ),
            (
                "quay/foo",
                "quay.io/library/foo:latest",
                "quay.io/library/foo:latest",
            ),
            (
                "example:1",
                "example.com/library/foo:1",
                "example-overwrite.com/example:1",
            ),
            ("hub", "docker.io/library/x:latest", "docker.io/library/x:latest"),
            // An alias is for one name; Docker's `library/` makes another of it.
            (
                "library/docker",
                "`library/docker:latest` names no registry",
                "example-overwrite.com/library/docker:latest",
            ),
            (
                "empty",
                "`empty:latest` names no registry",
                "example-overwrite.com/empty:latest",
            ),
            (
                "nobody:2",
                "`nobody:2` names no registry",
                "example-overwrite.com/nobody:2",
            ),
            (
                "Foo/bar",
                "`Foo/bar:latest` names no registry",
                "`Foo/bar:latest` names no registry",
            ),
            (
                "docker.io/docker",
                "docker.io/library/docker:latest",
                "docker.io/library/docker:latest",
            ),
            (
                "localhost/docker",
                "localhost/docker:latest",
                "localhost/docker:latest",
            ),
        ] {
            assert!(full(&alone, name).starts_with(expected), "{}", full(&alone, name));
            let found = full(&with_drop_in, name);
            assert!(found.starts_with(expected_with_drop_in), "{found}");
        }
        let digested = full(&with_drop_in, &format!("quay/foo:tag{digest}"));
        assert_eq!(digested, format!("quay.io/library/foo{digest}"));
        let digested = full(&with_drop_in, &format!("nobody{digest}"));
        assert_eq!(digested, format!("example-overwrite.com/nobody{digest}"));
    }

    #[test]
    fn recorded_aliases_precede_the_configuration() {
        let conf = parse_text("[aliases]\na = 'a.io/a'\nb = 'b.io/b'").unwrap();
        let recorded = conf_text("[aliases]\n  \"a\" = \"chosen.io/a\"\n");
        let conf = conf.with_recorded_aliases(&recorded).unwrap();
        assert_eq!(full(&conf, "a:1"), "chosen.io/a:1");
        assert_eq!(full(&conf, "b"), "b.io/b:latest");
        let broken = conf
            .with_recorded_aliases(&conf_text("[aliases]\na = 'b'"))
            .unwrap_err();
        assert!(
            broken.to_string().contains("alias `a` must stand for a registry"),
            "{broken}"
        );
    }

    /// With the registries.conf that the machine-config operator writes on nodes.
    #[test]
    fn an_ambiguous_name_is_refused_and_both_candidates_are_listed() {
        let conf = "unqualified-search-registries = ['registry.access.redhat.com', 'docker.io']\nshort-name-mode = ''";
        for mode in ["''", "'permissive'", "'enforcing'", "'disabled'"] {
            let conf = parse_text(&conf.replace("''", mode)).unwrap();
            assert_eq!(
                full(&conf, "busybox"),
                "`busybox:latest` names no registry, and `registries.conf` has several to search; which one CRI-O takes \
                 depends on its version and on which of them answers\nhint: write the full name: \
                 `registry.access.redhat.com/busybox:latest` or `docker.io/library/busybox:latest`"
            );
        }
        let none = parse_text("unqualified-search-registries = []").unwrap();
        assert!(
            full(&none, "busybox").contains("neither an alias"),
            "{}",
            full(&none, "busybox")
        );
    }
}
