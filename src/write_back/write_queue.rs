//! Writes unpacked files and downloaded bytes to the disk in small portions, so that the sync before a commit finds little.
//!
//! ```text
//! unpackers ─┐              ┌─ thread: starts to write at most so many bytes, and waits for them
//! downloads ─┴→ [ QUEUE ] ──┴─ drain: a commit writes the rest in the same way, and then syncs
//! ```
//!
//! A sync passes everything that is dirty to the disk at once, and each `fdatasync` of etcd waits behind it. Beside a run over
//! 500 Mbit/s the 99th percentile of such waits was 24 to 87 ms, and is 12 to 16 ms with 2 MB (`benches/README.md`).
//!
//! When all processors are busy, a fixed budget costs a sixth of the duration: the kernel merges the writes of small files
//! during a sync, and not these. So by default the thread has the lowest priority, and what it cannot follow is left to the sync.
//!
//! The kernel's measure of stalls (PSI) does not help: it contains the waits of this program too.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{IoBudget, finish, start};
use crate::priority::Niceness;

/// Length of the queue. Each piece has an open file.
const QUEUE: usize = 64;

/// The queue of a run, without effect if it is off. Clones share it. Its thread ends after the last clone is dropped.
#[derive(Clone, Debug, Default)]
pub struct WriteQueue(Option<Arc<Sender>>);

#[derive(Debug)]
struct Sender {
    shared: Arc<Shared>,
    /// Whether unpackers wait when the queue is full.
    waits: bool,
}

#[derive(Debug)]
struct Shared {
    budget: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Piece>,
    /// Portions that are being written, by number.
    in_progress: BTreeSet<u64>,
    next_portion: u64,
    /// The first error of a file whose only descriptor was in the queue: nobody else can learn of it.
    error: Option<i32>,
    is_closed: bool,
}

#[derive(Debug)]
struct Piece {
    file: Arc<File>,
    bytes: Range<u64>,
    keeps_error: bool,
}

impl WriteQueue {
    /// A queue without a thread and without effect.
    pub fn off() -> Self {
        Self::default()
    }

    /// Starts the thread. If that fails, everything is left to the sync.
    pub fn start(budget: IoBudget) -> Self {
        let (budget, waits) = match budget {
            IoBudget::Auto => (IoBudget::DEFAULT.get(), false),
            IoBudget::Bytes(bytes) => (bytes.get(), true),
            IoBudget::Off => return Self::off(),
        };
        let shared = Arc::new(Shared {
            budget,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("write-back".into());
        let started = thread.spawn(move || {
            if !waits && let Err(error) = Niceness::LOWEST.apply() {
                tracing::debug!("cannot lower the priority of the thread that writes to the disk: {error}");
            }
            of_thread.serve();
        });
        match started {
            Ok(_) => Self(Some(Arc::new(Sender { shared, waits }))),
            Err(error) => {
                tracing::debug!("no thread writes to the disk between syncs: {error}");
                Self::off()
            }
        }
    }

    /// Adds bytes of a file that nobody writes any more. With a fixed budget, waits until there is space.
    pub fn add(&self, file: File, bytes: Range<u64>) {
        let Some(sender) = &self.0 else {
            return;
        };
        let mut state = sender.shared.state();
        while sender.waits && state.pieces.len() >= QUEUE {
            state = sender.shared.wait(state);
        }
        let (file, keeps_error) = (Arc::new(file), true);
        sender.shared.push(
            state,
            Piece {
                file,
                bytes,
                keeps_error,
            },
        );
    }

    /// Adds bytes if there is space. Errors are not reported here: the owner of the bytes must sync them through another
    /// file that is open by now, and receives the error there.
    pub fn offer(&self, file: &Arc<File>, bytes: Range<u64>) -> bool {
        let Some(sender) = &self.0 else {
            return false;
        };
        let piece = Piece {
            file: Arc::clone(file),
            bytes,
            keeps_error: false,
        };
        sender.shared.push(sender.shared.state(), piece)
    }

    /// Whether nothing is ever written.
    pub fn is_off(&self) -> bool {
        self.0.is_none()
    }

    /// Returns when everything that was added is written or left to the sync.
    ///
    /// # Errors
    /// If the disk failed to write any file so far. Each later call fails too.
    pub fn drain(&self) -> io::Result<()> {
        match &self.0 {
            Some(sender) => sender.shared.drain(sender.waits),
            None => Ok(()),
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Consistent at every moment, even after a panic of a holder.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, mut state: MutexGuard<'_, State>, piece: Piece) -> bool {
        if state.pieces.len() >= QUEUE {
            return false;
        }
        state.pieces.push_back(piece);
        drop(state);
        self.changed.notify_all();
        true
    }

    fn serve(&self) {
        let mut state = self.state();
        while !state.is_closed {
            state = match state.pieces.is_empty() {
                true => self.wait(state),
                false => self.write_portion(state).0,
            };
        }
        state.pieces.clear();
    }

    fn drain(&self, waits: bool) -> io::Result<()> {
        let mut state = self.state();
        // Others add more meanwhile, which is not waited for.
        let mut left = state.pieces.len();
        while left > 0 && !state.pieces.is_empty() {
            let taken;
            (state, taken) = self.write_portion(state);
            left = left.saturating_sub(taken);
        }
        let end = state.next_portion;
        // At the lowest priority the thread may need long for its portion. The sync writes that too, and reports errors itself
        // since Linux 5.8 (syncfs(2)).
        while waits && state.in_progress.first().is_some_and(|portion| *portion < end) {
            state = self.wait(state);
        }
        match state.error {
            Some(error) => Err(io::Error::from_raw_os_error(error)),
            None => Ok(()),
        }
    }

    /// Writes the first pieces, up to the budget, without the lock. Returns how many pieces it has taken as a whole.
    fn write_portion<'s>(&'s self, mut state: MutexGuard<'s, State>) -> (MutexGuard<'s, State>, usize) {
        let (mut portion, mut left, mut taken) = (Vec::new(), self.budget, 0);
        while left > 0
            && let Some(mut piece) = state.pieces.pop_front()
        {
            let end = piece.bytes.end.min(piece.bytes.start.saturating_add(left));
            let rest = end..piece.bytes.end;
            piece.bytes.end = end;
            left -= end.saturating_sub(piece.bytes.start);
            match rest.is_empty() {
                true => taken += 1,
                false => state.pieces.push_front(piece.with(rest)),
            }
            portion.push(piece);
        }
        let number = state.next_portion;
        state.next_portion += 1;
        state.in_progress.insert(number);
        drop(state);
        self.changed.notify_all();
        let error = write(&portion);
        drop(portion);
        let mut state = self.state();
        state.in_progress.remove(&number);
        state.error = state.error.or(error);
        self.changed.notify_all();
        (state, taken)
    }
}

impl Piece {
    fn with(&self, bytes: Range<u64>) -> Self {
        Self {
            file: Arc::clone(&self.file),
            bytes,
            keeps_error: self.keeps_error,
        }
    }

    /// Its layer or blob was removed meanwhile.
    fn is_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|file| file.nlink() == 0)
    }
}

/// Starts all pieces before it waits for one, so that the disk has enough to do. Returns an error that must be kept.
fn write(portion: &[Piece]) -> Option<i32> {
    let mut kept = None;
    for call in [start, finish] {
        for piece in portion.iter().filter(|piece| !piece.is_removed()) {
            if let Err(error) = call(&piece.file, piece.bytes.clone())
                && piece.keeps_error
            {
                kept = kept.or(Some(error.raw_os_error().unwrap_or(libc::EIO)));
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use std::num::NonZeroU64;

    fn file(bytes: usize) -> (tempfile::NamedTempFile, File) {
        let named = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(named.path(), vec![7; bytes]).unwrap();
        let file = named.reopen().unwrap();
        (named, file)
    }

    /// A descriptor with `O_PATH` refuses what a disk would do.
    fn refusing() -> File {
        File::from(rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap())
    }

    fn budget(bytes: u64) -> IoBudget {
        IoBudget::Bytes(NonZeroU64::new(bytes).unwrap())
    }

    #[test]
    fn many_more_pieces_than_the_queue_holds_are_written() {
        for budget in [IoBudget::Auto, budget(64_000), IoBudget::Off] {
            let queue = WriteQueue::start(budget);
            let files: Vec<_> = (0..QUEUE * 3).map(|_| file(100_000)).collect();
            for (_, file) in &files {
                queue.add(file.try_clone().unwrap(), 0..100_000);
            }
            queue.drain().unwrap();
            let left = queue.0.map_or(0, |sender| sender.shared.state().pieces.len());
            assert_eq!(left, 0, "{budget}");
        }
    }

    #[test]
    fn a_portion_is_never_larger_than_the_budget() {
        let shared = Shared {
            budget: 100_000,
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        let (_named, file) = file(250_000);
        let file = Arc::new(file);
        for bytes in [0..10_000, 10_000..250_000] {
            let (file, keeps_error) = (Arc::clone(&file), true);
            shared.push(
                shared.state(),
                Piece {
                    file,
                    bytes,
                    keeps_error,
                },
            );
        }
        let mut steps = Vec::new();
        for _ in 0..3 {
            let (state, taken) = shared.write_portion(shared.state());
            steps.push((taken, state.pieces.front().map(|piece| piece.bytes.clone())));
        }
        assert_eq!(
            steps,
            [
                (1, Some(100_000..250_000)),
                (0, Some(200_000..250_000)),
                (1, None)
            ]
        );
    }

    /// While another thread adds without end.
    #[test]
    fn a_drain_waits_only_for_what_was_added_before_it() {
        let queue = WriteQueue::start(budget(64_000));
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (_named, file) = file(64_000);
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    queue.add(file.try_clone().unwrap(), 0..64_000);
                }
            });
            for _ in 0..20 {
                queue.drain().unwrap();
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn a_removed_file_is_not_written() {
        let piece = |file: File| Piece {
            file: Arc::new(file),
            bytes: 0..1,
            keeps_error: true,
        };
        let (_named, file) = file(1);
        assert!(!piece(file).is_removed());
        assert!(piece(tempfile::tempfile().unwrap()).is_removed());
    }

    #[test]
    fn an_error_of_the_disk_fails_every_later_drain() {
        let queue = WriteQueue::start(budget(64_000));
        queue.add(refusing(), 0..1);
        for _ in 0..2 {
            assert_eq!(queue.drain().unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
    }

    #[test]
    fn an_error_of_offered_bytes_is_left_to_their_owner() {
        let queue = WriteQueue::start(budget(64_000));
        assert!(queue.offer(&Arc::new(refusing()), 0..1));
        queue.drain().unwrap();
    }

    #[test]
    fn the_thread_ends_with_the_last_clone() {
        let queue = WriteQueue::start(IoBudget::Auto);
        let shared = Arc::downgrade(&queue.0.as_ref().unwrap().shared);
        drop(queue.clone());
        assert!(shared.strong_count() > 1);
        drop(queue);
        let begin = std::time::Instant::now();
        while shared.strong_count() > 0 {
            assert!(begin.elapsed().as_secs() < 20, "the thread does not end");
            std::thread::yield_now();
        }
    }
}
