//! Spares: who takes which place when a process ends, and who does not.

use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};

use stagecoach_group::{
    Coordinator, GroupError, Hello, NotFound, PROTOCOL_VERSION, Refusal, Rendezvous, StandByEnd, StepRules, stand_by,
};

use super::support::{
    ControlProxy, TEST_TIMEOUT, TestStage, coordinator, find, form, hello, join_at, leave, secret, timeouts,
};

/// A spare on a thread. It looks for one group alone.
struct Spare {
    thread: JoinHandle<Result<StandByEnd, GroupError>>,
    plans: Receiver<Vec<u8>>,
}

impl Spare {
    fn start(address: &str, hello: Hello) -> Spare {
        let at = Rendezvous { address: address.to_owned(), protocol_version: PROTOCOL_VERSION, secret: secret() };
        // the second time a newer attempt has begun, so that it ends
        let mut found = Some(at);
        let find = move || found.take().ok_or_else(|| NotFound::Superseded("attempt 4".to_owned()));
        let (sender, plans) = channel();
        let work = move || stand_by(find, &hello, timeouts(), |plan| drop(sender.send(plan.to_vec())));
        Spare { thread: thread::spawn(work), plans }
    }

    /// Waits until the group has it.
    fn standing_by(self) -> Spare {
        assert_eq!(self.plans.recv_timeout(TEST_TIMEOUT).unwrap(), b"the plan");
        self
    }

    fn end(self) -> Result<StandByEnd, GroupError> {
        self.thread.join().unwrap()
    }

    /// It was told that the group is over, and has looked for the next one.
    fn looked_for_the_next_group(self) {
        let end = self.end();
        assert!(matches!(end, Err(GroupError::Superseded { .. })), "{end:?}");
    }
}

fn number(number: usize) -> Hello {
    Hello { pod_uid: format!("spare-{number}"), ..hello(number, 3) }
}

/// A formed group of three, stage 1 being the second incarnation, and two spares that stand by.
fn group() -> (Coordinator, Vec<TestStage>, [Spare; 2]) {
    let (coordinator, address) = coordinator(3, timeouts());
    coordinator.release(b"the plan".to_vec(), StepRules::default());
    let stages = join_at(&vec![address.clone(); 3], timeouts());
    form(&stages);
    // one after the other, so that their order is known
    let spares = [0, 1].map(|nth| Spare::start(&address, number(nth)).standing_by());
    (coordinator, stages, spares)
}

#[test]
fn the_first_spare_takes_the_place_of_a_stage_whose_process_has_ended() {
    let (_coordinator, mut stages, [first, second]) = group();
    // a dropped member closes its connection, as the death of its process does
    drop(stages.pop());
    assert_eq!(first.end().unwrap(), StandByEnd::TakePlace { rank: 2, incarnation: 1 });
    second.looked_for_the_next_group();
    for stage in stages {
        assert_eq!(stage.only_failure().root_cause_rank, Some(2));
    }
}

#[test]
fn the_first_spare_takes_the_place_of_stage_0() {
    let (coordinator, address) = coordinator(1, timeouts());
    let proxies = [0, 1].map(|_| ControlProxy::start(&address));
    coordinator.release(b"the plan".to_vec(), StepRules::default());
    let stages = join_at(&[address], timeouts());
    let hello = |nth| Hello { world_size: 1, ..number(nth) };
    let [first, second] = [0, 1].map(|nth| Spare::start(&proxies[nth].address, hello(nth)).standing_by());
    // as the death of stage 0's process does
    proxies.iter().for_each(ControlProxy::disconnect);
    assert_eq!(first.end().unwrap(), StandByEnd::TakePlace { rank: 0, incarnation: 1 });
    second.looked_for_the_next_group();
    assert_eq!(coordinator.failure(), None, "a spare is no member");
    drop(stages);
}

#[test]
fn the_next_spare_follows_one_that_has_died() {
    let (coordinator, address) = coordinator(2, timeouts());
    let proxy = ControlProxy::start(&address);
    coordinator.release(b"the plan".to_vec(), StepRules::default());
    let mut stages = join_at(&vec![address.clone(); 2], timeouts());
    form(&stages);
    let hello = |nth| Hello { world_size: 2, ..number(nth) };
    let dying = Spare::start(&proxy.address, hello(0)).standing_by();
    let next = Spare::start(&address, hello(1)).standing_by();
    proxy.disconnect();
    // its own connection has closed: it takes stage 0 for dead, and the volume's fence decides then
    assert_eq!(dying.end().unwrap(), StandByEnd::TakePlace { rank: 0, incarnation: 1 });
    // the coordinator has noticed before it answers another spare
    let last = Spare::start(&address, hello(2)).standing_by();
    assert_eq!(coordinator.failure(), None);
    drop(stages.pop());
    assert_eq!(next.end().unwrap(), StandByEnd::TakePlace { rank: 1, incarnation: 1 });
    last.looked_for_the_next_group();
}

#[test]
fn spares_are_dismissed_when_all_stages_leave() {
    let (_coordinator, stages, spares) = group();
    assert!(leave(stages, 0).into_iter().all(|left| left.is_ok()));
    for spare in spares {
        assert_eq!(spare.end().unwrap(), StandByEnd::Dismissed);
    }
}

#[test]
fn a_stage_that_leaves_by_itself_is_not_taken_for_dead() {
    let (_coordinator, mut stages, spares) = group();
    let failing = stages.pop().unwrap();
    failing.member.leave(78).unwrap();
    spares.into_iter().for_each(Spare::looked_for_the_next_group);
}

#[test]
fn a_stage_that_dies_before_the_group_has_formed_is_followed_in_the_same_group() {
    let (coordinator, address) = coordinator(2, timeouts());
    let proxy = ControlProxy::start(&address);
    let hello_of = |nth| Hello { world_size: 2, ..number(nth) };
    let spare = Spare::start(&address, hello_of(0));
    let (progress, reported) = channel();
    let dying = {
        let find = find(&proxy.address);
        let on_preparing = move |report: &str| drop(progress.send(report.to_owned()));
        thread::spawn(move || stagecoach_group::Member::join(find, hello(1, 2), timeouts(), on_preparing, |_| {}))
    };
    reported.recv_timeout(TEST_TIMEOUT).unwrap();
    proxy.disconnect_for_good();
    assert_eq!(spare.end().unwrap(), StandByEnd::TakePlace { rank: 1, incarnation: 1 });
    coordinator.release(b"the plan".to_vec(), StepRules::default());
    let mut replaced = hello(1, 2);
    (replaced.incarnation, replaced.pod_uid) = (1, "spare-0".to_owned());
    let joining = [hello(0, 2), replaced].map(|hello| {
        let find = find(&address);
        thread::spawn(move || stagecoach_group::Member::join(find, hello, timeouts(), |_| {}, |_| {}).unwrap().0)
    });
    let members = joining.map(|member| member.join().unwrap());
    thread::scope(|scope| {
        let forming = members.each_ref().map(|member| scope.spawn(|| member.form()));
        forming.into_iter().for_each(|forming| forming.join().unwrap().unwrap());
    });
    drop(coordinator);
    drop(dying);
}

#[test]
fn a_spare_of_another_job_is_refused() {
    let (_coordinator, address) = coordinator(3, timeouts());
    let strange = Hello { job_uid: "another".to_owned(), ..number(0) };
    let error = Spare::start(&address, strange).end().unwrap_err();
    assert!(matches!(error, GroupError::Refused { refusal: Refusal::OtherJob { .. }, .. }), "{error}");
}
