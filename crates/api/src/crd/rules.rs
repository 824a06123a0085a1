//! Validation rules in CEL, for constraints that a schema can't express: combinations of fields, and changes that the
//! API server refuses once training has begun. Each message states the reason and the remedy. The API server evaluates
//! the rules at the root on every write, including the operator's writes of the status. A new rule must therefore
//! accept every object that an older version stored. Otherwise the operator could not update that object's status.

mod unchanged;

use std::borrow::Cow;

use serde_json::{Value, json};

use self::unchanged::unchanged;
use crate::job::{FixedChunks, ScheduleSpec};

/// A validation rule of the schema.
struct ValidationRule {
    /// The path of the schema that has the rule; empty for the root.
    at: &'static str,
    /// The field that a refusal names, as a path below `at`.
    field: Cow<'static, str>,
    rule: Cow<'static, str>,
    message: Cow<'static, str>,
    /// Whether the message is a CEL expression.
    is_expression: bool,
}

/// Adds every rule to the schema.
pub(super) fn insert(schema: &mut Value) {
    for ValidationRule { at, field, rule, message, is_expression } in all() {
        let pointer: String =
            at.split('.').filter(|name| !name.is_empty()).map(|name| format!("/properties/{name}")).collect();
        let Some(Value::Object(place)) = schema.pointer_mut(&pointer) else { continue };
        let kind = if is_expression { "messageExpression" } else { "message" };
        let mut validation = json!({"rule": rule, kind: message});
        if !field.is_empty() {
            validation["fieldPath"] = field.as_ref().into();
        }
        if let Value::Array(rules) = place.entry("x-kubernetes-validations").or_insert_with(|| json!([])) {
            rules.push(validation);
        }
    }
}

fn all() -> Vec<ValidationRule> {
    let fixed = FIXED.iter().map(|&(at, field, rule, message)| ValidationRule {
        at,
        field: field.into(),
        rule: rule.into(),
        message: message.into(),
        is_expression: false,
    });
    fixed.chain(fixed_chunks()).chain([unchanged()]).collect()
}

/// Returns one rule for each group of schedules with the same fixed number of chunks per stage.
fn fixed_chunks() -> impl Iterator<Item = ValidationRule> {
    let mut groups: Vec<(FixedChunks, Vec<&str>)> = Vec::new();
    for schedule in ScheduleSpec::all() {
        let Some(fixed) = schedule.fixed_chunks() else { continue };
        match groups.iter_mut().find(|(of_group, _)| *of_group == fixed) {
            Some((_, names)) => names.push(schedule.name()),
            None => groups.push((fixed, vec![schedule.name()])),
        }
    }
    groups.into_iter().map(|(FixedChunks { chunks, predicate }, names)| {
        let is_other = if chunks == 1 { "more than 1".to_owned() } else { format!("not {chunks}") };
        let names_and_predicate = match (names.as_slice(), predicate.strip_prefix("has ")) {
            ([head @ .., last], Some(rest)) if !head.is_empty() => {
                format!("{} and {last} have {rest}", head.join(", "))
            }
            _ => format!("{} {predicate}", names.concat()),
        };
        ValidationRule {
            at: "spec.pipeline",
            field: ".virtualStages".into(),
            rule: format!(
                "!(self.schedule.type in ['{}']) || !has(self.virtualStages) || self.virtualStages == {chunks}",
                names.join("', '")
            )
            .into(),
            message: format!("is {is_other}, but {names_and_predicate}").into(),
            is_expression: false,
        }
    })
}

/// The rules with fixed texts. A row has the schema path, the field, the rule and the message.
const FIXED: &[(&str, &str, &str, &str)] = &[
    (
        "",
        ".metadata.name",
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "is not a DNS-1035 label: use lower-case letters, digits and `-`, begin with a letter, end with a letter or \
         digit",
    ),
    (
        "",
        ".metadata.name",
        // A hostname has at most 63 characters. A pod's name is the job's name, two dashes and an attempt number of up
        // to six digits (8 characters), and the stage's number. If the job has several replicas, the name also contains
        // a dash and the replica's number. The pods of an elastic job with at most one replica have no such number.
        "size(self.metadata.name) <= 48 || size(self.metadata.name) <= (self.spec.stages <= 10 ? 54 : \
         self.spec.stages <= 100 ? 53 : 52) - (has(self.spec.elastic) ? (self.spec.elastic.maxDataParallel == 1 ? 0 : \
         self.spec.elastic.maxDataParallel <= 10 ? 2 : self.spec.elastic.maxDataParallel <= 100 ? 3 : 4) : \
         self.spec.dataParallel == 1 ? 0 : self.spec.dataParallel <= 10 ? 2 : self.spec.dataParallel <= 100 ? 3 : 4)",
        "is too long: pods are called <name>-<stage>-<attempt> and a hostname has at most 63 characters, so at most \
         54 fit with up to 10 stages, 53 with up to 100, 52 with more, and a replica's number takes 2 to 4 of them",
    ),
    (
        "",
        ".metadata.name",
        // A job that has a status passes the rule, because an older version may have accepted its name.
        "self.spec.spares == 0 || size(self.metadata.name) <= 48 || has(self.status)",
        "is too long for a job with spares: their pods are called <name>-spare-<number>-<attempt> and a hostname has \
         at most 63 characters, so at most 48 fit",
    ),
    (
        "spec.managedBy",
        "",
        "self == oldSelf",
        "can't be changed: two controllers would look after one job; make a new job instead",
    ),
    (
        "spec",
        ".model",
        "self.trainer.type != 'BuiltIn' || has(self.model)",
        "is missing: the built-in trainer needs it (or set spec.trainer.type to Custom to bring your own)",
    ),
    (
        "spec",
        ".data",
        "self.trainer.type != 'BuiltIn' || has(self.data)",
        "is missing: the built-in trainer needs it (or set spec.trainer.type to Custom to bring your own)",
    ),
    (
        "spec",
        ".training",
        "self.trainer.type != 'BuiltIn' || has(self.training)",
        "is missing: the built-in trainer needs it (or set spec.trainer.type to Custom to bring your own)",
    ),
    (
        "spec",
        ".trainer.type",
        "self.trainer.type != 'Custom' || !has(self.model) && !has(self.data) && !has(self.training)",
        "is Custom, but model, data or training is set, and only the built-in trainer uses them: remove them, and \
         configure the custom trainer with the template's command",
    ),
    (
        "spec",
        ".trainer.type",
        "self.trainer.type != 'Custom' || has(self.template) && has(self.template.spec) && \
         has(self.template.spec.containers) && self.template.spec.containers.exists(container, container.name == \
         'trainer')",
        "is Custom, but spec.template.spec.containers has no container called `trainer`: add it; its command is the \
         trainer",
    ),
    (
        "spec",
        ".dataParallel",
        "self.dataParallel * self.stages <= 256",
        "multiplied by spec.stages is more than 256: a job has at most 256 pods",
    ),
    (
        "spec",
        ".dataParallel",
        "!has(self.training) || !has(self.training.gradientBlocks) || self.dataParallel <= \
         self.training.gradientBlocks",
        "is more than training.gradientBlocks: a replica computes at least one block",
    ),
    (
        "spec",
        ".dataParallel",
        // The divisor is the default of `gradientBlocks`: the smallest power of two that is at least `dataParallel`.
        "!has(self.training) || has(self.training.gradientBlocks) || self.training.microbatches % (self.dataParallel \
         <= 1 ? 1 : self.dataParallel <= 2 ? 2 : self.dataParallel <= 4 ? 4 : self.dataParallel <= 8 ? 8 : \
         self.dataParallel <= 16 ? 16 : self.dataParallel <= 32 ? 32 : self.dataParallel <= 64 ? 64 : \
         self.dataParallel <= 128 ? 128 : 256) == 0",
        "rounded up to a power of two, does not divide training.microbatches: this power of two is the number of \
         gradient blocks, and all blocks have the same number of microbatches",
    ),
    (
        "spec",
        ".elastic.maxDataParallel",
        "!has(self.elastic) || self.elastic.maxDataParallel * self.stages <= 256",
        "multiplied by spec.stages is more than 256: a job has at most 256 pods",
    ),
    (
        "spec",
        ".elastic.maxDataParallel",
        "!has(self.elastic) || !has(self.training) || !has(self.training.gradientBlocks) || \
         self.elastic.maxDataParallel <= self.training.gradientBlocks",
        "is more than training.gradientBlocks: a replica computes at least one block",
    ),
    (
        "spec",
        ".elastic.maxDataParallel",
        "!has(self.elastic) || !has(self.training) || has(self.training.gradientBlocks) || [1, 2, 4, 8, 16, 32, 64, \
         128, 256].exists_one(blocks, blocks >= self.elastic.maxDataParallel && blocks < 2 * \
         self.elastic.maxDataParallel && self.training.microbatches % blocks == 0)",
        "rounded up to a power of two, does not divide training.microbatches: this power of two is the number of \
         gradient blocks, and all blocks have the same number of microbatches",
    ),
    (
        "spec.elastic",
        ".minDataParallel",
        "self.minDataParallel <= self.maxDataParallel",
        "is more than maxDataParallel: lower minDataParallel or raise maxDataParallel",
    ),
    (
        "spec",
        ".dataParallel",
        "!has(self.elastic) || self.dataParallel == 1 || self.dataParallel == self.elastic.maxDataParallel",
        "is given, but elastic.maxDataParallel sets the number of replicas: remove dataParallel",
    ),
    (
        "spec",
        ".restart.minDataParallel",
        "!has(self.elastic) || !has(self.restart.minDataParallel)",
        "is given, but spec.elastic.minDataParallel sets this number: remove spec.restart.minDataParallel",
    ),
    (
        "spec",
        ".spares",
        "!has(self.elastic) || self.spares == 0",
        "is given, but an elastic job that loses a replica continues with the others and uses no spares: remove \
         spares or elastic",
    ),
    (
        "spec",
        ".elastic",
        "!has(self.elastic) || self.restart.reformTimeoutSeconds > 0",
        "is given, and spec.restart.reformTimeoutSeconds is 0: with 0, a lost stage ends all replicas",
    ),
    (
        "spec",
        ".elastic",
        "!has(self.elastic) || self.trainer.type != 'Custom'",
        "is given, and spec.trainer.type is Custom: only the built-in trainer can train with fewer replicas",
    ),
    (
        "spec",
        ".spares",
        "self.spares == 0 || self.trainer.type != 'Custom'",
        "is given, and spec.trainer.type is Custom: only the built-in trainer can wait as a spare",
    ),
    (
        "spec",
        ".spares",
        "self.spares == 0 || self.restart.reformTimeoutSeconds > 0",
        "is given, and spec.restart.reformTimeoutSeconds is 0: with 0, a lost stage ends the whole group, and a \
         spare has no group to join",
    ),
    (
        "spec",
        ".data.sequenceLength",
        "!has(self.data) || !has(self.model) || !has(self.model.llama) || self.data.sequenceLength <= \
         self.model.llama.maxPositionEmbeddings",
        "is more than the model's maxPositionEmbeddings: shorten the sequences or raise maxPositionEmbeddings",
    ),
    (
        "spec",
        ".model.llama.vocabSize",
        "!has(self.data) || !has(self.data.tokenizer.train) || !has(self.model) || !has(self.model.llama) || \
         !has(self.model.llama.vocabSize) || self.model.llama.vocabSize >= self.data.tokenizer.train.vocabSize",
        "is less than the tokenizer's vocabSize: remove spec.model.llama.vocabSize, and the model uses the \
         tokenizer's size",
    ),
    (
        "spec",
        ".pipeline.partition.layers",
        "!has(self.pipeline.partition.layers) || !has(self.model) || !has(self.model.llama) || \
         self.pipeline.partition.layers.sum() == self.model.llama.numHiddenLayers",
        "does not add up to the model's numHiddenLayers: every layer is in exactly one chunk",
    ),
    (
        "spec.model.llama",
        ".numKeyValueHeads",
        "!has(self.numKeyValueHeads) || self.numKeyValueHeads < 1 || self.numAttentionHeads % self.numKeyValueHeads \
         == 0",
        "does not divide numAttentionHeads: each key-value head serves the same number of query heads",
    ),
    (
        "spec.model.llama",
        ".hiddenSize",
        "has(self.headDim) || self.numAttentionHeads < 1 || self.hiddenSize % self.numAttentionHeads == 0",
        "is not a multiple of numAttentionHeads: change one of them or give headDim",
    ),
    (
        "spec.model.llama",
        ".headDim",
        "(has(self.headDim) ? self.headDim : self.numAttentionHeads < 1 ? 0 : self.hiddenSize / \
         self.numAttentionHeads) % 2 == 0",
        "(or hiddenSize / numAttentionHeads, if it is absent) is odd; rotary embeddings rotate pairs of elements, so \
         it must be even",
    ),
    (
        "spec",
        ".training",
        "!has(self.training) || !has(self.training.lora) && (!has(self.training.freeze) || \
         size(self.training.freeze) == 0) || has(self.checkpoint.initFrom) || has(self.model) && \
         has(self.model.pretrained)",
        "freezes weights (lora or freeze), but the initial weights are random: give a model of type Pretrained, or \
         checkpoint.initFrom",
    ),
    (
        "spec.training",
        ".freeze",
        "!has(self.lora) || !has(self.freeze) || size(self.freeze) == 0",
        "is given, but training.lora already freezes every weight of the model: remove freeze or lora",
    ),
    ("spec.data", "", "has(self.paths) || has(self.sources)", "has neither paths nor sources: give one of them"),
    ("spec.data", "", "!has(self.paths) || !has(self.sources)", "has both paths and sources: remove one of them"),
    (
        "spec.data",
        ".format",
        "!has(self.chatTemplate) && !has(self.chatDate) && self.onLongConversation == 'Fail' || (self.format != \
         'Text' || has(self.sources) && self.sources.exists(source, has(source.format) && source.format != 'Text') \
         || has(self.evaluation) && has(self.evaluation.sets) && self.evaluation.sets.exists(set, has(set.format) && \
         set.format != 'Text'))",
        "is Text, but chatTemplate, chatDate or onLongConversation is set, and they apply to conversations alone: \
         remove them, or set format to Chat or PromptCompletion",
    ),
    (
        "spec.data",
        ".tokenizer.type",
        "self.tokenizer.type == 'File' || !(self.format != 'Text' || has(self.sources) && \
         self.sources.exists(source, has(source.format) && source.format != 'Text') || has(self.evaluation) && \
         has(self.evaluation.sets) && self.evaluation.sets.exists(set, has(set.format) && set.format != 'Text'))",
        "is Train, but conversations need the special tokens and the chat template of a model: name the model's \
         tokenizer with type File",
    ),
    (
        "spec.data",
        ".textField",
        "self.textField == 'text' || self.format == 'Text' || (has(self.sources) && self.sources.exists(source, \
         has(source.format) && source.format == 'Text') || has(self.evaluation) && has(self.evaluation.sets) && \
         self.evaluation.sets.exists(set, has(set.format) && set.format == 'Text'))",
        "is given, and no source has the format Text: remove it, since conversations have fields of their own",
    ),
    (
        "spec.data",
        ".sources",
        "!has(self.sources) || self.sources.all(source, !has(source.textField) || (has(source.format) ? \
         source.format : self.format) == 'Text')",
        "has a textField beside a format other than Text: remove it, since conversations have fields of their own",
    ),
    (
        "spec.data",
        ".evaluation.sets",
        "!has(self.evaluation) || !has(self.evaluation.sets) || self.evaluation.sets.all(set, !has(set.textField) || \
         (has(set.format) ? set.format : self.format) == 'Text')",
        "has a textField beside a format other than Text: remove it, since conversations have fields of their own",
    ),
    (
        "spec.data.evaluation",
        "",
        "!has(self.fraction) || !has(self.paths)",
        "has both fraction and paths: remove one of them",
    ),
    (
        "spec",
        ".training.epochs",
        "!has(self.data) || !has(self.data.sources) || !has(self.training) || !has(self.training.epochs)",
        "is given with data.sources, which have epochs of their own: give steps",
    ),
    (
        "spec",
        ".data.streaming.mode",
        "!has(self.data) || !has(self.data.streaming) || self.data.streaming.mode != 'Always' || !has(self.training) \
         || !has(self.training.epochs)",
        "is Always, but training.epochs is given, and the number of sequences of a stream is not known beforehand: \
         set training.steps, or mode Never or Auto",
    ),
    (
        "spec.data",
        ".streaming.mode",
        "!has(self.streaming) || self.streaming.mode != 'Always' || !has(self.sources) || self.sources.all(source, \
         source.onExhausted != 'Stop')",
        "is Always, but a source has onExhausted: Stop, and a stream can't know where a source ends: set \
         onExhausted: Repeat, or mode Never or Auto",
    ),
    ("spec.training", "", "has(self.steps) || has(self.epochs)", "has neither steps nor epochs: give one of them"),
    ("spec.training", "", "!has(self.steps) || !has(self.epochs)", "has both steps and epochs: remove one of them"),
    (
        "spec.training",
        ".microbatches",
        "self.microbatches < 1 || self.globalBatchSize % self.microbatches == 0",
        "does not divide globalBatchSize: all microbatches have the same number of sequences",
    ),
    (
        "spec.training",
        ".gradientBlocks",
        "!has(self.gradientBlocks) || self.gradientBlocks in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]",
        "is not a power of two from 1 to 1024: the trainer adds blocks as a binary tree",
    ),
    (
        "spec.training",
        ".gradientBlocks",
        "!has(self.gradientBlocks) || self.gradientBlocks < 1 || self.microbatches % self.gradientBlocks == 0",
        "does not divide microbatches: all blocks have the same number of microbatches",
    ),
    (
        "spec.training.learningRate",
        ".floor",
        "self.floor <= self.peak",
        "is above the peak: the rate falls from the peak to the floor",
    ),
    (
        "spec.training.learningRate",
        ".warmupSteps",
        "!has(self.decaySteps) || self.warmupSteps <= self.decaySteps",
        "is more than decaySteps, which include the warm-up: lower warmupSteps or raise decaySteps",
    ),
    (
        "spec.pipeline.partition",
        ".layers",
        "self.strategy != 'Explicit' || has(self.layers)",
        "is missing: with strategy Explicit, list the layers of each chunk",
    ),
    (
        "spec.pipeline.partition",
        ".layers",
        "self.strategy == 'Explicit' || !has(self.layers)",
        "is given, but the strategy is Auto: remove the list or set strategy to Explicit",
    ),
    (
        "spec.pipeline.memoryLimit",
        "",
        "type(self) == int || self.matches('^([0-9]+[.]?[0-9]*|[.][0-9]+)([KMGTPE]i|[kMGTPE])?$') && \
         !quantity(self).isLessThan(quantity('1'))",
        "is not an amount of memory: write it as 40Gi, 500Mi or plain bytes",
    ),
    (
        "spec.restart.backoff",
        ".initialSeconds",
        "self.initialSeconds <= self.maxSeconds",
        "is more than maxSeconds: lower initialSeconds or raise maxSeconds",
    ),
];
