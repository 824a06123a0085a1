//! Checks combinations of fields whose values are valid alone and invalid together. For most of these rules, the API
//! server has an equal rule in CEL (`crd::rules`).

use crate::contract::MAX_STAGES;
use crate::job::{
    DataSpec, Device, ElasticSpec, Encryption, Kernels, LearningRateSpec, LlamaSpec, ModelSpec, PipelineJobSpec,
    Quantity, RestartSpec, TokenizerSpec, TrainerType, TrainingSpec, Transport,
};

use super::Problems;

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    check_replicas(spec, problems);
    if let Some(elastic) = &spec.elastic {
        check_elastic(elastic, spec, problems);
    }
    check_spares(spec, problems);
    if let Some(ModelSpec::Llama(llama)) = &spec.model {
        check_llama(llama, problems);
        if let Some(data) = &spec.data {
            check_data(data, llama, problems);
        }
    }
    if let Some(training) = &spec.training {
        check_training(training, problems);
    }
    check_restart(&spec.restart, problems);
    if let Some(limit) = &spec.pipeline.memory_limit {
        check_quantity(limit, "spec.pipeline.memoryLimit", problems);
    }
    check_choices(spec, problems);
}

/// Checks the number of replicas against the limit of processes and against the number of gradient blocks. A gradient
/// block is a group of microbatches, and the replicas divide the blocks among themselves.
fn check_replicas(spec: &PipelineJobSpec, problems: &mut Problems) {
    let at = if spec.elastic.is_some() { "spec.elastic.maxDataParallel" } else { "spec.dataParallel" };
    let (replicas, stages) = (spec.data_parallel, spec.stages);
    let ranks = u64::from(replicas) * u64::from(stages);
    problems.require(ranks <= MAX_STAGES.into(), at, || {
        format!(
            "is {replicas}: {replicas} replicas of {stages} stages are {ranks} pods, but a job has at most \
             {MAX_STAGES}"
        )
    });
    let Some(training) = &spec.training else { return };
    let (blocks, microbatches) = (training.gradient_blocks(replicas.min(MAX_STAGES)), training.microbatches);
    problems.require(replicas <= blocks, at, || {
        format!("is {replicas}, more than training.gradientBlocks {blocks}: a replica computes at least one block")
    });
    problems.require(
        training.gradient_blocks.is_some() || microbatches == 0 || microbatches.is_multiple_of(blocks),
        at,
        || {
            format!(
                "is {replicas}: {replicas} replicas need {blocks} gradient blocks (the next power of two), and {blocks} \
                 does not divide training.microbatches {microbatches}"
            )
        },
    );
}

/// Checks the range of an elastic job, and that no other field sets its number of replicas.
fn check_elastic(elastic: &ElasticSpec, spec: &PipelineJobSpec, problems: &mut Problems) {
    const AT: &str = "spec.elastic";
    let ElasticSpec { min_data_parallel: min, max_data_parallel: max, .. } = *elastic;
    problems.require(min <= max, format!("{AT}.minDataParallel"), || {
        format!("is {min}, more than maxDataParallel {max}: lower minDataParallel or raise maxDataParallel")
    });
    problems.require(spec.data_parallel == max, "spec.dataParallel", || {
        format!(
            "is {}, but elastic.maxDataParallel {max} sets the number of replicas of an elastic job: remove \
             dataParallel",
            spec.data_parallel
        )
    });
    problems.require(spec.restart.min_data_parallel.is_none(), "spec.restart.minDataParallel", || {
        "is given, but spec.elastic.minDataParallel sets this number: remove spec.restart.minDataParallel".into()
    });
    problems.require(spec.spares == 0, "spec.spares", || {
        "is given, but an elastic job that loses a replica continues with the others and uses no spares: remove \
         spares or elastic"
            .into()
    });
    problems.require(spec.replaces_stages() || spec.training.is_none(), AT, || {
        "is given, and spec.restart.reformTimeoutSeconds is 0: with 0, a lost stage ends all replicas".into()
    });
    problems.require(spec.trainer.kind == TrainerType::BuiltIn, AT, || {
        "is given, and spec.trainer.type is Custom: only the built-in trainer can train with fewer replicas".into()
    });
}

/// Checks that a job with spares has the built-in trainer, and that its other stages continue after the loss of a
/// stage. Otherwise, a spare would have no group to join.
fn check_spares(spec: &PipelineJobSpec, problems: &mut Problems) {
    const AT: &str = "spec.spares";
    if spec.spares == 0 {
        return;
    }
    problems.require(spec.trainer.kind == TrainerType::BuiltIn, AT, || {
        "is given, and spec.trainer.type is Custom: only the built-in trainer can wait as a spare".into()
    });
    problems.require(spec.restart.reform_timeout_seconds > 0, AT, || {
        "is given, and spec.restart.reformTimeoutSeconds is 0: with 0, a lost stage ends the whole group, and a \
         spare has no group to join"
            .into()
    });
}

fn check_llama(llama: &LlamaSpec, problems: &mut Problems) {
    const AT: &str = "spec.model.llama";
    let LlamaSpec { hidden_size, num_attention_heads: heads, .. } = *llama;
    let kv = llama.key_value_heads();
    problems.require(kv == 0 || heads.is_multiple_of(kv), format!("{AT}.numKeyValueHeads"), || {
        format!(
            "is {kv}, which does not divide numAttentionHeads {heads}: each key-value head serves the same number of \
             query heads"
        )
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
        format!("is {head_dim}; rotary embeddings rotate pairs of elements, so it must be even")
    });
}

/// Checks that the sequences and the tokens of the data fit the model.
fn check_data(data: &DataSpec, model: &LlamaSpec, problems: &mut Problems) {
    let longest = model.max_position_embeddings;
    problems.require(data.sequence_length <= longest, "spec.data.sequenceLength", || {
        format!(
            "is {}, but the model's maxPositionEmbeddings is {longest}: shorten the sequences or raise maxPositionEmbeddings",
            data.sequence_length
        )
    });
    if let (TokenizerSpec::Train(train), Some(size)) = (&data.tokenizer, model.vocab_size) {
        problems.require(size >= train.vocab_size, "spec.model.llama.vocabSize", || {
            format!(
                "is {size}, but the tokenizer's vocabSize is {}: remove spec.model.llama.vocabSize, and the model \
                 uses the tokenizer's size",
                train.vocab_size
            )
        });
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
    problems.require(microbatches == 0 || batch.is_multiple_of(microbatches), format!("{AT}.microbatches"), || {
        format!(
            "is {microbatches}, which does not divide globalBatchSize {batch}: all microbatches have the same number \
             of sequences"
        )
    });
    if let Some(blocks) = training.gradient_blocks {
        let fits = blocks.is_power_of_two();
        problems.require(fits || blocks == 0, format!("{AT}.gradientBlocks"), || {
            format!("is {blocks}; the trainer adds blocks as a binary tree, so give a power of two, 1024 at most")
        });
        problems.require(!fits || microbatches.is_multiple_of(blocks), format!("{AT}.gradientBlocks"), || {
            format!(
                "is {blocks}, which does not divide microbatches {microbatches}: all blocks have the same number of \
                 microbatches"
            )
        });
    }
    problems.require(training.lora.is_none() || training.freeze.is_empty(), format!("{AT}.freeze"), || {
        "is given, but training.lora already freezes every weight of the model: remove freeze or lora".into()
    });
    check_learning_rate(&training.learning_rate, problems);
}

fn check_learning_rate(rate: &LearningRateSpec, problems: &mut Problems) {
    const AT: &str = "spec.training.learningRate";
    problems.require(rate.floor.is_nan() || rate.floor <= rate.peak, format!("{AT}.floor"), || {
        format!("is {}, above the peak {}: the rate falls from the peak to the floor", rate.floor, rate.peak)
    });
    if let Some(decay) = rate.decay_steps {
        problems.require(rate.warmup_steps <= decay, format!("{AT}.warmupSteps"), || {
            format!("is {}, more than decaySteps {decay}, which include the warm-up", rate.warmup_steps)
        });
    }
}

fn check_restart(restart: &RestartSpec, problems: &mut Problems) {
    const AT: &str = "spec.restart";
    let backoff = &restart.backoff;
    problems.require(backoff.initial_seconds <= backoff.max_seconds, format!("{AT}.backoff.initialSeconds"), || {
        format!("is {}, more than maxSeconds {}", backoff.initial_seconds, backoff.max_seconds)
    });
    for (index, rule) in restart.pod_failure_policy.iter().flat_map(|policy| &policy.rules).enumerate() {
        let given = [rule.on_exit_codes.is_some(), !rule.on_pod_conditions.is_empty(), !rule.on_reasons.is_empty()];
        let is_one = given.into_iter().filter(|given| *given).count() == 1;
        problems.require(is_one, format!("{AT}.podFailurePolicy.rules[{index}]"), || {
            "a rule has exactly one of onExitCodes, onPodConditions and onReasons: split it, or add what is missing"
                .into()
        });
    }
}

fn check_quantity(quantity: &Quantity, field: &str, problems: &mut Problems) {
    problems.require(quantity.bytes().is_some_and(|bytes| bytes > 0), field, || {
        format!("\"{}\" is not an amount of memory: write it as 40Gi, 500Mi or plain bytes", quantity.0.escape_debug())
    });
}

fn check_choices(spec: &PipelineJobSpec, problems: &mut Problems) {
    let is_nccl = spec.pipeline.transport == Transport::Nccl;
    let has_device = |device| spec.training.as_ref().is_some_and(|training| training.device == device);
    problems.require(!(is_nccl && has_device(Device::Cpu)), "spec.pipeline.transport", || {
        "is Nccl, which sends between GPUs, and spec.training.device is Cpu: set the transport to Auto, Tcp or Shm, \
         or the device to Cuda"
            .into()
    });
    let is_encrypted = spec.pipeline.encryption == Encryption::Required;
    problems.require(!(is_nccl && is_encrypted), "spec.pipeline.transport", || {
        "is Nccl, which does not encrypt, and spec.pipeline.encryption is Required: set the transport to Tcp, or \
         encryption to None"
            .into()
    });
    let is_portable_gpu =
        has_device(Device::Cuda) && spec.training.as_ref().is_some_and(|t| t.kernels == Kernels::Portable);
    problems.require(!is_portable_gpu, "spec.training.kernels", || {
        "is Portable, but spec.training.device is Cuda: Portable gives the same bits on the CPUs of all makers, and \
         there are no such kernels for GPUs; set kernels to Fastest, or device to Cpu"
            .into()
    });
    let has_weights = matches!(spec.model, Some(ModelSpec::Pretrained(_))) || spec.checkpoint.init_from.is_some();
    let freezes_weights = spec.training.as_ref().is_some_and(TrainingSpec::freezes_weights);
    problems.require(has_weights || !freezes_weights, "spec.training", || {
        "freezes weights (lora or freeze), but the initial weights are random: give a model of type Pretrained, or \
         checkpoint.initFrom"
            .into()
    });
    let has_weights_twice = matches!(spec.model, Some(ModelSpec::Pretrained(_))) && spec.checkpoint.init_from.is_some();
    problems.require(!has_weights_twice, "spec.checkpoint.initFrom", || {
        "is given, but a model of type Pretrained already has weights: remove initFrom, or set another type of model".into()
    });
}
