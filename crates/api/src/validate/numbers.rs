//! Bounds and ratios of the numbers in model, data, training, restart and checkpoint.

use crate::contract::{MAX_SPARES, MAX_STAGES};
use crate::job::{
    AdamWSpec, DataSpec, LearningRateSpec, LlamaSpec, ModelSpec, OptimizerSpec, PipelineJobSpec, Quantity, RestartSpec,
    TokenizerSpec, TrainerType, TrainingSpec,
};

use super::{Problems, names::volume_path};

/// The largest whole number that JSON carries everywhere (Kubernetes stores 64-bit signed ones).
const MAX_SEED: u64 = i64::MAX as u64;
/// The most gradient blocks.
const MAX_GRADIENT_BLOCKS: u32 = 1024;

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    problems.require((1..=MAX_STAGES).contains(&spec.stages), "spec.stages", || {
        format!("is {}; a job has 1 to {MAX_STAGES} stages", spec.stages)
    });
    check_replicas(spec, problems);
    check_spares(spec, problems);
    match &spec.model {
        Some(ModelSpec::Llama(llama)) => check_llama(llama, problems),
        Some(ModelSpec::Pretrained(pretrained)) => {
            volume_path(&pretrained.path, "spec.model.pretrained.path", problems)
        }
        None => {}
    }
    if let Some(data) = &spec.data {
        check_data(data, spec.model.as_ref(), problems);
    }
    if let Some(training) = &spec.training {
        check_training(training, problems);
    }
    problems.require(spec.checkpoint.keep_last >= 1, "spec.checkpoint.keepLast", || {
        "is 0; at least 1 checkpoint must stay, or a restart would begin again".into()
    });
    if let Some(from) = &spec.checkpoint.init_from {
        volume_path(&from.path, "spec.checkpoint.initFrom.path", problems);
    }
    if let Some(path) = &spec.storage.path {
        volume_path(path, "spec.storage.path", problems);
    }
    if let Some(claim) = &spec.storage.persistent_volume_claim {
        let field = "spec.storage.persistentVolumeClaim.claimName";
        problems
            .require(!claim.claim_name.is_empty(), field, || "is empty: name a claim in the job's namespace".into());
    }
    check_restart(&spec.restart, problems);
    positive(spec.active_deadline_seconds, "spec.activeDeadlineSeconds", problems);
    if let Some(limit) = &spec.pipeline.memory_limit {
        check_quantity(limit, "spec.pipeline.memoryLimit", problems);
    }
}

/// Replicas share the gradient blocks.
fn check_replicas(spec: &PipelineJobSpec, problems: &mut Problems) {
    const AT: &str = "spec.dataParallel";
    let (replicas, stages) = (spec.data_parallel, spec.stages);
    problems.require(replicas >= 1, AT, || "is 0; a job has at least one replica of its pipeline".into());
    let ranks = u64::from(replicas) * u64::from(stages);
    problems.require(ranks <= MAX_STAGES.into(), AT, || {
        format!("is {replicas}; with {stages} stages each that is {ranks} pods, and a job has at most {MAX_STAGES}")
    });
    let Some(training) = &spec.training else { return };
    let (blocks, microbatches) = (training.gradient_blocks(replicas.min(MAX_STAGES)), training.microbatches);
    problems.require(replicas <= blocks, AT, || {
        format!("is {replicas}, more than training.gradientBlocks {blocks}: a replica computes at least one block")
    });
    problems.require(
        training.gradient_blocks.is_some() || microbatches == 0 || microbatches.is_multiple_of(blocks),
        AT,
        || {
            format!(
                "is {replicas}, for which microbatches {microbatches} must be divisible by {blocks}: gradients are added in that \
                 many blocks"
            )
        },
    );
}

/// Spares are of use where the other stages outlive a lost one.
fn check_spares(spec: &PipelineJobSpec, problems: &mut Problems) {
    const AT: &str = "spec.spares";
    problems.require(spec.spares <= MAX_SPARES, AT, || {
        format!("is {}; a job has at most {MAX_SPARES} spares", spec.spares)
    });
    if spec.spares == 0 {
        return;
    }
    problems.require(spec.trainer.kind == TrainerType::BuiltIn, AT, || {
        "is given, and spec.trainer.type is Custom: only the built-in trainer can wait as a spare".into()
    });
    problems.require(spec.restart.reform_timeout_seconds > 0, AT, || {
        "is given, and spec.restart.reformTimeoutSeconds is 0: with it a lost stage ends all, and nobody is left to join".into()
    });
}

fn check_llama(llama: &LlamaSpec, problems: &mut Problems) {
    const AT: &str = "spec.model.llama";
    let LlamaSpec { hidden_size, num_attention_heads: heads, .. } = *llama;
    for (name, value) in [
        ("hiddenSize", Some(hidden_size)),
        ("numHiddenLayers", Some(llama.num_hidden_layers)),
        ("numAttentionHeads", Some(heads)),
        ("numKeyValueHeads", llama.num_key_value_heads),
        ("headDim", llama.head_dim),
        ("intermediateSize", Some(llama.intermediate_size)),
        ("vocabSize", llama.vocab_size),
        ("maxPositionEmbeddings", Some(llama.max_position_embeddings)),
    ] {
        positive(value.map(u64::from), &format!("{AT}.{name}"), problems);
    }
    let kv = llama.key_value_heads();
    problems.require(kv == 0 || heads.is_multiple_of(kv), format!("{AT}.numKeyValueHeads"), || {
        format!("is {kv}, which does not divide numAttentionHeads {heads}: each key-value head serves the same number of query heads")
    });
    if llama.head_dim.is_none() && heads > 0 {
        problems.require(hidden_size.is_multiple_of(heads), format!("{AT}.hiddenSize"), || {
            format!(
                "is {hidden_size}, which numAttentionHeads {heads} does not divide: change one of them or give headDim"
            )
        });
    }
    let head_dim = llama.head_dim();
    problems.require(head_dim.is_multiple_of(2), format!("{AT}.headDim"), || {
        format!("is {head_dim}; rotary embeddings turn pairs, so it must be even")
    });
    for (name, value) in [
        ("ropeTheta", llama.rope_theta),
        ("rmsNormEps", llama.rms_norm_eps),
        ("initializerRange", llama.initializer_range),
    ] {
        above_zero(value, &format!("{AT}.{name}"), problems);
    }
}

fn check_data(data: &DataSpec, model: Option<&ModelSpec>, problems: &mut Problems) {
    problems.require(!data.paths.is_empty(), "spec.data.paths", || "is empty: name at least one file or glob".into());
    for (index, path) in data.paths.iter().enumerate() {
        volume_path(path, &format!("spec.data.paths[{index}]"), problems);
    }
    problems.require(!data.text_field.is_empty(), "spec.data.textField", || {
        "is empty: name the field or column that holds the text".into()
    });
    problems.require(data.sequence_length >= 2, "spec.data.sequenceLength", || {
        format!("is {}; a sequence needs at least 2 tokens, one to read and one to predict", data.sequence_length)
    });
    if let Some(ModelSpec::Llama(llama)) = model {
        let longest = llama.max_position_embeddings;
        problems.require(data.sequence_length <= longest, "spec.data.sequenceLength", || {
            format!(
                "is {}, but the model's maxPositionEmbeddings is {longest}: shorten the one or raise the other",
                data.sequence_length
            )
        });
    }
    if let Some(evaluation) = &data.evaluation {
        let fraction = evaluation.fraction;
        problems.require(fraction > 0.0 && fraction < 1.0, "spec.data.evaluation.fraction", || {
            format!(
                "is {fraction}; the held-out share lies above 0 and below 1 (remove `evaluation` to hold nothing out)"
            )
        });
        positive(Some(evaluation.every_steps.into()), "spec.data.evaluation.everySteps", problems);
        positive(evaluation.max_sequences.map(u64::from), "spec.data.evaluation.maxSequences", problems);
    }
    match &data.tokenizer {
        TokenizerSpec::File(file) => volume_path(&file.path, "spec.data.tokenizer.file.path", problems),
        TokenizerSpec::Train(train) => {
            problems.require(train.vocab_size >= 259, "spec.data.tokenizer.train.vocabSize", || {
                format!("is {}; 256 bytes and 3 special tokens make 259 tokens the least", train.vocab_size)
            });
            if let Some(ModelSpec::Llama(llama)) = model
                && let Some(size) = llama.vocab_size
            {
                problems.require(size >= train.vocab_size, "spec.model.llama.vocabSize", || {
                    format!(
                        "is {size}, fewer than the tokenizer's {}: remove it, and it will be the tokenizer's",
                        train.vocab_size
                    )
                });
            }
        }
    }
}

fn check_training(training: &TrainingSpec, problems: &mut Problems) {
    const AT: &str = "spec.training";
    match (training.steps, training.epochs) {
        (None, None) => problems.require(false, AT, || "has neither steps nor epochs: give one of them".into()),
        (Some(_), Some(_)) => problems.require(false, AT, || "has both steps and epochs: remove one of them".into()),
        _ => {}
    }
    let (batch, microbatches) = (training.global_batch_size, training.microbatches);
    for (name, value) in [
        ("steps", training.steps),
        ("epochs", training.epochs.map(u64::from)),
        ("globalBatchSize", Some(batch.into())),
        ("microbatches", Some(microbatches.into())),
        ("threads", Some(training.threads.into())),
    ] {
        positive(value, &format!("{AT}.{name}"), problems);
    }
    problems.require(microbatches == 0 || batch.is_multiple_of(microbatches), format!("{AT}.microbatches"), || {
        format!("is {microbatches}, which does not divide globalBatchSize {batch}: all microbatches have the same number of sequences")
    });
    if let Some(blocks) = training.gradient_blocks {
        let fits = blocks.is_power_of_two() && blocks <= MAX_GRADIENT_BLOCKS;
        problems.require(fits, format!("{AT}.gradientBlocks"), || {
            format!(
                "is {blocks}; blocks are added as a binary tree, so give a power of two, {MAX_GRADIENT_BLOCKS} at most"
            )
        });
        problems.require(!fits || microbatches.is_multiple_of(blocks), format!("{AT}.gradientBlocks"), || {
            format!("is {blocks}, which does not divide microbatches {microbatches}: all blocks have the same number of them")
        });
    }
    problems.require(training.seed <= MAX_SEED, format!("{AT}.seed"), || {
        format!("is {}; the largest is {MAX_SEED}", training.seed)
    });
    if let Some(norm) = training.gradient_clip_norm {
        problems.require(norm.is_finite() && norm > 0.0, format!("{AT}.gradientClipNorm"), || {
            format!("is {norm}; give a norm above 0, or remove it to clip nothing")
        });
    }
    positive(training.audit.map(|audit| audit.every_steps.into()), &format!("{AT}.audit.everySteps"), problems);
    let OptimizerSpec::AdamW(adam_w) = &training.optimizer;
    check_adam_w(adam_w, problems);
    check_learning_rate(&training.learning_rate, problems);
}

fn check_adam_w(adam_w: &AdamWSpec, problems: &mut Problems) {
    const AT: &str = "spec.training.optimizer.adamW";
    for (name, beta) in [("beta1", adam_w.beta1), ("beta2", adam_w.beta2)] {
        problems.require((0.0..1.0).contains(&beta), format!("{AT}.{name}"), || {
            format!("is {beta}; it lies from 0 to below 1")
        });
    }
    above_zero(adam_w.epsilon, &format!("{AT}.epsilon"), problems);
    not_negative(adam_w.weight_decay, &format!("{AT}.weightDecay"), problems);
}

fn check_learning_rate(rate: &LearningRateSpec, problems: &mut Problems) {
    const AT: &str = "spec.training.learningRate";
    above_zero(rate.peak, &format!("{AT}.peak"), problems);
    not_negative(rate.floor, &format!("{AT}.floor"), problems);
    problems.require(rate.floor.is_nan() || rate.floor <= rate.peak, format!("{AT}.floor"), || {
        format!("is {}, above the peak {}: the rate falls from the peak to the floor", rate.floor, rate.peak)
    });
    problems.require((0.0..=1.0).contains(&rate.warmup_start), format!("{AT}.warmupStart"), || {
        format!("is {}; it is a fraction of the peak, 0 to 1", rate.warmup_start)
    });
    if let Some(decay) = rate.decay_steps {
        positive(Some(decay), &format!("{AT}.decaySteps"), problems);
        problems.require(rate.warmup_steps <= decay, format!("{AT}.warmupSteps"), || {
            format!("is {}, more than decaySteps {decay}, which include the warm-up", rate.warmup_steps)
        });
    }
    let fraction = rate.decay_fraction;
    problems.require(fraction > 0.0 && fraction <= 1.0, format!("{AT}.decayFraction"), || {
        format!("is {fraction}; the decay's share of decaySteps lies above 0 and is at most 1")
    });
}

fn check_restart(restart: &RestartSpec, problems: &mut Problems) {
    const AT: &str = "spec.restart";
    let backoff = &restart.backoff;
    problems.require(backoff.initial_seconds <= backoff.max_seconds, format!("{AT}.backoff.initialSeconds"), || {
        format!("is {}, more than maxSeconds {}", backoff.initial_seconds, backoff.max_seconds)
    });
    for (name, seconds) in [
        ("startupTimeoutSeconds", restart.startup_timeout_seconds),
        ("heartbeatTimeoutSeconds", restart.heartbeat_timeout_seconds),
        ("stallTimeoutSeconds", restart.stall_timeout_seconds),
        ("terminationTimeoutSeconds", restart.termination_timeout_seconds),
    ] {
        positive(Some(seconds.into()), &format!("{AT}.{name}"), problems);
    }
    positive(restart.min_data_parallel.map(u64::from), &format!("{AT}.minDataParallel"), problems);
    let policy = restart.pod_failure_policy.as_ref();
    problems.require(
        policy.is_none_or(|policy| !policy.rules.is_empty()),
        format!("{AT}.podFailurePolicy.rules"),
        || "is empty: give at least one rule, or remove podFailurePolicy".into(),
    );
    for (index, rule) in policy.iter().flat_map(|policy| &policy.rules).enumerate() {
        let field = format!("{AT}.podFailurePolicy.rules[{index}]");
        let given = [rule.on_exit_codes.is_some(), !rule.on_pod_conditions.is_empty(), !rule.on_reasons.is_empty()];
        problems.require(given.into_iter().filter(|given| *given).count() == 1, &field, || {
            "a rule has exactly one of onExitCodes, onPodConditions and onReasons: split it, or add what is missing"
                .into()
        });
        for (at, condition) in rule.on_pod_conditions.iter().enumerate() {
            let field = format!("{field}.onPodConditions[{at}].type");
            problems.require(!condition.condition_type.is_empty(), field, || "is empty: name a condition".into());
        }
        if let Some(codes) = &rule.on_exit_codes {
            check_exit_codes(&codes.values, &format!("{field}.onExitCodes.values"), problems);
        }
    }
    for (index, rule) in restart.exit_codes.iter().enumerate() {
        check_exit_codes(&rule.codes, &format!("{AT}.exitCodes[{index}].codes"), problems);
    }
}

fn check_exit_codes(codes: &[i32], field: &str, problems: &mut Problems) {
    problems.require(!codes.is_empty(), field, || "is empty: list at least one exit code".into());
    for code in codes {
        problems
            .require((1..=255).contains(code), field, || format!("lists {code}; exit codes of a failure are 1 to 255"));
    }
}

fn check_quantity(quantity: &Quantity, field: &str, problems: &mut Problems) {
    problems.require(quantity.bytes().is_some_and(|bytes| bytes > 0), field, || {
        format!("\"{}\" is not an amount of memory: write it as 40Gi, 500Mi or plain bytes", quantity.0.escape_debug())
    });
}

fn positive(value: Option<u64>, field: &str, problems: &mut Problems) {
    problems.require(value != Some(0), field, || "is 0; it must be at least 1".into());
}

fn above_zero(value: f64, field: &str, problems: &mut Problems) {
    problems.require(value.is_finite() && value > 0.0, field, || format!("is {value}; it must be a number above 0"));
}

fn not_negative(value: f64, field: &str, problems: &mut Problems) {
    problems.require(value.is_finite() && value >= 0.0, field, || format!("is {value}; it must be 0 or more"));
}
