//! Splits a manifest file into its YAML documents, as the Kubernetes reader does: by lines, before YAML is parsed.

use crate::spec::shown;

/// The documents that are not empty. An error for a separator that is followed by more than a comment.
pub(super) fn documents(text: &str) -> impl Iterator<Item = Result<&str, String>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut rest = Some(text);
    // The first line may be a separator too.
    let mut starts_with_separator = text.starts_with("---");
    std::iter::from_fn(move || {
        loop {
            let mut start = rest?;
            if starts_with_separator {
                let (line, behind) = start.split_once('\n').unwrap_or((start, ""));
                let comment = line.trim_start_matches("---").trim();
                if !comment.is_empty() && !comment.starts_with('#') {
                    rest = None;
                    return Some(Err(format!("a document begins with `{}`", shown(line))));
                }
                start = behind;
            }
            // The separator may be the line directly behind another one.
            let end = match start.starts_with("---") {
                true => Some(0),
                false => start.find("\n---").map(|end| end + 1),
            };
            let document = &start[..end.unwrap_or(start.len())];
            rest = end.map(|end| &start[end..]);
            starts_with_separator = true;
            if !is_empty(document) {
                return Some(Ok(document));
            }
        }
    })
}

/// Whether there are only blank lines and comments.
fn is_empty(document: &str) -> bool {
    document
        .lines()
        .map(str::trim_start)
        .all(|line| line.is_empty() || line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn split(text: &str) -> Vec<&str> {
        documents(text).map(Result::unwrap).collect()
    }

    #[test]
    fn a_file_is_split_at_its_separators() {
        assert_eq!(split("a: 1\n"), ["a: 1\n"]);
        assert_eq!(split("a: 1\n---\nb: 2\n--- # c\n\n"), ["a: 1\n", "b: 2\n"]);
        assert_eq!(split("\u{feff}---\n---\r\n# comment\n---\na: 1\n---"), ["a: 1\n"]);
        assert_eq!(split("a: |\n  ---\n  b\n"), ["a: |\n  ---\n  b\n"]);
        assert_eq!(split("---"), [""; 0]);
        assert_eq!(split(""), [""; 0]);
    }

    #[test]
    fn a_separator_with_content_is_refused() {
        let parts: Vec<_> = documents("a: 1\n--- {b: 2}\n---\nc: 3\n").collect();
        assert_eq!(
            parts,
            [
                Ok("a: 1\n"),
                Err("a document begins with `--- {b: 2}`".to_owned())
            ]
        );
    }
}
