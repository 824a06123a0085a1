//! Tests that Rust refuses the manifest of every row, either when it reads the manifest or in `validate`. The
//! exceptions are the rows that state why Rust accepts the manifest.

use serde_json::Value;
use stagecoach_api::{Problem, parse};

use super::generated::bounds;
use super::rows::{Row, job, put, rows, says, transitions};
use super::schema::{BOUNDS, root, violated_constraints, walk};

fn read(manifest: &Value) -> Result<Vec<String>, String> {
    let job = parse(&manifest.to_string(), "row").map_err(|error| error.to_string())?;
    Ok(job.validate().iter().map(Problem::to_string).collect())
}

#[test]
fn every_row_is_refused_in_rust_with_its_words() {
    for row in rows() {
        let Row { changed, parse, validate, .. } = &row;
        match (parse, validate, read(&row.manifest)) {
            (Some(words), None, Err(error)) => assert!(says(&error, words), "{changed:?}: {error}"),
            (None, Some(words), Ok(problems)) => {
                // words that begin with the field are the whole sentence
                let is_whole = words.starts_with("spec.") || words.starts_with("metadata.");
                let is_meant = |problem: &String| if is_whole { problem == words } else { says(problem, words) };
                assert!(problems.iter().any(is_meant), "{changed:?}: {problems:#?}");
            }
            (None, None, Ok(problems)) => assert_eq!(problems, Vec::<String>::new(), "{changed:?}"),
            (_, _, found) => panic!("{changed:?}: {found:?}"),
        }
        let only_one_side = (parse.is_some() || validate.is_some()) != row.server.is_some();
        assert_eq!(row.why.is_some(), only_one_side, "{changed:?}: `why` is for rows that only one side refuses");
    }
}

/// The bounds are written once, in the schema. Rust refuses a value out of bounds when it reads or validates a job, and
/// names the field.
#[test]
fn every_bound_of_the_spec_holds_in_rust() {
    let rows = bounds();
    assert!(rows.len() > 90, "{}", rows.len());
    for Row { manifest, changed, .. } in rows {
        let refused = read(&manifest).unwrap_or_else(|error| vec![error]);
        // An empty list in a rule of `podFailurePolicy` counts as absent, so the refusal names this rule instead of the
        // list.
        let rule = changed[0].rsplit_once('.').map(|(rule, _)| format!("{rule}: a rule has exactly one"));
        let is_named = |refusal: &String| {
            refusal.contains(&format!("{}: ", changed[0])) || rule.as_ref().is_some_and(|rule| refusal.contains(rule))
        };
        assert!(refused.iter().any(is_named), "{changed:?}: {refused:#?}");
    }
}

/// This crate checks only these keywords. Only an API server would enforce another keyword.
#[test]
fn the_spec_has_no_other_keywords() {
    const BY_READING: [&str; 10] = [
        "type",
        "format",
        "properties",
        "items",
        "required",
        "enum",
        "default",
        "description",
        "x-kubernetes-int-or-string",
        "pattern",
    ];
    let exclusive = ["exclusiveMinimum", "exclusiveMaximum", "x-kubernetes-validations"];
    walk(&root()["properties"]["spec"], "spec", &mut |path, schema| {
        let known = |key: &str| [BY_READING.as_slice(), &BOUNDS, &exclusive].concat().contains(&key);
        let other: Vec<&String> = schema.as_object().unwrap().keys().filter(|key| !known(key)).collect();
        assert!(other.is_empty() || path.starts_with("spec.template"), "{path}: {other:?}");
    });
}

#[test]
fn the_samples_are_accepted() {
    let samples = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../manifests/samples")).unwrap();
    for sample in samples {
        let text = std::fs::read_to_string(sample.unwrap().path()).unwrap();
        let manifest: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read(&manifest).unwrap(), Vec::<String>::new());
        assert_eq!(violated_constraints(&root(), &manifest), [], "{text}");
    }
}

/// A change that is accepted, or refused with "can't be changed", results in a job that could be created. Any other
/// refused change results in an invalid job.
#[test]
fn every_transition_leads_to_a_job_that_could_be_created() {
    for transition in transitions() {
        let mut manifest = job("minimal");
        for (path, value) in transition.before.iter().chain(&transition.set) {
            put(&mut manifest, path, Some(value.clone()));
        }
        let creatable = read(&manifest).unwrap().is_empty();
        let is_about_change = transition.refused.as_ref().is_none_or(|words| words.contains("can't be changed"));
        assert_eq!(creatable, is_about_change, "{transition:?}");
    }
}
