//! Matches paths against glob patterns.

use glob::{MatchOptions, Pattern};

/// The options with which all sources match paths: `*` matches neither a slash nor a leading dot.
pub const MATCH_OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// A pattern of paths in a repository or of keys in a bucket, with `*`, `?`, `[a-z]` and `**`.
#[derive(Debug)]
pub struct PathPattern {
    pattern: Pattern,
    /// The text before the first wildcard.
    prefix: String,
    /// The text from the first wildcard on.
    rest: String,
}

impl PathPattern {
    /// Parses a pattern. An empty text matches every path in which no name begins with a dot.
    ///
    /// # Errors
    /// Returns the reason if the text is not a valid pattern.
    pub fn parse(text: &str) -> Result<PathPattern, &'static str> {
        let text = if text.is_empty() { "**/*" } else { text };
        let pattern = Pattern::new(text).map_err(|error| error.msg)?;
        let (prefix, rest) = text.split_at(text.find(['*', '?', '[']).unwrap_or(text.len()));
        Ok(PathPattern { pattern, prefix: prefix.to_owned(), rest: rest.to_owned() })
    }

    /// Returns whether `path` matches the pattern.
    pub fn matches(&self, path: &str) -> bool {
        self.pattern.matches_with(path, MATCH_OPTIONS)
    }

    /// The text with which all matching paths begin.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The folder that contains all matching paths. The root folder is empty.
    pub fn folder(&self) -> &str {
        self.prefix.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Whether a matching path may contain a slash after the prefix.
    pub fn is_deep(&self) -> bool {
        self.rest.contains('/') || self.rest.contains("**")
    }

    /// Whether the pattern is a plain path, without wildcards.
    pub fn is_literal(&self) -> bool {
        self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_literal_beginning_is_found() {
        let cases = [
            ("data/train-*.parquet", "data/train-", "data", false, false),
            ("data/**/*.json", "data/", "data", true, false),
            ("data/**", "data/", "data", true, false),
            ("a/b/c.txt", "a/b/c.txt", "a/b", false, true),
            ("a*/c.txt", "a", "", true, false),
            ("*.json", "", "", false, false),
            ("a/[x]", "a/", "a", false, false),
            ("a/[x]/b", "a/", "a", true, false),
            ("", "", "", true, false),
        ];
        for (text, prefix, folder, is_deep, is_literal) in cases {
            let pattern = PathPattern::parse(text).unwrap();
            assert_eq!((pattern.prefix(), pattern.folder()), (prefix, folder), "{text}");
            assert_eq!((pattern.is_deep(), pattern.is_literal()), (is_deep, is_literal), "{text}");
        }
    }

    #[test]
    fn patterns_match_as_on_a_volume() {
        let matches = |pattern: &str, path| PathPattern::parse(pattern).unwrap().matches(path);
        assert!(matches("**/*.json", "a.json") && matches("**/*.json", "x/y/a.json"));
        assert!(matches("data/?[0-9].txt", "data/a7.txt"));
        assert!(!matches("data/*", "data/x/a") && !matches("*", ".hidden") && matches(".h*", ".hidden"));
        assert!(matches("", "a") && matches("", "x/a") && !matches("", ".hidden"));
        assert!(PathPattern::parse("a/***").is_err());
    }

    proptest! {
        #[test]
        fn matching_paths_have_the_prefix(pattern in "[ab/*?]{1,8}", path in "[ab]{1,2}(/[ab]{1,2}){0,3}") {
            if let Ok(pattern) = PathPattern::parse(&pattern)
                && pattern.matches(&path)
            {
                let rest = path.strip_prefix(pattern.prefix());
                prop_assert!(rest.is_some_and(|rest| pattern.is_deep() || !rest.contains('/')));
                prop_assert!(!pattern.is_literal() || path == pattern.prefix());
                let (folder, _) = path.rsplit_once('/').unwrap_or(("", &path));
                prop_assert!(folder == pattern.folder() || pattern.is_deep());
            }
        }
    }
}
