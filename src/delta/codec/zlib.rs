//! Compresses with stock zlib, the C library. Its rewrites do not reproduce its bytes.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use libz_sys::{
    Z_BUF_ERROR, Z_DEFAULT_STRATEGY, Z_DEFLATED, Z_FINISH, Z_NO_FLUSH, Z_OK, Z_STREAM_END, deflate,
    deflateEnd, deflateInit2_, z_stream, zlibVersion,
};

/// `MAX_WBITS`: a window of 32 KiB.
const WINDOW_BITS: i32 = 15;

/// `DEF_MEM_LEVEL`, as `compress` uses it.
const MEMORY_LEVEL: i32 = 8;

/// How much input zlib reads before it compresses the first byte: its buffer is twice the window.
const FIRST_UNIT: usize = 2 << WINDOW_BITS;

/// How much it reads each time it has moved its buffer by a window.
const NEXT_UNIT: usize = 1 << WINDOW_BITS;

/// A stream that is being compressed.
///
/// zlib decides where to move its buffer by how much input it was given, and this can change a match. `compress`, which
/// linkers call, gives the whole input at once. This type gives the same units as zlib then reads, however the input is
/// divided into writes.
pub(super) struct ZlibDeflater {
    stream: NonNull<z_stream>,
    /// Input until a unit is complete.
    unit: Vec<u8>,
    unit_length: usize,
    /// What one call writes.
    chunk: Box<[u8; 32 << 10]>,
}

// SAFETY: the stream belongs to this value alone, and stock zlib keeps no state outside of it.
unsafe impl Send for ZlibDeflater {}

impl ZlibDeflater {
    pub(super) fn new(level: u8) -> Self {
        // Zeros are null pointers: zlib sets its own functions to allocate.
        let stream = Box::into_raw(Box::new(MaybeUninit::<z_stream>::zeroed())).cast::<z_stream>();
        // SAFETY: `stream` points to an allocated `z_stream` of zeros, which is how zlib wants it, and stays at this address,
        // which zlib remembers. The version and the size are those of the linked library.
        let status = unsafe {
            deflateInit2_(
                stream,
                i32::from(level),
                Z_DEFLATED,
                WINDOW_BITS,
                MEMORY_LEVEL,
                Z_DEFAULT_STRATEGY,
                zlibVersion(),
                size_of::<z_stream>() as i32,
            )
        };
        assert_eq!(status, Z_OK, "zlib has no memory");
        Self {
            stream: NonNull::new(stream).expect("a box is not null"),
            unit: Vec::with_capacity(FIRST_UNIT),
            unit_length: FIRST_UNIT,
            chunk: Box::new([0; 32 << 10]),
        }
    }

    pub(super) fn write(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        while !input.is_empty() {
            let (now, later) = input.split_at(input.len().min(self.unit_length - self.unit.len()));
            self.unit.extend_from_slice(now);
            input = later;
            if self.unit.len() == self.unit_length {
                self.deflate_unit(Z_NO_FLUSH, out);
                self.unit_length = NEXT_UNIT;
            }
        }
    }

    pub(super) fn finish(mut self, out: &mut Vec<u8>) {
        self.deflate_unit(Z_FINISH, out);
    }

    /// Compresses the unit and appends everything that zlib writes.
    fn deflate_unit(&mut self, flush: i32, out: &mut Vec<u8>) {
        let mut input = self.unit.as_mut_slice();
        loop {
            // SAFETY: `new` initialized the stream, and nothing else refers to it during this call. zlib reads `avail_in`
            // bytes at `next_in` and writes `avail_out` bytes at `next_out`, which are the lengths of these buffers.
            let (status, unread, unwritten) = unsafe {
                let stream = self.stream.as_ptr();
                (*stream).next_in = input.as_mut_ptr();
                (*stream).avail_in = input.len() as u32;
                (*stream).next_out = self.chunk.as_mut_ptr();
                (*stream).avail_out = self.chunk.len() as u32;
                let status = deflate(stream, flush);
                (status, (*stream).avail_in as usize, (*stream).avail_out as usize)
            };
            assert!(
                matches!(status, Z_OK | Z_STREAM_END | Z_BUF_ERROR),
                "zlib's stream is damaged: {status}"
            );
            out.extend_from_slice(&self.chunk[..self.chunk.len() - unwritten]);
            let read = input.len() - unread;
            input = &mut input[read..];
            if unwritten > 0 {
                break;
            }
        }
        self.unit.clear();
    }
}

impl Drop for ZlibDeflater {
    fn drop(&mut self) {
        // SAFETY: `new` made the box and initialized the stream; nothing uses it after this. `deflateEnd` frees what zlib
        // allocated, in every state of the stream.
        unsafe {
            deflateEnd(self.stream.as_ptr());
            drop(Box::from_raw(self.stream.as_ptr()));
        }
    }
}
