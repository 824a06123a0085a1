//! Writes the documentation of a field in the form of `kubectl explain`, with further facts from the schema.

use stagecoach_api::explain::Field;
use stagecoach_api::job::{API_VERSION, ChangeEffect, KIND};

use crate::format::wrap;

/// Returns the text of `stagecoach explain` in lines of `width` columns. The text has the meaning and the values of the
/// field, and the first sentence about each of its subfields.
pub fn explain(field: &Field, width: usize) -> String {
    let fields: Vec<String> = field.fields.iter().map(|below| summary(below, width)).collect();
    with_fields(field, &fields.join("\n\n"), width)
}

/// Returns the text of [`explain`] with the names and types of all nested fields, instead of the sentences about
/// subfields.
pub fn explain_recursively(field: &Field, width: usize) -> String {
    let mut tree = Vec::new();
    add_tree(field, 2, width, &mut tree);
    with_fields(field, &tree.join("\n"), width)
}

fn with_fields(field: &Field, fields: &str, width: usize) -> String {
    let (group, version) = API_VERSION.split_once('/').unwrap_or_default();
    let mut sections = vec![format!("GROUP:      {group}\nKIND:       {KIND}\nVERSION:    {version}")];
    if !field.path.is_empty() {
        sections.push(facts(field, width));
    }
    sections.push(format!("DESCRIPTION:\n{}", wrap(&field.description, 4, width)));
    if !field.refusals.is_empty() {
        sections.push(format!("REFUSALS:\n{}", wrap(&bullets(&field.refusals), 4, width)));
    }
    if let Some(effect) = field.change {
        sections.push(format!("CHANGE:\n{}", wrap(change(effect), 4, width)));
    }
    if !fields.is_empty() {
        sections.push(format!("FIELDS:\n{fields}"));
    }
    sections.join("\n\n")
}

/// Returns the name and the type of a field, and the values that the field may have.
fn facts(field: &Field, width: usize) -> String {
    let mut facts = vec![format!("FIELD: {} {}", field.name(), kind(field))];
    if !field.choices.is_empty() {
        facts.push(format!("ENUM:\n{}", wrap(&field.choices.join("\n"), 4, width)));
    }
    if let Some(default) = &field.default {
        facts.push(format!("DEFAULT:\n{}", wrap(default, 4, width)));
    }
    if !field.limits.is_empty() {
        facts.push(format!("LIMITS:\n{}", wrap(&bullets(&field.limits), 4, width)));
    }
    facts.join("\n")
}

/// Returns a field as an entry in the list of an object's fields.
fn summary(field: &Field, width: usize) -> String {
    let mut lines = named(field, 2, width);
    // the default of an object is not shown, because its fields show their defaults
    if let Some(default) = field.default.as_ref().filter(|_| field.fields.is_empty()) {
        lines.push(wrap(&format!("default: {default}"), 2, width));
    }
    lines.push(wrap(first_sentence(&field.description), 4, width));
    lines.join("\n")
}

fn add_tree(field: &Field, indent: usize, width: usize, lines: &mut Vec<String>) {
    for below in &field.fields {
        lines.extend(named(below, indent, width));
        add_tree(below, indent + 2, width, lines);
    }
}

/// Returns the line of a field, and the line of its values, in kubectl's form.
fn named(field: &Field, indent: usize, width: usize) -> Vec<String> {
    let mut lines = vec![format!("{}{}\t{}", " ".repeat(indent), field.name(), kind(field))];
    if !field.choices.is_empty() {
        lines.push(wrap(&format!("enum: {}", field.choices.join(", ")), indent, width));
    }
    lines
}

fn kind(field: &Field) -> String {
    format!("<{}>{}", field.kind, if field.is_required { " -required-" } else { "" })
}

fn bullets(sentences: &[String]) -> String {
    sentences.iter().map(|sentence| format!("- {sentence}")).collect::<Vec<_>>().join("\n")
}

fn first_sentence(description: &str) -> &str {
    let paragraph = description.lines().next().unwrap_or_default();
    paragraph.find(". ").map_or(paragraph, |end| &paragraph[..=end])
}

fn change(effect: ChangeEffect) -> &'static str {
    match effect {
        ChangeEffect::Identity => {
            "A change is refused once training has begun, because the field determines the results."
        }
        ChangeEffect::Extension => "A change is refused once training has begun, except together with more steps.",
        ChangeEffect::Attempt => {
            "A change starts a new attempt: the stages save a checkpoint and exit, and the new attempt resumes from \
             this checkpoint."
        }
        ChangeEffect::Live => "A change takes effect in the running attempt.",
        ChangeEffect::Cluster => "The operator alone reads the field: it has no meaning outside a cluster.",
    }
}

#[cfg(test)]
mod tests;
