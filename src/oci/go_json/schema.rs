//! Describes the Go types that podman, CRI-O and containers/image decode manifests, indexes and configs into.
//!
//! Each is the union of the types from containers/image 5.23 (podman 4.3.1) to 5.36, and of `imgspecv1` and
//! containers/image's `Schema2…`: a document of one format is also decoded into types of the other (`OCI1.Inspect` reads a
//! config as `imgspecv1.Image` and as `Schema2V1Image`).

use super::{Field, SET, TEXTS, Type};

/// `OCI1` and `Schema2`.
pub(in crate::oci) const IMAGE_MANIFEST: Type = Type::Struct(&[
    Field::ours("schemaVersion", Type::Integer),
    Field::ours("mediaType", Type::Text),
    Field::of("artifactType", Type::Text),
    Field::ours("config", DESCRIPTOR),
    Field::ours("layers", Type::List(&DESCRIPTOR)),
    Field::of("subject", DESCRIPTOR),
    Field::of("annotations", Type::Map(&Type::Text)),
    Field::of("manifests", Type::Foreign),
    Field::of("fsLayers", Type::Foreign),
    Field::of("history", Type::Foreign),
]);

/// `OCI1Index` and `Schema2List`.
pub(in crate::oci) const INDEX: Type = Type::Struct(&[
    Field::ours("schemaVersion", Type::Integer),
    Field::ours("mediaType", Type::Text),
    Field::of("artifactType", Type::Text),
    Field::ours("manifests", Type::List(&DESCRIPTOR)),
    Field::of("subject", DESCRIPTOR),
    Field::of("annotations", Type::Map(&Type::Text)),
    Field::of("config", Type::Foreign),
    Field::of("layers", Type::Foreign),
    Field::of("fsLayers", Type::Foreign),
    Field::of("history", Type::Foreign),
]);

const DESCRIPTOR: Type = Type::Struct(&[
    Field::ours("mediaType", Type::Text),
    Field::ours("digest", Type::Text),
    Field::ours("size", Type::Integer),
    Field::ours("urls", TEXTS),
    Field::ours("annotations", Type::Map(&Type::Text)),
    Field::of("data", Type::Bytes),
    Field::ours("platform", PLATFORM),
    Field::of("artifactType", Type::Text),
]);

const PLATFORM: Type = Type::Struct(&[
    Field::ours("architecture", Type::Text),
    Field::ours("os", Type::Text),
    Field::of("os.version", Type::Text),
    Field::of("os.features", TEXTS),
    Field::ours("variant", Type::Text),
    Field::of("features", TEXTS),
]);

/// `imgspecv1.Image` and `Schema2Image`.
pub(in crate::oci) const CONFIG: Type = Type::Struct(&[
    Field::of("created", Type::Time),
    Field::of("author", Type::Text),
    Field::of("architecture", Type::Text),
    Field::of("variant", Type::Text),
    Field::of("os", Type::Text),
    Field::of("os.version", Type::Text),
    Field::of("os.features", TEXTS),
    Field::of("config", CONTAINER),
    Field::ours(
        "rootfs",
        Type::Struct(&[Field::ours("type", Type::Text), Field::ours("diff_ids", TEXTS)]),
    ),
    Field::of("history", Type::List(&HISTORY)),
    // Docker only.
    Field::of("id", Type::Text),
    Field::of("parent", Type::Text),
    Field::of("comment", Type::Text),
    Field::of("container", Type::Text),
    Field::of("container_config", CONTAINER),
    Field::of("docker_version", Type::Text),
    Field::of("Size", Type::Integer),
]);

const HISTORY: Type = Type::Struct(&[
    Field::of("created", Type::Time),
    Field::of("created_by", Type::Text),
    Field::of("author", Type::Text),
    Field::of("comment", Type::Text),
    Field::of("empty_layer", Type::Flag),
]);

/// `imgspecv1.ImageConfig` and `Schema2Config`.
const CONTAINER: Type = Type::Struct(&[
    Field::of("User", Type::Text),
    Field::of("ExposedPorts", SET),
    Field::of("Env", TEXTS),
    Field::of("Entrypoint", TEXTS),
    Field::of("Cmd", TEXTS),
    Field::of("Volumes", SET),
    Field::of("WorkingDir", Type::Text),
    Field::of("Labels", Type::Map(&Type::Text)),
    Field::of("StopSignal", Type::Text),
    Field::of("ArgsEscaped", Type::Flag),
    // Docker only.
    Field::of("Hostname", Type::Text),
    Field::of("Domainname", Type::Text),
    Field::of("AttachStdin", Type::Flag),
    Field::of("AttachStdout", Type::Flag),
    Field::of("AttachStderr", Type::Flag),
    Field::of("Tty", Type::Flag),
    Field::of("OpenStdin", Type::Flag),
    Field::of("StdinOnce", Type::Flag),
    Field::of("Healthcheck", HEALTH_CHECK),
    Field::of("Image", Type::Text),
    Field::of("NetworkDisabled", Type::Flag),
    Field::of("MacAddress", Type::Text),
    Field::of("OnBuild", TEXTS),
    Field::of("StopTimeout", Type::Integer),
    Field::of("Shell", Type::TextOrTexts),
]);

const HEALTH_CHECK: Type = Type::Struct(&[
    Field::of("Test", TEXTS),
    Field::of("StartPeriod", Type::Integer),
    Field::of("StartInterval", Type::Integer),
    Field::of("Interval", Type::Integer),
    Field::of("Timeout", Type::Integer),
    Field::of("Retries", Type::Integer),
]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::go_json;

    fn refusal(text: &str) -> Option<String> {
        go_json::check(text.as_bytes(), CONFIG)
            .err()
            .map(|error| error.to_string())
    }

    #[test]
    fn configs_of_docker_and_buildah_are_accepted() {
        for config in [
            r#"{"architecture":"amd64","config":{"Hostname":"","Tty":false,"Env":["A=b"],"Cmd":null,"Volumes":{"/v":{}},
                "ExposedPorts":{"80/tcp":{}},"Labels":{"a":"b"},"OnBuild":null,"ArgsEscaped":true,
                "Healthcheck":{"Test":["CMD","x"],"Interval":30000000000}},"container":"c","created":"2024-01-02T03:04:05.6789Z",
                "history":[{"created":"2024-01-02T03:04:05+02:00","created_by":"c","empty_layer":true}],"os":"linux",
                "rootfs":{"type":"layers","diff_ids":["sha256:0"]},"moby.buildkit.buildinfo.v1":7}"#,
            r#"{"created":null,"config":null,"history":null}"#,
            r#"{"history":[null],"config":{"Labels":{"a":null},"Env":[null]}}"#,
        ] {
            assert_eq!(refusal(config), None, "{config}");
        }
    }

    #[test]
    fn a_field_that_go_cannot_decode_is_named() {
        for (config, expected) in [
            (
                r#"{"created":"now"}"#,
                "`created`: invalid value: \"now\", expected a time",
            ),
            (r#"{"Created":7}"#, "`Created`: invalid value: 7, expected a time"),
            (
                r#"{"os":["linux"]}"#,
                "`os`: invalid type: sequence, expected a string",
            ),
            (r#"{"os":{}}"#, "`os`: invalid type: map, expected a string"),
            (
                r#"{"config":[]}"#,
                "`config`: invalid type: sequence, expected an object",
            ),
            (r#"{"config":{"Env":"A=b"}}"#, "`config`: `Env`: invalid type"),
            (r#"{"config":{"env":[1]}}"#, "`config`: `env`: invalid type"),
            (
                r#"{"config":{"Labels":{"a":1}}}"#,
                "`config`: `Labels`: `a`: invalid type",
            ),
            (
                r#"{"config":{"Volumes":["/v"]}}"#,
                "`config`: `Volumes`: invalid type",
            ),
            (
                r#"{"config":{"Volumes":{"/v":1}}}"#,
                "`config`: `Volumes`: `/v`: invalid type",
            ),
            (
                r#"{"config":{"Healthcheck":{"Interval":3e10}}}"#,
                "`Interval`: invalid type: floating point",
            ),
            (
                r#"{"config":{"StopTimeout":9223372036854775808}}"#,
                "`StopTimeout`: invalid type",
            ),
            (r#"{"history":{}}"#, "`history`: invalid type"),
            (
                r#"{"history":[{"created":""}]}"#,
                "`history`: `created`: invalid value",
            ),
            (
                r#"{"history":[{},{"empty_layer":"true"}]}"#,
                "`history`: `empty_layer`: invalid type",
            ),
            (r#"{"os":1,"os":"linux"}"#, "`os`: invalid type"),
            ("{} {}", "trailing characters"),
        ] {
            let refusal = refusal(config).unwrap_or_default();
            assert!(refusal.contains(expected), "{config}: {refusal}");
        }
    }
}
