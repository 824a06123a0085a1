//! Tests which spare replaces a stage whose process has ended, and when spares end or look for the next group.

use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};

use stagecoach_group::{Coordinator, GroupError, Hello, NotFound, Refusal, SpareOutcome, StepRules, wait_as_spare};

use super::support::{
    ControlProxy, TEST_TIMEOUT, TestStage, coordinator, form, hello, join_as, join_at, leave, rendezvous, timeouts,
};

/// A spare on a thread. The spare finds only one group.
struct Spare {
    thread: JoinHandle<Result<SpareOutcome, GroupError>>,
    plans: Receiver<Vec<u8>>,
}

impl Spare {
    fn start(address: &str, hello: Hello) -> Spare {
        // the second call reports a newer attempt, which ends the spare
        let mut found = Some(rendezvous(address));
        let find = move || found.take().ok_or_else(|| NotFound::Superseded("attempt 4".to_owned()));
        let (sender, plans) = channel();
        let work = move || wait_as_spare(find, &hello, timeouts(), |plan| drop(sender.send(plan.to_vec())));
        Spare { thread: thread::spawn(work), plans }
    }

    /// Waits until the spare has received the group's plan.
    fn standing_by(self) -> Spare {
        assert_eq!(self.plans.recv_timeout(TEST_TIMEOUT).unwrap(), b"the plan");
        self
    }

    fn end(self) -> Result<SpareOutcome, GroupError> {
        self.thread.join().unwrap()
    }

    /// Asserts that the spare was notified of the group's end, and then looked for the next group.
    fn looked_for_the_next_group(self) {
        let end = self.end();
        assert!(matches!(end, Err(GroupError::Superseded { .. })), "{end:?}");
    }
}

fn number(number: usize) -> Hello {
    Hello { pod_uid: format!("spare-{number}"), ..hello(number, 3) }
}

/// Returns a formed group of three stages, and two spares that have received the group's plan. The last stage has the
/// given incarnation.
fn group(incarnation: u32) -> (Coordinator, Vec<TestStage>, [Spare; 2]) {
    let (coordinator, address) = coordinator(3, timeouts());
    coordinator.release(b"the plan".to_vec(), StepRules::default());
    let hellos = [hello(0, 3), hello(1, 3), Hello { incarnation, ..hello(2, 3) }];
    let stages = join_as(hellos.into_iter().map(|hello| (address.clone(), hello)), timeouts());
    form(&stages);
    // the spares start one after the other, so that their order is known
    let spares = [0, 1].map(|nth| Spare::start(&address, number(nth)).standing_by());
    (coordinator, stages, spares)
}

#[test]
fn the_first_spare_takes_the_place_of_a_stage_whose_process_has_ended() {
    for incarnation in [0, 2] {
        let (_coordinator, mut stages, [first, second]) = group(incarnation);
        // dropping a member closes its connection, as the death of its process does
        drop(stages.pop());
        assert_eq!(first.end().unwrap(), SpareOutcome::Promoted { rank: 2, incarnation: incarnation + 1 });
        second.looked_for_the_next_group();
        for stage in stages {
            assert_eq!(stage.only_failure().root_cause_rank, Some(2));
        }
    }
}

#[test]
fn the_first_spare_takes_the_place_of_stage_0() {
    let (coordinator, address) = coordinator(1, timeouts());
    let proxy = ControlProxy::start(&address);
    coordinator.release(b"the plan".to_vec(), StepRules::default());
    let stages = join_at(&[address], timeouts());
    let spare = Spare::start(&proxy.address, Hello { world_size: 1, ..number(0) }).standing_by();
    // the proxy closes the connection, as the death of stage 0's process does
    proxy.disconnect();
    assert_eq!(spare.end().unwrap(), SpareOutcome::Promoted { rank: 0, incarnation: 1 });
    assert_eq!(coordinator.failure(), None, "a spare is no member");
    drop(stages);
}

#[test]
fn spares_are_dismissed_when_all_stages_leave() {
    let (_coordinator, stages, spares) = group(0);
    assert!(leave(stages, 0).into_iter().all(|left| left.is_ok()));
    for spare in spares {
        assert_eq!(spare.end().unwrap(), SpareOutcome::Dismissed);
    }
}

#[test]
fn a_stage_that_leaves_by_itself_is_not_taken_for_dead() {
    let (_coordinator, mut stages, spares) = group(0);
    let failing = stages.pop().unwrap();
    failing.member.leave(78).unwrap();
    spares.into_iter().for_each(Spare::looked_for_the_next_group);
}

#[test]
fn a_spare_of_another_job_is_refused() {
    let (_coordinator, address) = coordinator(3, timeouts());
    let strange = Hello { job_uid: "another".to_owned(), ..number(0) };
    let error = Spare::start(&address, strange).end().unwrap_err();
    assert!(matches!(error, GroupError::Refused { refusal: Refusal::OtherJob { .. }, .. }), "{error}");
    assert!(error.to_string().starts_with("spare 0 was refused by the leader: it belongs to job another"), "{error}");
}
