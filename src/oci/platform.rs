//! Defines the platform of an image: operating system, architecture and variant.

use std::fmt;
use std::str::FromStr;

/// `os/architecture[/variant]`, with Go's names for both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Platform {
    /// `linux`
    pub os: String,
    /// `amd64`, `arm64`, `ppc64le`, `s390x`
    pub architecture: String,
    /// `v8`; `None` matches any
    pub variant: Option<String>,
}

impl Platform {
    /// The platform of this machine.
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
            // containers/image reads it from /proc/cpuinfo; 64-bit ARM has no other variant.
            variant: (architecture == "arm64").then(|| "v8".into()),
        }
    }

    /// The acceptable variants of an instance, best first, as `WantedPlatforms` of containers/image lists them. An empty
    /// variant means an instance without one. If this platform has a variant: that one, all older ones, then none. Otherwise:
    /// none, then every known variant.
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
