//! The rule that refuses a change of the fields that determine a job's results, once training has begun.

use super::ValidationRule;
use crate::job::{ChangeEffect, paths_with};

/// Returns the rule that, once an attempt exists, refuses a change of the fields that determine the results. The values
/// of these fields are the job's identity, and a job resumes only from a checkpoint with the same identity. A job that
/// was suspended from the start has no attempt, so these fields can still change.
///
/// All these fields share one rule, because the API server evaluates every rule at the root on every write of the
/// status, and most of the cost of a rule is reading the object. A write that changes the status can't change the spec,
/// so the first condition of the rule accepts such a write.
pub(super) fn unchanged() -> ValidationRule {
    const STATUS: &str = "has(self.status) && has(oldSelf.status) && self.status != oldSelf.status";
    const BEGAN: &str = "has(oldSelf.status) && has(oldSelf.status.attempt) && has(oldSelf.status.attempt.number) && \
                         oldSelf.status.attempt.number > 0";
    let identity = paths_with(ChangeEffect::Identity);
    let mut fixed: Vec<(&str, String)> = identity.iter().map(|path| (path.as_str(), same(path))).collect();
    // The presence of `data.evaluation` matters by itself, because an evaluation without fields holds out the default
    // fraction.
    let evaluation = ["self", "oldSelf"].map(|object| format!("({})", is_given(object, EVALUATION)));
    fixed.push((EVALUATION, evaluation.join(" == ")));
    let none_changed: Vec<&str> = fixed.iter().map(|(_, is_same)| is_same.as_str()).collect();
    let first_changed = fixed
        .iter()
        .rfold("'spec'".to_owned(), |otherwise, (path, is_same)| format!("!({is_same}) ? 'spec.{path}' : {otherwise}"));
    let same_decay: Vec<String> = paths_with(ChangeEffect::Extension).iter().map(|path| same(path)).collect();
    let decay_fits = format!("({} || {LONGER})", same_decay.join(" && "));
    let rate_left = format!("(!({LONGER}) || {ADDED_STEPS_HAVE_RATE})");
    let blocks_left = format!("({BLOCKS_ARE_ENOUGH})");
    ValidationRule {
        at: "",
        field: ".spec".into(),
        rule: format!(
            "{STATUS} || !({BEGAN}) || {} && {decay_fits} && {rate_left} && {blocks_left}",
            none_changed.join(" && ")
        )
        .into(),
        message: format!(
            "!{decay_fits} ? \"{OTHER_DECAY}\" : !{rate_left} ? \"{RATE_ZERO}\" : !{blocks_left} ? \
             \"{MORE_REPLICAS}\" : ({first_changed}) + \" {KEPT}\""
        )
        .into(),
        is_expression: true,
    }
}

/// The path of the object whose presence alone affects the results.
const EVALUATION: &str = "data.evaluation";

/// The condition that the new spec has more steps or more epochs than the old spec. The API server can't compare steps
/// with epochs, because it does not have the corpus.
const LONGER: &str = "has(self.spec.training) && has(oldSelf.spec.training) && (has(self.spec.training.steps) && \
                      has(oldSelf.spec.training.steps) && self.spec.training.steps > oldSelf.spec.training.steps || \
                      has(self.spec.training.epochs) && has(oldSelf.spec.training.epochs) && \
                      self.spec.training.epochs > oldSelf.spec.training.epochs)";

/// The condition that the added steps have a learning rate above 0, or that the job itself sets the end of the decay.
const ADDED_STEPS_HAVE_RATE: &str = "has(self.spec.training.learningRate.decaySteps) || \
                                     self.spec.training.learningRate.floor > 0.0 || \
                                     self.spec.training.learningRate.schedule == 'Constant'";

/// The condition that the job gets no more replicas than before, or sets `gradientBlocks`. A job without this field
/// keeps the number of gradient blocks that its first attempt needed, and each replica needs at least one block.
const BLOCKS_ARE_ENOUGH: &str = "(has(self.spec.elastic) ? self.spec.elastic.maxDataParallel : \
                                 self.spec.dataParallel) <= (has(oldSelf.spec.elastic) ? \
                                 oldSelf.spec.elastic.maxDataParallel : oldSelf.spec.dataParallel) || \
                                 !has(self.spec.training) || has(self.spec.training.gradientBlocks)";

const MORE_REPLICAS: &str = "spec can't be changed to more replicas (dataParallel or elastic.maxDataParallel) once \
                             training has begun, since spec.training.gradientBlocks is not given: the job has only \
                             as many gradient blocks as its first attempt needed; create a new job with more \
                             gradient blocks (its checkpoint.initFrom can name this job's folder)";

const OTHER_DECAY: &str = "spec.training.learningRate.decaySteps can't be changed once training has begun, except \
                           together with more training.steps or training.epochs: it then applies to the added steps";

const RATE_ZERO: &str = "spec.training can't be changed to more steps or epochs without learningRate.decaySteps: the \
                         decay ends at the old last step, and with a floor of 0 the learning rate of the added steps \
                         would be 0; set decaySteps";

const KEPT: &str = "can't be changed once training has begun, because it determines the results: create a new job, \
                    whose checkpoint.initFrom can name this job's folder";

/// Returns the condition that a field of the spec, which may be absent, has not changed. CEL's optional values would be
/// shorter, but the API server can't compute the cost of comparing them.
fn same(path: &str) -> String {
    let (now, before) = (is_given("self", path), is_given("oldSelf", path));
    format!("({now}) == ({before}) && (!({now}) || self.spec.{path} == oldSelf.spec.{path})")
}

/// Returns the condition that `object` has the field `path` of the spec and all objects that contain this field.
fn is_given(object: &str, path: &str) -> String {
    let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
    ends.map(|end| format!("has({object}.spec.{})", &path[..end])).collect::<Vec<_>>().join(" && ")
}
