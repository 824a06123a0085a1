//! Finds the objects of a bucket that match a pattern.

use std::collections::HashSet;

use stagecoach_remote::PathPattern;

use crate::bucket::Bucket;
use crate::error::ObjectError;
use crate::object::Object;

/// The largest number of keys that an error names.
const NAMED_KEYS: usize = 3;

impl Bucket {
    /// Returns the objects that the pattern `text` matches, sorted by key.
    ///
    /// # Errors
    /// Returns `ObjectError::NoMatch` if no object matches. Also fails if the bucket can't be listed.
    pub(crate) fn matches(&self, text: &str) -> Result<Vec<Object>, ObjectError> {
        let pattern = PathPattern::parse(text)
            .map_err(|reason| ObjectError::Pattern { pattern: text.to_owned(), reason: reason.to_owned() })?;
        let objects = match pattern.is_literal() {
            true => self.find(text)?,
            false => self.list(&pattern)?,
        };
        if objects.is_empty() {
            let nearest = self.nearest(pattern.prefix())?;
            return Err(ObjectError::NoMatch { uri: self.uri.with_key(text), nearest });
        }
        Ok(objects)
    }

    fn find(&self, key: &str) -> Result<Vec<Object>, ObjectError> {
        match self.head(key) {
            Ok(object) => Ok(vec![object]),
            Err(ObjectError::NoObject { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn list(&self, pattern: &PathPattern) -> Result<Vec<Object>, ObjectError> {
        let (mut found, mut folders) = (Vec::new(), HashSet::new());
        let mut page_token = None;
        loop {
            let page = self.page(pattern.prefix(), pattern.is_deep(), page_token)?;
            folders.extend(page.result.common_prefixes.iter().map(ToString::to_string));
            for meta in page.result.objects {
                let key = meta.location.as_ref();
                folders.extend(key.match_indices('/').map(|(end, _)| key[..end].to_owned()));
                if pattern.matches(key) {
                    found.push(Object::new(&self.uri, meta));
                }
            }
            page_token = page.page_token;
            if page_token.is_none() {
                break;
            }
        }
        // the result leaves out empty objects with the name of a folder: web consoles create such objects for folders,
        // and `object_store` removes the slash at the end of their keys
        found.retain(|object| object.size > 0 || !folders.contains(&object.uri.key));
        found.sort_by(|one, other| one.uri.key.cmp(&other.uri.key));
        found.dedup_by(|one, other| one.uri == other.uri);
        Ok(found)
    }

    /// Describes the contents of the deepest non-empty folder on the path `prefix` in a sentence.
    fn nearest(&self, prefix: &str) -> Result<String, ObjectError> {
        let mut folder = prefix;
        loop {
            folder = &folder[..folder.rfind('/').map_or(0, |end| end + 1)];
            let page = self.page(folder, false, None)?;
            let objects = page.result.objects.iter().map(|object| object.location.to_string());
            let folders = page.result.common_prefixes.iter().map(|folder| format!("{folder}/"));
            let mut names: Vec<_> =
                objects.chain(folders).filter(|name| name != folder.trim_end_matches('/')).collect();
            names.sort();
            let place = match folder.trim_end_matches('/') {
                "" => format!("the {}", self.uri.provider.bucket()),
                folder => format!("its folder {folder}"),
            };
            match (names.is_empty(), folder.is_empty()) {
                (true, true) => return Ok(format!("{place} is empty")),
                (true, false) => folder = folder.trim_end_matches('/'),
                (false, _) => return Ok(format!("{place} holds {}", some_of(&names, page.page_token.is_some()))),
            }
        }
    }
}

/// Returns the first names, and the number of further names if the listing is complete.
fn some_of(names: &[String], has_more: bool) -> String {
    let named = &names[..names.len().min(NAMED_KEYS)];
    match (names.len() - named.len(), has_more) {
        (0, false) => named.join(", "),
        (others, false) => format!("{} and {others} more", named.join(", ")),
        (_, true) => format!("{} and more", named.join(", ")),
    }
}
