//! Tests the parser of registries.conf with files from other projects, against the results of containers/image's own code
//! (`expected/registries-conf-lookups.json` of the corpus).

// A test prints what it skipped and how much it compared.
#![allow(clippy::print_stderr)]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::oci::Reference;

use super::ConfText;
use super::registries_conf::{AUTH_FILES, Endpoint, File, RegistriesConf, Serves};

/// The directory of the files; nothing, with a message, if there is no corpus.
fn corpus() -> Option<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    if !corpus.exists() {
        crate::notice::print("SKIPPED", &format!("no corpus at {}", corpus.display()));
        return None;
    }
    Some(corpus)
}

/// The main file and its drop-ins.
fn files(corpus: &Path, conf: &str, drop_ins: &str) -> Vec<ConfText> {
    let dir = std::fs::read_dir(corpus.join(drop_ins));
    let mut paths: Vec<PathBuf> = dir
        .map(|dir| dir.map(|item| item.expect("an entry").path()).collect())
        .unwrap_or_default();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
    paths.sort();
    paths.insert(0, corpus.join(conf));
    let read = |path: &PathBuf| std::fs::read_to_string(path).expect("a file");
    let texts = paths.iter().map(|path| ConfText {
        text: read(path),
        path: path.strip_prefix(corpus).expect("of the corpus").into(),
    });
    texts.collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("no `{key}`: {value}"))
}

/// A list that may be null, which counts as empty.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// What `pull-from-mirror` and `mirror-by-digest-only` mean together.
fn serves(mirror: &str, by_digest_only: bool) -> Serves {
    match mirror {
        "" if by_digest_only => Serves::DigestOnly,
        "" | "all" => Serves::All,
        "digest-only" => Serves::DigestOnly,
        "tag-only" => Serves::TagOnly,
        other => panic!("`{other}` is new"),
    }
}

fn endpoint(location: &str, insecure: &Value, serves: Serves) -> Endpoint {
    Endpoint {
        location: location.to_owned(),
        insecure: insecure.as_bool().expect("a flag"),
        serves,
    }
}

/// How much was compared. Without these numbers the test would pass if half of the files were skipped.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    configurations: usize,
    refusals: usize,
    registries: usize,
    lookups: usize,
    unmatched: usize,
    /// Lookups of something that is not a reference.
    not_a_name: usize,
    sources: usize,
}

#[test]
fn agrees_with_containers_image() {
    let Some(corpus) = corpus() else { return };
    let expected = std::fs::read_to_string(corpus.join("expected/registries-conf-lookups.json"));
    let expected: Vec<Value> = serde_json::from_str(&expected.expect("a file")).expect("JSON");
    let mut counts = Counts::default();
    for case in &expected {
        counts.configurations += 1;
        let files = files(&corpus, text(case, "conf"), text(case, "confd"));
        let parsed = RegistriesConf::parse(&files);
        let name = format!("{} with {}", text(case, "conf"), text(case, "confd"));
        assert_eq!(parsed.is_err(), case.get("error").is_some(), "{name}: {parsed:?}");
        let Ok(conf) = parsed else {
            counts.refusals += 1;
            continue;
        };
        registries(&conf, case, &name, &mut counts);
        lists(&conf, &files, case, &name);
        for lookup in list(&case["lookups"]) {
            counts.lookups += 1;
            look_up(
                &conf,
                lookup,
                &format!("{} in {name}", text(lookup, "ref")),
                &mut counts,
            );
        }
    }
    eprintln!("registries.conf: {counts:?} agree");
    let all = Counts {
        configurations: 63,
        refusals: 17,
        registries: 123,
        lookups: 235,
        unmatched: 186,
        not_a_name: 4,
        sources: 74,
    };
    assert_eq!(counts, all);
}

/// All tables, and nothing else.
fn registries(conf: &RegistriesConf, case: &Value, name: &str, counts: &mut Counts) {
    let expected = list(&case["registries_sorted_longest_prefix_first"]);
    assert_eq!(conf.registries.len(), expected.len(), "{name}");
    for expected in expected {
        counts.registries += 1;
        let found = &conf.registries[text(expected, "prefix")];
        let by_digest_only = expected["mirror_by_digest_only"] == true;
        let own = endpoint(text(expected, "location"), &expected["insecure"], Serves::All);
        assert_eq!(found.endpoint, own, "{name}");
        assert_eq!(json!(found.blocked), expected["blocked"], "{name}");
        let mirrors = list(&expected["mirrors"]).iter().map(|mirror| {
            let serves = serves(text(mirror, "pull_from_mirror"), by_digest_only);
            endpoint(text(mirror, "location"), &mirror["insecure"], serves)
        });
        assert_eq!(found.mirrors, mirrors.collect::<Vec<_>>(), "{name}");
    }
}

/// The lists that do not concern one registry.
fn lists(conf: &RegistriesConf, files: &[ConfText], case: &Value, name: &str) {
    let search = conf.search.as_ref();
    let hosts: &[String] = search.map_or(&[], |search| &search.hosts);
    let expected: Vec<&str> = list(&case["unqualified_search"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(hosts, expected, "{name}");
    if let Some(search) = search {
        assert_eq!(
            search.origin,
            Path::new(text(case, "unqualified_search_origin")),
            "{name}"
        );
    }
    let helpers = conf.credential_helpers.as_ref();
    let helpers = helpers.map_or_else(|| vec![AUTH_FILES.to_owned()], |helpers| helpers.names.clone());
    assert_eq!(json!(helpers), case["credential_helpers"], "{name}");
    let mut modes = files.iter().filter_map(|file| {
        let file: File = toml::from_str(&file.text).expect("it was parsed before");
        file.short_name_mode.filter(|mode| !mode.is_empty())
    });
    let mode = modes.next_back().unwrap_or_else(|| "permissive".to_owned());
    assert_eq!(mode, text(case, "short_name_mode"), "{name}");
}

fn look_up(conf: &RegistriesConf, lookup: &Value, name: &str, counts: &mut Counts) {
    let matched = &lookup["matched"];
    let found = conf.find(text(lookup, "ref"));
    assert_eq!(found.is_some(), !matched.is_null(), "{name}");
    if let Some(found) = found {
        assert_eq!(found.prefix, text(matched, "prefix"), "{name}");
        let own = endpoint(text(matched, "location"), &matched["insecure"], Serves::All);
        assert_eq!(found.endpoint, own, "{name}");
        assert_eq!(json!(found.blocked), matched["blocked"], "{name}");
    }
    if lookup.get("parse_error").is_some() {
        // A registry or the beginning of a name; only `FindRegistry` takes those.
        counts.not_a_name += 1;
        return;
    }
    let parsed = |text: &str| -> Reference { text.parse().unwrap_or_else(|why| panic!("{name}: {why}")) };
    let reference = parsed(text(lookup, "normalized"));
    let sources = conf.all_pull_sources(&reference);
    let Some(expected) = lookup["pull_sources"].as_array() else {
        counts.unmatched += 1;
        let sources = sources.expect("a reference as it is");
        assert_eq!(sources.len(), 1, "{name}");
        assert_eq!(
            (&sources[0].reference, sources[0].insecure),
            (&reference, false),
            "{name}"
        );
        return;
    };
    let table = conf
        .find(&reference.repository())
        .expect("what the sources come from");
    assert_eq!(table.prefix, text(lookup, "pull_matched_by_name"), "{name}");
    let sources = sources.expect("sources");
    assert_eq!(sources.len(), expected.len(), "{name}");
    for ((source, endpoint), expected) in sources.iter().zip(table.endpoints(&reference)).zip(expected) {
        counts.sources += 1;
        assert_eq!(source.reference, parsed(text(expected, "Ref")), "{name}");
        assert_eq!(json!(source.insecure), expected["Insecure"], "{name}");
        assert_eq!(endpoint.location, text(expected, "Endpoint"), "{name}");
        let by_digest_only = endpoint.serves == Serves::DigestOnly;
        assert_eq!(
            endpoint.serves,
            serves(text(expected, "PullFromMirror"), by_digest_only),
            "{name}"
        );
    }
}
