//! Measures the control plane of a large job: after every step, a coordinator collects a vote from each stage and sends
//! its decision, the verdict, to all stages. In a real job, the coordinator runs on stage 0. Here all stages are
//! threads of this process that compute nothing, and they use one coordinator.

use std::net::TcpListener;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stagecoach_api::contract::Mesh;
use stagecoach_group::{
    BlockLosses, Coordinator, GroupSecret, GroupTimeouts, Hello, Member, NotFound, Quorum, Rendezvous, StepRules,
    StepVote,
};

use crate::machine::processor_seconds;
use crate::stats::{line, median, percentile, worst};

/// The number of stages of a replica. Each replica computes one gradient block, which is a fixed group of microbatches
/// whose gradients are summed in a fixed order.
const STAGES: usize = 8;
const REPLICAS: [usize; 3] = [8, 32, 128];
/// The number of parameter tensors of a stage with eight Llama layers. Each tensor belongs to one replica, and only
/// this replica reports the norm of the tensor's gradient.
const PARAMETERS: usize = 72;
const WARM_UP: usize = 5;
const TIMED_STEPS: usize = 60;
/// The stack size of a member's thread, in bytes. The thread computes nothing.
const STACK_BYTES: usize = 1 << 20;

/// The measurements for one number of members. A member is one stage of one replica, and is connected to the
/// coordinator.
struct Agreements {
    join_seconds: f64,
    /// The seconds until the last verdict, for each timed step: `from_last` counts from the last vote of the step, and
    /// `from_first` from the first vote.
    from_last: Vec<f64>,
    from_first: Vec<f64>,
    /// The processor seconds per step, summed over all threads.
    processor_seconds: f64,
}

pub(crate) fn measure() -> Value {
    allow_many_files();
    println!("a step's agreement among stages as threads");
    let rows: Vec<Value> = REPLICAS.iter().map(|&replicas| row(replicas)).collect();
    json!({ "stages": STAGES, "parametersOfStage": PARAMETERS, "rows": rows })
}

/// Returns the seconds from the last vote to the last verdict of each timed step, among `members` members.
pub(crate) fn seconds(members: usize) -> Vec<f64> {
    allow_many_files();
    agree(members).from_last
}

fn row(replicas: usize) -> Value {
    let members = STAGES * replicas;
    let measured = agree(members);
    let Agreements { join_seconds, from_last, from_first, processor_seconds } = &measured;
    let milliseconds = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
    line(
        &format!("{members} members"),
        milliseconds(median(from_last)),
        &format!(
            "from the last vote to the last verdict; p95 {}, worst {}; from the first vote {}; processor {} a step; all joined in \
             {join_seconds:.1} s",
            milliseconds(percentile(from_last, 0.95)),
            milliseconds(worst(from_last)),
            milliseconds(median(from_first)),
            milliseconds(*processor_seconds)
        ),
    );
    json!({
        "members": members,
        "joinSeconds": join_seconds,
        "medianSeconds": median(from_last),
        "fromLastVoteSeconds": from_last,
        "fromFirstVoteSeconds": from_first,
        "processorSecondsOfStep": processor_seconds,
    })
}

fn agree(members: usize) -> Agreements {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let secret = GroupSecret::generate(1).unwrap();
    let timeouts = GroupTimeouts { heartbeat_timeout: Duration::from_secs(60), ..GroupTimeouts::default() };
    let coordinator =
        Coordinator::start(listener, hello(0, members), timeouts, secret.clone(), Quorum::all(members), || {}).unwrap();
    coordinator.release(b"plan".to_vec(), StepRules::default());
    let at = Rendezvous::new(address, secret);
    let begun = Instant::now();
    let barrier = Barrier::new(members);
    let mut join_seconds = 0.0;
    let mut processor = [0.0; 2];
    let mut steps = vec![Vec::new(); WARM_UP + TIMED_STEPS];
    thread::scope(|scope| {
        let run = |rank: usize| {
            let find = || -> Result<Rendezvous, NotFound> { Ok(at.clone()) };
            let (hello, mesh) = (hello(rank, members), Mesh::pipeline(members as u32));
            let (member, _, _) = Member::join(find, hello, mesh, timeouts, |_| {}, |_| {}).unwrap();
            member.form().unwrap();
            let joined = begun.elapsed().as_secs_f64();
            let mut used = [0.0; 2];
            let mut times = Vec::with_capacity(WARM_UP + TIMED_STEPS);
            for step in 0..WARM_UP + TIMED_STEPS {
                let vote = vote(rank, members, step as u64 + 1);
                barrier.wait();
                if rank == 0 && step == WARM_UP {
                    used[0] = processor_seconds(std::process::id());
                }
                let voted = Instant::now();
                member.vote(vote).unwrap();
                times.push((voted, Instant::now()));
            }
            if rank == 0 {
                used[1] = processor_seconds(std::process::id());
            }
            member.leave(0).unwrap();
            (joined, used, times)
        };
        let spawn = |rank| {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            builder.spawn_scoped(scope, move || run(rank)).unwrap()
        };
        let running: Vec<_> = (0..members).map(spawn).collect();
        for (rank, running) in running.into_iter().enumerate() {
            let (joined, used, times) = running.join().unwrap();
            join_seconds = f64::max(join_seconds, joined);
            if rank == 0 {
                processor = used;
            }
            times
                .into_iter()
                .zip(&mut steps)
                .for_each(|(time, step): (_, &mut Vec<(Instant, Instant)>)| step.push(time));
        }
    });
    let timed = &steps[WARM_UP..];
    let end = |step: &[(Instant, Instant)]| step.iter().map(|time| time.1).max().unwrap();
    let from = |first: bool| {
        timed.iter().map(move |step| {
            let votes = step.iter().map(|time| time.0);
            let since = if first { votes.min() } else { votes.max() };
            (end(step) - since.unwrap()).as_secs_f64()
        })
    };
    Agreements {
        join_seconds,
        from_last: from(false).collect(),
        from_first: from(true).collect(),
        processor_seconds: (processor[1] - processor[0]) / TIMED_STEPS as f64,
    }
}

/// Returns a stage's vote on a step: the squared gradient norms of the parameters that belong to its replica and, if
/// this is the last stage of the replica, the loss of the replica's gradient block.
fn vote(rank: usize, members: usize, step: u64) -> StepVote {
    let (replica, stage, replicas) = (rank / STAGES, rank % STAGES, members / STAGES);
    let owned = (0..PARAMETERS).filter(|parameter| parameter % replicas == replica);
    let losses = BlockLosses { blocks: replicas as u32, target_count: 1 << 20, sums: vec![(replica as u32, 1.0)] };
    StepVote {
        step,
        losses: (stage == STAGES - 1).then_some(losses),
        squared_norms: owned.map(|parameter| ((stage * PARAMETERS + parameter) as u32, 1.0)).collect(),
        all_finite: true,
        measurements: vec![0.5; 64],
        ..StepVote::default()
    }
}

fn hello(rank: usize, world_size: usize) -> Hello {
    Hello {
        job_uid: "agreement".into(),
        attempt: 1,
        rank,
        world_size,
        pod_uid: format!("pod-{rank}"),
        version: env!("CARGO_PKG_VERSION").into(),
        ..Hello::default()
    }
}

/// Raises the limit of open files. Both ends of each member's connection are open in this process, each with two file
/// descriptors.
fn allow_many_files() {
    // SAFETY: the struct outlives both calls, which only read and write it
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0, "RLIMIT_NOFILE can't be read");
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0, "RLIMIT_NOFILE can't be raised");
    }
}
