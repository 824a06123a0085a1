//! Time in milliseconds, and a clock that records the earliest future deadline of all deadlines that are checked.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// Returns the time that is `seconds` after the epoch.
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// Returns the time that is `millis` milliseconds after the epoch; `None` if `millis` is negative.
    pub fn from_signed(millis: i64) -> Option<Self> {
        u64::try_from(millis).ok().map(Self)
    }

    /// Returns this time plus a duration.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Returns this time plus a number of seconds.
    pub const fn plus_seconds(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(1000)))
    }
}

/// The current time and the earliest deadline after it.
pub(crate) struct DeadlineClock {
    pub(crate) now: UnixMillis,
    pub(crate) next_deadline: Option<UnixMillis>,
}

impl DeadlineClock {
    pub(crate) const fn new(now: UnixMillis) -> Self {
        Self { now, next_deadline: None }
    }

    /// Whether a deadline has passed. If it has not, `next_deadline` becomes this deadline, unless `next_deadline` is
    /// earlier. `decide` sets `Decision::wake_at` to `next_deadline`.
    pub(crate) fn has_passed_or_wakes_at(&mut self, deadline: UnixMillis) -> bool {
        let has_passed = self.now >= deadline;
        if !has_passed {
            self.next_deadline = Some(self.next_deadline.map_or(deadline, |next_deadline| next_deadline.min(deadline)));
        }
        has_passed
    }

    /// Whether any of these deadlines has passed. Records the deadlines that have not passed, as
    /// `has_passed_or_wakes_at` does.
    pub(crate) fn any_passed_or_wake_at(&mut self, deadlines: impl Iterator<Item = UnixMillis>) -> bool {
        // `any` would stop at a deadline that has passed, and would not record the deadlines after it
        deadlines.filter(|deadline| self.has_passed_or_wakes_at(*deadline)).count() > 0
    }
}
