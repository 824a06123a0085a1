//! Tests that the fields in the YAML blocks of the documentation belong to a valid job.

use serde_json::Value;

use crate::jobs::{MINIMAL, with};

const PAGES: [(&str, &str); 10] = [
    ("CHECKPOINTS.md", include_str!("../../../../docs/CHECKPOINTS.md")),
    ("COMMANDS.md", include_str!("../../../../docs/COMMANDS.md")),
    ("CUSTOM-TRAINER.md", include_str!("../../../../docs/CUSTOM-TRAINER.md")),
    ("DATA.md", include_str!("../../../../docs/DATA.md")),
    ("FINE-TUNING.md", include_str!("../../../../docs/FINE-TUNING.md")),
    ("GITOPS.md", include_str!("../../../../docs/GITOPS.md")),
    ("GPUS.md", include_str!("../../../../docs/GPUS.md")),
    ("OPERATIONS.md", include_str!("../../../../docs/OPERATIONS.md")),
    ("SECURITY.md", include_str!("../../../../docs/SECURITY.md")),
    ("STORAGE.md", include_str!("../../../../docs/STORAGE.md")),
];

/// The fields of `spec` by which the test recognises a YAML block as a part of a job.
const FIELDS: [&str; 10] = [
    "stages",
    "dataParallel",
    "spares",
    "model",
    "data",
    "training",
    "pipeline",
    "checkpoint",
    "restart",
    "networkPolicy",
];

/// Returns the YAML blocks of a page.
fn blocks(page: &str) -> Vec<&str> {
    page.split("```yaml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect()
}

/// Returns the fields of a block, each with its path below `spec` and its value. `None` if the block is no part of a
/// job.
fn fields(block: &str) -> Option<Vec<(String, String)>> {
    let value: Value = serde_saphyr::from_str(block).unwrap_or_else(|error| panic!("{error} in\n{block}"));
    let spec = value.get("spec").unwrap_or(&value).as_object()?;
    if !spec.keys().any(|key| FIELDS.contains(&key.as_str())) || value.get("kind").is_some() {
        return None;
    }
    let mut fields = Vec::new();
    for (key, value) in spec {
        match value {
            // The test sets these fields one by one, so that the minimal job keeps its other fields of `data` and
            // `training`.
            Value::Object(inner) if ["data", "training"].contains(&key.as_str()) => {
                fields.extend(inner.iter().map(|(name, value)| (format!("{key}.{name}"), value.to_string())));
                let has_sources = inner.contains_key("sources");
                fields.extend(has_sources.then(|| ("data.paths".to_owned(), "null".to_owned())));
            }
            _ => fields.push((key.clone(), value.to_string())),
        }
    }
    Some(fields)
}

#[test]
fn fields_in_the_documentation_are_those_of_a_valid_job() {
    let mut tried = 0;
    for (name, page) in PAGES {
        for block in blocks(page) {
            let Some(fields) = fields(block) else { continue };
            let fields: Vec<(&str, &str)> =
                fields.iter().map(|(path, value)| (path.as_str(), value.as_str())).collect();
            let job = with(MINIMAL, &fields).unwrap_or_else(|error| panic!("{name}: {error}\n{block}"));
            assert_eq!(job.validate(), [], "{name}:\n{block}");
            tried += 1;
        }
    }
    assert!(tried >= 10, "{tried} blocks");
}
