//! The schemas of paths on the volume and of URIs. `validate::names` has the same rules in Rust, for fields with the
//! keywords `x-volume-path`, `x-source-path` and `x-model-path`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

/// The schemes of the URIs that name files of a corpus outside the volume.
pub(crate) const SOURCE_SCHEMES: [&str; 4] = ["hf", "s3", "gs", "az"];

/// The end of the message that refuses the URI of a data set where the job expects a model.
pub(crate) const DATA_SET: &str = "is the URI of a data set: name a model, as in hf://OWNER/NAME";

/// The schema of a path on the volume: a relative path that is not empty and stays inside the volume. In Rust, the
/// fields with this schema are plain strings.
pub(super) struct VolumePath;

/// The schema of a path on the volume or of a URI with a scheme of [`SOURCE_SCHEMES`].
pub(super) struct SourcePath;

/// The schema of a path on the volume or of a model's URI on the Hugging Face hub.
pub(super) struct ModelPath;

impl JsonSchema for VolumePath {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "VolumePath".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let rule = "!self.contains('://')";
        path_schema("x-volume-path", rule, "is a URI: give a path relative to the volume's root")
    }
}

impl JsonSchema for SourcePath {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SourcePath".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let begins = SOURCE_SCHEMES.map(|scheme| format!("self.startsWith('{scheme}://')")).join(" || ");
        let rule = format!("!self.contains('://') || {begins}");
        let message = format!("is a URI of another scheme than {}", list_of_schemes());
        path_schema("x-source-path", &rule, &message)
    }
}

impl JsonSchema for ModelPath {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ModelPath".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let scheme = "!self.contains('://') || self.startsWith('hf://')";
        let mut schema = path_schema("x-model-path", scheme, "is a URI of another scheme than hf://");
        let data_set = json!({"rule": "!self.startsWith('hf://datasets/')", "message": DATA_SET});
        if let Some(Value::Array(rules)) = schema.get_mut("x-kubernetes-validations") {
            rules.push(data_set);
        }
        schema
    }
}

/// Returns the schemes in words, such as `hf:// and s3://`.
pub(crate) fn list_of_schemes() -> String {
    let schemes = SOURCE_SCHEMES.map(|scheme| format!("{scheme}://"));
    match schemes.split_last() {
        Some((last, rest @ [_, ..])) => format!("{} and {last}", rest.join(", ")),
        _ => schemes.concat(),
    }
}

fn path_schema(mark: &str, uri_rule: &str, uri_message: &str) -> Schema {
    let mut schema = json_schema!({
        "type": "string",
        "minLength": 1,
        "x-expected": "give a path relative to the volume's root",
        // The largest length is Linux' PATH_MAX. The rules use no regular expression, because the API server estimates
        // a rule's cost from this length, and the estimate would be too high.
        "maxLength": 4096,
        "x-kubernetes-validations": [
            {"rule": "!self.startsWith('/')", "message": "is absolute: give a path relative to the volume's root"},
            {
                "rule": "self != '..' && !self.startsWith('../') && !self.endsWith('/..') && !self.contains('/../')",
                "message": "leaves the volume by `..`: give a path inside it",
            },
            {"rule": "!self.contains('\\x00')", "message": "contains a NUL character, which a path can't contain"},
            {"rule": uri_rule, "message": uri_message},
        ],
    });
    schema.insert(mark.to_owned(), true.into());
    schema
}
