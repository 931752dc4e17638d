//! Collects the reasons of a verdict: a bounded list on one line, then the hints, each once.

use std::fmt;

/// How many reasons a message shows: the signatures of two stores. A hostile store may have more.
const SHOWN: usize = 20;

/// The beginning of a hint in a message.
const HINT: &str = "\nhint: ";

/// The reasons in the order in which they were found.
#[derive(Clone, Debug, Default)]
pub(super) struct Reasons {
    reasons: Vec<String>,
    hints: Vec<String>,
    more: usize,
}

impl Reasons {
    /// Adds a reason, which may end with hints.
    pub(super) fn add(&mut self, reason: &str) {
        let mut parts = reason.split(HINT);
        let text = parts.next().unwrap_or_default().replace('\n', " ");
        if self.reasons.contains(&text) {
            return;
        }
        if self.reasons.len() == SHOWN {
            self.more += 1;
            return;
        }
        self.reasons.push(text);
        for hint in parts {
            self.hint(hint);
        }
    }

    /// Adds a hint.
    pub(super) fn hint(&mut self, hint: &str) {
        if !self.hints.iter().any(|known| known == hint) {
            self.hints.push(hint.to_owned());
        }
    }
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reasons.join("; "))?;
        if self.more > 0 {
            write!(f, "; and {} more", self.more)?;
        }
        self.hints.iter().try_for_each(|hint| write!(f, "{HINT}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_on_one_line_before_all_hints() {
        let mut reasons = Reasons::default();
        reasons.add("a\nhint: x");
        reasons.add("b\nhint: x\nhint: y");
        reasons.add("a\nhint: z");
        assert_eq!(reasons.to_string(), "a; b\nhint: x\nhint: y");
    }

    #[test]
    fn their_number_is_bounded() {
        let mut reasons = Reasons::default();
        (0..1000).for_each(|n| reasons.add(&n.to_string()));
        assert!(reasons.to_string().ends_with("; 19; and 980 more"), "{reasons}");
    }
}
