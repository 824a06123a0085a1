//! Tests of the choice of a group's leader.

use std::sync::Arc;

use proptest::prelude::*;
use stagecoach_api::contract::StageEnv;
use stagecoach_checkpoint::Volume;
use stagecoach_test_volumes::{FaultyVolume, MemoryVolume, VolumeFault};

use super::*;
use crate::train::join::rendezvous::PUBLISH_TIMEOUT;

#[test]
fn the_last_leader_leads_or_its_successor() {
    let lead_after = |after| LeadDecision::Lead(LeadClaim { after });
    let named = |rank| Some(LastLeader { epoch: 7, rank });
    for (rank, leaderless, last, expected) in [
        (0, None, None, lead_after(None)),
        (2, None, None, LeadDecision::Join),
        (2, None, named(Some(2)), lead_after(Some(7))),
        (0, None, named(Some(2)), LeadDecision::Join),
        (2, Some(7), named(Some(0)), lead_after(Some(7))),
        (2, Some(6), named(Some(0)), LeadDecision::Join),
        (2, Some(6), named(None), LeadDecision::Wait),
        (0, None, named(None), LeadDecision::Wait),
    ] {
        assert_eq!(decide_after(rank, leaderless, last), expected, "stage {rank}, {leaderless:?}, {last:?}");
    }
}

/// The process of the stage that succeeds the lost leader may end at any call of the volume. The restarted process of
/// the lost leader then leads the next group, or joins the group of its successor.
#[test]
fn the_process_that_takes_the_fence_may_end_at_any_call() {
    let env = |rank: u32| {
        let vars = [
            ("WORLD_SIZE", "2"),
            ("STAGECOACH_STAGES", "1"),
            ("STAGECOACH_DATA_PARALLEL", "2"),
            ("STAGECOACH_JOB", "a"),
        ];
        let more = [("STAGECOACH_JOB_UID", "u"), ("STAGECOACH_ATTEMPT", "1"), ("MASTER_ADDR", "a")];
        let own = [("POD_IP", "127.0.0.1"), ("POD_UID", "p"), ("RANK", if rank == 0 { "0" } else { "1" })];
        StageEnv::from_vars(vars.into_iter().chain(more).chain(own)).unwrap()
    };
    let lead = |volume: &dyn Volume, rank, after: Option<u64>| {
        let fence = acquire_fence(volume, &FenceOwner::new("a", "u"), None, after)?;
        let secret = GroupSecret::generate(fence.number()).unwrap();
        let at = Rendezvous::new("10.0.0.7:1".into(), secret);
        fence.publish(volume, &encode_endpoint(&env(rank), &at))?;
        Ok::<u64, LeaveReason>(fence.number())
    };
    let prepared = || {
        let volume = MemoryVolume::new();
        let lost = lead(&volume, 0, None).unwrap();
        (volume, lost)
    };
    let (volume, lost) = prepared();
    let handle = FaultyVolume::counting(Arc::new(volume));
    lead(&handle, 1, Some(lost)).unwrap();
    let calls = handle.trace().len();
    let (mut led, mut joined) = (0, 0);
    for (at, fault) in (0..calls).flat_map(|at| [(at, VolumeFault::CrashBefore), (at, VolumeFault::CrashAfter)]) {
        let (volume, lost) = prepared();
        let handle = FaultyVolume::failing(Arc::new(volume.clone()), at, fault);
        let succeeded = lead(&handle, 1, Some(lost)).is_ok();
        let (first, second) = (env(0), env(1));
        let mut finder = RendezvousWatcher::new(&volume, &first, None, None);
        // the wait for a publication begins when the stage first sees the fence
        let now = Instant::now();
        decide(0, None, &mut finder, now).unwrap();
        match decide(0, None, &mut finder, now + PUBLISH_TIMEOUT).unwrap() {
            LeadDecision::Lead(claim) => {
                assert!(!succeeded, "call {at}: two lead");
                assert_eq!(claim.after.map(|after| lead(&volume, 0, Some(after)).unwrap()), claim.after.map(|n| n + 1));
                led += 1;
            }
            LeadDecision::Join => {
                // the successor has published that it leads, so its restarted process leads the next group
                let mut finder = RendezvousWatcher::new(&volume, &second, None, None);
                let again = decide(1, None, &mut finder, now).unwrap();
                assert_eq!(again, LeadDecision::Lead(LeadClaim { after: Some(lost + 1) }), "call {at}, {fault:?}");
                joined += 1;
            }
            LeadDecision::Wait => panic!("call {at}, {fault:?}: nobody leads"),
        }
    }
    assert!(led > 10 && joined > 0, "{led} led, {joined} joined");
}

proptest! {
    /// Three processes claim the lead: two processes of the lost leader's rank, the older of which may still act after
    /// a second restart, and the stage that succeeds the leader. For every interleaving of their reads and acquisitions
    /// of the fence, only one rank leads, and a stage that reads later joins the group of that rank.
    #[test]
    fn one_stage_leads(order in prop::collection::vec(0usize..3, 0..12)) {
        let volume = MemoryVolume::new();
        let lost = Fence::acquire(&volume).unwrap().number();
        let claimants = [(0, None), (0, None), (2, Some(lost))];
        let mut last = LastLeader { epoch: lost, rank: Some(0) };
        let (mut decisions, mut led) = ([None; 3], Vec::new());
        for claimant in order.into_iter().chain([0, 1, 2, 0, 1, 2]) {
            let (rank, leaderless) = claimants[claimant];
            match decisions[claimant] {
                None => decisions[claimant] = Some(decide_after(rank, leaderless, Some(last))),
                Some(LeadDecision::Lead(claim)) => {
                    decisions[claimant] = Some(LeadDecision::Join);
                    if let Ok(fence) = acquire_fence(&volume, &FenceOwner::new("a", "u"), None, claim.after) {
                        led.push((claimant, fence.number()));
                        last = LastLeader { epoch: fence.number(), rank: Some(rank) };
                    }
                }
                Some(LeadDecision::Join | LeadDecision::Wait) => {}
            }
        }
        // the second process of the leader's rank may lead after the first one has led
        let again = led.iter().filter(|(claimant, _)| *claimant < 2).count();
        prop_assert!(led.len() == 1 || again == led.len(), "{led:?}");
        prop_assert!(led.iter().enumerate().all(|(nth, (_, epoch))| *epoch == lost + 1 + nth as u64), "{led:?}");
    }
}
