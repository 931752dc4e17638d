//! What the kernel must allow whoever writes a layer's tree.

use rustix::thread::{CapabilitySet, capabilities};

use super::StoreError;

/// Without one of these a call fails in the middle of a layer; without `CAP_FSETID` none does, and set-group-ID bits get
/// lost in silence.
const NEEDED: [(CapabilitySet, &str); 7] = [
    (CapabilitySet::CHOWN, "CAP_CHOWN"),
    (CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE"),
    (CapabilitySet::FOWNER, "CAP_FOWNER"),
    (CapabilitySet::FSETID, "CAP_FSETID"),
    (CapabilitySet::MKNOD, "CAP_MKNOD"),
    (CapabilitySet::SETFCAP, "CAP_SETFCAP"),
    // For the `trusted` attributes of overlay.
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
];

/// Says who is not root before anything is read that only root can read.
pub fn require_root() -> Result<(), StoreError> {
    match rustix::process::geteuid().as_raw() {
        0 => Ok(()),
        uid => Err(StoreError::NotRoot { uid }),
    }
}

/// Names of those that this thread does not have.
pub(super) fn missing() -> std::io::Result<Vec<&'static str>> {
    let held = capabilities(None)?.effective;
    let missing = NEEDED
        .iter()
        .filter(|(capability, _)| !held.contains(*capability));
    Ok(missing.map(|(_, name)| *name).collect())
}
