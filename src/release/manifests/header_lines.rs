//! Finds the header of a manifest without parsing the rest: `apiVersion`, `kind`, `metadata`, and the `status` of a
//! ClusterOperator.
//!
//! In documents that programs write, only the keys of the outermost mapping start at the beginning of a line. Parsing
//! runs at 30 MB/s. 97 % of a release's 10 MB of manifests are schemas and dashboards, whose content does not matter.

/// The lines of the header, as a YAML document of its own; `None` if the document has another form.
pub(super) fn header_lines(document: &str) -> Option<String> {
    let mut header = String::new();
    let mut status = String::new();
    let mut is_operator = false;
    let mut field = Field::Other;
    for line in document.split_inclusive('\n') {
        match line.as_bytes().first() {
            None | Some(b' ' | b'-' | b'#' | b'\n' | b'\r') => {}
            Some(b'a'..=b'z' | b'A'..=b'Z') => {
                let (key, value) = line.split_once(':')?;
                if !value.starts_with([' ', '\n', '\r']) && !value.is_empty() {
                    return None;
                }
                field = Field::of(key.trim_end());
                if field == Field::Kind {
                    is_operator = value.contains("ClusterOperator");
                }
            }
            // A key in quotes, a brace, an anchor, a tab.
            Some(_) => return None,
        }
        match field {
            Field::Kind | Field::Header => header.push_str(line),
            Field::Status => status.push_str(line),
            Field::Other => {}
        }
    }
    if is_operator {
        if !header.ends_with('\n') {
            header.push('\n');
        }
        header.push_str(&status);
    }
    Some(header)
}

/// A key of the outermost mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Kind,
    Header,
    Status,
    Other,
}

impl Field {
    fn of(key: &str) -> Self {
        match key {
            "kind" => Self::Kind,
            "apiVersion" | "metadata" => Self::Header,
            "status" => Self::Status,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_documents_have_header_lines() {
        for (document, expected) in [
            (
                "kind: A\nspec:\n  kind: B\n- metadata: c\nmetadata:\n  name: d\n",
                Some("kind: A\nmetadata:\n  name: d\n"),
            ),
            ("# c\nkind: A\nstatus: {}\n", Some("kind: A\n")),
            (
                "status:\n  a: b\nkind: ClusterOperator",
                Some("kind: ClusterOperator\nstatus:\n  a: b\n"),
            ),
            ("kind : A\r\ndata:\r\n  a: b", Some("kind : A\r\n")),
            ("{kind: A}", None),
            ("\"kind\": A", None),
            ("kind: A\n\tb: c", None),
            ("kind: A\nb", None),
            ("kind: A\na:b: c", None),
            ("&a kind: A", None),
        ] {
            assert_eq!(header_lines(document).as_deref(), expected, "{document}");
        }
    }
}
