//! Which instance of a multi-architecture image is wanted.

use std::fmt;
use std::str::FromStr;

/// `os/architecture[/variant]`, with Go's names for both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Platform {
    /// `linux`
    pub os: String,
    /// `amd64`, `arm64`, `ppc64le`, `s390x`
    pub architecture: String,
    /// `v8`; none matches any
    pub variant: Option<String>,
}

impl Platform {
    /// The platform of the machine this runs on.
    pub fn of_this_node() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            other => other,
        };
        Self {
            os: "linux".into(),
            architecture: architecture.into(),
            // containers/image finds this in /proc/cpuinfo, and there is no other 64-bit ARM.
            variant: (architecture == "arm64").then(|| "v8".into()),
        }
    }

    /// The variants of an instance that will do, best first, the empty one standing for none: as
    /// `WantedPlatforms` of containers/image. With a variant given, it and all older ones, then none; without,
    /// an instance that has none, then any that is known.
    pub fn variants(&self) -> Vec<&str> {
        let known: &[&str] = match self.architecture.as_str() {
            "arm" => &["v8", "v7", "v6", "v5"],
            "arm64" => &["v8"],
            _ => &[],
        };
        match self.variant.as_deref() {
            None => [""].iter().chain(known).copied().collect(),
            Some(wanted) => match known.iter().position(|variant| *variant == wanted) {
                Some(first) => known[first..].iter().chain(&[""]).copied().collect(),
                None => vec![wanted, ""],
            },
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Platform {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            [os, architecture] | [os, architecture, _] if !os.is_empty() && !architecture.is_empty() => {
                Ok(Self {
                    os: os.into(),
                    architecture: architecture.into(),
                    variant: parts
                        .get(2)
                        .filter(|variant| !variant.is_empty())
                        .map(|variant| (*variant).into()),
                })
            }
            _ => Err(format!("not of the form `os/architecture[/variant]`: `{text}`")),
        }
    }
}
