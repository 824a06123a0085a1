//! The condition that shows whether another client writes the job's objects: `ObjectsInSync`.

use stagecoach_api::job::condition_reason as reason;

use super::super::StatusInputs;
use super::{ConditionValue, value};
use crate::observe::{ChangedObject, operator_of};

pub(super) fn in_sync(inputs: &StatusInputs) -> ConditionValue {
    if inputs.decision.state.outcome().is_some() {
        return value("True", reason::IN_SYNC, "the job has ended, so the operator does not repair its objects");
    }
    let contested = &inputs.contested;
    let writers = contested.iter().filter_map(|object| operator_of(object.changed_by.as_deref()?));
    let mut operators: Vec<&str> = inputs.other_operators.iter().map(String::as_str).chain(writers).collect();
    if !operators.is_empty() {
        // all operators write the same sentence, so that no operator replaces the sentence of another operator
        operators.extend(operator_of(inputs.field_manager));
        operators.sort_unstable();
        operators.dedup();
        return value(
            "False",
            reason::OTHER_OPERATOR,
            format!(
                "{} operators reconcile this job: {}; give each of them its own namespaces (watchNamespaces of the \
                 chart), or uninstall all but one",
                operators.len(),
                operators.join(", ")
            ),
        );
    }
    if let [first, ..] = &contested[..] {
        return value("False", reason::CHANGED_BY_OTHERS, describe(first));
    }
    value("True", reason::IN_SYNC, "no other client changes the job's objects")
}

fn describe(ChangedObject { kind, name, changed_by }: &ChangedObject) -> String {
    let (does, remedy) = match changed_by {
        Some(manager) => (format!("the client {manager} changes"), "stop it"),
        None => ("another client deletes".to_owned(), "find it in the API server's audit log and stop it"),
    };
    format!(
        "{does} the {kind:?} {name} each time that the operator repairs it, so that repairs pause for up to a minute: {remedy}"
    )
}
