//! The history of repairs that other clients undo: the number of repairs of each object, the time of its next repair,
//! and the client that changes the object. Without pauses, two clients that undo each other's changes would write as
//! fast as the API server answers.

use std::collections::BTreeMap;
use std::time::Duration;

use stagecoach_lifecycle::{UnixMillis, backoff_delay};

use crate::apply::Repair;
use crate::clock::remaining;
use crate::observe::{ChangedObject, OwnedKind};

/// The number of repairs that the operator makes without a pause.
const FREE_REPAIRS: u32 = 5;
/// The pause after the first repair beyond `FREE_REPAIRS`. The pause doubles with each further repair.
const INITIAL_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// The time without a repair after which an object counts as in order.
const QUIET: Duration = Duration::from_secs(300);

/// The repairs of one job's objects, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RepairHistory(BTreeMap<OwnedKind, ObjectRepairs>);

/// The repairs of one object since the object was last in order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ObjectRepairs {
    count: u32,
    last: UnixMillis,
    object: ChangedObject,
}

impl ObjectRepairs {
    fn pause(&self) -> Duration {
        match self.count.checked_sub(FREE_REPAIRS) {
            None | Some(0) => Duration::ZERO,
            Some(paused) => backoff_delay(INITIAL_PAUSE, MAX_PAUSE, paused),
        }
    }

    /// Returns the time until the next repair; `None` if the repair is due.
    fn wait(&self, now: UnixMillis) -> Option<Duration> {
        remaining(self.last, self.pause(), now)
    }
}

impl RepairHistory {
    /// Removes the objects that needed no repair for the time `QUIET`.
    pub(crate) fn forget_quiet(&mut self, now: UnixMillis) {
        self.0.retain(|_, repeated| remaining(repeated.last, QUIET, now).is_some());
    }

    /// Removes from `repairs` the repairs whose pause is not over.
    pub(crate) fn remove_waiting(&self, repairs: &mut Vec<Repair>, now: UnixMillis) {
        repairs.retain(|repair| match repair {
            Repair::Restore(object) => self.0.get(&object.kind).is_none_or(|repeated| repeated.wait(now).is_none()),
            Repair::Remove(_) => true,
        });
    }

    /// Adds completed repairs.
    pub(crate) fn add(&mut self, repairs: &[Repair], now: UnixMillis) {
        for repair in repairs {
            let Repair::Restore(object) = repair else { continue };
            let count = self.0.get(&object.kind).map_or(0, |before| before.count).saturating_add(1);
            self.0.insert(object.kind, ObjectRepairs { count, last: now, object: object.clone() });
        }
    }

    /// Returns the objects that another client has changed or deleted so often that their repair pauses.
    pub(crate) fn contested(&self) -> impl Iterator<Item = &ChangedObject> {
        self.0.values().filter(|repeated| repeated.count > FREE_REPAIRS).map(|repeated| &repeated.object)
    }

    /// Returns the delay until the next reconcile, which makes the next repair or reports that an object is in order.
    /// Returns `None` if no object is contested.
    pub(crate) fn requeue_delay(&self, now: UnixMillis) -> Option<Duration> {
        let contested = self.0.values().filter(|repeated| repeated.count > FREE_REPAIRS);
        contested.filter_map(|it| it.wait(now).or_else(|| remaining(it.last, QUIET, now))).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restore(kind: OwnedKind) -> Vec<Repair> {
        vec![Repair::Restore(ChangedObject { kind, name: "demo".into(), changed_by: Some("mesh".into()) })]
    }

    #[test]
    fn repairs_that_do_not_last_pause_ever_longer() {
        let mut history = RepairHistory::default();
        let mut now = UnixMillis::from_seconds(1000);
        let mut pauses = Vec::new();
        for repair in 1..=14 {
            let mut wanted = restore(OwnedKind::NetworkPolicy);
            history.remove_waiting(&mut wanted, now);
            assert_eq!(wanted.len(), 1);
            history.add(&wanted, now);
            assert_eq!(history.contested().count(), usize::from(repair > FREE_REPAIRS), "{repair}");
            let pause = history.0[&OwnedKind::NetworkPolicy].wait(now).unwrap_or_default();
            if !pause.is_zero() {
                history.remove_waiting(&mut wanted, now);
                assert!(wanted.is_empty(), "a repair before its time");
                assert_eq!(history.requeue_delay(now), Some(pause));
                let mut other = restore(OwnedKind::Service);
                history.remove_waiting(&mut other, now);
                assert_eq!(other.len(), 1, "another object's repair does not wait");
            }
            pauses.push(pause.as_secs());
            now = now.plus(pause);
        }
        assert_eq!(pauses, [0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
    }

    #[test]
    fn an_object_that_stays_in_order_is_forgotten() {
        let mut history = RepairHistory::default();
        let now = UnixMillis::from_seconds(1000);
        (0..6).for_each(|_| history.add(&restore(OwnedKind::Service), now));
        let later = now.plus(Duration::from_secs(2));
        assert_eq!(
            history.requeue_delay(later),
            Some(QUIET - Duration::from_secs(2)),
            "to report that the object is in order"
        );
        history.forget_quiet(later);
        assert_eq!(history.contested().count(), 1);
        history.forget_quiet(now.plus(QUIET));
        assert_eq!((history.contested().count(), history.requeue_delay(now)), (0, None));
    }

    #[test]
    fn a_clock_that_is_set_back_delays_no_repair() {
        let mut history = RepairHistory::default();
        (0..6).for_each(|_| history.add(&restore(OwnedKind::Service), UnixMillis::from_seconds(9000)));
        let mut wanted = restore(OwnedKind::Service);
        history.remove_waiting(&mut wanted, UnixMillis::from_seconds(9000));
        assert!(wanted.is_empty(), "the repair pauses");
        let mut wanted = restore(OwnedKind::Service);
        history.remove_waiting(&mut wanted, UnixMillis::from_seconds(1000));
        assert_eq!(wanted.len(), 1);
    }
}
