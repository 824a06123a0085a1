//! Trains a small Llama in this process: a thread a stage, with the real control plane, links and programs.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use stagecoach::execute::{Executor, Stage, StageConfig, StepInputs, StepOutput};
use stagecoach::links::{Links, Opening, link_ids, open};
use stagecoach::model::{Architecture, Llama, LlamaConfig};
use stagecoach_api::job::{AdamWSpec, Transport};
use stagecoach_data::MicrobatchLayout;
use stagecoach_group::{Coordinator, GroupTimeouts, Hello, Member, StepRules, StepVote, Verdict};
use stagecoach_pipeline::{Action, Partition, Placement, Programs, Schedule, lower};
use tch::{Device, Tensor};

/// What is trained, and how it is cut.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) config: LlamaConfig,
    /// Layers of each stage.
    pub(crate) layers: Vec<usize>,
    pub(crate) schedule: fn(usize, usize) -> Schedule,
    pub(crate) transport: Transport,
    pub(crate) recompute: bool,
    pub(crate) optimizer: AdamWSpec,
    pub(crate) clip: Option<f64>,
    /// Instead of fresh weights.
    pub(crate) weights: Option<Weights>,
}

/// One step's data.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) microbatches: Vec<Microbatch>,
    pub(crate) learning_rate: f64,
}

/// Ids and targets, `[rows * length]`.
#[derive(Clone, Debug)]
pub(crate) struct Microbatch {
    pub(crate) layout: MicrobatchLayout,
    pub(crate) inputs: Vec<i64>,
    pub(crate) targets: Vec<i64>,
}

/// Values by name.
pub(crate) type Weights = BTreeMap<String, Vec<f32>>;

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f32>,
    pub(crate) norms: Vec<f64>,
    /// Of the first step, before clipping.
    pub(crate) gradients: Weights,
    /// After the last step.
    pub(crate) weights: Weights,
}

/// Trains for `steps`: losses and norms as every stage was told them, the stages' gradients and weights in one map.
///
/// Both ends of a tied embedding must come to the same bits.
pub(crate) fn train(setup: &Setup, steps: &[Step]) -> Trained {
    let ranks = setup.layers.len();
    let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
    let control = listen();
    let address = control.local_addr().unwrap().to_string();
    let coordinator = Coordinator::start(control, hello(0, ranks), timing()).unwrap();
    coordinator.release(Vec::new(), StepRules { clip_norm: setup.clip, ..StepRules::default() });
    let data: Vec<TcpListener> = (0..ranks).map(|_| listen()).collect();
    let addresses: Vec<String> = data.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let parts: Vec<Trained> = thread::scope(|scope| {
        let (address, addresses) = (&address, &addresses);
        let stages: Vec<_> = data
            .into_iter()
            .enumerate()
            .map(|(rank, data)| scope.spawn(move || stage(setup, steps, rank, address, data, addresses)))
            .collect();
        stages.into_iter().map(|stage| stage.join().unwrap()).collect()
    });
    parts.into_iter().reduce(merge).unwrap()
}

fn merge(mut all: Trained, part: Trained) -> Trained {
    let Trained { losses, norms, gradients, weights } = part;
    assert_eq!((&all.losses, &all.norms), (&losses, &norms), "stages were told different things");
    for (into, from) in [(&mut all.gradients, gradients), (&mut all.weights, weights)] {
        for (name, values) in from {
            let other = into.entry(name.clone()).or_insert_with(|| values.clone());
            assert_eq!(*other, values, "the two ends of {name} differ");
        }
    }
    all
}

fn stage(
    setup: &Setup,
    steps: &[Step],
    rank: usize,
    address: &str,
    data: TcpListener,
    addresses: &[String],
) -> Trained {
    tch::set_num_threads(1);
    let ranks = setup.layers.len();
    let (member, ..) = Member::join(address, hello(rank, ranks), timing(), |_| {}, |_| {}).unwrap();
    let placement = Placement::linear(ranks);
    let architecture = Llama::new(setup.config.clone(), Device::Cpu);
    let mut stage = build(setup, &architecture, rank);
    let mut links = open(Opening {
        rank,
        group: "test".into(),
        listener: data,
        addresses,
        link_ids: &link_ids(&placement, architecture.tie_word_embeddings()),
        transport: setup.transport,
        boundary_bytes: 1 << 16,
        tied_bytes: 4 * setup.config.vocab_size * setup.config.hidden_size,
        timeout: PATIENCE,
    })
    .unwrap();
    member.form().unwrap();

    let mut trained = Trained { losses: vec![], norms: vec![], gradients: Weights::new(), weights: Weights::new() };
    for (index, step) in steps.iter().enumerate() {
        let schedule = (setup.schedule)(ranks, step.microbatches.len());
        let programs = lower(&schedule, architecture.tie_word_embeddings()).unwrap();
        if index == 0 {
            // UPDATE clips in place: once through without it leaves the gradients to look at
            let seen = without_update(&programs);
            run(&mut stage, &mut links, &member, &seen, step, index);
            trained.gradients = values(&stage, |stage, p| stage.parameters[p].gradient.shallow_clone());
        }
        let verdict = run(&mut stage, &mut links, &member, &programs, step, index).verdict.unwrap();
        let Verdict { loss, norm, .. } = verdict;
        trained.losses.push(loss);
        trained.norms.push(norm);
    }
    trained.weights = values(&stage, |stage, p| stage.parameters[p].value.shallow_clone());
    member.leave(0).unwrap();
    trained
}

/// One rank's model, with the setup's weights.
pub(crate) fn build(setup: &Setup, architecture: &dyn Architecture, rank: usize) -> Stage {
    let stage = Stage::build(
        rank,
        &StageConfig {
            architecture,
            placement: &Placement::linear(setup.layers.len()),
            partition: &Partition { layers: setup.layers.clone() },
            seed: 7,
            optimizer: setup.optimizer,
            recompute: setup.recompute,
            device: Device::Cpu,
        },
    );
    for (parameter, weights) in stage.parameters.iter().filter_map(|p| Some((p, setup.weights.as_ref()?))) {
        let given = Tensor::from_slice(&weights[&parameter.spec.name]).view(parameter.spec.shape.as_slice());
        parameter.value.shallow_clone().copy_(&given);
    }
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
    step: &Step,
    index: usize,
) -> StepOutput {
    let layouts: Vec<MicrobatchLayout> = step.microbatches.iter().map(|m| m.layout.clone()).collect();
    let shape = |m: &Microbatch| [m.layout.rows as i64, m.layout.length as i64];
    let inputs = StepInputs {
        layouts: &layouts,
        token_ids: step.microbatches.iter().map(|m| Tensor::from_slice(&m.inputs).view(shape(m))).collect(),
        targets: step.microbatches.iter().map(|m| Tensor::from_slice(&m.targets)).collect(),
        target_count: step.microbatches.iter().flat_map(|m| &m.targets).filter(|&&target| target >= 0).count() as u64,
        step: Some(index as u64 + 1),
        learning_rate: step.learning_rate,
        vote: StepVote::default(),
    };
    let (activity, placement, rank) = (&member.activity(), &programs.placement, stage.rank);
    Executor { stage, links, member, activity, placement }.run(&programs.ranks[rank], &inputs).unwrap()
}

fn values(stage: &Stage, of: impl Fn(&Stage, usize) -> Tensor) -> Weights {
    let flat = |p| Vec::<f32>::try_from(of(stage, p).reshape([-1])).unwrap();
    (0..stage.parameters.len()).map(|p| (stage.parameters[p].spec.name.clone(), flat(p))).collect()
}

/// After so long a test has failed: far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn timing() -> GroupTimeouts {
    let heartbeat_timeout = PATIENCE; // a busy machine is not a dead one
    GroupTimeouts { startup_timeout: PATIENCE, heartbeat_timeout, stall_timeout: PATIENCE, ..GroupTimeouts::default() }
}

fn hello(rank: usize, world_size: usize) -> Hello {
    Hello {
        job_uid: "job".into(),
        attempt: 1,
        rank,
        world_size,
        replica: 0,
        pod_uid: format!("pod-{rank}"),
        version: "test".into(),
        config: BTreeMap::new(),
        data_address: String::new(),
        host: String::new(),
        device: "cpu".into(),
        isa: String::new(),
    }
}
