//! Trains a small model in this process, one thread per stage, with the real control plane, links and programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use stagecoach_api::job::{AdamWSpec, Encryption, LoraSpec, Precision, Recompute, Transport};
use stagecoach_data::MicrobatchLayout;
use stagecoach_engine::execute::{Executor, Stage, StageConfig, StepInputs, StepOutput, Uncontrolled};
use stagecoach_group::{Member, StepRules, StepVote, Verdict};
use stagecoach_model::{Architecture, ModelConfig, Parameter, fine_tuned};
use stagecoach_pipeline::{Action, GradientBlocks, Partition, Placement, Programs, Replica, Schedule, lower};
use stagecoach_tests::{InProcessStage, TIMEOUT, in_process_group};
use stagecoach_transport::{Interrupt, Links, LinksConfig, link_ids, open_links};
use tch::{Device, Tensor};

/// The model, with the settings of its training and partition.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) config: Arc<dyn ModelConfig>,
    /// The number of layers of each chunk.
    pub(crate) layers: Vec<usize>,
    /// The function that returns the schedule for a number of chunks and of microbatches.
    pub(crate) schedule: fn(usize, usize) -> Schedule,
    pub(crate) transport: Transport,
    pub(crate) encryption: Encryption,
    pub(crate) recompute: Recompute,
    pub(crate) precision: Precision,
    pub(crate) optimizer: AdamWSpec,
    pub(crate) clip: Option<f64>,
    /// The number of blocks in which gradients are added.
    pub(crate) gradient_blocks: usize,
    /// The initial weights; `None` for random weights.
    pub(crate) weights: Option<Weights>,
    /// The adapters that training updates.
    pub(crate) lora: Option<LoraSpec>,
    /// The weights that training does not update.
    pub(crate) freeze: Vec<String>,
}

impl Setup {
    /// Returns the model with the adapters and frozen weights of this setup.
    pub(crate) fn architecture(&self) -> Box<dyn Architecture> {
        fine_tuned(self.config.architecture(Device::Cpu), self.lora.as_ref(), &self.freeze)
    }

    fn placement(&self) -> Placement {
        (self.schedule)(self.layers.len(), 1).placement
    }
}

/// The data of one step.
#[derive(Clone, Debug)]
pub(crate) struct StepData {
    pub(crate) microbatches: Vec<MicrobatchData>,
    pub(crate) learning_rate: f64,
    /// The number of targets of the whole step; `None` if these microbatches are the whole step.
    pub(crate) target_count: Option<u64>,
}

impl StepData {
    /// Returns the number of targets in these microbatches that count in the loss.
    pub(crate) fn own_targets(&self) -> u64 {
        self.microbatches.iter().flat_map(|m| &m.targets).filter(|&&target| target >= 0).count() as u64
    }
}

/// The token ids (`inputs`) and the targets of a microbatch, each `[rows * length]`.
#[derive(Clone, Debug)]
pub(crate) struct MicrobatchData {
    pub(crate) layout: MicrobatchLayout,
    pub(crate) inputs: Vec<i64>,
    pub(crate) targets: Vec<i64>,
}

/// Tensor values by parameter name.
pub(crate) type Weights = BTreeMap<String, Vec<f32>>;

/// The result of training.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f32>,
    pub(crate) norms: Vec<f64>,
    /// The gradients of the first step, before clipping.
    pub(crate) gradients: Weights,
    /// The weights after the last step.
    pub(crate) weights: Weights,
}

/// Trains for `steps` and merges the results of all stages. Asserts that the stages agree on losses and norms, and on
/// both copies of a tied embedding.
pub(crate) fn train(setup: &Setup, steps: &[StepData]) -> Trained {
    let rules = StepRules { clip_norm: setup.clip, ..StepRules::default() };
    let results = in_process_group(setup.placement().ranks(), rules, |joined| stage(setup, steps, joined));
    results.into_iter().reduce(merge).unwrap()
}

fn merge(mut all: Trained, other: Trained) -> Trained {
    let Trained { losses, norms, gradients, weights } = other;
    assert_eq!((&all.losses, &all.norms), (&losses, &norms), "stages disagree on losses or norms");
    for (into, from) in [(&mut all.gradients, gradients), (&mut all.weights, weights)] {
        for (name, values) in from {
            let merged = into.entry(name.clone()).or_insert_with(|| values.clone());
            assert_eq!(*merged, values, "the two copies of {name} differ");
        }
    }
    all
}

fn stage(setup: &Setup, steps: &[StepData], joined: &mut InProcessStage) -> Trained {
    tch::set_num_threads(1);
    let placement = setup.placement();
    let (rank, member) = (joined.rank, &joined.member);
    let architecture = setup.architecture();
    let mut stage = build(setup, rank);
    let mut links = open_links(LinksConfig {
        rank,
        group: "test".into(),
        secret: member.secret(),
        on_rejected: &|| {},
        listener: joined.listener.try_clone().unwrap(),
        addresses: joined.addresses,
        link_ids: &link_ids(&placement, architecture.adds_tied_gradients()),
        transport: setup.transport,
        device: Device::Cpu,
        encryption: setup.encryption,
        boundary_bytes: 1 << 16,
        tied_bytes: 4 * architecture.vocab_size() * architecture.hidden_size(),
        interrupt: Interrupt::default(),
        timeout: TIMEOUT,
    })
    .unwrap();
    member.form().unwrap();

    let mut trained = Trained { losses: vec![], norms: vec![], gradients: Weights::new(), weights: Weights::new() };
    for (index, step) in steps.iter().enumerate() {
        let schedule = (setup.schedule)(setup.layers.len(), step.microbatches.len());
        let blocks = GradientBlocks::new(setup.gradient_blocks, step.microbatches.len()).unwrap();
        let programs = lower(&schedule, architecture.adds_tied_gradients()).unwrap();
        if index == 0 {
            // the action UPDATE clips gradients in place, so the first step also runs without UPDATE to read the
            // gradients
            let no_update = without_update(&programs);
            run(&mut stage, &mut links, member, &no_update, (step, blocks), index);
            trained.gradients = values(&stage, |p| &p.gradient);
        }
        let verdict = run(&mut stage, &mut links, member, &programs, (step, blocks), index).verdict.unwrap();
        let Verdict { loss, norm, .. } = verdict;
        trained.losses.push(loss);
        trained.norms.push(norm);
    }
    trained.weights = values(&stage, |p| &p.value);
    trained
}

/// Builds the stage of `rank` with the setup's weights.
pub(crate) fn build(setup: &Setup, rank: usize) -> Stage {
    let stage = Stage::build(
        rank,
        &StageConfig {
            architecture: setup.architecture().as_ref(),
            placement: &setup.placement(),
            partition: &Partition { layers: setup.layers.clone() },
            seed: Some(7),
            optimizer: setup.optimizer,
            recompute: setup.recompute,
            precision: setup.precision,
            device: Device::Cpu,
            replica: Replica::ONLY,
        },
    );
    if let Some(weights) = &setup.weights {
        let frozen = stage.parameters.frozen().iter().map(|weight| (&weight.spec, &weight.value));
        let trained = stage.parameters.iter().map(|parameter| (&parameter.spec, &parameter.value));
        for (spec, value) in frozen.chain(trained) {
            let initial = Tensor::from_slice(&weights[&spec.name]).view(spec.shape.as_slice());
            value.shallow_clone().copy_(&initial);
        }
    }
    stage.parameters.update_compute();
    stage
}

fn without_update(programs: &Programs) -> Programs {
    let mut programs = programs.clone();
    programs.ranks.iter_mut().for_each(|actions| actions.retain(|&action| action != Action::Update));
    programs
}

fn run(
    stage: &mut Stage,
    links: &mut Links,
    member: &Member,
    programs: &Programs,
    (step, blocks): (&StepData, GradientBlocks),
    index: usize,
) -> StepOutput {
    let layouts: Vec<MicrobatchLayout> = step.microbatches.iter().map(|m| m.layout.clone()).collect();
    let inputs = StepInputs {
        layouts: &layouts,
        token_ids: step.microbatches.iter().map(|m| Tensor::from_slice(&m.inputs)).collect(),
        rows: Vec::new(),
        targets: step.microbatches.iter().map(|m| Tensor::from_slice(&m.targets)).collect(),
        target_count: step.target_count.unwrap_or_else(|| step.own_targets()),
        blocks: &blocks.of_replica(0, 1),
        loss_so_far: 0.0,
        step: Some(index as u64 + 1),
        learning_rate: step.learning_rate,
        origin: Instant::now(),
        vote: StepVote::default(),
    };
    let (activity, placement, rank) = (&member.activity(), &programs.placement, stage.index);
    let (control, probes) = (&mut Uncontrolled, Vec::new());
    let mut executor = Executor { stage, links, member, activity, placement, control, probes };
    executor.run(&programs.ranks[rank], &inputs).unwrap()
}

fn values(stage: &Stage, tensor: impl Fn(&Parameter) -> &Tensor) -> Weights {
    let flat = |p| Vec::<f32>::try_from(tensor(p).reshape([-1])).unwrap();
    stage.parameters.iter().map(|p| (p.spec.name.clone(), flat(p))).collect()
}
