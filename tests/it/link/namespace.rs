//! Makes an unnamed network namespace that disappears with its last user.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// linux/if_tun.h: `_IOW('T', 202, int)`
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;

/// A namespace with its loopback up.
pub(crate) struct Namespace(File);

impl Namespace {
    pub(crate) fn new() -> io::Result<Self> {
        // Of a thread that ends at once, for every later one would be born into its namespace.
        let made = std::thread::spawn(|| {
            // SAFETY: descriptors stay shared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net")
        });
        let namespace = Self(made.join().expect("no panic")?);
        namespace.command(&["ip", "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Does `work` inside: sockets that it opens and processes that it starts belong there for good.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            rustix::thread::move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may enter a namespace that it holds");
            work()
        };
        std::thread::scope(|scope| match scope.spawn(inside).join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// Runs a program inside to its end, and answers with its output.
    pub(crate) fn command(&self, words: &[&str]) -> io::Result<String> {
        let output = self.within(|| {
            Command::new(words[0])
                .args(&words[1..])
                .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
                .output()
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("`{}`: {said}", words.join(" "))))
    }

    /// Bytes that a device has received so far, with headers.
    pub(crate) fn received(&self, device: &str) -> io::Result<u64> {
        let text = self.command(&["ip", "-json", "-statistics", "link", "show", "dev", device])?;
        let document: serde_json::Value = serde_json::from_str(&text)?;
        let bytes = document[0]["stats64"]["rx"]["bytes"].as_u64();
        bytes.ok_or_else(|| io::Error::other(format!("no counter in {text}")))
    }

    /// A TUN device `tun0` inside: what is sent through it is read here, a packet at a time, and the reverse. It does not
    /// block.
    pub(super) fn tun(&self) -> io::Result<OwnedFd> {
        self.within(|| {
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let device = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
            // SAFETY: all of `ifreq` may be zero.
            let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
            for (to, from) in request.ifr_name.iter_mut().zip(b"tun0") {
                *to = from.cast_signed() as libc::c_char;
            }
            request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
            // SAFETY: the descriptor is open, and the kernel reads and writes no more than an `ifreq`.
            match unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF, &raw mut request) } {
                0 => Ok(device),
                _ => Err(io::Error::last_os_error()),
            }
        })
    }
}
