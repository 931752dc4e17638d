//! What people and machines see of a run: events, log lines, bars, the report file, the termination message.

mod event;

pub use event::{Event, ImageState, Observer, Step};
