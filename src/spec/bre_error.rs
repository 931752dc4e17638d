//! Lists the reasons why a text is not a basic regular expression.

/// Why a text is not a basic regular expression, in grep's words where grep refuses it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BreError {
    /// A lone backslash at the end.
    #[error("trailing backslash")]
    TrailingBackslash,
    /// `\(` without `\)`.
    #[error(r"unmatched `\(`")]
    UnclosedGroup,
    /// `\)` without `\(`.
    #[error(r"unmatched `\)`")]
    UnopenedGroup,
    /// `[` without `]`.
    #[error("unmatched `[`")]
    UnclosedBracket,
    /// `\{` without `\}`.
    #[error(r"unmatched `\{{`")]
    UnclosedRepeat,
    /// `\{x\}`, `\{2,1\}`.
    #[error(r"invalid content of `\{{…\}}`")]
    RepeatContent,
    /// `[z-a]`, `[a-c-e]`.
    #[error("invalid range end in `[…]`")]
    RangeEnd,
    /// `[[:foo:]]`.
    #[error("invalid character class name in `[…]`")]
    ClassName,
    /// `[[.foo.]]`, `[[=foo=]]`.
    #[error("invalid collation character in `[…]`")]
    Collation,
    /// `[:space:]`.
    #[error("character class syntax is `[[:space:]]`, not `[:space:]`")]
    ClassOutsideBrackets,
    /// `\1` before group 1 has ended, or in another alternative.
    #[error("invalid back reference")]
    BackReference,
    /// `a\b*`: grep accepts it, but its two parsers disagree on it.
    #[error(r"a repetition of `\<`, `\>`, `\b` or `\B`, on which the parsers of grep disagree")]
    RepeatedAnchor,
    /// Repetitions of repetitions, or deeply nested groups.
    #[error("too large or too deeply nested")]
    TooLarge,
}
