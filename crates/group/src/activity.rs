//! The current activity of a stage, such as `F 5`, the forward pass of microbatch 5. The trainer sets the activity at
//! each action of its program. Heartbeats report the activity to the coordinator. The trainer's thread has the activity
//! as its name (`top -H`). On a GPU (the device), the trainer queues work ahead of the device, and an activity becomes
//! current only when the device reaches the activity's work.

use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sync::{lock, spawn};

/// The handle of a stage's current activity. All clones share one activity.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Mutex<ActivityState>>);

#[derive(Debug)]
struct ActivityState {
    current: NamedActivity,
    sequence: u64,
    since: Instant,
    /// The number of activities that are set but not yet current.
    ahead: usize,
    /// The text of the most recently queued activity.
    last: String,
    /// The queue of the thread that waits for the device. The first queued activity starts the thread.
    waiting: Option<mpsc::Sender<Ahead>>,
}

#[derive(Debug)]
struct NamedActivity {
    text: String,
    waits_for: Option<usize>,
}

/// An entry of the queue of activities that the device has not reached.
struct Ahead {
    /// The activity that becomes current when `wait` returns true; `None` for an entry that only delays the entries
    /// behind it.
    named: Option<NamedActivity>,
    wait: Box<dyn FnOnce() -> bool + Send>,
}

impl ActivityState {
    fn begin(&mut self, named: NamedActivity) {
        (self.current, self.sequence, self.since) = (named, self.sequence + 1, Instant::now());
    }

    /// Queues `ahead` for the waiting thread. If the system can't start the thread, the activity becomes current at
    /// once. Returns the entry that could not be queued. The caller drops this entry without holding the lock, because
    /// the drop may call the driver.
    fn queue(&mut self, ahead: Ahead, state: &Arc<Mutex<ActivityState>>) -> Option<Ahead> {
        let waiting = match self.waiting.take().or_else(|| start(Arc::downgrade(state))) {
            Some(waiting) => self.waiting.insert(waiting),
            None => {
                let Ahead { named, wait } = ahead;
                named.into_iter().for_each(|named| self.begin(named));
                return Some(Ahead { named: None, wait });
            }
        };
        self.ahead += 1;
        if let Some(named) = &ahead.named {
            self.last.clone_from(&named.text);
        }
        waiting.send(ahead).err().map(|refused| refused.0)
    }
}

/// Starts the thread that waits for a device. Returns the sender of the thread's queue; `None` if the system can't
/// start a thread.
fn start(state: Weak<Mutex<ActivityState>>) -> Option<mpsc::Sender<Ahead>> {
    let (waiting, queue) = mpsc::channel();
    spawn("activity", move || wait_for_each(queue, &state)).ok().map(|_| waiting)
}

/// Makes each activity current when the device reaches it. Only this thread queries the device, because the driver may
/// hang together with the device's work, and neither a heartbeat nor an exit of the process may wait for the driver.
fn wait_for_each(queue: mpsc::Receiver<Ahead>, state: &Weak<Mutex<ActivityState>>) {
    for Ahead { named, wait } in queue {
        let is_reached = wait();
        let Some(state) = state.upgrade() else { return };
        let mut state = lock(&state);
        state.ahead -= 1;
        if let Some(named) = named.filter(|_| is_reached) {
            state.begin(named);
        }
    }
}

/// Sets the calling thread's name (Linux keeps 15 bytes).
pub fn name_thread(what: &str) {
    if let Ok(name) = std::ffi::CString::new(what) {
        let _ = rustix::thread::set_name(&name); // the name is only displayed
    }
}

/// The payload of a member's heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    pub(crate) text: String,
    /// The group rank of the member that the stage waits for, if any.
    pub(crate) waits_for: Option<usize>,
    /// The number of changes of the current activity. The number distinguishes a new `F 5` from an earlier one.
    pub(crate) sequence: u64,
    /// The time since this activity became the current one.
    pub(crate) age: Duration,
}

impl Activity {
    pub(crate) fn new(text: &str) -> Self {
        Activity(Arc::new(Mutex::new(ActivityState {
            current: NamedActivity { text: text.to_owned(), waits_for: None },
            sequence: 0,
            since: Instant::now(),
            ahead: 0,
            last: String::new(),
            waiting: None,
        })))
    }

    /// Sets the activity to `text`, for example `F 5`. If `waits_for` is a group rank, the activity is a wait for the
    /// member with this rank, for example `RECV_B of microbatch 3`. The activity becomes current after all activities
    /// that were set before it.
    pub fn set(&self, text: impl Into<String>, waits_for: Option<usize>) {
        let named = NamedActivity { text: text.into(), waits_for };
        name_thread(&named.text);
        let mut state = lock(&self.0);
        if state.ahead == 0 {
            state.begin(named);
        } else {
            state.queue(Ahead { named: Some(named), wait: Box::new(|| true) }, &self.0);
        }
    }

    /// Sets an activity that becomes current when `wait`, which runs on another thread, returns true. `wait` must
    /// return true when the device has finished the preceding work. If the device's progress can't be determined,
    /// `wait` must return false, and the activity is skipped.
    pub fn set_after(
        &self,
        text: impl Into<String>,
        waits_for: Option<usize>,
        wait: impl FnOnce() -> bool + Send + 'static,
    ) {
        let named = NamedActivity { text: text.into(), waits_for };
        name_thread(&named.text);
        self.queue(Ahead { named: Some(named), wait: Box::new(wait) });
    }

    /// Delays all activities that are set after this call until `wait`, which runs on another thread, returns. The
    /// caller uses this method while the device is busy with the preceding activity.
    pub fn hold_until(&self, wait: impl FnOnce() -> bool + Send + 'static) {
        self.queue(Ahead { named: None, wait: Box::new(wait) });
    }

    fn queue(&self, ahead: Ahead) {
        let refused = lock(&self.0).queue(ahead, &self.0);
        drop(refused);
    }

    /// Returns the text of the current activity, for the termination message.
    pub fn text(&self) -> String {
        lock(&self.0).current.text.clone()
    }

    /// Returns the text of the activity that was set last, for the termination message of a stage that runs out of
    /// memory. This activity, and not the current one, failed to allocate memory, because the trainer allocates memory
    /// when it queues work, before the device reaches the work.
    pub fn last_set(&self) -> String {
        let state = lock(&self.0);
        if state.ahead == 0 { state.current.text.clone() } else { state.last.clone() }
    }

    pub(crate) fn heartbeat(&self) -> Heartbeat {
        let state = lock(&self.0);
        Heartbeat {
            text: state.current.text.clone(),
            waits_for: state.current.waits_for,
            sequence: state.sequence,
            age: state.since.elapsed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until a heartbeat has `text`. Returns the `waits_for` and the `sequence` of this heartbeat.
    fn until(activity: &Activity, text: &str) -> (Option<usize>, u64) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let heartbeat = activity.heartbeat();
            if heartbeat.text == text {
                return (heartbeat.waits_for, heartbeat.sequence);
            }
            assert!(Instant::now() < deadline, "{heartbeat:?} is not {text}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_a_device_has_not_reached_is_not_current() {
        let activity = Activity::new("joining");
        // each piece of work has a channel: the work finishes when the test sends, and fails when the test drops the
        // sender
        let set = |text: &str, waits_for| {
            let (done, wait) = mpsc::channel::<()>();
            activity.set_after(text, waits_for, move || wait.recv().is_ok());
            done
        };
        activity.set("DATA", None);
        let devices = [set("F 0", None), set("RECV_B of microbatch 0", Some(1)), set("B 0", None)];
        activity.set("EXCHANGE", None); // an activity of the host, which also runs ahead of the device
        assert_eq!(until(&activity, "DATA"), (None, 1));
        devices[0].send(()).unwrap();
        assert_eq!(until(&activity, "F 0"), (None, 2));
        devices[1].send(()).unwrap();
        assert_eq!(until(&activity, "RECV_B of microbatch 0"), (Some(1), 3));
        assert_eq!((activity.text().as_str(), activity.last_set().as_str()), ("RECV_B of microbatch 0", "EXCHANGE"));
        drop(devices); // an activity whose beginning can't be determined is skipped
        assert_eq!(until(&activity, "EXCHANGE"), (None, 4));
        let done = set("F 1", None);
        assert_eq!((activity.text().as_str(), activity.last_set().as_str()), ("EXCHANGE", "F 1"));
        done.send(()).unwrap();
        assert_eq!(until(&activity, "F 1"), (None, 5));
        activity.set("DATA", None);
        assert_eq!(until(&activity, "DATA"), (None, 6));
        let (done, wait) = mpsc::channel::<()>();
        activity.hold_until(move || wait.recv().is_ok());
        activity.set("SNAPSHOT", None);
        assert_eq!((activity.text().as_str(), activity.last_set().as_str()), ("DATA", "SNAPSHOT"));
        done.send(()).unwrap();
        assert_eq!(until(&activity, "SNAPSHOT"), (None, 7));
    }
}
