//! Finds a field by its path, and reports a path that names no field.

use std::fmt;

use super::Field;
use crate::job::KIND;
use crate::parse::{list, nearest};

/// The names of the resource with which a path for `kubectl explain` begins: singular, plural and short.
const RESOURCE: [&str; 3] = ["pipelinejob", "pipelinejobs", "pj"];

/// The error of a path that names no field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownField {
    /// The path of the object that lacks the field. Empty for the PipelineJob itself.
    pub object: String,
    /// The name that is no field of the object.
    pub name: String,
    /// The path that the user most likely meant. `None` if no field has a similar name.
    pub nearest: Option<String>,
    /// The names of the object's fields.
    pub known: Vec<String>,
}

impl std::error::Error for UnknownField {}

impl fmt::Display for UnknownField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = if self.object.is_empty() { KIND } else { &self.object };
        write!(f, "`{object}` has no field `{}`: ", self.name)?;
        if self.known.is_empty() {
            return f.write_str("the schema lists none");
        }
        match &self.nearest {
            Some(nearest) => write!(f, "did you mean `{nearest}`? Expected ")?,
            None => f.write_str("expected ")?,
        }
        list(f, &self.known.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

impl Field {
    /// Returns the field at a path such as `spec.data.paths`. `self` is the PipelineJob. The path may begin with the
    /// resource, as in `pipelinejob.spec.data.paths`, and may contain the index of an item, as in `spec.data.paths[0]`.
    ///
    /// # Errors
    /// The path has a name that is no field.
    pub fn find(&self, path: &str) -> Result<&Self, UnknownField> {
        let names = path.split('.').map(|name| name.split_once('[').map_or(name, |(name, _)| name));
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        let is_resource = |name: &&str| RESOURCE.iter().any(|resource| resource.eq_ignore_ascii_case(name));
        let mut names = &names[usize::from(names.first().is_some_and(is_resource))..];
        let mut field = self;
        while let [name, below @ ..] = names {
            let named = field.fields.iter().find(|field| field.name() == *name);
            field = named.ok_or_else(|| field.unknown(name, names))?;
            names = below;
        }
        Ok(field)
    }

    /// Returns the error for `name`, which is no field of this object. `names` is the rest of the path, which begins
    /// with `name`.
    fn unknown(&self, name: &str, names: &[&str]) -> UnknownField {
        let known: Vec<&str> = self.fields.iter().map(Self::name).collect();
        let path_of = |name: &str| self.fields.iter().find(|field| field.name() == name).map(|field| &field.path);
        let near = nearest(name, &known).and_then(path_of);
        let near = near.or_else(|| self.deeper(&names.join("."))).or_else(|| self.deeper(name));
        UnknownField {
            object: self.path.clone(),
            name: name.to_owned(),
            nearest: near.cloned(),
            known: known.into_iter().map(str::to_owned).collect(),
        }
    }

    /// Returns the shortest path below this field that ends with `end`. Users most often leave out the beginning of a
    /// path.
    fn deeper(&self, end: &str) -> Option<&String> {
        let end = format!(".{end}");
        let paths = self.all().map(|field| &field.path).filter(|path| path.ends_with(&end));
        paths.min_by_key(|path| path.split('.').count())
    }
}
