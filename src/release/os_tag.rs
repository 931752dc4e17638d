//! Recognizes the images of the operating system by their names in a payload.

/// Names, optionally followed by a stream: `rhel-coreos-9`.
const SYSTEMS: [&str; 3] = ["rhel-coreos", "stream-coreos", "fedora-coreos"];

/// What an image contains of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OsTag {
    /// All of it, as `rpm-ostree rebase` expects it.
    System,
    /// Packages that it does not have by default.
    Extensions,
    /// All of it, as a tree of files: the operating system of releases up to 4.13.
    MachineOsContent,
}

impl OsTag {
    /// `None` if the image with this name has nothing to do with the operating system.
    pub fn of(tag: &str) -> Option<Self> {
        if tag == "machine-os-content" {
            return Some(Self::MachineOsContent);
        }
        if tag.ends_with("-extensions") {
            return Some(Self::Extensions);
        }
        let stream = SYSTEMS.iter().find_map(|system| tag.strip_prefix(system))?;
        (stream.is_empty() || stream.starts_with('-')).then_some(Self::System)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tags_of_operating_systems_are_known() {
        for (tags, expected) in [
            (
                &["rhel-coreos", "rhel-coreos-8", "rhel-coreos-10", "stream-coreos"][..],
                Some(OsTag::System),
            ),
            (
                &["rhel-coreos-extensions", "stream-coreos-8-extensions"],
                Some(OsTag::Extensions),
            ),
            (&["machine-os-content"], Some(OsTag::MachineOsContent)),
            (&["rhel-coreosx", "etcd", "machine-os-images"], None),
        ] {
            for tag in tags {
                assert_eq!(OsTag::of(tag), expected, "{tag}");
            }
        }
    }
}
