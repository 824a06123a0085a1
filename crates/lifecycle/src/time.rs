//! Time as a number, and the alarm that no deadline can be forgotten by.

use serde::{Deserialize, Serialize};

/// Milliseconds since an origin of the caller's choice, the same in everything it records: the Unix epoch, usually.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(pub u64);

impl Time {
    /// A whole number of seconds after the origin.
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// So many seconds later.
    pub const fn plus_seconds(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(1000)))
    }
}

/// The present and the earliest deadline that still lies ahead.
pub(crate) struct Clock {
    pub(crate) now: Time,
    pub(crate) wake: Option<Time>,
}

impl Clock {
    pub(crate) const fn at(now: Time) -> Self {
        Self { now, wake: None }
    }

    /// Whether a deadline has come; if not, it is one to wake up for.
    pub(crate) fn due(&mut self, deadline: Time) -> bool {
        let due = self.now >= deadline;
        if !due {
            self.wake = Some(self.wake.map_or(deadline, |wake| wake.min(deadline)));
        }
        due
    }
}
