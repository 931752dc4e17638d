//! Lowers the CPU priority of the process and the disk priority of threads.
//!
//! On a single node this program shares two or four CPUs, and one disk, with etcd and the API server.
//!
//! - The niceness is set for the process before it has a second thread: Linux stores it per thread, and a new thread
//!   inherits it. It counts among the processes of one task group (sched(7)): by hand that is the session, in a pod the pod
//!   itself. Between pods the CPU request counts.
//! - The disk priority is lowered per thread, only while a layer is unpacked or read again. A commit holds locks of the
//!   store that CRI-O waits for: at the lowest priority it would wait for all other reads while CRI-O waits for it.
//!
//! The effect of a disk priority depends on the I/O scheduler: `bfq` and `mq-deadline` apply it; `none`, the default for
//! NVMe, does not.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::str::FromStr;

use rustix::process::{getpriority_process, setpriority_process};

/// linux/ioprio.h
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
const IOPRIO_CLASS_SHIFT: u32 = 13;
const IOPRIO_CLASS_BE: u32 = 2;
const IOPRIO_CLASS_IDLE: u32 = 3;
/// Levels within a class: 0 is the highest, 7 the lowest.
const IOPRIO_LEVELS: u8 = 8;

/// The niceness: 0 is the normal priority, 19 the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Niceness(u8);

/// Priority of disk requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoPriority {
    /// Inherited from the parent process.
    #[default]
    Unchanged,
    /// The normal class; level 0 is before level 7.
    BestEffort(u8),
    /// Served only if no other process needs the disk.
    Idle,
}

/// Why a text is no valid priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriorityError {
    /// Invalid niceness.
    #[error("must be a number from 0 to 19")]
    Niceness,
    /// Invalid disk priority.
    #[error("must be `none`, `idle`, `best-effort` or `best-effort:LEVEL` with a level from 0 to 7")]
    Io,
}

impl Niceness {
    /// The normal priority.
    pub const NONE: Self = Self(0);

    /// The lowest priority.
    pub const LOWEST: Self = Self(19);

    /// The default under TALM's Job: a tenth of the CPU time of other processes in the same task group
    /// (sched-nice-design.rst: weight 110 to 1024).
    pub const TALM: Self = Self(10);

    /// Sets the niceness of the calling thread and of the threads that it starts. A thread with a lower priority keeps it, as
    /// under `nice -n 19`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn apply(self) -> io::Result<()> {
        let niceness = i32::from(self.0);
        match getpriority_process(None)? >= niceness {
            true => Ok(()),
            false => Ok(setpriority_process(None, niceness)?),
        }
    }
}

impl FromStr for Niceness {
    type Err = PriorityError;

    fn from_str(text: &str) -> Result<Self, PriorityError> {
        match text.parse() {
            Ok(number @ 0..=19) => Ok(Self(number)),
            _ => Err(PriorityError::Niceness),
        }
    }
}

impl FromStr for IoPriority {
    type Err = PriorityError;

    fn from_str(text: &str) -> Result<Self, PriorityError> {
        match text.split_once(':') {
            None if text == "none" => Ok(Self::Unchanged),
            None if text == "idle" => Ok(Self::Idle),
            None if text == "best-effort" => Ok(Self::BestEffort(IOPRIO_LEVELS / 2)),
            Some(("best-effort", level)) => match level.parse() {
                Ok(level) if level < IOPRIO_LEVELS => Ok(Self::BestEffort(level)),
                _ => Err(PriorityError::Io),
            },
            _ => Err(PriorityError::Io),
        }
    }
}

impl fmt::Display for IoPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unchanged => f.write_str("none"),
            Self::BestEffort(level) => write!(f, "best-effort:{level}"),
            Self::Idle => f.write_str("idle"),
        }
    }
}

/// The calling thread has another disk priority. Undone when dropped, because threads are reused.
#[derive(Debug)]
#[must_use = "the priority is restored at once"]
pub struct Lowered {
    before: Option<libc::c_int>,
    /// Must not move to another thread.
    of_this_thread: PhantomData<*const ()>,
}

impl IoPriority {
    /// Sets the disk priority of the calling thread. If the kernel refuses, the priority stays unchanged:
    /// [`IoPriority::check`] reports that once.
    pub fn lower(self) -> Lowered {
        let before = self.number().and_then(|number| {
            let before = ioprio_get().ok()?;
            ioprio_set(number).ok().map(|()| before)
        });
        Lowered {
            before,
            of_this_thread: PhantomData,
        }
    }

    /// Checks whether a thread may have this priority.
    ///
    /// # Errors
    /// The kernel's error, if not.
    pub fn check(self) -> io::Result<()> {
        let Some(number) = self.number() else {
            return Ok(());
        };
        let before = ioprio_get()?;
        ioprio_set(number)?;
        ioprio_set(before)
    }

    fn number(self) -> Option<libc::c_int> {
        let (class, level) = match self {
            Self::Unchanged => return None,
            Self::BestEffort(level) => (IOPRIO_CLASS_BE, level),
            Self::Idle => (IOPRIO_CLASS_IDLE, 0),
        };
        libc::c_int::try_from(class << IOPRIO_CLASS_SHIFT | u32::from(level)).ok()
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Lowering it succeeded, so restoring it does too.
            let _ = ioprio_set(before);
        }
    }
}

fn ioprio_get() -> io::Result<libc::c_int> {
    // SAFETY: all arguments are numbers; 0 is the calling thread.
    let number = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0) };
    match libc::c_int::try_from(number) {
        // Kernels before 5.15 return level 4 of class none, and do not accept that value.
        Ok(number @ 0..) if number >> IOPRIO_CLASS_SHIFT == 0 => Ok(0),
        Ok(number @ 0..) => Ok(number),
        _ => Err(io::Error::last_os_error()),
    }
}

fn ioprio_set(number: libc::c_int) -> io::Result<()> {
    // SAFETY: as above.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, number) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_thread_gets_its_priority_back() {
        let before = ioprio_get().unwrap();
        for (priority, number) in [
            (IoPriority::Idle, 3 << 13),
            (IoPriority::BestEffort(7), 2 << 13 | 7),
        ] {
            priority.check().unwrap();
            let lowered = priority.lower();
            assert_eq!(ioprio_get().unwrap(), number);
            let other = std::thread::spawn(move || ioprio_get().unwrap());
            // A new thread inherits the priority, so no thread may be started meanwhile.
            assert_eq!(other.join().unwrap(), number);
            drop(lowered);
            // A kernel may report class none as the priority that it stands for.
            let after = ioprio_get().unwrap();
            assert!(after == before || after == 2 << 13 | 4, "{before} {after}");
        }
        let unchanged = IoPriority::Unchanged.lower();
        assert!(unchanged.before.is_none());
    }

    #[test]
    fn niceness_changes_one_thread_only_and_never_raises_its_priority() {
        let of_this_thread = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            // proc(5): the nineteenth field; the second is in brackets and may contain blanks.
            let fields = stat.rsplit_once(')').unwrap().1;
            fields.split_whitespace().nth(16).unwrap().parse::<u8>().unwrap()
        };
        let before = of_this_thread();
        let nice = Niceness(before.max(18) + 1);
        let there = std::thread::spawn(move || {
            nice.apply().unwrap();
            Niceness::TALM.apply().unwrap();
            of_this_thread()
        });
        assert_eq!(there.join().unwrap(), nice.0);
        assert_eq!(of_this_thread(), before);
    }

    #[test]
    fn priorities_parse_as_they_are_displayed() {
        for (text, priority) in [
            ("none", IoPriority::Unchanged),
            ("idle", IoPriority::Idle),
            ("best-effort:0", IoPriority::BestEffort(0)),
        ] {
            assert_eq!(text.parse(), Ok(priority));
            assert_eq!(priority.to_string(), text);
        }
        assert_eq!("best-effort".parse(), Ok(IoPriority::BestEffort(4)));
        // Real time would starve the node.
        for text in ["", "realtime", "best-effort:8", "idle:7", "3"] {
            assert_eq!(text.parse::<IoPriority>(), Err(PriorityError::Io), "{text}");
        }
        assert_eq!("19".parse(), Ok(Niceness(19)));
        for text in ["", "-1", "20", "low"] {
            assert_eq!(text.parse::<Niceness>(), Err(PriorityError::Niceness), "{text}");
        }
    }
}
