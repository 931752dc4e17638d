//! Remembers what each pending image waits for, and gives it as the reason in the report.
//!
//! An operation is remembered from its first request until bytes arrive. So there are never more than the current requests,
//! and those that failed for good together with their images.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{ImagePhase, ImageReport, Operation};

/// By operation, the oldest first.
#[derive(Default)]
pub(super) struct PendingReasons(BTreeMap<u64, Wait>);

struct Wait {
    operation: Arc<Operation>,
    why: String,
    /// Whether the operation failed or stalled; otherwise its request was just sent.
    has_failed: bool,
}

impl PendingReasons {
    /// A request was sent. An earlier failure stays the reason until bytes arrive.
    pub(super) fn requested(&mut self, operation: Arc<Operation>, host: &str) {
        if !operation.images.is_empty() {
            self.0.entry(operation.id).or_insert_with(|| Wait {
                operation,
                why: format!("waiting for `{host}`"),
                has_failed: false,
            });
        }
    }

    pub(super) fn failed(&mut self, operation: Arc<Operation>, why: String) {
        if !operation.images.is_empty() {
            let wait = Wait {
                why,
                has_failed: true,
                operation: Arc::clone(&operation),
            };
            self.0.insert(operation.id, wait);
        }
    }

    pub(super) fn ended(&mut self, operation: &Operation) {
        self.0.remove(&operation.id);
    }

    /// Sets the reason of pending images. An image without a request waits for others of its registry.
    pub(super) fn set_reasons(&self, images: &mut [ImageReport]) {
        let (mut own, mut of_registry) = (HashMap::new(), HashMap::new());
        for wait in self.0.values() {
            for image in &wait.operation.images {
                own.entry(image.as_str()).or_insert(wait);
                if wait.has_failed {
                    of_registry.entry(registry(image)).or_insert(wait);
                }
            }
        }
        for image in images
            .iter_mut()
            .filter(|image| image.state == ImagePhase::Pending)
        {
            image.reason = match (
                own.get(image.name.as_str()),
                of_registry.get(registry(&image.name)),
            ) {
                (Some(wait), _) => Some(wait.why.clone()),
                (None, Some(wait)) => Some(format!("its download has not started; {}", wait.why)),
                (None, None) => image.reason.take(),
            };
        }
    }
}

fn registry(image: &str) -> &str {
    image.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(id: u64, images: &[&str]) -> Arc<Operation> {
        let images = images.iter().map(|image| (*image).to_owned()).collect();
        Arc::new(Operation { id, images })
    }

    fn reasons(waits: &PendingReasons) -> Vec<Option<String>> {
        let image = |name: &&str| ImageReport {
            name: (*name).to_owned(),
            source: None,
            state: ImagePhase::Pending,
            reason: None,
            signatures: None,
            bytes: 0,
            delta: None,
            delta_bytes: 0,
            fallback_reason: None,
            media: Vec::new(),
        };
        let mut images: Vec<ImageReport> = ["a.io/x:1", "a.io/y:1", "b.io/z:1"].iter().map(image).collect();
        images[2].state = ImagePhase::Pulled;
        waits.set_reasons(&mut images);
        images.into_iter().map(|image| image.reason).collect()
    }

    #[test]
    fn each_pending_image_has_its_last_reason() {
        let mut waits = PendingReasons::default();
        let all = operation(7, &["a.io/x:1", "b.io/z:1"]);
        waits.requested(Arc::clone(&all), "mirror:5000");
        let waiting = "waiting for `mirror:5000`".to_owned();
        assert_eq!(reasons(&waits), [Some(waiting), None, None]);
        waits.failed(Arc::clone(&all), "connection refused".to_owned());
        waits.requested(Arc::clone(&all), "mirror:5000");
        let refused = "connection refused".to_owned();
        let behind = format!("its download has not started; {refused}");
        assert_eq!(reasons(&waits), [Some(refused), Some(behind), None]);
        waits.ended(&all);
        assert_eq!(reasons(&waits), [None, None, None]);
        waits.failed(operation(8, &[]), "a range of a blob".to_owned());
        assert_eq!(reasons(&waits), [None, None, None]);
    }
}
