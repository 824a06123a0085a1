//! Measures the times for a plan on this machine: the time of each kind of module for a microbatch, and the time of a
//! message between two stages.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use stagecoach_api::job::{Encryption, Recompute, Transport};
use stagecoach_engine::StageError;
use stagecoach_engine::execute::{Chunk, ChunkOutput, LossInputs, Stage, StageConfig, kind};
use stagecoach_group::GroupSecret;
use stagecoach_model::{CuSeqlens, ForwardContext, MicrobatchCost, WeightGradient};
use stagecoach_pipeline::{Partition, Placement, Replica};
use stagecoach_transport::{Interrupt, LinkError, Links, LinksConfig, link_ids, open_links};
use tch::{Device, Kind, Tensor};

use crate::{JobConfig, ModuleSeconds, Profile};

/// The number of measured runs of a module, after the warm-up runs. The profile has the median of these runs.
const RUNS: usize = 15;
const WARM_UP: usize = 3;
/// The chunks of the measured stage: the embedding, one layer, and the head.
const EMBEDDING: usize = 0;
const LAYER: usize = 1;
const HEAD: usize = 2;
/// The time limit for opening links within this process.
const LINK_TIMEOUT: Duration = Duration::from_secs(10);

/// Measures one layer, the embedding, the head and a link of the job's model on the device of stage 0.
///
/// # Errors
/// Returns an error if the device can't be used, or if links can't be opened on this machine.
pub fn measure_profile(config: &JobConfig, vocab_size: usize) -> Result<Profile, StageError> {
    let training = &config.training;
    tch::set_num_threads(training.threads as i32);
    let device = config.device(0)?;
    // the kernels of an architecture are those of one device
    let architecture = config.architecture(vocab_size, device);
    let stage = Stage::build(
        0,
        &StageConfig {
            architecture: architecture.as_ref(),
            placement: &Placement::new(vec![0; 3]).map_err(|e| StageError::invalid(e.to_string()))?,
            partition: &Partition { layers: vec![0, 1, 0] },
            seed: Some(training.seed),
            optimizer: config.adamw(),
            recompute: Recompute::None,
            precision: training.precision,
            device,
            replica: Replica::ONLY,
        },
    );
    let MicrobatchCost { tokens, length, .. } = config.microbatch_cost(Recompute::None);
    let token_ids = Tensor::arange(tokens as i64, (Kind::Int64, device)).remainder(architecture.vocab_size() as i64);
    let size = [tokens as i64, architecture.hidden_size() as i64];
    let hidden = || Tensor::randn(size, (Kind::Float, device)).to_kind(kind(training.precision));
    let (x, dy) = (hidden(), hidden());
    let module = |chunk: usize, input: &Tensor, recompute: Recompute| {
        let run = || run_module(&stage.chunks[&chunk], input, &token_ids, &dy, length as i64, recompute);
        median_of_runs(run)
    };
    Ok(Profile {
        embedding: module(EMBEDDING, &token_ids, Recompute::None),
        layer: Recompute::ALL.iter().map(|&mode| (mode.to_string(), module(LAYER, &x, mode))).collect(),
        head: module(HEAD, &x, Recompute::None),
        link_seconds: measure_link(
            &x.to_device(Device::Cpu),
            config.job.spec.pipeline.transport,
            config.job.spec.pipeline.encryption,
        )?,
    })
}

/// Measures the seconds of one forward pass, of the input gradient, and of the weight gradients. Each row is one
/// document, because attention takes longest for such rows.
fn run_module(
    chunk: &Chunk,
    input: &Tensor,
    targets: &Tensor,
    dy: &Tensor,
    length: i64,
    recompute: Recompute,
) -> ModuleSeconds {
    let rows = targets.size()[0] / length;
    let bounds: Vec<i64> = (0..=rows).map(|row| row * length).collect();
    let cu_seqlens = CuSeqlens::new(&bounds, input.device());
    let ctx = ForwardContext { length, first_position: 0, cu_seqlens, recompute };
    let loss = chunk.head.is_some().then_some(LossInputs { targets, scale: 1.0 / targets.size()[0] as f64 });
    let (forward, (output, saved)) = time(input, || chunk.forward(input.shallow_clone(), ctx, loss));
    let dy = matches!(output, ChunkOutput::Activations(_)).then(|| dy.shallow_clone());
    drop(output);
    let mut gradients = Vec::new();
    let (backward_input, _) = time(input, || chunk.backward(saved, dy, &mut |gradient| gradients.push(gradient)));
    let (backward_weight, ()) = time(input, || gradients.into_iter().for_each(WeightGradient::accumulate));
    ModuleSeconds { forward, backward_input, backward_weight }
}

/// Returns the seconds that `run` takes, and its result. On a GPU, waits until the GPU has finished.
fn time<T>(on: &Tensor, run: impl FnOnce() -> T) -> (f64, T) {
    let began = Instant::now();
    let result = run();
    if let Device::Cuda(index) = on.device() {
        tch::Cuda::synchronize(index as i64);
    }
    (began.elapsed().as_secs_f64(), result)
}

/// Returns the median of each time over the measured runs.
fn median_of_runs(run: impl Fn() -> ModuleSeconds) -> ModuleSeconds {
    let runs: Vec<ModuleSeconds> = (0..WARM_UP + RUNS).map(|_| run()).skip(WARM_UP).collect();
    let part = |part: fn(&ModuleSeconds) -> f64| median(runs.iter().map(part).collect());
    ModuleSeconds {
        forward: part(|run| run.forward),
        backward_input: part(|run| run.backward_input),
        backward_weight: part(|run| run.backward_weight),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the seconds of a message between two stages, half of a round trip. `tensor` has the shape of the activations
/// of a microbatch.
fn measure_link(tensor: &Tensor, transport: Transport, encryption: Encryption) -> Result<f64, StageError> {
    let listen =
        || TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok((listener.local_addr()?.to_string(), listener)));
    let listeners = [listen(), listen()].into_iter().collect::<Result<Vec<_>, _>>();
    let listeners = listeners.map_err(|e| StageError::invalid(format!("could not listen on 127.0.0.1: {e}")))?;
    let (addresses, listeners): (Vec<String>, Vec<TcpListener>) = listeners.into_iter().unzip();
    let ids = link_ids(&Placement::linear(2), false);
    let group = format!("profile-{}", std::process::id());
    let secret =
        GroupSecret::generate(0).map_err(|e| StageError::invalid(format!("no random numbers for a key: {e}")))?;
    let boundary_bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
    let open = |rank: usize, listener: TcpListener| {
        open_links(LinksConfig {
            rank,
            group: group.clone(),
            secret: &secret,
            on_rejected: &|| {},
            listener,
            addresses: &addresses,
            link_ids: &ids,
            // both ends are in this process, on one GPU or none, and NCCL accepts only one rank per GPU
            transport: if transport == Transport::Nccl { Transport::Auto } else { transport },
            device: Device::Cpu,
            encryption,
            boundary_bytes,
            tied_bytes: 0,
            interrupt: Interrupt::default(),
            timeout: LINK_TIMEOUT,
        })
    };
    let ends = std::thread::scope(|scope| {
        let open = &open;
        let ends: Vec<_> = listeners
            .into_iter()
            .enumerate()
            .map(|(rank, listener)| {
                let tensor = tensor.copy();
                scope.spawn(move || {
                    let mut links = open(rank, listener)?;
                    // returns the links too, because closing them here could cut off the last message
                    exchange(rank, &mut links, &tensor).map(|seconds| (seconds, links))
                })
            })
            .collect();
        ends.into_iter().map(|end| end.join()).collect::<Vec<_>>()
    });
    match ends.into_iter().next() {
        Some(Ok(measured)) => Ok(measured?.0),
        _ => Err(StageError::invalid("the measurement of a link failed")),
    }
}

/// Sends `tensor` from rank 0 to rank 1 and back, several times. Returns the median seconds of half a round trip.
fn exchange(rank: usize, links: &mut Links, tensor: &Tensor) -> Result<f64, LinkError> {
    let (shape, kind) = (tensor.size(), tensor.kind());
    let broken = || LinkError::Broken("no link to measure".into());
    let (_, sender) = links.senders.iter().next().ok_or_else(broken)?;
    let receiver = links.receivers.values_mut().next().ok_or_else(broken)?;
    let mut seconds = Vec::new();
    for message in 0..WARM_UP + RUNS {
        receiver.post(message, &shape, kind);
        let began = Instant::now();
        if rank == 0 {
            sender.send(message, tensor.shallow_clone())?;
        }
        let received = receiver.wait(message)?;
        if rank == 1 {
            sender.send(message, received)?;
        }
        seconds.push(began.elapsed().as_secs_f64() / 2.0);
    }
    Ok(median(seconds.split_off(WARM_UP)))
}
