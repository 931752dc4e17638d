//! Which images of a release are wanted, and what is odd about the patterns that exclude the others.
//!
//! Patterns see the whole line `"name$pullspec"`, so some hit by chance: a short one that occurs in a digest, or a word
//! that occurs in every repository. Whoever wrote them learns of it here, for the upgrade would miss those images.

use std::collections::HashSet;

use super::payload::{Payload, Tag};
use crate::image_request::{ImageRequest, Requester, dedupe};
use crate::spec::{Excludes, Hit, HitPosition, PatternError, shown};

/// How many images a warning names; the report has them all.
const NAMED: usize = 10;

/// A release's images, divided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// To be pulled; one for each reference.
    pub wanted: Vec<ImageRequest>,
    /// Not to be pulled.
    pub excluded: Vec<Excluded>,
    /// Most likely mistakes; to be said loudly.
    pub warnings: Vec<String>,
    /// Worth a line in the log.
    pub notes: Vec<String>,
}

/// An image that a pattern excludes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// Its name in the release.
    pub name: String,
    /// As the payload has it.
    pub pullspec: String,
    /// The first of the patterns that hit it at `place`.
    pub pattern: String,
    /// The best reason that any pattern had.
    pub place: HitPosition,
}

/// Divides the images of `payload`.
pub fn select(payload: &Payload, excludes: &Excludes) -> Result<Selection, PatternError> {
    let mut selection = Selection::default();
    let mut tally = vec![Vec::new(); excludes.patterns().count()];
    let mut dropped = Vec::new();
    for tag in &payload.tags {
        let hits = excludes.hits(&tag.name, &tag.pullspec)?;
        let best = hits.iter().copied().min_by_key(|hit| hit.place);
        for hit in &hits {
            tally[hit.index].push(Outcome {
                name: &tag.name,
                place: hit.place,
                decides: best.is_some_and(|best| best.place == hit.place),
            });
        }
        match best {
            Some(best) => dropped.push((tag, best)),
            None => {
                let requester = Requester::Release {
                    tag: tag.name.clone(),
                };
                selection
                    .wanted
                    .push(ImageRequest::new(tag.reference.clone(), requester));
            }
        }
    }
    selection.wanted = dedupe(selection.wanted);
    note_excluded(&mut selection, dropped, excludes);
    warn(&mut selection, payload, excludes, &tally);
    Ok(selection)
}

/// An image that a pattern hit.
#[derive(Clone)]
struct Outcome<'a> {
    name: &'a str,
    place: HitPosition,
    /// No other pattern had a better reason.
    decides: bool,
}

fn note_excluded(selection: &mut Selection, dropped: Vec<(&Tag, Hit)>, excludes: &Excludes) {
    let wanted: HashSet<_> = selection
        .wanted
        .iter()
        .map(|request| request.reference.clone())
        .collect();
    for (tag, hit) in dropped {
        let pattern = excludes.pattern(hit.index);
        if wanted.contains(&tag.reference) {
            selection.notes.push(format!(
                "`{}` is excluded by pattern `{}`, but the release has the same image under another name, too",
                tag.name,
                shown(pattern)
            ));
            continue;
        }
        selection.excluded.push(Excluded {
            name: tag.name.clone(),
            pullspec: tag.pullspec.clone(),
            pattern: pattern.to_owned(),
            place: hit.place,
        });
    }
}

fn warn(selection: &mut Selection, payload: &Payload, excludes: &Excludes, tally: &[Vec<Outcome<'_>>]) {
    let total = payload.tags.len();
    if selection.wanted.is_empty() {
        selection.warnings.push(format!(
            "the exclude patterns leave none of the {total} images of release {}",
            shown(&payload.version)
        ));
    }
    for (pattern, outcomes) in excludes.patterns().zip(tally) {
        if outcomes.is_empty() {
            selection
                .notes
                .push(format!("exclude pattern `{}` matches no image", shown(pattern)));
        }
        if outcomes.len() == total {
            selection.warnings.push(format!(
                "exclude pattern `{}` alone excludes all {total} images\n{}",
                shown(pattern),
                hint(pattern)
            ));
            continue;
        }
        let never_by_name = outcomes
            .iter()
            .all(|outcome| outcome.place == HitPosition::Digest);
        for (place, what) in [
            (HitPosition::Digest, "digest"),
            (HitPosition::Repository, "repository"),
        ] {
            let names: Vec<&str> = outcomes
                .iter()
                .filter(|outcome| outcome.place == place && (outcome.decides || never_by_name))
                .map(|outcome| outcome.name)
                .collect();
            if !names.is_empty() {
                selection.warnings.push(format!(
                    "exclude pattern `{}` matches {} by the {what} in the pullspec, not by the name\n{}",
                    shown(pattern),
                    list(&names),
                    hint(pattern)
                ));
            }
        }
    }
}

/// How to say what was most likely meant.
fn hint(pattern: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !pattern.is_empty() && pattern.chars().all(is_word) {
        true => format!("hint: `\"[^$]*{}` looks at names only", shown(pattern)),
        false => "hint: patterns are held against `\"name$pullspec\"`, quotes included".to_owned(),
    }
}

fn list(names: &[&str]) -> String {
    let named: Vec<String> = names.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn payload() -> Payload {
        let tag = |name: &str, hex: &str| {
            let pullspec = format!("quay.io/openshift/art@sha256:{}", hex.repeat(16));
            Tag {
                name: name.to_owned(),
                reference: pullspec.parse().unwrap(),
                pullspec,
            }
        };
        Payload {
            version: "4.16.3".to_owned(),
            tags: vec![
                tag("aws-csi", "0123"),
                tag("etcd", "fec0"),
                tag("etcd-old", "fec0"),
                tag("cli-fec", "9999"),
            ],
        }
    }

    fn selection(patterns: &[&str]) -> Selection {
        let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        select(&payload(), &Excludes::new(&patterns).unwrap()).unwrap()
    }

    fn excluded(selection: &Selection) -> Vec<(&str, HitPosition)> {
        selection
            .excluded
            .iter()
            .map(|excluded| (excluded.name.as_str(), excluded.place))
            .collect()
    }

    #[test]
    fn without_patterns_everything_is_wanted_once() {
        let selection = selection(&[]);
        assert_eq!(selection.wanted.len(), 3);
        assert_eq!(
            selection.wanted[1].requesters.len(),
            2,
            "one image with two names"
        );
        assert_eq!(
            (selection.excluded, selection.warnings, selection.notes),
            Default::default()
        );
    }

    #[test]
    fn a_pattern_that_hits_names_is_not_remarkable() {
        let selection = selection(&["^\"aws", "azure"]);
        assert_eq!(excluded(&selection), [("aws-csi", HitPosition::Name)]);
        assert_eq!(selection.warnings, Vec::<String>::new());
        assert_eq!(selection.notes, ["exclude pattern `azure` matches no image"]);
    }

    #[test]
    fn hits_by_chance_are_warned_of() {
        let selection = selection(&["fec", "012"]);
        assert_eq!(
            excluded(&selection),
            [
                ("aws-csi", HitPosition::Digest),
                ("etcd", HitPosition::Digest),
                ("etcd-old", HitPosition::Digest),
                ("cli-fec", HitPosition::Name)
            ]
        );
        assert_eq!(
            selection.warnings,
            [
                "the exclude patterns leave none of the 4 images of release 4.16.3",
                "exclude pattern `fec` matches `etcd`, `etcd-old` by the digest in the pullspec, not by the name\n\
                 hint: `\"[^$]*fec` looks at names only",
                "exclude pattern `012` matches `aws-csi` by the digest in the pullspec, not by the name\n\
                 hint: `\"[^$]*012` looks at names only",
            ]
        );
    }

    #[test]
    fn a_pattern_that_only_ever_hits_digests_is_warned_of_though_others_decide() {
        let warnings = selection(&["aws", "012"]).warnings;
        assert!(
            warnings.len() == 1 && warnings[0].contains("`012` matches `aws-csi`"),
            "{warnings:?}"
        );
    }

    #[test]
    fn a_pattern_that_drops_everything_is_warned_of() {
        let warnings = selection(&["openshift"]).warnings;
        assert_eq!(warnings.len(), 2);
        assert!(
            warnings[1].starts_with("exclude pattern `openshift` alone excludes all 4 images"),
            "{warnings:?}"
        );
    }

    #[test]
    fn an_image_that_another_name_wants_is_not_excluded() {
        let selection = selection(&["old"]);
        assert_eq!(selection.wanted.len(), 3);
        assert_eq!(excluded(&selection), []);
        assert!(
            selection.notes[0].contains("`etcd-old` is excluded by pattern `old`"),
            "{:?}",
            selection.notes
        );
    }
}
