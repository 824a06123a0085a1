//! Measures the pipeline bubble of the trainer's runtime, which is the share of a step in which a rank does not
//! compute. Stages sleep instead of computing, so that a machine with few cores can run any number of stages. The
//! measurement compares the bubble with the simulated bubble of the schedule, and with the bubble of PyTorch's runtime
//! for a model that sleeps.

mod model;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stagecoach_api::job::{AdamWSpec, Encryption, Precision, Recompute, Transport};
use stagecoach_data::MicrobatchLayout;
use stagecoach_engine::execute::{Executor, Stage, StageConfig, StepInputs, Uncontrolled};
use stagecoach_group::{StepRules, StepVote};
use stagecoach_model::Architecture;
use stagecoach_pipeline::{
    Costs, GradientBlocks, INTERLEAVED_ONE_F_ONE_B, Partition, Programs, Replica, SCHEDULES, lower, simulate,
};
use stagecoach_tests::{InProcessStage, TIMEOUT, in_process_group};
use stagecoach_transport::{Interrupt, LinksConfig, link_ids, open_links};
use tch::{Device, Tensor};

use crate::stats::median;
use model::SleepingModel;

/// The seconds that a rank sleeps for each of F (forward), I (backward for the input) and W (backward for the weights)
/// of a microbatch, in all its chunks together.
const RANK_SECONDS: f64 = 0.02;
const WARM_UP: usize = 1;
const TIMED_STEPS: usize = 5;
const TOKENS: usize = 8;

/// The seconds of each timed step, and the share of the step in which the ranks did not sleep.
struct Measured {
    seconds: Vec<f64>,
    bubbles: Vec<f64>,
}

impl Measured {
    /// Each item of `steps` has the seconds of a step, measured by rank 0, and the seconds that each rank slept in the
    /// step.
    fn new(steps: impl Iterator<Item = (f64, Vec<f64>)>) -> Measured {
        let bubble = |seconds: f64, slept: &[f64]| 1.0 - slept.iter().sum::<f64>() / (seconds * slept.len() as f64);
        let (seconds, bubbles) = steps.map(|(seconds, slept)| (seconds, bubble(seconds, &slept))).unzip();
        Measured { seconds, bubbles }
    }

    fn to_json(&self) -> Value {
        json!({ "stepSeconds": self.seconds, "bubble": self.bubbles })
    }
}

pub(crate) fn measure(folder: &Path) -> Value {
    println!("bubbles of stages that sleep: by simulation, ours, PyTorch's");
    let mut rows = Vec::new();
    for ranks in [2, 4, 8] {
        let microbatches = 2 * ranks;
        for schedule in SCHEDULES {
            // with one chunk a rank, the zero-bubble schedule is ZB-H1
            let choice = if *schedule == INTERLEAVED_ONE_F_ONE_B { 2 } else { 1 };
            let (name, chunks) = (schedule.name, schedule.chunks.fixed().unwrap_or(choice));
            let programs = lower(&schedule.schedule(ranks, chunks, microbatches), false).unwrap();
            let theory = simulate(&programs, &costs(&programs, chunks)).mean_bubble();
            let (ours, torch) = (run_ours(&programs, chunks), run_torch(folder, name, chunks, ranks, microbatches));
            let percent = |bubble: f64| format!("{:5.1} %", 100.0 * bubble);
            let beside = torch.as_ref().map_or_else(|e| format!("- ({e})"), |torch| percent(median(&torch.bubbles)));
            println!(
                "  {name:<22} {ranks} ranks, {microbatches:>2} microbatches   {}   {}   {beside}",
                percent(theory),
                percent(median(&ours.bubbles)),
            );
            rows.push(json!({
                "schedule": name, "ranks": ranks, "chunksPerRank": chunks, "microbatches": microbatches,
                "simulatedBubble": theory, "bubble": median(&ours.bubbles), "ours": ours.to_json(),
                "torchBubble": torch.as_ref().ok().map(|torch| median(&torch.bubbles)),
                "torch": torch.map_or_else(Value::from, |torch| torch.to_json()),
            }));
        }
    }
    json!({ "rankSeconds": RANK_SECONDS, "rows": rows })
}

/// Returns the costs for the simulation, in which only the sleeps take time.
fn costs(programs: &Programs, chunks_per_rank: usize) -> Costs {
    let mut costs = Costs::uniform(programs.placement.chunks());
    let seconds = RANK_SECONDS / chunks_per_rank as f64;
    for chunk in &mut costs.chunks {
        (chunk.forward_seconds, chunk.backward_input_seconds, chunk.backward_weight_seconds) =
            (seconds, seconds, seconds);
    }
    costs
}

/// Runs ranks as threads, with the trainer's executor, TCP links and control plane.
fn run_ours(programs: &Programs, chunks_per_rank: usize) -> Measured {
    let ranks = in_process_group(programs.ranks.len(), StepRules::default(), |joined| {
        stage(programs, Duration::from_secs_f64(RANK_SECONDS / chunks_per_rank as f64), joined)
    });
    let step = |step: usize| (ranks[0][step].0, ranks.iter().map(|rank| rank[step].1).collect());
    Measured::new((WARM_UP..WARM_UP + TIMED_STEPS).map(step))
}

/// Runs all steps of one rank. Returns the seconds of each step, and the seconds that the rank slept in the step.
fn stage(programs: &Programs, sleep: Duration, joined: &mut InProcessStage) -> Vec<(f64, f64)> {
    tch::set_num_threads(1);
    let (rank, member, placement) = (joined.rank, &joined.member, &programs.placement);
    let model = SleepingModel::new(placement.chunks(), sleep);
    let config = StageConfig {
        architecture: &model,
        placement,
        partition: &Partition { layers: vec![1; placement.chunks()] },
        seed: Some(0),
        optimizer: AdamWSpec::default(),
        recompute: Recompute::None,
        precision: Precision::Float32,
        device: Device::Cpu,
        replica: Replica::ONLY,
    };
    let mut stage = Stage::build(rank, &config);
    let mut links = open_links(LinksConfig {
        rank,
        group: "sleep".into(),
        secret: member.secret(),
        on_rejected: &|| {},
        listener: joined.listener.try_clone().unwrap(),
        addresses: joined.addresses,
        link_ids: &link_ids(placement, false),
        transport: Transport::Tcp,
        device: Device::Cpu,
        encryption: Encryption::None,
        boundary_bytes: 4 * TOKENS * model.hidden_size(),
        tied_bytes: 0,
        interrupt: Interrupt::default(),
        timeout: TIMEOUT,
    })
    .unwrap();
    member.form().unwrap();
    let layout = MicrobatchLayout { rows: 1, length: TOKENS, document_starts: vec![vec![]] };
    let tokens = || (0..programs.microbatches).map(|_| Tensor::from_slice(&[1i64; TOKENS])).collect();
    let mut steps = Vec::new();
    for step in 1..=(WARM_UP + TIMED_STEPS) as u64 {
        let inputs = StepInputs {
            layouts: &vec![layout.clone(); programs.microbatches],
            token_ids: tokens(),
            targets: tokens(),
            rows: Vec::new(),
            target_count: (programs.microbatches * TOKENS) as u64,
            blocks: &GradientBlocks::one(programs.microbatches).whole(),
            loss_so_far: 0.0,
            step: Some(step),
            learning_rate: 1e-3,
            origin: Instant::now(),
            vote: StepVote::default(),
        };
        let began = Instant::now();
        let activity = &member.activity();
        let (stage, links, control, probes) = (&mut stage, &mut links, &mut Uncontrolled, Vec::new());
        let mut executor = Executor { stage, links, member, activity, placement, control, probes };
        executor.run(&programs.ranks[rank], &inputs).unwrap();
        steps.push((began.elapsed().as_secs_f64(), model.sleeper().take_seconds()));
    }
    steps
}

/// Runs ranks as processes of PyTorch. Returns PyTorch's error if PyTorch does not run the schedule.
fn run_torch(
    folder: &Path,
    schedule: &str,
    chunks: usize,
    ranks: usize,
    microbatches: usize,
) -> Result<Measured, String> {
    let settings = json!({
        "schedule": schedule, "chunks": chunks, "microbatches": microbatches, "steps": WARM_UP + TIMED_STEPS,
        "seconds": RANK_SECONDS / chunks as f64, "tokens": TOKENS,
    });
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("torch/sleep.py");
    let log = |rank: usize| folder.join(format!("sleep-{rank}.log"));
    let start = |rank: usize| {
        Command::new("python3")
            .args([script.as_os_str(), settings.to_string().as_ref()])
            .envs([("OMP_NUM_THREADS", "1"), ("MASTER_ADDR", "127.0.0.1"), ("GLOO_SOCKET_IFNAME", "lo")])
            .env("MASTER_PORT", port.to_string())
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() })
            .stderr(std::fs::File::create(log(rank)).unwrap())
            .spawn()
            .unwrap()
    };
    let mut processes: Vec<_> = (0..ranks).map(start).collect();
    let first = processes.remove(0).wait_with_output().unwrap();
    for mut process in processes {
        // if the first process failed, the other processes would wait for it
        if !first.status.success() {
            let _ = process.kill();
        }
        let _ = process.wait();
    }
    if !first.status.success() {
        let log = std::fs::read_to_string(log(0)).unwrap_or_default();
        return Err(log.lines().last().unwrap_or("no message").to_owned());
    }
    let steps: Vec<(f64, Vec<f64>)> = serde_json::from_slice(&first.stdout).map_err(|e| e.to_string())?;
    Ok(Measured::new(steps.into_iter().skip(WARM_UP)))
}
