//! Whether Go can read an image's config.
//!
//! CRI-O parses the config of every image in the store to list images, and one that it cannot parse fails the whole list,
//! for the kubelet too (`internal/storage/image.go`: `ListImages`). A pull by CRI-O ends at the same parser, so that such an
//! image never gets into the store; through us it must not either.
//!
//! What is asked for are the types of `imgspecv1.Image` and of containers/image's `Schema2Image`, as Go's `encoding/json`
//! sees them: names in any case, null for anything, and any value under a name that they do not have. Nothing is kept of
//! what is read: as a tree, four mebibytes of brackets would take forty times their length.

use std::fmt;

use jiff::Timestamp;
use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
};

/// What Go wants of a value.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Flag,
    Integer,
    Time,
    List(&'static Kind),
    /// An object with any names.
    Map(&'static Kind),
    Object(&'static [(&'static str, Kind)]),
}

const TEXTS: Kind = Kind::List(&Kind::Text);

/// Docker and Go use objects without fields for sets.
const SET: Kind = Kind::Map(&Kind::Object(&[]));

const CONFIG: Kind = Kind::Object(&[
    ("created", Kind::Time),
    ("author", Kind::Text),
    ("architecture", Kind::Text),
    ("variant", Kind::Text),
    ("os", Kind::Text),
    ("os.version", Kind::Text),
    ("os.features", TEXTS),
    ("config", CONTAINER),
    (
        "rootfs",
        Kind::Object(&[("type", Kind::Text), ("diff_ids", TEXTS)]),
    ),
    ("history", Kind::List(&HISTORY)),
    // Docker's own.
    ("id", Kind::Text),
    ("parent", Kind::Text),
    ("comment", Kind::Text),
    ("container", Kind::Text),
    ("container_config", CONTAINER),
    ("docker_version", Kind::Text),
    ("size", Kind::Integer),
]);

const HISTORY: Kind = Kind::Object(&[
    ("created", Kind::Time),
    ("created_by", Kind::Text),
    ("author", Kind::Text),
    ("comment", Kind::Text),
    ("empty_layer", Kind::Flag),
]);

const CONTAINER: Kind = Kind::Object(&[
    ("User", Kind::Text),
    ("ExposedPorts", SET),
    ("Env", TEXTS),
    ("Entrypoint", TEXTS),
    ("Cmd", TEXTS),
    ("Volumes", SET),
    ("WorkingDir", Kind::Text),
    ("Labels", Kind::Map(&Kind::Text)),
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
    ("Healthcheck", HEALTH_CHECK),
    ("Image", Kind::Text),
    ("NetworkDisabled", Kind::Flag),
    ("MacAddress", Kind::Text),
    ("OnBuild", TEXTS),
    ("StopTimeout", Kind::Integer),
]);

const HEALTH_CHECK: Kind = Kind::Object(&[
    ("Test", TEXTS),
    ("StartPeriod", Kind::Integer),
    ("StartInterval", Kind::Integer),
    ("Interval", Kind::Integer),
    ("Timeout", Kind::Integer),
    ("Retries", Kind::Integer),
]);

impl Kind {
    fn of_field(&self, name: &str) -> Option<&'static Kind> {
        match self {
            Self::Map(kind) => Some(kind),
            Self::Object(fields) => {
                let found = fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name));
                found.map(|(_, kind)| kind)
            }
            _ => None,
        }
    }
}

/// Says what Go could not read, and where.
pub(super) fn check(config: &[u8]) -> Result<(), serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(config);
    CONFIG.deserialize(&mut json)?;
    json.end()
}

impl<'de> DeserializeSeed<'de> for Kind {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Kind {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "a string",
            Self::Flag => "a boolean",
            Self::Integer => "a whole number",
            Self::Time => "a time of RFC 3339",
            Self::List(_) => "a list",
            Self::Map(_) | Self::Object(_) => "an object",
        })
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        match self {
            Self::Flag => Ok(()),
            _ => Err(E::invalid_type(Unexpected::Bool(value), &self)),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        match self {
            Self::Integer => Ok(()),
            _ => Err(E::invalid_type(Unexpected::Signed(value), &self)),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match self {
            Self::Integer if i64::try_from(value).is_ok() => Ok(()),
            _ => Err(E::invalid_type(Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        match self {
            Self::Text => Ok(()),
            Self::Time if is_time(value) => Ok(()),
            Self::Time => Err(E::invalid_value(Unexpected::Str(value), &self)),
            _ => Err(E::invalid_type(Unexpected::Str(value), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self::List(kind) = self else {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        };
        while list.next_element_seed(*kind)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        if !matches!(self, Self::Map(_) | Self::Object(_)) {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        }
        while let Some(name) = object.next_key::<String>()? {
            match self.of_field(&name) {
                None => drop(object.next_value::<IgnoredAny>()?),
                Some(kind) => object
                    .next_value_seed(*kind)
                    .map_err(|error| A::Error::custom(format_args!("`{name}`: {error}")))?,
            }
        }
        Ok(())
    }
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
        check(text.as_bytes()).err().map(|error| error.to_string())
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
        for (config, expected) in [
            (
                r#"{"created":"now"}"#,
                "`created`: invalid value: string \"now\", expected a time",
            ),
            (
                r#"{"Created":7}"#,
                "`Created`: invalid type: integer `7`, expected a time",
            ),
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
