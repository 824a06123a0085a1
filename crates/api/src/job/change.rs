//! The effect of a change of each field of the spec on a job that exists: the one table that the CRD's rules, the
//! checkpoints' identity, the launcher's comparison with an earlier run, the stages' agreement and the operator's
//! restarts derive from.

use serde_json::Value;

use super::{EvaluationSpec, PipelineJobSpec};

/// The effect of a change of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeEffect {
    /// The field decides the numbers: a change is refused once training began.
    Identity,
    /// The same, but a change together with more steps is accepted: it applies to the steps that are added.
    Extension,
    /// All stages read the field when an attempt starts: a change starts a new attempt.
    Attempt,
    /// Operator or launcher read the field whenever they decide: a change takes effect in the running attempt.
    Live,
    /// The operator alone reads the field: a change is no concern of the stages, and has no meaning outside a cluster.
    Cluster,
}

use ChangeEffect::{Attempt, Cluster, Extension, Identity, Live};

/// Every field below `spec`, in the order of [`PipelineJobSpec`], by its path.
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
    // decides which sequences are left for training
    ("data.evaluation.fraction", Identity),
    ("data.evaluation.paths", Identity),
    ("data.evaluation.sets", Identity),
    ("data.evaluation.everySteps", Attempt),
    // decides the held-out loss
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
    // changes the last bits of a matrix product, as another processor does: not the job's numbers
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

/// The effect of a change of the field or object at `path`; none for an object
/// whose fields differ in it, and for a path that is no field of the spec.
pub fn change_effect(path: &str) -> Option<ChangeEffect> {
    let mut effects = CHANGES.iter().filter(|(field, _)| covers(path, field) || covers(field, path)).map(|(_, e)| *e);
    let first = effects.next()?;
    effects.all(|effect| effect == first).then_some(first)
}

/// The largest objects and fields of the spec all of whose parts have this effect, in the table's order.
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

/// The fields that make the mesh.
const OF_THE_MESH: [&str; 3] = ["stages", "dataParallel", "elastic.maxDataParallel"];

/// The fields at the top of the spec that hold what an attempt is made of, in the spec's order: another value of one
/// starts a new attempt. The fields of the mesh are not among them, since a state of the job has these numbers by
/// itself.
pub fn attempt_fields() -> impl Iterator<Item = &'static str> {
    let mut last = "";
    CHANGES.iter().filter(|(_, effect)| !matches!(effect, Live | Cluster)).filter_map(move |(path, _)| {
        let top = path.split('.').next().unwrap_or(path);
        let is_new = top != last;
        last = top;
        (is_new && !OF_THE_MESH.contains(path)).then_some(top)
    })
}

impl PipelineJobSpec {
    /// The fields of the spec, as JSON, whose change has one of `effects`. An object of which nothing is left is left
    /// out.
    pub fn select(&self, effects: &[ChangeEffect]) -> Value {
        let mut spec = serde_json::to_value(self).unwrap_or_default();
        let evaluation = self.data.as_ref().and_then(|data| data.evaluation.as_ref());
        // a fraction that is not given decides the numbers too
        if let Some(fraction) = evaluation.map(EvaluationSpec::held_out_fraction).filter(|fraction| *fraction > 0.0) {
            spec["data"]["evaluation"]["fraction"] = fraction.into();
        }
        retain(&mut spec, "", effects);
        spec
    }
}

/// Whether anything is left of `value`.
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

/// Whether `path` is `object` or below it.
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

    /// The operator stores a hash of these: another list or order would restart every job at an upgrade.
    #[test]
    fn an_attempt_is_made_of_whole_fields_of_the_spec() {
        let fields: Vec<&str> = attempt_fields().collect();
        assert_eq!(fields, ["trainer", "model", "data", "training", "pipeline", "checkpoint", "storage", "template"]);
        for (path, effect) in CHANGES {
            let is_part = fields.contains(&path.split('.').next().unwrap()) || OF_THE_MESH.contains(path);
            assert_eq!(is_part, !matches!(effect, Live | Cluster), "{path}: its neighbours have other effects");
        }
    }

    /// Without a fraction a job holds out the default, which the identity of its checkpoints has to say.
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
