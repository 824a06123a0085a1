//! A table of all fields of the spec, with the effect of changing each field of an existing job. The table determines
//! which changes the CRD refuses, and which changes make the operator start a new attempt. The table also determines
//! three sets of fields: the fields of a checkpoint's identity, the fields that the launcher compares with an earlier
//! run, and the fields on which the stages must agree. The identity consists of the settings that determine the
//! results, and a job resumes only from a checkpoint with the same identity.

use serde_json::Value;

use super::{EvaluationSpec, PipelineJobSpec};

/// The effect of changing a field of an existing job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeEffect {
    /// The field determines the results of training, so a change is refused once training has begun.
    Identity,
    /// Like `Identity`, but a change is accepted together with more steps. The change applies to the added steps.
    Extension,
    /// All stages read the field when an attempt (one start of all stages) begins, so a change starts a new attempt.
    Attempt,
    /// The operator or the launcher reads the field for each decision, so a change takes effect in the running attempt.
    Live,
    /// Only the operator reads the field. A change does not affect the stages. The field has no meaning outside a
    /// cluster.
    Cluster,
}

use ChangeEffect::{Attempt, Cluster, Extension, Identity, Live};

/// Every field below `spec`, in the order of [`PipelineJobSpec`]: its path, and the effect of changing it.
pub const CHANGES: &[(&str, ChangeEffect)] = &[
    ("stages", Attempt),
    ("dataParallel", Attempt),
    ("elastic.minDataParallel", Live),
    ("elastic.maxDataParallel", Attempt),
    ("elastic.stabilizationWindowSeconds", Live),
    ("spares", Live),
    ("suspend", Live),
    ("managedBy", Cluster),
    ("trainer.type", Attempt),
    ("model.type", Identity),
    ("model.llama.modelType", Identity),
    ("model.llama.hiddenSize", Identity),
    ("model.llama.numHiddenLayers", Identity),
    ("model.llama.numAttentionHeads", Identity),
    ("model.llama.numKeyValueHeads", Identity),
    ("model.llama.headDim", Identity),
    ("model.llama.intermediateSize", Identity),
    ("model.llama.vocabSize", Identity),
    ("model.llama.maxPositionEmbeddings", Identity),
    ("model.llama.ropeTheta", Identity),
    ("model.llama.rmsNormEps", Identity),
    ("model.llama.tieWordEmbeddings", Identity),
    ("model.llama.initializerRange", Identity),
    ("model.pretrained.path", Identity),
    ("data.paths", Identity),
    ("data.sources", Identity),
    ("data.credentials.secretName", Attempt),
    ("data.format", Identity),
    ("data.chatTemplate", Identity),
    ("data.chatDate", Identity),
    ("data.onLongConversation", Identity),
    ("data.textField", Identity),
    ("data.specialTokens", Identity),
    ("data.onBadRecord", Identity),
    ("data.sequenceLength", Identity),
    ("data.packing", Identity),
    ("data.streaming.mode", Identity),
    ("data.streaming.windowSequences", Identity),
    ("data.streaming.blockBytes", Identity),
    ("data.cache.maxBytes", Attempt),
    // the held-out data determines which sequences remain for training
    ("data.evaluation.fraction", Identity),
    ("data.evaluation.paths", Identity),
    ("data.evaluation.sets", Identity),
    ("data.evaluation.everySteps", Attempt),
    // the number of sequences determines the held-out loss
    ("data.evaluation.maxSequences", Identity),
    ("data.evaluation.keepBest", Attempt),
    ("data.evaluation.patience", Attempt),
    ("data.tokenizer.type", Identity),
    ("data.tokenizer.train.vocabSize", Identity),
    ("data.tokenizer.file.path", Identity),
    ("data.tokenizer.file.bos", Identity),
    ("data.tokenizer.file.eos", Identity),
    ("data.tokenizer.file.pad", Identity),
    ("training.steps", Attempt),
    ("training.epochs", Attempt),
    ("training.globalBatchSize", Identity),
    ("training.microbatches", Identity),
    ("training.gradientBlocks", Identity),
    ("training.seed", Identity),
    ("training.precision", Identity),
    ("training.gradientClipNorm", Identity),
    ("training.device", Attempt),
    // Like the type of the processor, the number of threads can change the last bits of a matrix product, but is not
    // part of the identity.
    ("training.threads", Attempt),
    ("training.kernels", Identity),
    ("training.optimizer.type", Identity),
    ("training.optimizer.adamW.beta1", Identity),
    ("training.optimizer.adamW.beta2", Identity),
    ("training.optimizer.adamW.epsilon", Identity),
    ("training.optimizer.adamW.weightDecay", Identity),
    ("training.optimizer.adamW.decayNormsAndEmbeddings", Identity),
    ("training.learningRate.peak", Identity),
    ("training.learningRate.warmupSteps", Identity),
    ("training.learningRate.warmupStart", Identity),
    ("training.learningRate.decaySteps", Extension),
    ("training.learningRate.schedule", Identity),
    ("training.learningRate.decayFraction", Identity),
    ("training.learningRate.floor", Identity),
    ("training.lora.rank", Identity),
    ("training.lora.alpha", Identity),
    ("training.lora.targets", Identity),
    ("training.lora.useRslora", Identity),
    ("training.freeze", Identity),
    ("training.audit.everySteps", Attempt),
    ("training.audit.onDifference", Attempt),
    ("pipeline.schedule.type", Attempt),
    ("pipeline.schedule.csv.path", Attempt),
    ("pipeline.partition.strategy", Attempt),
    ("pipeline.partition.layers", Attempt),
    ("pipeline.virtualStages", Attempt),
    ("pipeline.recompute", Attempt),
    ("pipeline.memoryLimit", Attempt),
    ("pipeline.transport", Attempt),
    ("pipeline.encryption", Attempt),
    #[cfg(feature = "next-version")]
    ("pipeline.ofNextVersion", Attempt),
    ("checkpoint.everySteps", Attempt),
    ("checkpoint.keepLast", Attempt),
    ("checkpoint.keepEvery", Attempt),
    ("checkpoint.mode", Attempt),
    ("checkpoint.memory.everySteps", Attempt),
    ("checkpoint.initFrom.path", Identity),
    ("storage.path", Attempt),
    ("storage.persistentVolumeClaim.claimName", Attempt),
    ("restart.maxRestarts", Live),
    ("restart.backoff.initialSeconds", Live),
    ("restart.backoff.maxSeconds", Live),
    ("restart.startupTimeoutSeconds", Live),
    ("restart.reformTimeoutSeconds", Live),
    ("restart.minDataParallel", Live),
    ("restart.heartbeatTimeoutSeconds", Live),
    ("restart.stallTimeoutSeconds", Live),
    ("restart.terminationTimeoutSeconds", Live),
    ("restart.podFailurePolicy.rules", Live),
    ("restart.exitCodes", Live),
    ("scheduling.gang", Cluster),
    ("scheduling.timeoutSeconds", Cluster),
    ("scheduling.kueue.queueName", Cluster),
    ("scheduling.kueue.priorityClassName", Cluster),
    ("networkPolicy.mode", Cluster),
    ("networkPolicy.egressCIDRs", Cluster),
    ("activeDeadlineSeconds", Live),
    ("ttlSecondsAfterFinished", Cluster),
    ("template", Attempt),
];

/// Returns the effect of changing the field or object at `path`. `None` for an object whose fields have different
/// effects, and for a path that is no field of the spec.
pub fn change_effect(path: &str) -> Option<ChangeEffect> {
    let mut effects = CHANGES.iter().filter(|(field, _)| covers(path, field) || covers(field, path)).map(|(_, e)| *e);
    let first = effects.next()?;
    effects.all(|effect| effect == first).then_some(first)
}

/// Returns the paths of the spec with this effect, in the table's order. If all fields of an object have the effect,
/// the result contains the object's path instead of the paths of its fields.
pub(crate) fn paths_with(effect: ChangeEffect) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    for (field, _) in CHANGES.iter().filter(|(_, of_field)| *of_field == effect) {
        let ends = field.match_indices('.').map(|(at, _)| at).chain([field.len()]);
        let path = ends.map(|end| &field[..end]).find(|path| change_effect(path) == Some(effect)).unwrap_or(field);
        if paths.last().map(String::as_str) != Some(path) {
            paths.push(path.to_owned());
        }
    }
    paths
}

/// The fields that determine the mesh, which is the numbers of stages and replicas.
const MESH_FIELDS: [&str; 3] = ["stages", "dataParallel", "elastic.maxDataParallel"];

/// Returns the top-level fields of the spec that contain a field whose change is refused or needs a new attempt, in the
/// spec's order. The fields of the mesh are omitted, because the state of a job contains the mesh separately.
pub fn attempt_fields() -> impl Iterator<Item = &'static str> {
    let mut last = "";
    CHANGES.iter().filter(|(_, effect)| !matches!(effect, Live | Cluster)).filter_map(move |(path, _)| {
        let top = path.split('.').next().unwrap_or(path);
        let is_new = top != last;
        last = top;
        (is_new && !MESH_FIELDS.contains(path)).then_some(top)
    })
}

impl PipelineJobSpec {
    /// Returns the fields of the spec whose change has one of `effects`, as JSON. Objects that become empty are
    /// removed.
    pub fn select(&self, effects: &[ChangeEffect]) -> Value {
        let mut spec = serde_json::to_value(self).unwrap_or_default();
        let evaluation = self.data.as_ref().and_then(|data| data.evaluation.as_ref());
        // The default fraction determines the results too, but the serialized spec lacks it.
        if let Some(fraction) = evaluation.map(EvaluationSpec::held_out_fraction).filter(|fraction| *fraction > 0.0) {
            spec["data"]["evaluation"]["fraction"] = fraction.into();
        }
        retain(&mut spec, "", effects);
        spec
    }
}

/// Removes the fields whose change has none of `effects`. Returns whether the caller must keep `value` itself.
fn retain(value: &mut Value, path: &str, effects: &[ChangeEffect]) -> bool {
    match (change_effect(path), value) {
        (Some(effect), _) => effects.contains(&effect),
        (None, Value::Object(fields)) => {
            let separator = if path.is_empty() { "" } else { "." };
            fields.retain(|name, value| retain(value, &format!("{path}{separator}{name}"), effects));
            !fields.is_empty()
        }
        (None, _) => false,
    }
}

/// Whether `path` is `object` or a field below it.
fn covers(object: &str, path: &str) -> bool {
    path.strip_prefix(object).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_the_effect_that_its_fields_share() {
        assert_eq!(change_effect("model"), Some(Identity));
        assert_eq!(change_effect("model.llama.hiddenSize"), Some(Identity));
        assert_eq!(change_effect("data"), None);
        assert_eq!(change_effect("data.evaluation.everySteps"), Some(Attempt));
        assert_eq!(change_effect("template.spec.containers"), Some(Attempt));
        assert_eq!(change_effect("mode"), None);
        let live = ["spares", "suspend", "restart", "activeDeadlineSeconds"];
        let elastic = ["elastic.minDataParallel", "elastic.stabilizationWindowSeconds"];
        assert_eq!(paths_with(Live), [elastic.as_slice(), &live].concat());
        assert_eq!(paths_with(Extension), ["training.learningRate.decaySteps"]);
    }

    /// The operator stores a hash of these fields. With another list or order, an upgrade of the operator would restart
    /// every job.
    #[test]
    fn an_attempt_is_made_of_whole_fields_of_the_spec() {
        let fields: Vec<&str> = attempt_fields().collect();
        assert_eq!(fields, ["trainer", "model", "data", "training", "pipeline", "checkpoint", "storage", "template"]);
        for (path, effect) in CHANGES {
            let is_part = fields.contains(&path.split('.').next().unwrap()) || MESH_FIELDS.contains(path);
            assert_eq!(is_part, !matches!(effect, Live | Cluster), "{path}: its neighbours have other effects");
        }
    }

    /// A job without a fraction holds out the default fraction, so the identity of its checkpoints must contain this
    /// fraction.
    #[test]
    fn what_decides_the_numbers_has_the_fraction_that_is_held_out() {
        let job = include_str!("../../tests/jobs/minimal.yaml");
        let fraction = |evaluation: &str| {
            let set = [("data.evaluation".to_owned(), evaluation.to_owned())];
            let job = crate::parse_with(job, "minimal.yaml", &set).unwrap();
            job.spec.select(&[Identity])["data"]["evaluation"]["fraction"].as_f64()
        };
        assert_eq!(fraction("null"), None);
        assert_eq!((fraction("{}"), fraction("{fraction: 0.01}")), (Some(0.01), Some(0.01)));
        assert_eq!((fraction("{paths: [b.txt]}"), fraction("{sets: [{name: a, paths: [b.txt]}]}")), (None, None));
        assert_eq!(fraction("{fraction: 0.2, sets: [{name: a, paths: [b.txt]}]}"), Some(0.2));
    }
}
