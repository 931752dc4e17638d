//! Tests signature policies against skopeo: it has to accept the same policies, and the same images under each of them.
//!
//! The images are containers/image's fixtures. They have no layers, so skopeo fails at the first one if the policy accepts
//! the image. A directory has no name that a signature could match, so most requirements match a fixed one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Value, json};
use spoke_precache::oci::{Digest, Reference};
use spoke_precache::signature::{KeyFiles, Policy, Signature};

use crate::needs::{leave_out, long, needs, note};
use crate::test_node::TestNode;

/// What a member of a requirement is replaced with.
const VALUES: [&str; 16] = [
    "null",
    "1",
    "[]",
    "{}",
    r#""""#,
    r#""x""#,
    r#""YQ==""#,
    r#"[""]"#,
    "[null]",
    r#"["YQ=="]"#,
    r#""a b""#,
    r#""example.com:5000""#,
    r#""EXAMPLE.com/x""#,
    r#""docker.io""#,
    r#""matchExact""#,
    r#"{"type":"matchRepository"}"#,
];

/// Without `SPOKE_LONG`, one of so many mutated policies is compared.
const SAMPLE: usize = 7;

/// A name that no signature has: a directory has none at all.
const NAMELESS: &str = "example.com/none/none:1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Invalid,
    Rejected,
    /// Rejected without an evaluation, by us alone.
    Unsupported,
    Accepted,
}

#[derive(Debug)]
struct Files;

impl KeyFiles for Files {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }
}

/// The fixtures at a place that skopeo sees too, and requirements with their keys.
struct Fixtures {
    node: TestNode,
    directory: PathBuf,
}

impl Fixtures {
    fn new(corpus: &Path) -> Self {
        let node = TestNode::trusting(&[]);
        let directory = node.out("fixtures");
        copy(
            &corpus.join("policy-json/containers-image-signature-fixtures"),
            &directory,
        );
        Self { node, directory }
    }

    fn requirements(&self) -> Vec<Value> {
        let path = |name: &str| self.directory.join(name);
        let data = |name: &str| base64(&fs::read(path(name)).unwrap());
        let repository = |name: &str| json!({"type": "exactRepository", "dockerRepository": name});
        let cosign = repository("192.168.64.2:5000/cosign-signed-single-sample");
        let tagged =
            json!({"type": "exactReference", "dockerReference": "192.168.64.2:5000/skopeo-signed:tag"});
        let simple = repository("docker.io/testing/manifest");
        let latest = json!({"type": "exactReference", "dockerReference": "testing/manifest:latest"});
        let remap = json!({"type": "remapIdentity", "prefix": "example.com/none", "signedPrefix": "192.168.64.2:5000"});
        let fulcio =
            json!({"caPath": path("fulcio_v1.crt.pem"), "oidcIssuer": "https://a", "subjectEmail": "a@b"});
        let pki = json!({"caRootsPath": path("pki_root_crts.pem"), "subjectEmail": "a@b"});
        vec![
            json!({"type": "insecureAcceptAnything"}),
            json!({"type": "reject"}),
            json!({"type": "sigstoreSigned", "keyPath": path("cosign.pub"), "signedIdentity": cosign}),
            json!({"type": "sigstoreSigned", "keyPath": path("cosign2.pub"), "signedIdentity": cosign}),
            json!({"type": "sigstoreSigned", "keyPath": path("some-rsa-key.pub"), "signedIdentity": cosign}),
            json!({"type": "sigstoreSigned", "keyPaths": [path("cosign2.pub"), path("cosign.pub")], "signedIdentity": cosign}),
            json!({"type": "sigstoreSigned", "keyData": data("cosign.pub"), "signedIdentity": tagged}),
            json!({"type": "sigstoreSigned", "keyDatas": [data("cosign2.pub"), data("cosign.pub")], "signedIdentity": cosign}),
            json!({"type": "sigstoreSigned", "keyPath": path("cosign.pub"), "signedIdentity": remap}),
            json!({"type": "sigstoreSigned", "keyPath": path("cosign.pub")}),
            json!({"type": "signedBy", "keyType": "GPGKeys", "keyPath": path("public-key.gpg"), "signedIdentity": simple}),
            json!({"type": "signedBy", "keyType": "GPGKeys", "keyData": data("public-key.gpg"), "signedIdentity": latest}),
            json!({
                "type": "signedBy",
                "keyType": "GPGKeys",
                "keyPaths": [path("public-key-1.gpg"), path("public-key-2.gpg")],
                "signedIdentity": simple,
            }),
            json!({"type": "signedBy", "keyType": "X509Certificates", "keyPath": path("public-key.gpg")}),
            json!({"type": "signedBaseLayer", "baseLayerIdentity": simple}),
            json!({"type": "sigstoreSigned", "fulcio": fulcio, "rekorPublicKeyPath": path("rekor.pub")}),
            json!({"type": "sigstoreSigned", "pki": pki}),
            json!({"type": "sigstoreSigned", "keyPath": path("cosign.pub"), "rekorPublicKeyData": data("rekor.pub")}),
        ]
    }

    fn theirs(&self, policy: &str, image: &str) -> Verdict {
        let file = self.node.out("policy.json");
        fs::write(&file, policy).unwrap();
        let source = format!("dir:{}", self.directory.join(image).display());
        let copy = format!("dir:{}", self.node.out("copy").display());
        let file = file.to_str().unwrap();
        let command = ["skopeo", "--policy", file, "copy", "--quiet", &source, &copy];
        let answer = self.node.tool("pull", &command);
        let text = &answer.stderr;
        match () {
            () if text.contains("invalid policy in") => Verdict::Invalid,
            () if text.contains("Source image rejected") => Verdict::Rejected,
            () if answer.is_ok() || text.contains("reading blob") => Verdict::Accepted,
            () => panic!("{policy}\n{answer}"),
        }
    }

    fn ours(&self, policy: &str, image: &str) -> (Verdict, String) {
        let policy = match Policy::parse(policy.as_bytes()) {
            Ok(policy) => policy,
            Err(error) => return (Verdict::Invalid, error.to_string()),
        };
        let directory = self.directory.join(image);
        let manifest = Digest::of(&fs::read(directory.join("manifest.json")).unwrap());
        let blobs = (1..).map_while(|number| fs::read(directory.join(format!("signature-{number}"))).ok());
        let signatures: Vec<_> = blobs.map(|blob| Signature::from_blob(&blob).unwrap()).collect();
        let image: Reference = NAMELESS.parse().unwrap();
        let rule = policy.rule(&image);
        match rule.evaluate(&image, manifest, &signatures, &Files, Timestamp::now()) {
            Ok(accepted) => (Verdict::Accepted, accepted.to_string()),
            Err(refusal) if refusal.is_unsupported() => (Verdict::Unsupported, refusal.to_string()),
            Err(refusal) => (Verdict::Rejected, refusal.to_string()),
        }
    }

    /// The differences of the two verdicts for some policies and images; prints how many there were.
    fn differences(&self, cases: &[(String, &str)]) -> Vec<String> {
        let mut differences = Vec::new();
        let mut accepted = 0;
        for (policy, image) in cases {
            let (ours, why) = self.ours(policy, image);
            let theirs = self.theirs(policy, image);
            accepted += usize::from(theirs == Verdict::Accepted);
            let is_same = match ours {
                Verdict::Unsupported => theirs != Verdict::Invalid,
                ours => ours == theirs,
            };
            if !is_same {
                differences.push(format!("{image} {policy}\n  they {theirs:?}, we {ours:?}: {why}"));
            }
        }
        note(&format!("{} verdicts, {accepted} accepted", cases.len()));
        differences
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, copied) = (
            entry.as_ref().unwrap().path(),
            to.join(entry.unwrap().file_name()),
        );
        match path.is_dir() {
            true => copy(&path, &copied),
            false => drop(fs::copy(path, copied).unwrap()),
        }
    }
}

fn policy_of(requirements: &[&Value]) -> String {
    json!({"default": requirements}).to_string()
}

/// The fixtures, where there is a skopeo that verifies sigstore signatures.
fn fixtures(corpus: &Path) -> Option<Fixtures> {
    let fixtures = Fixtures::new(corpus);
    if fixtures.node.podman_version().starts_with("4.") {
        leave_out("Debian 12 builds skopeo without sigstore; set SPOKE_STOCK_ROOT");
        return None;
    }
    Some(fixtures)
}

#[test]
fn skopeo_accepts_the_same_images() {
    needs!(root(), stock(), corpus());
    let corpus = crate::needs::corpus().unwrap();
    let Some(fixtures) = fixtures(&corpus) else { return };
    let requirements = fixtures.requirements();
    let mut cases = Vec::new();
    for requirement in &requirements {
        for image in [
            "dir-img-cosign-valid",
            "dir-img-cosign-valid-with-tag",
            "dir-img-cosign-mixed",
            "dir-img-cosign-modified-manifest",
            "dir-img-valid",
            "dir-img-mixed",
            "dir-img-modified-manifest",
            "dir-img-unsigned",
        ] {
            cases.push((policy_of(&[requirement]), image));
        }
        // All requirements have to be met.
        cases.push((
            policy_of(&[requirement, &requirements[2]]),
            "dir-img-cosign-valid",
        ));
    }
    let differences = fixtures.differences(&cases);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn skopeo_accepts_the_same_policies() {
    needs!(root(), stock(), corpus());
    let corpus = crate::needs::corpus().unwrap();
    let Some(fixtures) = fixtures(&corpus) else { return };
    let mut policies = Vec::new();
    for requirement in fixtures.requirements() {
        mutations(&requirement, &mut |mutated| {
            // Go also decodes a list of numbers into bytes; such a policy is refused here.
            if !mutated.contains(r#"Data":["#) {
                policies.push(format!(r#"{{"default":[{mutated}]}}"#));
            }
        });
    }
    let step = if long() { 1 } else { SAMPLE };
    let cases: Vec<_> = policies
        .into_iter()
        .step_by(step)
        .map(|policy| (policy, "dir-img-cosign-valid"))
        .collect();
    let differences = fixtures.differences(&cases);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Each member of an object, and of the objects in it, removed, doubled, spelled differently and with other values.
fn mutations(object: &Value, found: &mut dyn FnMut(String)) {
    let members = object.as_object().unwrap();
    for (name, value) in members {
        let with = |changed: &str| {
            let members = members.iter().map(|(other, value)| match other == name {
                true => changed.to_owned(),
                false => format!("\"{other}\":{value}"),
            });
            let members: Vec<String> = members.filter(|member| !member.is_empty()).collect();
            format!("{{{}}}", members.join(","))
        };
        found(with(""));
        found(with(&format!("\"{name}\":{value},\"{name}\":{value}")));
        found(with(&format!("\"{}\":{value}", name.to_uppercase())));
        for other in VALUES {
            found(with(&format!("\"{name}\":{other}")));
        }
        if value.is_object() {
            mutations(value, &mut |inner| found(with(&format!("\"{name}\":{inner}"))));
        }
    }
}
