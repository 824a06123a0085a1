//! What pods, their nodes and the volume do by themselves.

use crate::operator::Guard;
use crate::properties::Broken;
use crate::world::{Name, Pod, Process, World, Write};

/// The checkpoint at which training is done.
pub(crate) const GOAL: u64 = 1;

/// What happens in a pod or to a group of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// A process starts.
    Start(Name),
    /// A stage 0 takes the next fence.
    TakeFence(Name),
    /// An attempt's group forms.
    Form(u64),
    /// A group commits its next checkpoint.
    Commit(u64),
    /// A process ends by itself, for a reason of its group.
    End(Name, i32),
    /// A pod that was asked to leave and has is removed by its node.
    Remove(Name),
}

/// What may happen next, and whether nobody waits for it: a process whose node is cut off may be slow for ever.
pub(crate) fn moves(world: &World, without: Option<Guard>) -> Vec<(Move, bool)> {
    let mut moves = Vec::new();
    let mut attempts: Vec<_> = world.pods.iter().map(|pod| pod.name.attempt).collect();
    attempts.dedup();
    for attempt in attempts {
        let prompt = world.of(attempt).all(|pod| pod.is_reachable() && pod.leaving.is_none());
        if all(world, attempt, Process::Starting) && world.of(attempt).any(|pod| pod.fenced) {
            moves.push((Move::Form(attempt), prompt));
        }
        let holds = world.volume.holder == attempt || without == Some(Guard::Fence);
        if all(world, attempt, Process::Ready) && holds && world.volume.checkpoint < GOAL {
            moves.push((Move::Commit(attempt), prompt));
        }
    }
    for pod in &world.pods {
        let name = pod.name;
        // Who was asked to leave has time for it.
        let prompt = pod.is_reachable() && pod.leaving.is_none();
        if pod.process == Process::Pending && pod.is_reachable() && pod.leaving.is_none() {
            moves.push((Move::Start(name), true));
        }
        if pod.process == Process::Starting && name.stage == 0 && !pod.fenced {
            moves.push((Move::TakeFence(name), prompt));
        }
        if let Some(code) = end(world, pod, without) {
            moves.push((Move::End(name, code), prompt));
        }
        let stopped = matches!(pod.process, Process::Pending | Process::Ended(_));
        if pod.is_reachable() && pod.leaving.is_some() && stopped {
            moves.push((Move::Remove(name), false));
        }
    }
    moves
}

/// Whether all stages of an attempt are there and do the same.
fn all(world: &World, attempt: u64, process: Process) -> bool {
    let alike = world.of(attempt).filter(|pod| pod.process == process);
    alike.clone().count() > 0 && alike.clone().all(|pod| alike.clone().count() == pod.stages as usize)
}

/// With which code a process is about to end, if it is.
fn end(world: &World, pod: &Pod, without: Option<Guard>) -> Option<i32> {
    let formed = match pod.process {
        Process::Starting => false,
        Process::Ready => true,
        Process::Pending | Process::Ended(_) => return None,
    };
    let attempt = pod.name.attempt;
    let peers = world.of(attempt).filter(|peer| peer.name != pod.name);
    let mut ends = peers.clone().filter_map(|peer| match peer.process {
        Process::Ended(code) => Some(code),
        _ => None,
    });
    let holds = world.volume.holder == attempt || without == Some(Guard::Fence);
    let fenced_off = formed && !holds && pod.name.stage == 0;
    let done = formed && world.volume.checkpoint >= GOAL && (holds || ends.clone().any(|code| code == 0));
    let told = formed && ends.clone().any(|code| code == 143);
    let lost = ends.any(|code| code != 0) || formed && peers.count() + 1 < pod.stages as usize;
    let asked = pod.leaving.is_some() && pod.is_reachable();
    match () {
        () if done => Some(0),
        () if fenced_off => Some(1),
        () if told => Some(143),
        () if lost => Some(75),
        () if asked => Some(143),
        () => None,
    }
}

/// Lets it happen.
pub(crate) fn make(world: &mut World, happens: Move) {
    match happens {
        Move::Start(name) => world.change(name, |pod| pod.enter(Process::Starting)),
        Move::TakeFence(name) => {
            world.volume.holder = name.attempt;
            world.change(name, |pod| pod.fenced = true);
        }
        Move::Form(attempt) => {
            let names: Vec<_> = world.of(attempt).map(|pod| pod.name).collect();
            for name in names {
                world.change(name, |pod| pod.enter(Process::Ready));
            }
        }
        Move::Commit(attempt) => {
            if attempt < world.volume.holder {
                world.break_promise(Broken::NoOlderOneCommits);
            }
            world.volume.checkpoint += 1;
            world.operator.news = true;
        }
        Move::End(name, code) => world.change(name, |pod| pod.enter(Process::Ended(code))),
        Move::Remove(name) => {
            world.pods.retain(|pod| pod.name != name);
            // Deletions carry the UID.
            world.operator.plan.retain(|write| *write != Write::Delete(name));
            world.operator.fresh |= world.operator.plan.is_empty();
            world.operator.news = true;
        }
    }
}
