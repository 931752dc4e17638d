//! Opens the media of a run.

use crate::cancel::Cancel;
use crate::job::config::JobConfig;
use crate::job::error::JobError;
use crate::job::{Mode, requests, run_blocking};
use crate::media::Media;
use crate::oci::Reference;
use crate::report::{Count, Event, Observer, Printable};

/// Opens the media, which takes minutes for large archives on slow disks. `verify` uses none.
pub(super) async fn open_media(
    config: &JobConfig,
    mode: Mode,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<Media, JobError> {
    if mode == Mode::Verify || config.media.is_empty() {
        return Ok(Media::none());
    }
    for medium in &config.media {
        let how = match medium.is_named {
            true => "",
            false => ", which was found without a flag",
        };
        let path = medium.path.display().to_string();
        tracing::info!("reading the medium `{}`{how}", Printable(&path));
    }
    let (paths, cancel) = (config.media.clone(), cancel.clone());
    let (media, warnings) = run_blocking(move || Ok(Media::open(&paths, &cancel)?)).await?;
    for message in warnings {
        observer.observe(Event::Warned { message });
    }
    if !media.is_empty() {
        log_tags(config);
    }
    Ok(media)
}

/// Logs which images need their registry although media may have them. Without a network, a run waits for it until its end.
fn log_tags(config: &JobConfig) {
    let requests = requests(&config.spec);
    let images = requests.iter().map(|request| &request.reference);
    let by_tag: Vec<&Reference> = images.filter(|image| image.digest().is_none()).collect();
    if let Some(first) = by_tag.first() {
        tracing::info!(
            "{} requested by tag, first `{first}`: media do not resolve tags, each is one request to its registry",
            Count(by_tag.len(), "image")
        );
    }
}
