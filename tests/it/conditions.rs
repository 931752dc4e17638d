//! Checks the conditions of every report that a test reads, by the rules for conditions of a ClusterOperator
//! (openshift/api `types_cluster_operator.go`, cluster-version operator `internal/operatorstatus.go`).

use serde_json::Value;

const STEPS: [&str; 9] = [
    "Spec",
    "Store",
    "ReleaseVerified",
    "Release",
    "Operators",
    "Resolve",
    "Preflight",
    "Pull",
    "Verify",
];

/// Every reason by status, as container/report.md lists them.
const REASONS: [(&str, &[&str]); 3] = [
    (
        "True",
        &[
            "AsExpected",
            "NothingRequested",
            "Verified",
            "NotSpecified",
            "PayloadRead",
            "CatalogsRead",
            "Resolved",
            "SpaceSuffices",
            "Pulled",
            "NothingToPull",
            "AllPresent",
        ],
    ),
    (
        "False",
        &[
            "InvalidSpec",
            "ClusterUnavailable",
            "StoreUnusable",
            "NotEnoughSpace",
            "CredentialsRefused",
            "ContentMismatch",
            "SignatureRefused",
            "UnexpectedContent",
            "RegistryUnusable",
            "ImagesMissing",
            "StoreChanged",
            "NotByDigest",
            "NoKeys",
            "NoStoreReachable",
            "NoSignatureStore",
            "Stopped",
            "StoreUnreadable",
            "NotReady",
        ],
    ),
    (
        "Unknown",
        &[
            "NotReached",
            "Unfinished",
            "NotByDigest",
            "NoKeys",
            "NoStoreReachable",
            "NoSignatureStore",
            "Stopped",
            "StoreUnreadable",
            "AtRisk",
        ],
    ),
];

/// The longest message, and the longest of a step that succeeded, in bytes. Two paths or a reference may be in it.
const LONGEST: usize = 2048;
const LONGEST_OF_SUCCESS: usize = 1000;

/// What is wrong with the conditions of a report; nothing if this is no report.
pub(crate) fn flaws(report: &Value) -> Vec<String> {
    let Some(conditions) = report["conditions"]
        .as_array()
        .filter(|_| report["kind"] == "Report")
    else {
        return Vec::new();
    };
    let types: Vec<&str> = conditions.iter().filter_map(|it| it["type"].as_str()).collect();
    let mut flaws = Vec::new();
    // Last, and only with `verify --for-upgrade`.
    let types = types.strip_suffix(&["UpgradeReady"]).unwrap_or(&types);
    if types != STEPS {
        flaws.push(format!("the steps are {types:?}"));
    }
    for condition in conditions {
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        let (status, reason, message) = (text("status"), text("reason"), text("message"));
        let has_ended = !text("completeTime").is_empty();
        let first = message.split_whitespace().next().unwrap_or_default();
        let first = first.trim_end_matches([',', ':', ';']);
        let words = message.split_whitespace().count();
        let is_in_progress = ["Unfinished", "NotReached"].contains(&reason);
        let is_known = |(of, reasons): &(&str, &[&str])| *of == status && reasons.contains(&reason);
        for (is_wrong, what) in [
            (!REASONS.iter().any(is_known), "a reason that is not listed"),
            (message.is_empty(), "no message"),
            (
                !first.is_empty() && first.bytes().all(|byte| byte.is_ascii_lowercase()),
                "a message without a capital",
            ),
            // An error may end with the text of a registry.
            (
                status != "False" && message.ends_with('.'),
                "a message with a full stop",
            ),
            (message.len() > LONGEST, "a long message"),
            (
                status == "True" && (message.len() > LONGEST_OF_SUCCESS || message.contains('\n')),
                "a long message of a success",
            ),
            (
                is_in_progress && !(5..=10).contains(&words),
                "a message about progress without 5 to 10 words",
            ),
            (
                is_in_progress == has_ended,
                "an end without a result, or the reverse",
            ),
            (
                status == "False" && report["phase"] == "Succeeded",
                "a failure in a run that succeeded",
            ),
            (
                text("lastTransitionTime") > text("lastProbeTime"),
                "a transition after the last probe",
            ),
            (
                has_ended && text("startTime") > text("completeTime"),
                "an end before its start",
            ),
        ] {
            if is_wrong {
                flaws.push(format!("{what}: {condition}"));
            }
        }
    }
    flaws
}
