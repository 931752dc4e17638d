//! Compares exclude patterns with the real `grep -G`, on fixed tables, the corpus payloads and generated patterns.

use std::io::Write;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value;
use spoke_precache::spec::{BreError, Excludes, PatternError};

use crate::corpus;

/// Which lines `grep -G -f pattern` matches; `None` if it refuses the pattern.
fn grep(locale: &str, patterns: &str, images: &[(String, String)]) -> Option<Vec<bool>> {
    let text: String = images.iter().map(line).collect();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(patterns.as_bytes()).unwrap();
    file.write_all(b"\n").unwrap();
    let mut child = Command::new("grep")
        .args(["-G", "-n", "-a", "-f"])
        .arg(file.path())
        .env("LC_ALL", locale)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // grep stops reading if it refuses the patterns.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(2) {
        return None;
    }
    let mut matched = vec![false; images.len()];
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let number: usize = line.split(':').next().unwrap().parse().unwrap();
        matched[number - 1] = true;
    }
    Some(matched)
}

fn line((name, pullspec): &(String, String)) -> String {
    format!("\"{name}${pullspec}\"\n")
}

/// Which lines this program's patterns match.
fn ours(patterns: &[String], images: &[(String, String)]) -> Option<Vec<bool>> {
    let excludes = Excludes::new(patterns).ok()?;
    images
        .iter()
        .map(|(name, pullspec)| excludes.hits(name, pullspec).map(|hits| !hits.is_empty()).ok())
        .collect()
}

fn images() -> Vec<(String, String)> {
    [
        (
            "aws-ebs-csi-driver",
            "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:fec0c1e5ab",
        ),
        (
            "csi-driver-nfs",
            "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:00aabbccab",
        ),
        (
            "cli",
            "registry.ci.openshift.org/ocp/4.8-2021-05-03@sha256:cadcadecec",
        ),
        ("aa", "q.io/b/aab*b+c?d{1}@sha256:abab"),
        ("b", "x|y(z)[w]^v\\u}~:t_0"),
        ("a.b", ")b(a|b$c|"),
    ]
    .map(|(name, pullspec)| (name.to_owned(), pullspec.to_owned()))
    .to_vec()
}

/// Fragments of patterns, with far more special and malformed ones than people write.
fn fragment() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        6 => prop::sample::select(vec!["a", "b", "ab", "aws", "ocp", "-", "/", "@", ":", "\"", "$", "q", "0", "4.8", "fec", "csi", "Z", "_"]),
        3 => prop::sample::select(vec![".", "*", "^", "$", ".*", "+", "?", "|", "(", ")", "{", "}", "]"]),
        4 => prop::sample::select(vec!["\\(", "\\)", "\\(", "\\)", "\\|", "\\+", "\\?", "\\.", "\\*", "\\[", "\\$", "\\^", "\\}", "\\d", "\\-", "\\\"", "\\\\", "\\/", "\\n"]),
        2 => prop::sample::select(vec!["\\{1\\}", "\\{0\\}", "\\{1,\\}", "\\{,1\\}", "\\{0,2\\}", "\\{,\\}", "\\{2,1\\}", "\\{", "\\{1", "\\{x\\}", "\\{1,2", "\\{1}", "\\{3,3\\}"]),
        2 => prop::sample::select(vec!["\\<", "\\>", "\\b", "\\B", "\\w", "\\W", "\\s", "\\S", "\\`", "\\'"]),
        3 => prop::sample::select(vec!["[abc]", "[^a]", "[]a]", "[^]\"]", "[a-f0-9]", "[[:alpha:]]", "[^[:alnum:]-]", "[[:digit:]:]", "[[.-.]]", "[[=a=]b]", "[%--]", "[--/]", "[a\\]", "[$]", "[.]", "[*]"]),
        1 => prop::sample::select(vec!["[", "[^", "[[:foo:]]", "[:alpha:]", "[^:a:]", "[::]", "[z-a]", "[a-c-e]", "[[.ab.]]", "[[=ab=]]", "[[:alpha:]-z]", "[a-[:alpha:]]", "[[.a.]-[.c.]]", "[[:alpha", "[[.a", "[a-", "\\"]),
        1 => prop::sample::select(vec!["\\1", "\\1", "\\2", "\\3", "\\9"]),
    ]
}

/// A pattern: half of them random fragments, half well-formed groups, alternatives and repetitions.
fn pattern() -> impl Strategy<Value = String> {
    let soup = prop::collection::vec(fragment(), 1..9).prop_map(|fragments| fragments.concat());
    let well_formed = fragment()
        .prop_map(str::to_owned)
        .prop_recursive(4, 12, 3, |inner| {
            prop_oneof![
                2 => prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
                1 => inner.clone().prop_map(|part| format!("\\({part}\\)")),
                1 => inner.clone().prop_map(|part| format!("\\({part}\\)\\1")),
                1 => inner.clone().prop_map(|part| format!("\\({part}\\)*")),
                1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}\\|{b}")),
                1 => (inner.clone(), prop::sample::select(vec!["*", "\\+", "\\?", "\\{1,2\\}", "\\{2\\}"]))
                    .prop_map(|(part, repeat)| part + repeat),
            ]
        });
    prop_oneof![soup, well_formed]
}

/// Whether the result deliberately differs from grep's.
fn is_exception(
    pattern: &str,
    grep: Option<&[bool]>,
    ours: Option<&[bool]>,
    refusal: Option<&PatternError>,
) -> bool {
    // Its two parsers read `a\b*` in two ways; who writes that is better asked.
    let repeated_anchor = matches!(
        refusal,
        Some(PatternError::Syntax {
            why: BreError::RepeatedAnchor,
            ..
        })
    );
    // glibc misses matches of some back-references whose group is empty: `\(\(x\)*\)\1`, `\(.**\)\1`, `\($\|^\)\1`.
    // We find them, or give up when backtracking takes too long.
    let back_reference = (1..=9).any(|n| pattern.contains(&format!(r"\{n}")));
    let missed = match (grep, ours) {
        (Some(grep), Some(ours)) => grep.iter().zip(ours).all(|(grep, ours)| *ours || !grep),
        (Some(_), None) => refusal.is_none(),
        (None, _) => false,
    };
    grep.is_some() && (repeated_anchor || back_reference && missed)
}

/// `PATTERNS` and `SEED` in the environment widen the search.
#[test]
fn agrees_on_generated_patterns() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let count = number("PATTERNS").unwrap_or(600);
    let seed = number("SEED").unwrap_or(0).to_le_bytes().repeat(8);
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let images = images();
    let strategy = pattern();
    let (mut refused, mut exceptions) = (0, 0);
    for n in 0..count {
        let pattern = strategy.new_tree(&mut runner).unwrap().current();
        let locale = if n % 2 == 0 { "C" } else { "C.UTF-8" };
        let grep = grep(locale, &pattern, &images);
        refused += u32::from(grep.is_none());
        let refusal = Excludes::new(std::slice::from_ref(&pattern)).err();
        let ours = ours(std::slice::from_ref(&pattern), &images);
        if ours != grep {
            assert!(
                is_exception(&pattern, grep.as_deref(), ours.as_deref(), refusal.as_ref()),
                "`{pattern}` in {locale}\ngrep {grep:?}\nours {ours:?} {refusal:?}"
            );
            exceptions += 1;
        }
    }
    eprintln!(
        "grep -G: {count} generated patterns, {refused} refused by both, {exceptions} known exceptions"
    );
}

/// One line for each rule; the expected result is grep's own.
#[test]
fn agrees_on_a_table() {
    let images = images();
    let mut patterns: Vec<&str> = r#"
        aws ^aws ^"aws ocp openshift fec cad ece ab q/1$ q/1"$ "$ ^" ^ $ $$ a|b a\|b * *a ^*a \(*a\) a\|*b \+a \?a ^\+a
        \{1\} \{a ^\{1\} \(\{1\}\) a\{ a\{1 a\{x\} a\{2,1\} a\{,\} a\{,2\} a\{1,\} a\{0\} a** a*\{2\} a\{2\}\{2\} a\{32768\}
        a$)b a$) a$|b a$| ^^a x\(^a\) \(^"a\) \("$\) b\|^"a "$\|q a^b a$b
        [a [[:foo:]] [:space:] [^:space:] [::] [:] [[:space:]:] [[.-.]] [[.space.]] [[=a=]] [[=ab=]] [z-a] [a-c-e] [a\]b] [] [^]
        [[.a.]-z] [a-[.z.]] [--a] [a--] [%--] [[:alpha:]-z] [a-[:alpha:]] [[=a=]-z] [[ [[a] [[:] [[:a] [[:alpha: []] []a] [^]a]
        [a-] [-a] [^-a] [$] [^$] [*] [.] ["]
        \1 \(a\1\) \(a\)\|b\1 \(a\)\{0\}\1 \(a\)\{0\}b\1 \(a\)\1 \(ab\)\1 \(a\)*\1 \(\)\1 \(a*\)*\1 \(.\)\1 \(a\|b\)\1*c
        a\ a\\ \d \- \" \/ a\n \. \* a\) \(a \} a} \) () \(\) \(\)* \(a\|\) \|a a\|
        \<a \bcsi csi\b \Bsi \w\W \s \S* \`" \'  "\' \<*a é é* [é]
    "#
    .split_whitespace()
    .collect();
    patterns.extend(["", "a b", "a \\|b", "[ ]", "\\ "]);
    for locale in ["C", "C.UTF-8"] {
        for pattern in &patterns {
            let ours = ours(&[(*pattern).to_owned()], &images);
            let grep = grep(locale, pattern, &images);
            // In UTF-8 the star repeats the whole letter, in the C locale, which is ours, its last byte.
            if *pattern == "é*" && locale != "C" {
                continue;
            }
            assert_eq!(ours, grep, "`{pattern}` in {locale}");
        }
    }
    eprintln!("grep -G: {} patterns of the table agree", patterns.len());
}

/// Several patterns together, over all images of real payloads: what the hub's own pipeline keeps.
#[test]
fn agrees_on_real_payloads() {
    let Some(expected) = corpus("expected/release-payload.json") else {
        return;
    };
    let expected: Value = serde_json::from_str(&expected).unwrap();
    for (version, payload) in expected.as_object().unwrap() {
        let images: Vec<(String, String)> = payload["images"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, pullspec)| (name.clone(), pullspec.as_str().unwrap().to_owned()))
            .collect();
        let filters = payload["talm_exclude_filter"].as_object().unwrap();
        for (title, filter) in filters {
            let patterns: Vec<String> = serde_json::from_value(filter["patterns"].clone()).unwrap();
            let excluded = ours(&patterns, &images).unwrap();
            let dropped: Vec<&str> = images
                .iter()
                .zip(&excluded)
                .filter(|(_, excluded)| **excluded)
                .map(|((name, _), _)| name.as_str())
                .collect();
            let expected: Vec<&str> = filter["dropped_tags"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(Value::as_str)
                .collect();
            assert_eq!(dropped, expected, "{version} {title}");
            assert_eq!(
                images.len() - dropped.len(),
                filter["kept"].as_u64().unwrap() as usize
            );
            if !patterns.is_empty() {
                assert_eq!(Some(excluded), grep("C", &patterns.join("\n"), &images));
            }
        }
        // Each tag's own name, as people write patterns, and pieces of digests.
        let pieces: Vec<String> = images
            .iter()
            .flat_map(|(name, pullspec)| {
                [
                    name.clone(),
                    format!("^\"{name}\\$"),
                    pullspec[pullspec.len() - 3..].to_owned(),
                ]
            })
            .step_by(5)
            .collect();
        for pattern in &pieces {
            assert_eq!(
                ours(std::slice::from_ref(pattern), &images),
                grep("C", pattern, &images),
                "{pattern}"
            );
        }
        eprintln!(
            "{version}: {} filters and {} patterns agree",
            filters.len(),
            pieces.len()
        );
    }
}
