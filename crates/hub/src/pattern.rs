//! Matches paths within a repository against patterns.

use glob::{MatchOptions, Pattern};

use crate::error::HubError;

const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// A pattern, and the folder of the files that the pattern matches.
#[derive(Debug)]
pub(crate) struct FilePattern {
    pattern: Pattern,
    /// The folder that contains all files that match. The root folder is empty.
    pub(crate) folder: String,
    /// Whether files in subfolders of `folder` may match.
    pub(crate) is_deep: bool,
}

impl FilePattern {
    /// Parses a pattern. An empty text matches every file without a leading dot.
    ///
    /// # Errors
    /// Returns `HubError::Pattern` if the text is not a valid pattern.
    pub(crate) fn parse(text: &str) -> Result<FilePattern, HubError> {
        let text = if text.is_empty() { "**/*" } else { text };
        let bad = |error: glob::PatternError| HubError::Pattern { pattern: text.into(), reason: error.msg.into() };
        let pattern = Pattern::new(text).map_err(bad)?;
        let literal = &text[..text.find(['*', '?', '[']).unwrap_or(text.len())];
        let (folder, rest) = match literal.rfind('/') {
            Some(end) => (&text[..end], &text[end + 1..]),
            None => ("", text),
        };
        Ok(FilePattern { pattern, folder: folder.to_owned(), is_deep: rest.contains('/') || rest.contains("**") })
    }

    pub(crate) fn matches(&self, path: &str) -> bool {
        self.pattern.matches_with(path, OPTIONS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_folder_is_the_literal_prefix() {
        let cases = [
            ("data/train-*.parquet", "data", false),
            ("data/**/*.json", "data", true),
            ("data/**", "data", true),
            ("a/b/c.txt", "a/b", false),
            ("a*/c.txt", "", true),
            ("*.json", "", false),
            ("a/[x]/b", "a", true),
            ("", "", true),
        ];
        for (text, folder, is_deep) in cases {
            let pattern = FilePattern::parse(text).unwrap();
            assert_eq!((pattern.folder.as_str(), pattern.is_deep), (folder, is_deep), "{text}");
        }
    }

    #[test]
    fn patterns_match_as_on_a_volume() {
        let matches = |pattern: &str, path| FilePattern::parse(pattern).unwrap().matches(path);
        assert!(matches("**/*.json", "a.json") && matches("**/*.json", "x/y/a.json"));
        assert!(matches("data/?[0-9].txt", "data/a7.txt"));
        assert!(!matches("data/*", "data/x/a") && !matches("*", ".gitattributes"));
        assert!(matches("", "a") && matches("", "x/a") && !matches("", ".gitattributes"));
        assert!(FilePattern::parse("a/***").unwrap_err().to_string().contains("\"a/***\" is not a valid pattern"));
    }

    proptest! {
        #[test]
        fn files_that_match_are_in_the_folder(pattern in "[ab/*?]{1,8}", path in "[ab]{1,2}(/[ab]{1,2}){0,3}") {
            if let Ok(pattern) = FilePattern::parse(&pattern)
                && pattern.matches(&path)
            {
                let (folder, _) = path.rsplit_once('/').unwrap_or(("", &path));
                prop_assert!(folder == pattern.folder || pattern.is_deep);
                let folder = format!("{}/", pattern.folder);
                prop_assert!(pattern.folder.is_empty() || path.starts_with(&folder));
            }
        }
    }
}
