//! Reads `object-templates-raw` of a ConfigurationPolicy as TALM's hub does: without its Go templates.
//!
//! ```text
//! {{ $variable }}, {{ .field }}   "placeholder", which is refused in a field that is needed
//! any other {{ … }}               removed: both branches of an `if` and the body of a `range` remain
//! ```

use super::yaml_tree::{self, YamlNode, YamlValue};

/// The field.
pub(super) const FIELD: &str = "object-templates-raw";

/// Replaces every raw text below `node` by the tree that it describes; a text that is no YAML remains a text. `nodes` is how
/// many nodes all of them may have.
pub(super) fn expand(node: &mut YamlNode, nodes: &mut usize) {
    match &mut node.value {
        YamlValue::List(items) => items.iter_mut().for_each(|item| expand(item, nodes)),
        YamlValue::Mapping(fields) => {
            for (name, value) in fields {
                match &value.value {
                    YamlValue::Text(text) if name == FIELD => {
                        let trees = yaml_tree::parse(&without_templates(text), *nodes);
                        if let Ok(Ok([mut tree])) = trees.map(<[YamlNode; 1]>::try_from) {
                            *nodes = nodes.saturating_sub(tree.count());
                            tree.forget_positions();
                            value.value = tree.value;
                        }
                    }
                    _ => expand(value, nodes),
                }
            }
        }
        _ => {}
    }
}

fn without_templates(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("{{") {
        let (before, template) = rest.split_at(start);
        let Some(end) = template.find("}}") else {
            break;
        };
        result += before;
        let inside = template[2..end].trim();
        let is_name = |name: &str| {
            name.chars()
                .all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'))
        };
        if inside.strip_prefix(['$', '.']).is_some_and(is_name) {
            result += "placeholder";
        }
        rest = &template[end + 2..];
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_removed_and_their_values_are_placeholders() {
        for (text, expected) in [
            ("a: b", "a: b"),
            (
                "{{- range $x := (list 1 2) }}\n- a: {{ $x }}\n{{- end }}\n",
                "\n- a: placeholder\n\n",
            ),
            ("a: '{{ .data.item }}-{{ .x }}'", "a: 'placeholder-placeholder'"),
            ("a: {{hub fromConfigMap \"\" \"c\" \"k\" hub}}", "a: "),
            ("a: {{ unclosed", "a: {{ unclosed"),
        ] {
            assert_eq!(without_templates(text), expected);
        }
    }
}
