//! Tests of specs that other versions of Stagecoach wrote or read.

use serde_json::{Value, json};
use stagecoach_api::{StoredSpec, parse, parse_with};

use crate::jobs::{CUSTOM, FULL, MINIMAL};

#[test]
fn fields_at_their_default_are_left_out_and_read_back() {
    for text in [MINIMAL, FULL, CUSTOM] {
        let job = parse(text, "job.yaml").unwrap();
        let written = job.without_defaults();
        assert_eq!(parse(&written.to_string(), "job.yaml").unwrap(), job, "{written:#}");
        assert_eq!(written["spec"], job.spec.without_defaults());
    }
    let written = parse(MINIMAL, "job.yaml").unwrap().spec.without_defaults();
    let mut fields: Vec<&String> = written.as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["data", "model", "stages", "training"], "{written:#}");
    assert!(written["training"].get("optimizer").is_none(), "{written:#}");
}

/// The operator hashes the JSON of `without_defaults`. Another order of fields would restart the attempts of jobs that
/// an earlier version started.
#[test]
fn a_number_of_chunks_has_the_place_and_the_default_of_earlier_versions() {
    let others = r#""recompute":"Full","transport":"Tcp","encryption":"Required""#;
    for (schedule, given, written) in [
        ("1F1B", Some("1"), ""),
        ("1F1B", None, ""),
        ("Interleaved1F1B", Some("2"), r#""schedule":{"type":"Interleaved1F1B"},"virtualStages":2,"#),
        ("ZBVZeroBubble", Some("2"), r#""schedule":{"type":"ZBVZeroBubble"},"virtualStages":2,"#),
        ("ZBVZeroBubble", None, r#""schedule":{"type":"ZBVZeroBubble"},"virtualStages":2,"#),
    ] {
        let chunks = given.map(|number| format!("virtualStages: {number}, ")).unwrap_or_default();
        let pipeline = format!(
            "{{schedule: {{type: {schedule}}}, {chunks}recompute: Full, transport: Tcp, encryption: Required}}"
        );
        let job = parse_with(MINIMAL, "job.yaml", &[("pipeline".to_owned(), pipeline)]).unwrap();
        let expected = format!("{{{written}{others}}}");
        assert_eq!(job.spec.without_defaults()["pipeline"].to_string(), expected, "{schedule} {given:?}");
        assert_eq!(job.without_defaults()["spec"]["pipeline"].to_string(), expected, "{schedule} {given:?}");
    }
}

/// The operator hashes the JSON of `without_defaults`. The CRD of earlier versions filled in the default fraction, so
/// this fraction must not appear in the JSON.
#[test]
fn a_held_out_fraction_has_the_default_of_earlier_versions() {
    for (given, written) in [
        ("{}", "{}"),
        ("{fraction: 0.01, everySteps: 100}", "{}"),
        ("{fraction: 0.02}", r#"{"fraction":0.02}"#),
        ("{paths: [b.txt]}", r#"{"paths":["b.txt"]}"#),
        (
            "{fraction: 0.01, sets: [{name: a, paths: [b.txt]}]}",
            r#"{"fraction":0.01,"sets":[{"name":"a","paths":["b.txt"]}]}"#,
        ),
    ] {
        let job = parse_with(MINIMAL, "job.yaml", &[("data.evaluation".to_owned(), given.to_owned())]).unwrap();
        assert_eq!(job.spec.without_defaults()["data"]["evaluation"].to_string(), written, "{given}");
    }
}

#[test]
fn unknown_fields_are_dropped_and_named_and_unknown_words_are_refused() {
    let mut stored = serde_json::to_value(parse(FULL, "job.yaml").unwrap().spec).unwrap();
    let known = StoredSpec::from_json(&stored.to_string()).unwrap();
    assert_eq!(known.unknown_fields, [""; 0]);
    stored["newTop"] = json!({"a": 1});
    stored["pipeline"]["newField"] = json!(7);
    stored["restart"]["exitCodes"] = json!([{"codes": [3], "action": "Fail", "newKey": true}]);
    stored["template"] = json!({"spec": {"newerKubernetes": 1}});
    let read = StoredSpec::from_json(&stored.to_string()).unwrap();
    let mut unknown = read.unknown_fields.clone();
    unknown.sort();
    assert_eq!(unknown, ["spec.newTop", "spec.pipeline.newField", "spec.restart.exitCodes[0].newKey"]);
    assert_eq!(read.spec.pipeline, known.spec.pipeline);
    assert_eq!(read.spec.restart.exit_codes.len(), 1);
    assert_eq!(
        Value::Object(read.spec.template.unwrap().0),
        stored["template"],
        "the template is kept as it was written"
    );
    stored["networkPolicy"] = json!({"mode": "Newest"});
    assert!(StoredSpec::from_json(&stored.to_string()).unwrap_err().to_string().contains("Newest"));
}
