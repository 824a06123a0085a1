//! The schema of a path on the volume; `validate::names` has the same rules in Rust.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The schema of a path on the volume: relative, inside it, not empty. The fields themselves are plain strings.
pub(super) struct VolumePath;

impl JsonSchema for VolumePath {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "VolumePath".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            // Linux' PATH_MAX; the rules' cost is reckoned from it.
            "maxLength": 4096,
            "x-kubernetes-validations": [
                {"rule": "!self.startsWith('/')", "message": "is absolute: give a path relative to the volume's root"},
                {"rule": "!self.matches('(^|/)[.][.](/|$)')", "message": "leaves the volume by `..`: give a path inside it"},
                {"rule": "!self.contains('\\x00')", "message": "holds a NUL character, which no path can"},
            ],
        })
    }
}
