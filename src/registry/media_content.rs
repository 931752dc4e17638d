//! Reads manifests and configs from media, so that no registry is asked for them, and reports what is wrong on a medium.

use std::sync::Arc;

use crate::media::{Media, SILENCE};
use crate::oci::{Content, Digest};
use crate::report::Event;

use super::Registries;

impl Registries {
    /// The same, with media that are asked first.
    pub fn with_media(self, media: Arc<Media>) -> Self {
        Self { media, ..self }
    }

    /// The media that are asked first.
    pub fn media(&self) -> &Arc<Media> {
        &self.media
    }

    /// Reads from the media on a blocking thread; the default without media, or if one of them does not answer. Reports what
    /// turned out to be wrong there.
    pub async fn in_media<T: Default + Send + 'static>(
        &self,
        read: impl FnOnce(&Media) -> T + Send + 'static,
    ) -> T {
        if self.media.is_empty() {
            return T::default();
        }
        let media = Arc::clone(&self.media);
        let mut reading = tokio::task::spawn_blocking(move || read(&media));
        let result = loop {
            match tokio::time::timeout(SILENCE, &mut reading).await {
                Ok(result) => break Some(result),
                // The thread that waits for it is left behind.
                Err(_elapsed) if self.media.give_up_silent() => break None,
                Err(_elapsed) => {}
            }
        };
        self.report_media_faults();
        match result {
            None => T::default(),
            Some(Ok(result)) => result,
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Only the runtime aborts these, when it shuts down, and then this task ends too.
            Some(Err(_)) => std::future::pending().await,
        }
    }

    /// The manifest or config with this digest, of at most `limit` bytes, if a medium has it.
    pub(super) async fn media_content(&self, digest: Digest, limit: u64) -> Option<Content> {
        self.in_media(move |media| media.content(digest, limit)).await
    }

    /// Reports what was found to be wrong on media, each fault once.
    pub fn report_media_faults(&self) {
        for fault in self.media.take_faults() {
            let what = fault
                .digest
                .map(|digest| format!("`{digest}`: "))
                .unwrap_or_default();
            self.retry_context.observer.observe(Event::MediumFailed {
                medium: fault.medium.into(),
                reason: format!(
                    "{what}{}; other media or the registries are asked instead",
                    fault.why
                ),
            });
        }
    }
}
