//! Checks that the process has root's uid and the capabilities for writing a layer's tree.

use rustix::thread::{CapabilitySet, capabilities};

use super::StoreError;

/// Without one of these a call fails in the middle of a layer. Without `CAP_FSETID` no call fails, but set-group-ID
/// bits are lost silently.
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

/// Fails for other users than root, before files are read that only root can read.
pub fn require_root() -> Result<(), StoreError> {
    match rustix::process::geteuid().as_raw() {
        0 => Ok(()),
        uid => Err(StoreError::NotRoot { uid }),
    }
}

/// The names of the capabilities that this thread lacks.
pub(super) fn missing() -> std::io::Result<Vec<&'static str>> {
    let held = capabilities(None)?.effective;
    let missing = NEEDED
        .iter()
        .filter(|(capability, _)| !held.contains(*capability));
    Ok(missing.map(|(_, name)| *name).collect())
}
