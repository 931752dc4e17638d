//! Parses `policy.json` as strictly as containers/image does.
//!
//! containers/image `signature/policy_config.go` and `policy_config_sigstore.go`, with the same words in the errors where
//! people search for them. What is not evaluated is parsed all the same: containers/image pulls nothing with an invalid file.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::named_reference::NamedReference;
use super::requirement::{KeySource, Requirement, SignedRequirement};
use super::signed_identity::SignedIdentity;
use super::strict_json::{
    FormatError, byte_strings, bytes, document, exact_fields, fields, members, text, texts, unknown_key,
};
use super::{shown, transport_scope};
use crate::oci::{is_component, is_domain};

type Result<T> = std::result::Result<T, FormatError>;

/// The requirements of each scope of a transport.
pub(super) type Scopes = BTreeMap<String, Vec<Requirement>>;

/// The transport of registries.
const DOCKER: &str = "docker";

/// The default requirements and the scopes of registries, if there are any. The scopes of other transports are checked and
/// dropped.
pub(super) fn policy(json: &[u8]) -> Result<(Vec<Requirement>, Option<Scopes>)> {
    let [default, transports] = fields(document(json)?, ["default", "transports"])?;
    let mut docker = None;
    if let Some(transports) = transports {
        for (transport, value) in members(transports).map_err(|error| error.within("transports"))? {
            let scopes = scopes(&transport, value).map_err(|error| error.within(&transport))?;
            if transport == DOCKER {
                docker = Some(scopes);
            }
        }
    }
    let default = default.ok_or_else(|| FormatError::new("Default policy is missing"))?;
    let default = requirements(default).map_err(|error| error.within("default"))?;
    Ok((default, docker))
}

fn scopes(transport: &str, value: &RawValue) -> Result<Scopes> {
    let mut scopes = Scopes::new();
    for (scope, value) in members(value)? {
        if !scope.is_empty() && !transport_scope::is_valid(transport, &scope) {
            return Err(unknown_key(&scope));
        }
        let requirements = requirements(value).map_err(|error| error.within(&scope))?;
        scopes.insert(scope, requirements);
    }
    Ok(scopes)
}

fn requirements(value: &RawValue) -> Result<Vec<Requirement>> {
    let list: Option<Vec<&RawValue>> =
        serde_json::from_str(value.get()).map_err(|_| FormatError::new("a list of requirements expected"))?;
    let list = list.unwrap_or_default();
    if list.is_empty() {
        return Err(FormatError::new(
            "List of verification policy requirements must not be empty",
        ));
    }
    list.into_iter().map(requirement).collect()
}

fn requirement(value: &RawValue) -> Result<Requirement> {
    match type_of(value)?.as_str() {
        "insecureAcceptAnything" => {
            exact_fields(value, ["type"]).map(|_| Requirement::InsecureAcceptAnything)
        }
        "reject" => exact_fields(value, ["type"]).map(|_| Requirement::Reject),
        "signedBy" => signed_by(value).map_err(|error| error.within("signedBy")),
        "sigstoreSigned" => sigstore_signed(value).map_err(|error| error.within("sigstoreSigned")),
        "signedBaseLayer" => {
            let [_, base] = exact_fields(value, ["type", "baseLayerIdentity"])?;
            signed_identity(base).map_err(|error| error.within("baseLayerIdentity"))?;
            Ok(Requirement::Unsupported("`signedBaseLayer`".to_owned()))
        }
        other => Err(FormatError::new(format!(
            "Unknown policy requirement type `{}`",
            shown(other)
        ))),
    }
}

/// The member `type` of an object with any other members.
fn type_of(value: &RawValue) -> Result<String> {
    let found = members(value)?.into_iter().find(|(name, _)| name == "type");
    match found {
        Some((_, value)) => text(value).map_err(|error| error.within("type")),
        None => Err(FormatError::new("Key `type` missing in a JSON object")),
    }
}

fn signed_by(value: &RawValue) -> Result<Requirement> {
    let [_, key_type, key_path, key_paths, key_data, identity] = fields(
        value,
        [
            "type",
            "keyType",
            "keyPath",
            "keyPaths",
            "keyData",
            "signedIdentity",
        ],
    )?;
    let key_type = key_type.map(text).transpose()?.unwrap_or_default();
    let is_known = [
        "GPGKeys",
        "signedByGPGKeys",
        "X509Certificates",
        "signedByX509CAs",
    ]
    .contains(&&*key_type);
    if !is_known {
        let message = format!("Unrecognized keyType value `{}`", shown(&key_type));
        return Err(FormatError::new(message));
    }
    let identity = signed_identity_or_default(identity)?;
    if [key_path, key_paths, key_data].iter().flatten().count() != 1 {
        return Err(FormatError::new(
            "Exactly one of keyPath, keyPaths and keyData must be specified",
        ));
    }
    let sources = KeySources::read("key", [key_path, key_paths, key_data, None])?;
    let [keys] = <[_; 1]>::try_from(sources.0)
        .map_err(|_| FormatError::new("exactly one of keyPath, keyPaths and keyData must be specified"))?;
    Ok(match key_type.as_str() {
        "GPGKeys" => Requirement::SignedBy(SignedRequirement { keys, identity }),
        // containers/image refuses every image here too: `Unimplemented "keyType" value`.
        _ => Requirement::Unsupported(format!("`signedBy` with keyType `{key_type}`")),
    })
}

fn sigstore_signed(value: &RawValue) -> Result<Requirement> {
    let [
        _,
        key_path,
        key_paths,
        key_data,
        key_datas,
        fulcio_value,
        rekor_path,
        rekor_paths,
        rekor_data,
        rekor_datas,
        pki_value,
        identity,
    ] = fields(
        value,
        [
            "type",
            "keyPath",
            "keyPaths",
            "keyData",
            "keyDatas",
            "fulcio",
            "rekorPublicKeyPath",
            "rekorPublicKeyPaths",
            "rekorPublicKeyData",
            "rekorPublicKeyDatas",
            "pki",
            "signedIdentity",
        ],
    )?;
    let identity = signed_identity_or_default(identity)?;
    for list in [key_paths, key_datas, rekor_paths, rekor_datas]
        .into_iter()
        .flatten()
    {
        if texts(list)?.is_none_or(|list| list.is_empty()) {
            return Err(FormatError::new(
                "keyPaths, keyDatas, rekorPublicKeyPaths and rekorPublicKeyDatas must contain entries",
            ));
        }
    }
    let keys = KeySources::read("key", [key_path, key_paths, key_data, key_datas])?.0;
    let rekor = KeySources::read(
        "rekorPublicKey",
        [rekor_path, rekor_paths, rekor_data, rekor_datas],
    )?
    .0;
    if let Some(value) = fulcio_value {
        fulcio(value).map_err(|error| error.within("fulcio"))?;
    }
    if let Some(value) = pki_value {
        pki(value).map_err(|error| error.within("pki"))?;
    }
    let (has_fulcio, has_pki) = (fulcio_value.is_some(), pki_value.is_some());
    let count = keys.len() + usize::from(has_fulcio) + usize::from(has_pki);
    let problem = match () {
        () if count != 1 => {
            "exactly one of keyPath, keyPaths, keyData, keyDatas, fulcio, and pki must be specified"
        }
        () if rekor.len() > 1 => {
            "at most one of rekorPublicKeyPath, rekorPublicKeyPaths, rekorPublicKeyData and rekorPublicKeyDatas can be used simultaneously"
        }
        () if has_fulcio && rekor.is_empty() => {
            "At least one of rekorPublicKeyPath, rekorPublicKeyPaths, rekorPublicKeyData and rekorPublicKeyDatas must be specified if fulcio is used"
        }
        () if has_pki && !rekor.is_empty() => {
            "rekorPublicKeyPath, rekorPublicKeyPaths, rekorPublicKeyData and rekorPublicKeyDatas are not supported for pki"
        }
        () => "",
    };
    if !problem.is_empty() {
        return Err(FormatError::new(problem));
    }
    Ok(match keys.into_iter().next() {
        Some(keys) if rekor.is_empty() => Requirement::SigstoreSigned(SignedRequirement { keys, identity }),
        Some(_) => Requirement::Unsupported("`sigstoreSigned` with a Rekor key".to_owned()),
        None if has_fulcio => Requirement::Unsupported("`sigstoreSigned` with `fulcio`".to_owned()),
        None => Requirement::Unsupported("`sigstoreSigned` with `pki`".to_owned()),
    })
}

/// The keys of each member that names some. As in Go, an empty path and null count as absent, an empty list does not.
struct KeySources(Vec<Vec<KeySource>>);

impl KeySources {
    /// Reads `<prefix>Path`, `<prefix>Paths`, `<prefix>Data` and `<prefix>Datas`.
    fn read(prefix: &str, [path, paths, data, datas]: [Option<&RawValue>; 4]) -> Result<Self> {
        let named = |suffix: &str| format!("{prefix}{suffix}");
        let mut sources = Vec::new();
        if let Some(value) = path {
            let path = text(value).map_err(|error| error.within(&named("Path")))?;
            if !path.is_empty() {
                sources.push(vec![KeySource::File(path.into())]);
            }
        }
        if let Some(value) = paths {
            let paths = texts(value).map_err(|error| error.within(&named("Paths")))?;
            sources.extend(paths.map(|paths| {
                let files = paths.into_iter().map(|path| KeySource::File(path.into()));
                files.collect()
            }));
        }
        if let Some(value) = data {
            let bytes = bytes(value).map_err(|error| error.within(&named("Data")))?;
            let name = named("Data");
            sources.extend(bytes.map(|bytes| vec![KeySource::Data { name, bytes }]));
        }
        if let Some(value) = datas {
            let list = byte_strings(value).map_err(|error| error.within(&named("Datas")))?;
            sources.extend(list.map(|list| {
                let keys = list
                    .into_iter()
                    .enumerate()
                    .map(|(index, bytes)| KeySource::Data {
                        name: format!("{prefix}Datas[{index}]"),
                        bytes,
                    });
                keys.collect()
            }));
        }
        Ok(Self(sources))
    }
}

fn fulcio(value: &RawValue) -> Result<()> {
    let [path, data, issuer, email] = fields(value, ["caPath", "caData", "oidcIssuer", "subjectEmail"])?;
    let has_path = has_text(path)?;
    match (has_path, has_bytes(data)?) {
        (true, true) => Err("caPath and caData cannot be used simultaneously"),
        (false, false) => Err("At least one of caPath and caData must be specified"),
        _ if !has_text(issuer)? => Err("oidcIssuer not specified"),
        _ if !has_text(email)? => Err("subjectEmail not specified"),
        _ => Ok(()),
    }
    .map_err(FormatError::new)
}

fn pki(value: &RawValue) -> Result<()> {
    let [roots_path, roots_data, path, data, email, hostname] = fields(
        value,
        [
            "caRootsPath",
            "caRootsData",
            "caIntermediatesPath",
            "caIntermediatesData",
            "subjectEmail",
            "subjectHostname",
        ],
    )?;
    let has_intermediates = (has_text(path)?, has_bytes(data)?);
    let has_subject = (has_text(email)?, has_text(hostname)?);
    match (has_text(roots_path)?, has_bytes(roots_data)?) {
        (true, true) => Err("caRootsPath and caRootsData cannot be used simultaneously"),
        (false, false) => Err("At least one of caRootsPath and caRootsData must be specified"),
        _ if has_intermediates == (true, true) => {
            Err("caIntermediatesPath and caIntermediatesData cannot be used simultaneously")
        }
        _ if has_subject == (false, false) => {
            Err("At least one of subjectEmail, subjectHostname must be specified")
        }
        _ => Ok(()),
    }
    .map_err(FormatError::new)
}

fn has_text(value: Option<&RawValue>) -> Result<bool> {
    Ok(value.map(text).transpose()?.is_some_and(|text| !text.is_empty()))
}

fn has_bytes(value: Option<&RawValue>) -> Result<bool> {
    Ok(value.map(bytes).transpose()?.flatten().is_some())
}

fn signed_identity_or_default(value: Option<&RawValue>) -> Result<SignedIdentity> {
    match value {
        Some(value) => signed_identity(value).map_err(|error| error.within("signedIdentity")),
        None => Ok(SignedIdentity::MatchRepoDigestOrExact),
    }
}

fn signed_identity(value: &RawValue) -> Result<SignedIdentity> {
    let only = |identity| exact_fields(value, ["type"]).map(|_| identity);
    match type_of(value)?.as_str() {
        "matchExact" => only(SignedIdentity::MatchExact),
        "matchRepoDigestOrExact" => only(SignedIdentity::MatchRepoDigestOrExact),
        "matchRepository" => only(SignedIdentity::MatchRepository),
        "exactReference" => {
            let [_, reference] = exact_fields(value, ["type", "dockerReference"])?;
            let reference = named_reference("dockerReference", reference)?;
            match reference.is_name_only() {
                false => Ok(SignedIdentity::ExactReference(reference)),
                true => Err(FormatError::new(format!(
                    "dockerReference `{reference}` contains neither a tag nor digest"
                ))),
            }
        }
        "exactRepository" => {
            let [_, repository] = exact_fields(value, ["type", "dockerRepository"])?;
            named_reference("dockerRepository", repository).map(SignedIdentity::ExactRepository)
        }
        "remapIdentity" => {
            let [_, prefix, signed] = exact_fields(value, ["type", "prefix", "signedPrefix"])?;
            Ok(SignedIdentity::RemapIdentity {
                prefix: prefix_of_names(prefix)?,
                signed_prefix: prefix_of_names(signed)?,
            })
        }
        other => Err(FormatError::new(format!(
            "Unknown policy reference match type `{}`",
            shown(other)
        ))),
    }
}

fn named_reference(name: &str, value: &RawValue) -> Result<NamedReference> {
    let text = text(value).map_err(|error| error.within(name))?;
    NamedReference::parse(&text)
        .map_err(|why| FormatError::new(format!("Invalid format of {name} `{}`: {why}", shown(&text))))
}

/// A registry, or a registry with the beginning of a repository.
fn prefix_of_names(value: &RawValue) -> Result<String> {
    let prefix = text(value)?;
    let is_valid = match prefix.split_once('/') {
        Some((domain, path)) => is_domain(domain) && path.split('/').all(is_component),
        None => is_domain(&prefix),
    };
    match is_valid {
        true => Ok(prefix),
        false => Err(FormatError::new(format!(
            "prefix `{}` is not valid",
            shown(&prefix)
        ))),
    }
}
