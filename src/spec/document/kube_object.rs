//! Defines a Kubernetes object of a document, also as an item of a list or inside a policy, with names for messages.

use super::DocumentError;
use super::yaml_tree::{YamlNode, YamlValue};
use crate::spec::shown;

/// A Kubernetes object, or any other value in its place.
#[derive(Clone, Copy)]
pub(super) struct KubeObject<'a> {
    pub(super) api_version: &'a str,
    pub(super) kind: &'a str,
    pub(super) node: &'a YamlNode,
    pub(super) place: Place<'a>,
}

/// Where an object is.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// The document's source.
    pub(super) origin: Origin<'a>,
    /// The policy.
    pub(super) policy: Option<PolicyName<'a>>,
}

/// Where a document is from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin<'a> {
    /// The only file.
    OnlyFile,
    /// One of several.
    File(&'a str),
    /// The API of the cluster in which this program runs.
    Cluster,
}

/// The name of the policy that contains an object.
#[derive(Clone, Copy)]
pub(super) struct PolicyName<'a>(&'a YamlNode);

/// Collects an object, or the objects of a list. The items of a typed list have no `kind`; they have the list's.
pub(super) fn collect<'a>(
    node: &'a YamlNode,
    origin: Origin<'a>,
    objects: &mut Vec<KubeObject<'a>>,
) -> Result<(), DocumentError> {
    let place = Place { origin, policy: None };
    collect_typed(KubeObject::new(node, ("", ""), place), objects)
}

fn collect_typed<'a>(object: KubeObject<'a>, objects: &mut Vec<KubeObject<'a>>) -> Result<(), DocumentError> {
    let items_kind = object.kind.strip_suffix("List");
    let (Some(kind), Some(items)) = (items_kind, object.node.field("items")) else {
        objects.push(object);
        return Ok(());
    };
    let YamlValue::List(list) = &items.value else {
        return Err(object.wrong("items", items, format!("it is {}, not a list", items.kind())));
    };
    let api_version = if kind.is_empty() { "" } else { object.api_version };
    list.iter()
        .map(|item| KubeObject::new(item, (api_version, kind), object.place))
        .try_for_each(|item| collect_typed(item, objects))
}

impl<'a> KubeObject<'a> {
    /// `default` are apiVersion and kind, if the object has none.
    pub(super) fn new(node: &'a YamlNode, default: (&'a str, &'a str), place: Place<'a>) -> Self {
        let word = |name: &str| node.field(name).and_then(YamlNode::text);
        Self {
            api_version: word("apiVersion").unwrap_or(default.0),
            kind: word("kind").unwrap_or(default.1),
            node,
            place,
        }
    }

    /// An object in this policy.
    pub(super) fn inner(&self, node: &'a YamlNode) -> Self {
        let policy = self.place.policy.or(Some(PolicyName(self.node)));
        Self::new(node, ("", ""), Place { policy, ..self.place })
    }

    /// Whether it is from the API of this cluster.
    pub(super) fn is_of_cluster(&self) -> bool {
        self.place.origin == Origin::Cluster
    }

    /// Whether it is of this group, in any version, and kind. Objects in policies may lack an `apiVersion`, as for TALM.
    pub(super) fn is(&self, group: &str, kind: &str) -> bool {
        let found = self.api_version.split_once('/').map(|(group, _)| group);
        let is_group = match found {
            Some(found) => found == group,
            None => self.api_version.is_empty() && self.place.policy.is_some(),
        };
        is_group && self.kind == kind
    }

    pub(super) fn is_config_map(&self) -> bool {
        (self.api_version, self.kind) == ("v1", "ConfigMap")
    }

    /// The names of a ConfigMap's keys.
    pub(super) fn key_names(&self) -> Vec<String> {
        let values = ["data", "binaryData"]
            .into_iter()
            .filter_map(|field| self.node.field(field));
        values
            .flat_map(YamlNode::fields)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// The value at a path of names; `None` if it is null.
    pub(super) fn at(&self, path: &str) -> Option<&'a YamlNode> {
        path.split('.')
            .filter(|name| !name.is_empty())
            .try_fold(self.node, |node, name| node.field(name))
    }

    /// A text of `metadata`.
    pub(super) fn metadata(&self, name: &str) -> Option<&'a str> {
        self.node.field("metadata")?.field(name)?.text()
    }

    /// The text at a path, without the blanks around it; `None` if it is missing, null or empty.
    ///
    /// # Errors
    /// If it is no text, or a template, whose value is unknown here.
    pub(super) fn text_at(&self, path: &str) -> Result<Option<&'a str>, DocumentError> {
        /// TALM's hub replaces the variables of raw templates by this word and refuses it.
        const PLACEHOLDER: &str = "placeholder";
        let Some(node) = self.at(path) else {
            return Ok(None);
        };
        let Some(text) = node.text() else {
            let hint = match node.value {
                YamlValue::Number(_) | YamlValue::Boolean(_) => "\nhint: put it in double quotes",
                _ => "",
            };
            return Err(self.wrong(path, node, format!("it is {}, not a text{hint}", node.kind())));
        };
        if text.contains("{{") || text == PLACEHOLDER {
            let why = format!(
                "`{}` is a template, which only the hub or the cluster can resolve\nhint: give the policy as the hub copies \
                 it to the cluster's namespace, `oc get policies.policy.open-cluster-management.io -n CLUSTER -o yaml`, or \
                 write the value",
                shown(text)
            );
            return Err(self.wrong(path, node, why));
        }
        Ok(Some(text.trim()).filter(|text| !text.is_empty()))
    }

    /// Kind, namespace and name, and where the object is.
    pub(super) fn title(&self) -> String {
        let policy = self.place.policy.map(|PolicyName(node)| {
            let word = |name: &str| node.field("metadata")?.field(name)?.text();
            let kind = node.field("kind").and_then(YamlNode::text).unwrap_or_default();
            format!(" in {}", name(kind, word("namespace"), word("name")))
        });
        let origin = match self.place.origin {
            Origin::OnlyFile => String::new(),
            Origin::File(file) => format!(" in `{}`", shown(file)),
            Origin::Cluster => " of this cluster".to_owned(),
        };
        name(self.kind, self.metadata("namespace"), self.metadata("name"))
            + &policy.unwrap_or_default()
            + &origin
    }

    /// The title, and why it is not a version spec.
    pub(super) fn description(&self) -> String {
        if self.kind.is_empty() {
            return match self.node.value {
                YamlValue::Mapping(_) => "a mapping without `kind`".to_owned(),
                _ => self.node.kind().to_owned(),
            };
        }
        let title = self.title();
        if self.is_config_map() {
            return match &self.key_names()[..] {
                [] => format!("{title} without keys"),
                names => format!("{title} with the keys {}", crate::spec::list(names)),
            };
        }
        match self.api_version {
            "" => format!("{title} without `apiVersion`"),
            version => format!("{title} of `{}`", shown(version)),
        }
    }

    pub(super) fn wrong(&self, field: &str, node: &YamlNode, why: String) -> DocumentError {
        DocumentError::Field {
            object: self.title(),
            field: field.to_owned(),
            position: node.position,
            why,
        }
    }

    /// The items of the list at a path; empty if it is missing.
    pub(super) fn list_at(&self, path: &str) -> Result<&'a [YamlNode], DocumentError> {
        match self.at(path) {
            None => Ok(&[]),
            Some(node) => match &node.value {
                YamlValue::List(items) => Ok(items),
                _ => Err(self.wrong(path, node, format!("it is {}, not a list", node.kind()))),
            },
        }
    }

    /// Warnings about the fields of `node` that are not `known`; `path` is the prefix of their names.
    pub(super) fn unknown_fields(&self, path: &str, node: &YamlNode, known: &[&str]) -> Vec<String> {
        let unknown = node
            .fields()
            .iter()
            .filter(|(name, _)| !known.contains(&&name[..]));
        let warning = |name: &str| {
            format!(
                "{}: the field `{path}{}` is unknown and ignored",
                self.title(),
                shown(name)
            )
        };
        unknown.map(|(name, _)| warning(name)).collect()
    }
}

fn name(kind: &str, namespace: Option<&str>, name: Option<&str>) -> String {
    let kind = shown(kind);
    match (namespace, name) {
        (Some(namespace), Some(name)) => format!("{kind} `{}/{}`", shown(namespace), shown(name)),
        (None, Some(name)) => format!("{kind} `{}`", shown(name)),
        _ => format!("{kind} without a name"),
    }
}
