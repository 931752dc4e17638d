//! Reads the version specs that TALM's own tests expect, `expected/talm-pre-cache-spec.json` of the corpus.

use std::collections::BTreeMap;

use serde_json::Value;
use spoke_precache::spec::from_keys;

use crate::corpus;

#[test]
fn the_config_maps_of_the_hub_are_read() {
    let Some(expected) = corpus("expected/talm-pre-cache-spec.json") else {
        return;
    };
    let expected: Vec<Value> = serde_json::from_str(&expected).unwrap();
    let mut count = 0;
    for case in expected.iter().filter(|case| case["configmap"].is_object()) {
        let data: BTreeMap<String, String> =
            serde_json::from_value(case["configmap"]["data"].clone()).unwrap();
        let bytes = data
            .iter()
            .map(|(key, value)| (key.clone(), value.clone().into_bytes()))
            .collect();
        let (spec, warnings) = from_keys(&bytes).unwrap();
        let lines = |key: &str| data[key].lines().filter(|line| !line.trim().is_empty()).count();
        assert_eq!(warnings, Vec::<String>::new());
        assert_eq!(
            usize::from(spec.platform_image.is_some()),
            lines("platform.image"),
            "{case}"
        );
        assert_eq!(spec.operators_indexes.len(), lines("operators.indexes"), "{case}");
        assert_eq!(
            spec.packages_and_channels.len(),
            lines("operators.packagesAndChannels"),
            "{case}"
        );
        assert_eq!(
            spec.exclude_patterns.len(),
            lines("excludePrecachePatterns"),
            "{case}"
        );
        assert_eq!(
            spec.additional_images.len(),
            data.get("additionalImages")
                .map_or(0, |_| lines("additionalImages"))
        );
        assert_eq!(
            spec.space_required,
            data["spaceRequired"].parse::<u64>().unwrap() << 30,
            "{case}"
        );
        count += 1;
    }
    eprintln!("{count} ConfigMaps of the hub's tests are read");
}
