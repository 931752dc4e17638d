//! States for a tag of a release whether this node needs its image, and why.

use std::fmt;

use super::image_use::ImageUser;

/// The most users in a message.
const NAMED: usize = 2;

/// Whether a node needs the image of a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagVerdict {
    /// Its name in the release.
    pub tag: String,
    /// Why it is needed, or why not.
    pub need: Need,
}

/// Why an image is needed, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// These use its image, of the running release or the very image itself; at least one.
    Used(Vec<ImageUser>),
    /// The running release has no tag of this name.
    New,
    /// Every update needs it.
    Always,
    /// An update takes it from the store, without a container.
    OperatingSystem,
    /// It is left out, for this reason.
    LeftOut(String),
}

impl Need {
    /// Whether the image is pulled.
    pub fn is_needed(&self) -> bool {
        !matches!(self, Self::LeftOut(_))
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Used(users) => {
                let named: Vec<String> = users.iter().take(NAMED).map(ToString::to_string).collect();
                write!(f, "used by {}", named.join(", "))?;
                match users.len().saturating_sub(NAMED) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
            Self::New => f.write_str("the running release does not have it"),
            Self::Always => f.write_str("every update needs it"),
            Self::OperatingSystem => f.write_str("an update takes it from the store"),
            Self::LeftOut(why) => f.write_str(why),
        }
    }
}
