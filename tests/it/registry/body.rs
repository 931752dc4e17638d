//! Sends bodies that count their bytes and break off on command.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;

use super::faults::Action;

/// Bytes in one piece of a body.
const CHUNK: usize = 64 * 1024;

/// A body that sends `blob` from `start` up to `end`, changed by `action`.
pub(super) fn body(blob: Bytes, start: u64, end: u64, action: Action, sent: Arc<AtomicU64>) -> Body {
    let chunk = match action {
        // Ten pieces a second, so that slowness is even.
        Action::Slow(rate) => (rate / 10).clamp(1, CHUNK as u64),
        _ => CHUNK as u64,
    };
    let pieces = stream::unfold(start, move |at| {
        let (blob, action) = (blob.clone(), action.clone());
        async move {
            let limit = chunk.min(end - at);
            if limit == 0 {
                return None;
            }
            let mut piece = blob.slice(at as usize..(at + limit) as usize);
            match action {
                Action::Cut(after) | Action::Stall(after) if at - start >= after => {
                    if matches!(action, Action::Stall(_)) {
                        std::future::pending::<()>().await;
                    }
                    // Let what was promised leave the socket before the connection goes.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    return Some((Err(io::Error::other("cut by a fault")), end));
                }
                Action::Cut(after) | Action::Stall(after) => {
                    piece.truncate((after - (at - start)).min(piece.len() as u64) as usize);
                }
                Action::Flip(offset) if (at..at + piece.len() as u64).contains(&offset) => {
                    let mut bytes = piece.to_vec();
                    bytes[(offset - at) as usize] ^= 0xff;
                    piece = Bytes::from(bytes);
                }
                Action::Slow(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                _ => {}
            }
            let next = at + piece.len() as u64;
            Some((Ok(piece), next))
        }
    });
    Body::from_stream(pieces.inspect(move |piece| {
        if let Ok(piece) = piece {
            sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
    }))
}
