//! Tests of the replacement of a lost stage to which a spare may be promoted, or may have been promoted unobserved.

use std::collections::BTreeMap;

use stagecoach_api::contract::FailureKind;
use stagecoach_lifecycle::*;

use super::{promoted, spare, waits, with_spares};
use crate::rules::{NOW, exited, exited_with_report, ready};

#[test]
fn a_lost_stage_is_not_replaced_while_a_spare_may_take_its_place() {
    let mut observed = with_spares(vec![ready(0), exited(1, 137, 999), ready(2)], vec![waits(0)]);
    let decision = decide(&observed, NOW);
    assert_eq!((&decision.state, &decision.actions), (&observed.state, &vec![]));
    assert_eq!(decision.wake_at, Some(UnixMillis::from_seconds(1004)));
    let replaced = decide(&observed, UnixMillis::from_seconds(1004)).state;
    assert_eq!((replaced.incarnation(1), replaced.budget.replaced), (2, 1));
    let not_held = |what: &str, change: &dyn Fn(&mut Observed)| {
        let mut observed = observed.clone();
        change(&mut observed);
        assert_ne!(decide(&observed, NOW).state, observed.state, "{what}");
    };
    not_held("it is not ready", &|observed| observed.spares[0].state = InstanceState::Starting);
    not_held("it is of an older attempt", &|observed| observed.spares[0].attempt = 0);
    not_held("more stages were lost", &|observed| observed.instances[2] = exited(2, 137, 999));
    not_held("the exit's clock is ahead", &|observed| observed.instances[1].since = NOW.plus_seconds(3600));
    not_held("no restart is left", &|observed| observed.policy.restart.max_restarts = 0);
    not_held("the job is invalid", &|observed| observed.instances[1] = exited(1, 78, 999));
    not_held("it would fail again", &|observed| {
        observed.instances[1] = StageInstance { since: NOW, ..exited_with_report(1, FailureKind::NonFinite, Some(3)) };
    });
    not_held("it is not known since when it is gone", &|observed| drop(observed.instances.remove(1)));
    // if the other stages report the loss before the exit is observed, the wait for a promotion starts at the report
    observed.instances[1] = ready(1);
    let since = UnixMillis::from_seconds(999);
    observed.progress.lost = Some(LostInstance { rank: 1, incarnation: 0, since, has_ended: true });
    assert_eq!(decide(&observed, NOW).state, observed.state);
    assert_eq!(decide(&observed, NOW.plus_seconds(4)).state.incarnation(1), 2);
}

#[test]
fn what_is_created_here_is_ahead_of_what_spares_may_have_taken_unobserved() {
    let lost = || vec![ready(0), exited(1, 137, 990), ready(2)];
    let incarnation = |observed: &Observed| decide(observed, NOW).state.incarnation(1);
    let mut observed = with_spares(lost(), vec![]);
    assert_eq!(incarnation(&observed), 1);
    observed.policy.spares = 1;
    assert_eq!(incarnation(&observed), 2);
    observed.policy.spares = 0;
    observed.spares = vec![spare(0, InstanceState::Terminating, 990)];
    assert_eq!(incarnation(&observed), 2);
    observed.spares.push(waits(1));
    assert_eq!(incarnation(&observed), 3, "one after the other");
    observed.spares = vec![SpareInstance { attempt: 0, ..waits(0) }];
    assert_eq!(incarnation(&observed), 1);
    observed.spares = vec![];
    observed.state.incarnations = BTreeMap::from([(2, 1)]);
    observed.instances[2] = StageInstance { state: InstanceState::Ready, ..promoted(2, 1) };
    assert_eq!(incarnation(&observed), 2);
}
