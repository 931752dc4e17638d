//! Whether Go can read an image's config.
//!
//! CRI-O parses the config of every image in the store to list images, and one that it cannot parse fails the whole list,
//! for the kubelet too (`internal/storage/image.go`: `ListImages`). A pull by CRI-O ends at the same parser, so that such an
//! image never gets into the store; through us it must not either.
//!
//! What is asked for are the types of `imgspecv1.Image` and of containers/image's `Schema2Image`, as Go's `encoding/json`
//! sees them: names in any case, null for anything, and any value under a name that they do not have.

use jiff::Timestamp;
use serde_json::Value;

/// What Go wants of a value.
enum Kind {
    Text,
    Flag,
    Integer,
    Time,
    Texts,
    /// An object of strings.
    Labels,
    /// An object of objects, which are empty.
    Set,
    Fields(&'static [Field]),
    Records(&'static [Field]),
}

type Field = (&'static str, Kind);

const CONFIG: &[Field] = &[
    ("created", Kind::Time),
    ("author", Kind::Text),
    ("architecture", Kind::Text),
    ("variant", Kind::Text),
    ("os", Kind::Text),
    ("os.version", Kind::Text),
    ("os.features", Kind::Texts),
    ("config", Kind::Fields(CONTAINER)),
    (
        "rootfs",
        Kind::Fields(&[("type", Kind::Text), ("diff_ids", Kind::Texts)]),
    ),
    ("history", Kind::Records(HISTORY)),
    // Docker's own.
    ("id", Kind::Text),
    ("parent", Kind::Text),
    ("comment", Kind::Text),
    ("container", Kind::Text),
    ("container_config", Kind::Fields(CONTAINER)),
    ("docker_version", Kind::Text),
    ("size", Kind::Integer),
];

const HISTORY: &[Field] = &[
    ("created", Kind::Time),
    ("created_by", Kind::Text),
    ("author", Kind::Text),
    ("comment", Kind::Text),
    ("empty_layer", Kind::Flag),
];

const CONTAINER: &[Field] = &[
    ("User", Kind::Text),
    ("ExposedPorts", Kind::Set),
    ("Env", Kind::Texts),
    ("Entrypoint", Kind::Texts),
    ("Cmd", Kind::Texts),
    ("Volumes", Kind::Set),
    ("WorkingDir", Kind::Text),
    ("Labels", Kind::Labels),
    ("StopSignal", Kind::Text),
    ("ArgsEscaped", Kind::Flag),
    // Docker's own.
    ("Hostname", Kind::Text),
    ("Domainname", Kind::Text),
    ("AttachStdin", Kind::Flag),
    ("AttachStdout", Kind::Flag),
    ("AttachStderr", Kind::Flag),
    ("Tty", Kind::Flag),
    ("OpenStdin", Kind::Flag),
    ("StdinOnce", Kind::Flag),
    ("Healthcheck", Kind::Fields(HEALTH_CHECK)),
    ("Image", Kind::Text),
    ("NetworkDisabled", Kind::Flag),
    ("MacAddress", Kind::Text),
    ("OnBuild", Kind::Texts),
    ("StopTimeout", Kind::Integer),
];

const HEALTH_CHECK: &[Field] = &[
    ("Test", Kind::Texts),
    ("StartPeriod", Kind::Integer),
    ("StartInterval", Kind::Integer),
    ("Interval", Kind::Integer),
    ("Timeout", Kind::Integer),
    ("Retries", Kind::Integer),
];

/// Says what Go could not read.
pub(super) fn check(config: &Value) -> Result<(), String> {
    match fields(config, CONFIG) {
        None => Ok(()),
        Some(path) => Err(format!("`{path}` is not what it has to be")),
    }
}

/// The path of the first field that is wrong.
fn fields(value: &Value, known: &[Field]) -> Option<String> {
    let Value::Object(object) = value else {
        return (!value.is_null()).then(String::new);
    };
    object.iter().find_map(|(name, value)| {
        let (_, kind) = known.iter().find(|(field, _)| field.eq_ignore_ascii_case(name))?;
        let below = wrong(value, kind)?;
        Some(if below.is_empty() {
            name.clone()
        } else {
            format!("{name}.{below}")
        })
    })
}

/// `None` if Go can read the value; else where in it not, which may be nowhere in particular.
fn wrong(value: &Value, kind: &Kind) -> Option<String> {
    let is_text = |value: &Value| value.is_null() || value.is_string();
    let is_object = |value: &Value| value.is_null() || value.is_object();
    let good = match (kind, value) {
        (_, Value::Null) => true,
        (Kind::Text, value) => value.is_string(),
        (Kind::Flag, value) => value.is_boolean(),
        (Kind::Integer, value) => value.is_i64(),
        (Kind::Time, value) => value.as_str().is_some_and(is_time),
        (Kind::Texts, Value::Array(list)) => list.iter().all(is_text),
        (Kind::Labels, Value::Object(object)) => object.values().all(is_text),
        (Kind::Set, Value::Object(object)) => object.values().all(is_object),
        (Kind::Fields(known), value) => return fields(value, known),
        (Kind::Records(known), Value::Array(list)) => {
            return list.iter().find_map(|record| fields(record, known));
        }
        _ => false,
    };
    (!good).then(String::new)
}

/// RFC 3339 as strictly as Go's `time.Time` takes it from JSON; jiff, which knows the calendar, takes more.
fn is_time(text: &str) -> bool {
    const SHAPE: &[u8] = b"0000-00-00T00:00:00";
    let alike = |(byte, shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        shape => byte == shape,
    };
    let bytes = text.as_bytes();
    let Some((whole, rest)) = bytes.split_at_checked(SHAPE.len()) else {
        return false;
    };
    let fraction = match rest {
        [b'.', digits @ ..] => 1 + digits.iter().take_while(|byte| byte.is_ascii_digit()).count(),
        _ => 0,
    };
    let zone = match &rest[fraction..] {
        b"Z" => true,
        [b'+' | b'-', zone @ ..] => {
            zone.len() == 5 && zone.iter().zip(b"00:00").all(alike) && zone < &b"24"[..]
        }
        _ => false,
    };
    // Go cuts a fraction that is too long, and knows no leap seconds.
    let is_in_calendar = || {
        text.get(..SHAPE.len())
            .is_some_and(|whole| format!("{whole}Z").parse::<Timestamp>().is_ok())
    };
    fraction != 1 && zone && whole.iter().zip(SHAPE).all(alike) && !whole.ends_with(b"60") && is_in_calendar()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> Option<String> {
        let config = serde_json::from_str(text).expect("the tests are JSON");
        check(&config).err()
    }

    #[test]
    fn what_docker_and_buildah_write_is_good() {
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
    fn what_go_cannot_read_is_named() {
        for (config, path) in [
            (r#"{"created":"now"}"#, "created"),
            (r#"{"Created":7}"#, "Created"),
            (r#"{"os":["linux"]}"#, "os"),
            (r#"{"config":[]}"#, "config"),
            (r#"{"config":{"Env":"A=b"}}"#, "config.Env"),
            (r#"{"config":{"env":[1]}}"#, "config.env"),
            (r#"{"config":{"Labels":{"a":1}}}"#, "config.Labels"),
            (r#"{"config":{"Volumes":["/v"]}}"#, "config.Volumes"),
            (r#"{"config":{"Volumes":{"/v":1}}}"#, "config.Volumes"),
            (
                r#"{"config":{"Healthcheck":{"Interval":3e10}}}"#,
                "config.Healthcheck.Interval",
            ),
            (r#"{"history":{}}"#, "history"),
            (r#"{"history":[{"created":""}]}"#, "history.created"),
            (
                r#"{"history":[{},{"empty_layer":"true"}]}"#,
                "history.empty_layer",
            ),
        ] {
            assert_eq!(
                refusal(config),
                Some(format!("`{path}` is not what it has to be")),
                "{config}"
            );
        }
    }

    #[test]
    fn times_are_those_of_go() {
        for time in [
            "2024-06-19T19:22:45Z",
            "2024-06-19T19:22:45.123456789Z",
            "2024-06-19T19:22:45.1234567890123Z",
            "0001-01-01T00:00:00Z",
            "2024-02-29T23:59:59-23:59",
        ] {
            assert!(is_time(time), "{time}");
        }
        for time in [
            "",
            "2024-06-19",
            "2024-06-19 19:22:45Z",
            "2024-06-19T19:22:45",
            "2024-06-19T19:22:45z",
            "2024-06-19T19:22:45,5Z",
            "2024-06-19T19:22:45.Z",
            "2024-06-19T19:22:45+02",
            "2024-06-19T19:22:45+24:00",
            "2024-06-19T19:22:60Z",
            "2023-02-29T00:00:00Z",
            "2024-06-19T24:00:00Z",
            "2024-06-19T19:22:45Z[UTC]",
            "-00044-03-15T12:00:00Z",
        ] {
            assert!(!is_time(time), "{time}");
        }
    }
}
