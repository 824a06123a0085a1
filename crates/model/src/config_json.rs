//! Reads Hugging Face's `config.json` by the rules that all models share.

use serde_json::{Map, Value};

mod keys;
mod rope;

pub(crate) use keys::with_kept_fields;
#[cfg(test)]
pub(crate) use keys::{Role, role};
pub(crate) use rope::RopeScaling;

/// The content of a `config.json`. A null field is treated as absent.
pub(crate) struct ConfigJson(pub(crate) Map<String, Value>);

impl ConfigJson {
    /// Returns the value of a field that is not null.
    pub(crate) fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    /// Reads a field with `read`. Returns `default` if the field is absent.
    pub(crate) fn optional<T>(
        &self,
        field: &str,
        read: fn(&Self, &str) -> Result<T, String>,
        default: T,
    ) -> Result<T, String> {
        if self.get(field).is_some() { read(self, field) } else { Ok(default) }
    }

    /// Reads a field that must be a whole number, from 1 to 2^32.
    pub(crate) fn positive_integer(&self, field: &str) -> Result<usize, String> {
        let value = self.get(field).ok_or_else(|| format!("lacks {field}"))?;
        let whole = || value.as_f64().filter(|size| size.fract() == 0.0 && *size > 0.0).map(|size| size as u64);
        let size = value.as_u64().or_else(whole).filter(|&size| size > 0 && size <= 1 << 32);
        size.map(|size| size as usize).ok_or_else(|| format!("{field} is {value}, expected a positive whole number"))
    }

    /// Reads a field that must be a number above 0.
    pub(crate) fn positive_number(&self, field: &str) -> Result<f64, String> {
        let value = self.get(field).ok_or_else(|| format!("lacks {field}"))?;
        value.as_f64().filter(|&v| v > 0.0).ok_or_else(|| format!("{field} is {value}, expected a positive number"))
    }

    /// Reads a field that must be true or false.
    pub(crate) fn boolean(&self, field: &str) -> Result<bool, String> {
        let value = self.get(field).ok_or_else(|| format!("lacks {field}"))?;
        value.as_bool().ok_or_else(|| format!("{field} is {value}, expected true or false"))
    }
}
