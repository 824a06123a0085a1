//! Tests that the table `CHANGES` has a row for every field of the spec, and that docs/REFERENCE.md agrees with it.

use std::collections::BTreeSet;

use stagecoach_api::job::CHANGES;

use super::schema;

const DOCUMENTATION: &str = include_str!("../../../../../docs/REFERENCE.md");

#[test]
fn every_field_of_the_spec_has_a_row() {
    let root = schema::root();
    let mut fields = BTreeSet::new();
    schema::walk(root.pointer("/properties/spec").unwrap(), "", &mut |path, schema| {
        let is_leaf = schema.get("properties").is_none() || path == "template";
        if is_leaf && !path.contains(['[', '{']) && !path.starts_with("template.") {
            fields.insert(path.to_owned());
        }
    });
    let rows: BTreeSet<String> = CHANGES.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(rows.len(), CHANGES.len(), "a field has two rows");
    assert_eq!(rows, fields, "left: rows of CHANGES, right: fields of the schema");
}

#[test]
fn the_documentation_lists_the_fields_by_what_their_change_does() {
    let (_, section) = DOCUMENTATION.split_once("\n## Effect of a change\n").unwrap();
    let lines: Vec<&str> = section.lines().skip_while(|line| !line.starts_with("|")).collect();
    let rows = lines.iter().take_while(|line| line.starts_with("|")).skip(2);
    let documented: Vec<(&str, &str)> = rows
        .flat_map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            cells[2].split('`').skip(1).step_by(2).map(move |path| (path, cells[1]))
        })
        .collect();
    let covers =
        |path: &str, field: &str| field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    for (field, effect) in CHANGES {
        let closest = documented.iter().filter(|(path, _)| covers(path, field)).max_by_key(|(path, _)| path.len());
        assert_eq!(closest.map(|(_, effect)| *effect), Some(format!("{effect:?}").as_str()), "{field}");
    }
    for (path, _) in &documented {
        let is_field = CHANGES.iter().any(|(field, _)| covers(path, field));
        assert!(is_field, "{path} is no field");
    }
}
