//! Selects the images of a release by the exclude patterns, and warns about suspicious patterns.
//!
//! Patterns match the whole line `"name$pullspec"`, so some match by chance: a short one that occurs in a digest, or a word
//! that occurs in every repository. The upgrade would miss those images, so the user gets a warning.

use std::collections::HashSet;

use super::payload::{Payload, PayloadImage};
use crate::image_request::{ImageRequest, Requester, dedupe};
use crate::spec::{Excludes, Hit, HitPosition, PatternError, shown};

/// The most images in a warning; the report lists all.
const NAMED: usize = 10;

/// A release's images, divided by the exclude patterns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The images to pull, without duplicate references.
    pub wanted: Vec<ImageRequest>,
    /// The excluded images.
    pub excluded: Vec<Excluded>,
    /// Probable mistakes.
    pub warnings: Vec<String>,
    /// Messages for the log.
    pub notes: Vec<String>,
}

/// An excluded image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// Its name in the release.
    pub name: String,
    /// As in the payload.
    pub pullspec: String,
    /// The first pattern that matches it at `position`.
    pub pattern: String,
    /// The most specific position that any pattern matches.
    pub position: HitPosition,
}

/// Selects the images of `payload`.
pub fn select(payload: &Payload, excludes: &Excludes) -> Result<Selection, PatternError> {
    let mut selection = Selection::default();
    let mut tally = vec![Vec::new(); excludes.patterns().count()];
    let mut dropped = Vec::new();
    for tag in &payload.tags {
        let hits = excludes.hits(&tag.name, &tag.pullspec)?;
        let best = hits.iter().copied().min_by_key(|hit| hit.position);
        for hit in &hits {
            tally[hit.index].push(PatternHit {
                name: &tag.name,
                position: hit.position,
                decides: best.is_some_and(|best| best.position == hit.position),
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

/// An image that a pattern matches.
#[derive(Clone)]
struct PatternHit<'a> {
    name: &'a str,
    position: HitPosition,
    /// No other pattern matches a more specific position.
    decides: bool,
}

fn note_excluded(selection: &mut Selection, dropped: Vec<(&PayloadImage, Hit)>, excludes: &Excludes) {
    let wanted: HashSet<_> = selection
        .wanted
        .iter()
        .map(|request| request.reference.clone())
        .collect();
    for (tag, hit) in dropped {
        let pattern = excludes.pattern(hit.index);
        if wanted.contains(&tag.reference) {
            selection.notes.push(format!(
                "`{}` is excluded by pattern `{}`, but the release also has this image under another name",
                tag.name,
                shown(pattern)
            ));
            continue;
        }
        selection.excluded.push(Excluded {
            name: tag.name.clone(),
            pullspec: tag.pullspec.clone(),
            pattern: pattern.to_owned(),
            position: hit.position,
        });
    }
}

fn warn(selection: &mut Selection, payload: &Payload, excludes: &Excludes, tally: &[Vec<PatternHit<'_>>]) {
    let total = payload.tags.len();
    if selection.wanted.is_empty() {
        selection.warnings.push(format!(
            "the exclude patterns leave none of the {total} images of release {}",
            shown(&payload.version)
        ));
    }
    for (pattern, hits) in excludes.patterns().zip(tally) {
        if hits.is_empty() {
            selection
                .notes
                .push(format!("exclude pattern `{}` matches no image", shown(pattern)));
        }
        if hits.len() == total {
            selection.warnings.push(format!(
                "exclude pattern `{}` alone excludes all {total} images\n{}",
                shown(pattern),
                hint(pattern)
            ));
            continue;
        }
        let never_by_name = hits.iter().all(|hit| hit.position == HitPosition::Digest);
        for (position, what) in [
            (HitPosition::Digest, "digest"),
            (HitPosition::Repository, "repository"),
        ] {
            let names: Vec<&str> = hits
                .iter()
                .filter(|hit| hit.position == position && (hit.decides || never_by_name))
                .map(|hit| hit.name)
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

/// A hint for a pattern that matches only names.
fn hint(pattern: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !pattern.is_empty() && pattern.chars().all(is_word) {
        true => format!("hint: `\"[^$]*{}` matches names only", shown(pattern)),
        false => "hint: patterns match lines `\"name$pullspec\"`, including the quotes".to_owned(),
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
            PayloadImage {
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
            .map(|excluded| (excluded.name.as_str(), excluded.position))
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
    fn a_pattern_that_matches_names_needs_no_warning() {
        let selection = selection(&["^\"aws", "azure"]);
        assert_eq!(excluded(&selection), [("aws-csi", HitPosition::Name)]);
        assert_eq!(selection.warnings, Vec::<String>::new());
        assert_eq!(selection.notes, ["exclude pattern `azure` matches no image"]);
    }

    #[test]
    fn matches_by_chance_are_warnings() {
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
                 hint: `\"[^$]*fec` matches names only",
                "exclude pattern `012` matches `aws-csi` by the digest in the pullspec, not by the name\n\
                 hint: `\"[^$]*012` matches names only",
            ]
        );
    }

    #[test]
    fn a_pattern_that_only_matches_digests_is_a_warning_even_if_others_decide() {
        let warnings = selection(&["aws", "012"]).warnings;
        assert!(
            warnings.len() == 1 && warnings[0].contains("`012` matches `aws-csi`"),
            "{warnings:?}"
        );
    }

    #[test]
    fn a_pattern_that_excludes_everything_is_a_warning() {
        let warnings = selection(&["openshift"]).warnings;
        assert_eq!(warnings.len(), 2);
        assert!(
            warnings[1].starts_with("exclude pattern `openshift` alone excludes all 4 images"),
            "{warnings:?}"
        );
    }

    #[test]
    fn an_image_that_is_selected_under_another_name_is_not_excluded() {
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
