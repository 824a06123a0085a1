//! Matches keys within a bucket against patterns.

use glob::{MatchOptions, Pattern};

use crate::error::ObjectError;

const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// A pattern, and the common prefix of the keys that the pattern matches.
#[derive(Debug)]
pub(crate) struct KeyPattern {
    pattern: Pattern,
    /// The common literal prefix of all matching keys.
    pub(crate) prefix: String,
    /// Whether a matching key may contain a slash after the prefix.
    pub(crate) is_deep: bool,
    /// Whether the pattern is a plain key, without wildcards.
    pub(crate) is_literal: bool,
}

impl KeyPattern {
    /// Parses a pattern. An empty text matches every key without a leading dot.
    ///
    /// # Errors
    /// Returns `ObjectError::Pattern` if the text is not a valid pattern.
    pub(crate) fn parse(text: &str) -> Result<KeyPattern, ObjectError> {
        let text = if text.is_empty() { "**/*" } else { text };
        let bad = |error: glob::PatternError| ObjectError::Pattern { pattern: text.into(), reason: error.msg.into() };
        let pattern = Pattern::new(text).map_err(bad)?;
        let (prefix, rest) = text.split_at(text.find(['*', '?', '[']).unwrap_or(text.len()));
        let is_deep = rest.contains('/') || rest.contains("**");
        Ok(KeyPattern { pattern, prefix: prefix.to_owned(), is_deep, is_literal: rest.is_empty() })
    }

    pub(crate) fn matches(&self, key: &str) -> bool {
        self.pattern.matches_with(key, OPTIONS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_literal_prefix_is_found() {
        let cases = [
            ("data/train-*.parquet", "data/train-", false, false),
            ("data/**/*.json", "data/", true, false),
            ("a/b/c.txt", "a/b/c.txt", false, true),
            ("a*/c.txt", "a", true, false),
            ("a/[x]", "a/", false, false),
            ("", "", true, false),
        ];
        for (text, prefix, is_deep, is_literal) in cases {
            let pattern = KeyPattern::parse(text).unwrap();
            assert_eq!((pattern.prefix.as_str(), pattern.is_deep, pattern.is_literal), (prefix, is_deep, is_literal));
        }
    }

    #[test]
    fn patterns_match_as_on_a_volume() {
        let matches = |pattern: &str, key| KeyPattern::parse(pattern).unwrap().matches(key);
        assert!(matches("**/*.json", "a.json") && matches("**/*.json", "x/y/a.json"));
        assert!(matches("data/?[0-9].txt", "data/a7.txt"));
        assert!(!matches("data/*", "data/x/a") && !matches("*", ".hidden") && matches(".h*", ".hidden"));
        assert!(matches("", "a") && matches("", "x/a") && !matches("", ".hidden"));
        assert!(KeyPattern::parse("a/***").unwrap_err().to_string().contains("\"a/***\" is not a valid pattern"));
    }

    proptest! {
        #[test]
        fn keys_that_match_have_the_prefix(pattern in "[ab/*?]{1,8}", key in "[ab]{1,2}(/[ab]{1,2}){0,3}") {
            if let Ok(pattern) = KeyPattern::parse(&pattern)
                && pattern.matches(&key)
            {
                let rest = key.strip_prefix(&pattern.prefix);
                prop_assert!(rest.is_some_and(|rest| pattern.is_deep || !rest.contains('/')));
                prop_assert!(!pattern.is_literal || key == pattern.prefix);
            }
        }
    }
}
