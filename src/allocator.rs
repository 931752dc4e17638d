//! Returns the memory of large buffers to the system as soon as they are freed.
//!
//! glibc maps large allocations and unmaps them when they are freed. But each time it raises the size that it calls large to
//! that of the freed buffer, up to 32 MiB, and takes the next one from the heap of the thread, which keeps free memory up to
//! twice that size. Deltas are applied by changing threads, each with a window of zstd and a cache of 8 MiB: a run that
//! applied six had a peak of 115 MiB, and of 60 MiB with a fixed size. Linux, 2 cores, static glibc.

/// What is mapped by itself: windows and caches, but no buffer that is allocated for each file or request.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 1 << 20;

/// For the whole process, and for buffers that are allocated from now on.
pub fn return_large_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it only sets a parameter of the allocator, under the allocator's lock.
    unsafe {
        // It fails only for values above 32 MiB; then more memory is kept.
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}
