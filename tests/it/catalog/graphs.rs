//! Compares the head of random channels with a second implementation of operator-registry's rule, in Python.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use spoke_precache::catalog::CatalogError;

use super::read;
use crate::needs::{long, needs, note};

const SEEDS: u64 = 4;
const SEEDS_LONG: u64 = 100;
const CHANNELS: usize = 500;

#[test]
fn heads_are_those_of_the_model() {
    needs!(python());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/catalog/graphs.py");
    let [mut one, mut none, mut several] = [0; 3];
    for seed in 0..if long() { SEEDS_LONG } else { SEEDS } {
        let dir = tempfile::tempdir().unwrap();
        let arguments = [seed.to_string(), CHANNELS.to_string()];
        let output = Command::new("python3")
            .arg(&script)
            .args(arguments)
            .arg(dir.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let expected: Vec<Value> = serde_json::Deserializer::from_slice(&output.stdout)
            .into_iter()
            .collect::<Result<_, _>>()
            .unwrap();
        let lines: Vec<String> = expected
            .iter()
            .map(|line| format!("p:{}", line["channel"].as_str().unwrap()))
            .collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let catalog = read(dir.path(), &lines).unwrap();
        assert_eq!(catalog.channels.len(), CHANNELS);
        for (answer, expected) in catalog.channels.iter().zip(&expected) {
            let heads: Vec<&str> = expected["heads"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .collect();
            let what = format!("seed {seed}, {expected}: {:?}", answer.head);
            match (&answer.head, &heads[..]) {
                (Ok(head), [bundle]) => {
                    assert_eq!(head.bundle, *bundle, "{what}");
                    assert_eq!(head.images().count(), 1, "{what}");
                    one += 1;
                }
                (Err(CatalogError::NoHead { .. }), []) => none += 1,
                (Err(CatalogError::SeveralHeads { heads: ours, .. }), theirs) => {
                    assert_eq!(ours, theirs, "{what}");
                    several += 1;
                }
                _ => panic!("{what}"),
            }
        }
    }
    note(&format!(
        "{one} channels with one head, {none} with none, {several} with several"
    ));
    for (heads, count) in [("one", one), ("none", none), ("several", several)] {
        assert!(count > 100, "only {count} channels have {heads}");
    }
}
