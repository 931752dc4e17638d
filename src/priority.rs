//! Priorities of a guest on the node: CPU time of the process, disk time of a thread.
//!
//! On a single node the pre-caching shares two or four CPUs, and one disk, with etcd and the API server.
//!
//! - Niceness is the process's, set before there is a second thread: Linux keeps it for each, and a new one has its maker's.
//!   It counts among the processes of one task group (sched(7)): by hand that is the session's, in a pod the pod's own, and
//!   against the rest of the node the pod's CPU request counts.
//! - Disk priority is lowered only while a layer is unpacked or read again, thread by thread. A commit holds locks of the
//!   store that CRI-O waits for; at the lowest priority it would wait for everybody's reads while everybody waits for it.
//!
//! Whether a disk priority means anything is the I/O scheduler's affair: `bfq` and `mq-deadline` heed it, `none`, the usual
//! one of NVMe, does not.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::str::FromStr;

/// linux/ioprio.h
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
const IOPRIO_CLASS_SHIFT: u32 = 13;
const IOPRIO_CLASS_BE: u32 = 2;
const IOPRIO_CLASS_IDLE: u32 = 3;
/// Levels within a class: 0 is the highest, 7 the lowest.
const IOPRIO_LEVELS: u8 = 8;

/// How far below others in CPU time: 0 is not at all, 19 is last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Niceness(u8);

/// Priority of disk requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoPriority {
    /// As whoever started the process had it.
    #[default]
    Unchanged,
    /// As everybody's, 0 before 7.
    BestEffort(u8),
    /// After everybody's.
    Idle,
}

/// A text that is no priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriorityError {
    /// Of CPU time.
    #[error("must be a number from 0 to 19")]
    Niceness,
    /// Of the disk.
    #[error("must be `none`, `idle`, `best-effort` or `best-effort:LEVEL` with a level from 0 to 7")]
    Io,
}

impl Niceness {
    /// As everybody.
    pub const NONE: Self = Self(0);

    /// Under TALM's Job: a tenth of what others of the same task group get (sched-nice-design.rst: 110 parts to 1024).
    pub const TALM: Self = Self(10);

    /// Lowers the calling thread, and those that it will start.
    ///
    /// # Errors
    /// When the kernel refuses: a process may not raise itself without `CAP_SYS_NICE`.
    pub fn apply(self) -> io::Result<()> {
        // SAFETY: numbers alone; 0 is the calling thread.
        match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, self.0.into()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
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

/// The calling thread asks the disk at another priority; undone when dropped, for threads are used again.
#[derive(Debug)]
#[must_use = "the priority is given back at once"]
pub struct Lowered {
    before: Option<libc::c_int>,
    /// It belongs to the thread that made it.
    of_this_thread: PhantomData<*const ()>,
}

impl IoPriority {
    /// Sets the priority of the calling thread. Where the kernel refuses it stays as it is, which is no reason to do less:
    /// [`IoPriority::check`] says so once.
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

    /// Whether a thread may have this priority.
    ///
    /// # Errors
    /// What the kernel says if not.
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
            // It could be lowered, so it can be given back.
            let _ = ioprio_set(before);
        }
    }
}

fn ioprio_get() -> io::Result<libc::c_int> {
    // SAFETY: numbers alone; 0 is the calling thread.
    let number = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0) };
    match libc::c_int::try_from(number) {
        // Kernels before 5.15 say level 4 of no class, and do not take that back.
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
            // A new thread has its maker's, so no thread is to be made meanwhile.
            assert_eq!(other.join().unwrap(), number);
            drop(lowered);
            // A kernel may say "none" as the priority that stands for it.
            let after = ioprio_get().unwrap();
            assert!(after == before || after == 2 << 13 | 4, "{before} {after}");
        }
        let unchanged = IoPriority::Unchanged.lower();
        assert!(unchanged.before.is_none());
    }

    #[test]
    fn a_thread_becomes_nice_and_others_stay() {
        let of_this_thread = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            // proc(5): the nineteenth field; the second is in brackets and may hold blanks.
            let fields = stat.rsplit_once(')').unwrap().1;
            fields.split_whitespace().nth(16).unwrap().parse::<u8>().unwrap()
        };
        let before = of_this_thread();
        let nice = Niceness(before.max(18) + 1);
        let there = std::thread::spawn(move || {
            nice.apply().unwrap();
            of_this_thread()
        });
        assert_eq!(there.join().unwrap(), nice.0);
        assert_eq!(of_this_thread(), before);
    }

    #[test]
    fn priorities_are_read_as_they_are_written() {
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
