//! Renders the Go templates of `manifests/`, as far as the CVO's own manifests use them.
//!
//! ```text
//! {{.ReleaseImage}}                        the release image
//! {{.ClusterProfile}}
//! {{.Images.console}}                      the pullspec of a tag, empty if there is none
//! {{index .Images "kube-rbac-proxy"}}
//! {{"{{ $labels.name }}"}}                 a literal text, for templates inside of alerts
//! ```
//!
//! Conditions, loops and functions are refused: what they print is unknown, so it may be any image.

use std::borrow::Cow;

/// Takes the place of the profile.
pub(super) const ANY_PROFILE: &str = "any-cluster-profile";

/// Takes the place of the release image, which is no image of the payload.
const RELEASE_IMAGE: &str = "release-image";

/// The most bytes of a rendered template; a short action may stand for a long pullspec.
const RENDERED_LIMIT: usize = 16 << 20;

/// Renders `text`; `pullspec` finds an image by its name. The error is a reason.
pub(super) fn render<'text, 'index>(
    text: &'text str,
    pullspec: impl Fn(&str) -> Option<&'index str>,
) -> Result<Cow<'text, str>, String> {
    if !text.contains("{{") {
        return Ok(Cow::Borrowed(text));
    }
    let mut rendered = String::new();
    let mut rest = text;
    while let Some((before, action)) = rest.split_once("{{") {
        let (action, trims_before) = match action.strip_prefix("- ") {
            Some(action) => (action, true),
            None => (action, false),
        };
        rendered.push_str(if trims_before { before.trim_end() } else { before });
        let end = action_end(action).ok_or("a template's `{{` has no `}}`")?;
        rest = &action[end + 2..];
        let mut action = &action[..end];
        if let Some(trimmed) = action.strip_suffix(" -") {
            action = trimmed;
            rest = rest.trim_start();
        }
        rendered.push_str(&value_of(action.trim(), |name| pullspec(name))?);
        if rendered.len() > RENDERED_LIMIT {
            return Err(format!("its text is longer than {RENDERED_LIMIT} bytes"));
        }
    }
    rendered.push_str(rest);
    Ok(Cow::Owned(rendered))
}

/// The position of the `}}` that ends an action; one in a literal does not.
fn action_end(action: &str) -> Option<usize> {
    let bytes = action.as_bytes();
    let mut quote = None;
    let mut position = 0;
    while position < bytes.len() {
        match (quote, bytes[position]) {
            (Some(b'"'), b'\\') => position += 1,
            (Some(open), byte) if open == byte => quote = None,
            (None, byte @ (b'"' | b'`')) => quote = Some(byte),
            (None, b'}') if bytes[position..].starts_with(b"}}") => return Some(position),
            _ => {}
        }
        position += 1;
    }
    None
}

fn value_of<'a>(action: &'a str, pullspec: impl Fn(&str) -> Option<&'a str>) -> Result<Cow<'a, str>, String> {
    let unknown = || "it has a template action other than an image or a literal".to_owned();
    if action.starts_with("/*") && action.ends_with("*/") {
        return Ok("".into());
    }
    if action.starts_with(['"', '`']) {
        return literal(action).ok_or_else(unknown);
    }
    let name = match action.strip_prefix(".Images.") {
        Some(name) => Some(Cow::Borrowed(name)),
        None => indexed(action).and_then(literal),
    };
    match (action, name) {
        (".ReleaseImage", _) => Ok(RELEASE_IMAGE.into()),
        (".ClusterProfile", _) => Ok(ANY_PROFILE.into()),
        // A field has letters, digits and `_`; anything else is a pipeline.
        (_, Some(name)) if !name.contains(|c: char| c.is_whitespace() || "|().".contains(c)) => {
            Ok(pullspec(&name).unwrap_or_default().into())
        }
        _ => Err(unknown()),
    }
}

/// The literal in `index .Images "name"`.
fn indexed(action: &str) -> Option<&str> {
    let images = action.strip_prefix("index")?.trim_start();
    Some(images.strip_prefix(".Images")?.trim())
}

/// The text of one Go literal. The escapes that JSON does not have are refused.
fn literal(text: &str) -> Option<Cow<'_, str>> {
    if let Some(raw) = text.strip_prefix('`') {
        let raw = raw.strip_suffix('`').filter(|raw| !raw.contains('`'))?;
        return Some(raw.into());
    }
    let text: String = serde_json::from_str(text).ok()?;
    Some(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str) -> Result<String, String> {
        let pullspec = |name: &str| (name == "kube-rbac-proxy" || name == "cli").then_some("quay.io/a@b");
        render(text, pullspec).map(Cow::into_owned)
    }

    #[test]
    fn images_and_literals_are_rendered() {
        for (text, expected) in [
            ("a: b", "a: b"),
            ("image: '{{.ReleaseImage}}'", "image: 'release-image'"),
            ("{{ .ClusterProfile }}: x", "any-cluster-profile: x"),
            ("a {{.Images.cli}} b {{ .Images.none }}", "a quay.io/a@b b "),
            ("{{index .Images \"kube-rbac-proxy\"}}", "quay.io/a@b"),
            ("{{ index .Images `cli` }}", "quay.io/a@b"),
            (
                "x {{ \"{{ with $u := \\\"url\\\" | query }}{{ end }}\" }} y",
                "x {{ with $u := \"url\" | query }}{{ end }} y",
            ),
            ("a\n  {{- /* comment */ -}}\n b", "ab"),
            ("a {{`}}`}} b", "a }} b"),
        ] {
            assert_eq!(rendered(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn other_actions_are_refused() {
        for text in [
            "{{index .FutureField \"some-key\"}}",
            "{{range .Images}}{{.}}{{end}}",
            "{{.Images}}",
            "{{.Images.cli | quote}}",
            "{{index .Images \"a\" | quote}}",
            "{{printf \"%s\" .Images.cli}}",
            "{{\"a\" \"b\"}}",
            "{{ .Future }}",
            "{{ \"open }}",
            "{{",
            "{{}}",
        ] {
            assert!(rendered(text).is_err(), "{text}: {:?}", rendered(text));
        }
    }
}
