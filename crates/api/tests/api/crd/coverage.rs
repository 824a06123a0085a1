//! Tests that the tables of `rows` and `generated` have a row for every constraint of the CRD. A row has a manifest
//! that breaks the constraint. The constraints are each bound, enum and required field, each object in which a field's
//! name can be mistyped, each list with keys, and each rule in CEL.

use std::collections::BTreeSet;

use super::rows::{Row, rows, transitions};
use super::schema::{constraints, root, violated_constraints, walk};
use super::{generated, schema::SchemaConstraint};

#[test]
fn every_constraint_of_the_schema_has_a_row() {
    let root = root();
    let mut lacking: BTreeSet<SchemaConstraint> = constraints(&root).into_iter().collect();
    assert!(lacking.len() > 650, "{}", lacking.len());
    let (written, generated) = (rows(), generated::rows());
    assert!(written.len() > 200, "{}", written.len());
    for row in written.iter().chain(&generated).filter(|row| row.server.is_some()) {
        let found: BTreeSet<_> =
            violated_constraints(&root, &row.manifest).into_iter().chain(row.breaks.clone()).collect();
        // A row that breaks two constraints would not show which of them refuses it.
        assert!(found.len() <= 1, "{:?} breaks {found:?}", row.changed);
        lacking.retain(|constraint| !found.contains(constraint));
    }
    assert_eq!(lacking, BTreeSet::new(), "no row breaks these");
}

/// A validation rule: the field that its refusal names, its message, and whether it compares the job with the old job.
struct CrdRule {
    field: String,
    message: String,
    is_transition: bool,
}

fn rules() -> Vec<CrdRule> {
    let mut rules = Vec::new();
    walk(&root(), "", &mut |path, schema| {
        for rule in schema.get("x-kubernetes-validations").and_then(|rules| rules.as_array()).into_iter().flatten() {
            let text = |key: &str| rule[key].as_str().unwrap_or_default().to_owned();
            let field = format!("{path}{}", text("fieldPath")).trim_start_matches('.').to_owned();
            for message in messages(&text("message"), &text("messageExpression")) {
                rules.push(CrdRule { field: field.clone(), message, is_transition: text("rule").contains("oldSelf") });
            }
        }
    });
    rules
}

/// Returns the messages that a rule may give. In a message expression, each text in double quotes is a message, except
/// the last one. The expression appends this last text to the name of a field, which is in single quotes.
fn messages(message: &str, expression: &str) -> Vec<String> {
    let mut sentences: Vec<String> = expression.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    let Some(rest) = sentences.pop() else { return vec![message.to_owned()] };
    let code = expression.split('"').step_by(2);
    let names = code.flat_map(|code| code.split('\'').skip(1).step_by(2)).filter(|name| name.starts_with("spec."));
    sentences.extend(names.map(|name| format!("{name}{rest}")));
    sentences
}

/// Whether a refusal such as `spec.data: Invalid value: … is missing` belongs to the rule.
fn is_of(words: &str, rule: &CrdRule) -> bool {
    let Some((field, message)) = words.split_once(": Invalid value: … ") else { return false };
    // the refusal has the indices of list items, and the rule has empty brackets
    let field: String = field.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    field == rule.field && rule.message.contains(message)
}

#[test]
fn every_rule_has_a_row() {
    let rules = rules();
    assert!(rules.len() > 55, "{}", rules.len());
    let refused = rows().into_iter().filter_map(|row| row.server);
    let created: Vec<String> = refused.collect();
    let changed: Vec<String> = transitions().into_iter().filter_map(|row| row.refused).collect();
    for rule in &rules {
        let words = if rule.is_transition { &changed } else { &created };
        assert!(words.iter().any(|words| is_of(words, rule)), "no row breaks {}: {}", rule.field, rule.message);
    }
}

/// Each refused row breaks a constraint of the schema, breaks a rule, or expects a message that only Kubernetes' own
/// checks write.
#[test]
fn every_row_is_about_something_in_the_crd() {
    let (root, rules) = (root(), rules());
    let is_kubernetes_own = |words: &str| {
        ["RFC 1123", "name or generateName", "limits.memory in body should match"].iter().any(|own| words.contains(own))
    };
    for Row { manifest, changed, server, .. } in rows() {
        let Some(words) = server else {
            assert_eq!(violated_constraints(&root, &manifest), [], "{changed:?}");
            continue;
        };
        let is_rule = rules.iter().any(|rule| is_of(&words, rule));
        assert!(
            is_rule || is_kubernetes_own(&words) || !violated_constraints(&root, &manifest).is_empty(),
            "{changed:?}: {words}"
        );
    }
}
