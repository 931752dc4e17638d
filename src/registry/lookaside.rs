//! Names the files of one image in a lookaside store, which has its simple signing signatures.
//!
//! ```text
//! <URL of the store>/<path of the repository>@sha256=<hex of the manifest's digest>/signature-<number from 1>
//! ```
//!
//! The layout is that of containers/image (`docs/signature-protocols.md`). The URL may contain a user and a password, which
//! never appear in a message.

use std::fmt;
use std::path::Path;

use reqwest::Url;

use crate::http::shown_url;
use crate::oci::{Digest, Reference};

/// Where containers/image looks when no store is configured and it runs as root (`docker/registries_d.go`).
const DEFAULT: &str = "/var/lib/containers/sigstore";

/// The same below the home of another user.
const USERS_DEFAULT: &str = ".local/share/containers/sigstore";

/// The lookaside store of one repository.
#[derive(Clone, PartialEq, Eq)]
pub struct Lookaside {
    /// With the path of the repository.
    base: Url,
}

impl Lookaside {
    /// The store at this URL. The error is what is wrong with the URL.
    pub(super) fn parse(store: &str, image: &Reference) -> Result<Self, String> {
        let mut base = Url::parse(store).map_err(|error| error.to_string())?;
        if !["https", "http", "file"].contains(&base.scheme()) {
            return Err(format!("its scheme is `{}`", base.scheme()));
        }
        // The parser adds a slash where the host is the end. containers/image keeps the one of the configuration, and a
        // second one after it.
        let directory = match base.path() {
            "/" if !store.ends_with('/') => "",
            path => path,
        };
        base.set_path(&format!("{directory}/{}", image.path()));
        Ok(Self { base })
    }

    /// The store that is used if none is configured; `home` is that of a user other than root.
    pub(super) fn default_of(image: &Reference, home: Option<&Path>) -> Self {
        let roots = Path::new(DEFAULT);
        let users = home
            .map(|home| home.join(USERS_DEFAULT))
            .filter(|path| path.is_absolute());
        let path = users.as_deref().unwrap_or(roots).join(image.path());
        Self {
            base: Url::from_file_path(path).expect("an absolute path"),
        }
    }

    /// The URL of one signature of the manifest.
    pub(super) fn signature(&self, manifest: Digest, number: usize) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!(
            "{}@sha256={}/signature-{number}",
            self.base.path(),
            manifest.hex()
        ));
        url
    }

    /// If the store is a directory of the host, the one that the signatures of this repository are in.
    pub(super) fn directory(&self) -> Option<Url> {
        (self.base.scheme() == "file")
            .then(|| self.base.join(".").ok())
            .flatten()
    }
}

impl fmt::Display for Lookaside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_url(&self.base))
    }
}

impl fmt::Debug for Lookaside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// containers/image's `TestLookasideStorageURL`, and what Go does with a query.
    #[test]
    fn signatures_are_numbered_from_1() {
        let image: Reference = "q.io/team/a:1".parse().expect("a reference");
        let manifest = Digest::of(b"manifest");
        let of_image = format!("team/a@sha256={}", manifest.hex());
        for (store, expected) in [
            ("file:///tmp", "file:///tmp/IT/signature-1"),
            (
                "https://localhost:5555/root",
                "https://localhost:5555/root/IT/signature-1",
            ),
            ("https://s.io", "https://s.io/IT/signature-1"),
            ("https://s.io/", "https://s.io//IT/signature-1"),
            (
                "https://s.io/a%20b?key=1",
                "https://s.io/a%20b/IT/signature-1?key=1",
            ),
            ("HTTP://u:p@s.io:80/r/", "http://u:p@s.io/r//IT/signature-1"),
        ] {
            let lookaside = Lookaside::parse(store, &image).expect("a URL");
            let url = lookaside.signature(manifest, 1);
            assert_eq!(url.as_str(), expected.replace("IT", &of_image));
        }
        let default = Lookaside::default_of(&image, None).signature(manifest, 2);
        let expected = format!("file:///var/lib/containers/sigstore/{of_image}/signature-2");
        assert_eq!(default.as_str(), expected);
    }
}
