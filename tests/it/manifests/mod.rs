//! Tests `manifests/`: Kubernetes accepts the objects, they match the program, and the rights are sufficient.

mod capabilities;
mod consistency;
mod hub;
mod mounts;
mod overlays;
mod schema;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// `manifests/`.
fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests")
}

/// The objects of a file, by its path below `manifests/`.
fn objects(path: &str) -> Vec<Value> {
    parse(&fs::read_to_string(top().join(path)).unwrap())
}

/// Documents of YAML. A key that is there twice is an error.
fn parse(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// Every YAML file below `manifests/`.
fn files() -> Vec<PathBuf> {
    let (mut files, mut dirs) = (Vec::new(), vec![top()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => dirs.push(path),
                false if path.extension().is_some_and(|it| it == "yaml") => files.push(path),
                false => {}
            }
        }
    }
    files.sort();
    files
}

/// `kind/name`, as kubectl prints it.
fn title(object: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!("{}/{}", word(&object["kind"]), word(&object["metadata"]["name"]))
}

/// The Job that all overlays start from.
pub(crate) fn job() -> Value {
    objects("job/job.yaml").remove(0)
}

/// Its one container.
pub(crate) fn container(job: &Value) -> &Value {
    let containers = job["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    &containers[0]
}

/// The elements of a list; none, if there is no list.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text that has to be there.
#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("`{value}` is no text"))
}
