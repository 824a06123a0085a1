//! The schema of a path on the volume. Its rules in CEL are in Rust in `validate::names`, for fields with the mark
//! `x-volume-path`.

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
            "x-expected": "give a path relative to the volume's root",
            "x-volume-path": true,
            // Linux' PATH_MAX; the rules' cost is computed from it.
            "maxLength": 4096,
            "x-kubernetes-validations": [
                {"rule": "!self.startsWith('/')", "message": "is absolute: give a path relative to the volume's root"},
                {"rule": "!self.matches('(^|/)[.][.](/|$)')", "message": "leaves the volume by `..`: give a path inside it"},
                {"rule": "!self.contains('\\x00')", "message": "holds a NUL character, which no path can"},
            ],
        })
    }
}
