//! How long the tars in blobs are, asked of the blobs themselves: a few bytes of each, from the spool or its registry.
//!
//! Only a forecast depends on it, so whatever goes wrong here is no failure: the length is guessed then. Each blob is
//! asked for once in a run, the largest first, for they matter most. A registry answers one question before it gets the
//! others, so that one without ranges, which begins to send all of the blob, does so once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt as _};
use futures::{FutureExt as _, future};
use tokio::time::Instant;

use super::error::JobError;
use super::off_the_task;
use crate::cancel::Cancel;
use crate::oci::{Digest, Reference};
use crate::plan::{BlobTask, Plan, TarLength, tar_length, tar_length_range};
use crate::registry::Registries;
use crate::spool::Spool;

/// Questions to one registry at the same time; the connections are there, for as many asked for manifests before.
const AT_ONCE: usize = 32;

/// A registry that has failed so often is asked no more.
const FAILURES: u32 = 3;

/// What was learnt so far.
pub(super) struct SizeProbe {
    registries: Arc<Registries>,
    spool: PathBuf,
    known: HashMap<Digest, TarLength>,
    asked: HashSet<Digest>,
}

/// What is to be known of one blob.
#[derive(Clone)]
struct Question {
    blob: Digest,
    size: u64,
    media_type: String,
    range: Range<u64>,
    /// An image that has it.
    reference: Reference,
}

impl SizeProbe {
    pub(super) fn new(registries: Arc<Registries>, spool: PathBuf) -> Self {
        Self {
            registries,
            spool,
            known: HashMap::new(),
            asked: HashSet::new(),
        }
    }

    /// By the digest of the blob.
    pub(super) fn known(&self) -> &HashMap<Digest, TarLength> {
        &self.known
    }

    /// Asks for those of `plan` that were not asked for before. What is not answered within `patience` stays unknown.
    pub(super) async fn learn(
        &mut self,
        plan: &Plan,
        patience: Duration,
        cancel: &Cancel,
    ) -> Result<(), JobError> {
        let end = Instant::now() + patience;
        let questions = self.questions(plan);
        let spool = self.spool.clone();
        let (here, elsewhere) = off_the_task(move || {
            let mut here = Vec::new();
            let elsewhere = questions.into_iter().filter(|question| {
                let bytes = Spool::peek(&spool, &question.blob, question.range.clone());
                let is_here = bytes.is_some();
                here.extend(bytes.map(|bytes| (question.clone(), bytes)));
                !is_here
            });
            let elsewhere: Vec<Question> = elsewhere.collect();
            Ok((here, elsewhere))
        })
        .await?;
        for (question, bytes) in here {
            self.note(&question, &bytes);
        }
        let mut lanes: BTreeMap<String, Vec<Question>> = BTreeMap::new();
        for question in elsewhere {
            let domain = question.reference.domain().to_owned();
            lanes.entry(domain).or_default().push(question);
        }
        let registries = Arc::clone(&self.registries);
        let lanes = lanes
            .into_values()
            .map(|lane| answers(&registries, lane, cancel).boxed());
        let mut answers = stream::select_all(lanes);
        while let Ok(Some((question, bytes))) = tokio::time::timeout_at(end, answers.next()).await {
            self.note(&question, &bytes);
        }
        Ok(())
    }

    fn note(&mut self, question: &Question, bytes: &[u8]) {
        match tar_length(&question.media_type, question.size, bytes) {
            Some(length) => {
                self.known.insert(question.blob, length);
            }
            None => tracing::debug!("`{}` does not say how long its tar is", question.blob),
        }
    }

    /// The largest first.
    fn questions(&mut self, plan: &Plan) -> Vec<Question> {
        let types: HashMap<Digest, &str> = plan
            .layers
            .iter()
            .map(|task| (task.layer.blob, task.layer.media_type.as_str()))
            .collect();
        let question = |blob: &BlobTask| {
            let media_type = *types.get(&blob.digest)?;
            Some(Question {
                blob: blob.digest,
                size: blob.size,
                media_type: media_type.to_owned(),
                range: tar_length_range(media_type, blob.size)?,
                reference: plan.images[*blob.images.first()?].reference.clone(),
            })
        };
        let questions = plan.blobs.iter().filter_map(question);
        let mut questions: Vec<Question> = questions.filter(|it| self.asked.insert(it.blob)).collect();
        questions.sort_by_key(|question| std::cmp::Reverse(question.size));
        questions
    }
}

/// What one registry answers.
fn answers<'a>(
    registries: &'a Registries,
    questions: Vec<Question>,
    cancel: &'a Cancel,
) -> impl Stream<Item = (Question, Bytes)> + Send + 'a {
    let failures = Arc::new(AtomicU32::new(0));
    let ask = move |question| ask(registries, question, Arc::clone(&failures), cancel);
    let mut questions = stream::iter(questions).map(ask);
    let first = async move {
        let answer = match questions.next().await {
            Some(first) => first.await,
            None => None,
        };
        stream::iter(answer).chain(questions.buffer_unordered(AT_ONCE).filter_map(future::ready))
    };
    first.flatten_stream()
}

/// Asks one source after the other, once each.
async fn ask(
    registries: &Registries,
    question: Question,
    failures: Arc<AtomicU32>,
    cancel: &Cancel,
) -> Option<(Question, Bytes)> {
    if failures.load(Ordering::Relaxed) >= FAILURES {
        return None;
    }
    let Question { blob, size, .. } = question;
    for source in registries.sources(&question.reference).ok()? {
        let part = registries.read_range(&source, blob, size, question.range.clone(), cancel);
        match part.await {
            Ok(Some(bytes)) => return Some((question, bytes)),
            Ok(None) => {
                tracing::debug!("`{}` gives no parts of blobs", source.reference.domain());
                failures.store(FAILURES, Ordering::Relaxed);
                return None;
            }
            Err(error) => tracing::debug!("how long a tar is stays a guess: {error}"),
        }
    }
    failures.fetch_add(1, Ordering::Relaxed);
    None
}
