//! Raises the number of files that the process may have open.
//!
//! Every download has up to four files open: a socket, the blob, its journal and a range. Every layer that is unpacked has a
//! dozen more: the blob, its tree, the tar-split, and for a delta its scratch files and sources. With the default flags that
//! is a few hundred, and up to 512 more blobs may wait for a throttling registry. `--max-downloads` and `--max-unpacks` may
//! be 65,535 each. systemd and the kernel set a soft limit of 1024, for programs that use select(2), which this program does
//! not, and a hard limit of 4096 to a million.

use std::io;

/// Raises the soft limit to the hard one. A seccomp profile may forbid it.
pub fn raise_limit() {
    if let Err(error) = limit().and_then(|limit| {
        set_limit(libc::rlimit {
            rlim_cur: limit.rlim_max,
            ..limit
        })
    }) {
        tracing::warn!("many downloads at a time may fail: cannot raise the limit of open files: {error}");
    }
}

/// Not rustix's, which panics where a seccomp profile forbids it.
fn limit() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is valid during the call.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_limit(limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: the pointer is valid during the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        raise_limit();
        let limit = limit().unwrap();
        assert_eq!(limit.rlim_cur, limit.rlim_max);
    }
}
