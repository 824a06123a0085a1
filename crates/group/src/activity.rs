//! The current activity of a stage: set by the trainer at each action, sent with its heartbeats, and visible as the
//! name of the thread (`top -H`). Where a device does the work, the trainer is ahead of it: what it sets is current
//! only once the device is there.

use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sync::{lock, spawn};

/// A stage's current activity. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct Activity(Arc<Mutex<ActivityState>>);

#[derive(Debug)]
struct ActivityState {
    current: Named,
    sequence: u64,
    since: Instant,
    /// The number of activities that were set and are not current yet.
    ahead: usize,
    /// The last of them.
    last: String,
    /// To the thread that waits for them; started when the first is set.
    waiting: Option<mpsc::Sender<Ahead>>,
}

#[derive(Debug)]
struct Named {
    text: String,
    waits_for: Option<usize>,
}

/// The activities that a device has not reached, as far as is known.
struct Ahead {
    /// The activity that begins there; none if only those behind it are to wait.
    named: Option<Named>,
    wait: Box<dyn FnOnce() -> bool + Send>,
}

impl ActivityState {
    fn begin(&mut self, named: Named) {
        (self.current, self.sequence, self.since) = (named, self.sequence + 1, Instant::now());
    }

    /// Has the thread wait for it. If there can't be one, it is current now. What is returned is not to be waited for,
    /// and dropped without the lock: that may call the driver.
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

/// Starts the thread that waits for a device; none if the system has no more threads.
fn start(state: Weak<Mutex<ActivityState>>) -> Option<mpsc::Sender<Ahead>> {
    let (waiting, queue) = mpsc::channel();
    spawn("activity", move || wait_for_each(queue, &state)).ok().map(|_| waiting)
}

/// Makes each current when it is reached. Nobody else asks a device, whose driver may be as stuck as what it is asked
/// about: heartbeats and an exit are never held up by it.
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
        let _ = rustix::thread::set_name(&name); // only displayed
    }
}

/// The payload of a member's heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    pub(crate) text: String,
    /// A group rank.
    pub(crate) waits_for: Option<usize>,
    /// The number of changes of the current activity; distinguishes a new `F 5` from an earlier one.
    pub(crate) sequence: u64,
    /// The time for which it has been the current one.
    pub(crate) age: Duration,
}

impl Activity {
    pub(crate) fn new(text: &str) -> Self {
        Activity(Arc::new(Mutex::new(ActivityState {
            current: Named { text: text.to_owned(), waits_for: None },
            sequence: 0,
            since: Instant::now(),
            ahead: 0,
            last: String::new(),
            waiting: None,
        })))
    }

    /// Sets the activity to `text`, for example `F 5`; or to waiting for `text`, for example `RECV_B of microbatch 3`,
    /// from the member with the group rank `waits_for`. It is current at once, or when all that was set before has
    /// been.
    pub fn set(&self, text: impl Into<String>, waits_for: Option<usize>) {
        let named = Named { text: text.into(), waits_for };
        name_thread(&named.text);
        let mut state = lock(&self.0);
        if state.ahead == 0 {
            state.begin(named);
        } else {
            state.queue(Ahead { named: Some(named), wait: Box::new(|| true) }, &self.0);
        }
    }

    /// The same once `wait` returns, on another thread: true when the device is done with what came before, false if
    /// that will not be known.
    pub fn set_after(
        &self,
        text: impl Into<String>,
        waits_for: Option<usize>,
        wait: impl FnOnce() -> bool + Send + 'static,
    ) {
        let named = Named { text: text.into(), waits_for };
        name_thread(&named.text);
        self.queue(Ahead { named: Some(named), wait: Box::new(wait) });
    }

    /// An activity that is set from now on is not current before `wait` returns, on another thread: the device is still
    /// at the one before.
    pub fn hold_until(&self, wait: impl FnOnce() -> bool + Send + 'static) {
        self.queue(Ahead { named: None, wait: Box::new(wait) });
    }

    fn queue(&self, ahead: Ahead) {
        let refused = lock(&self.0).queue(ahead, &self.0);
        drop(refused);
    }

    /// The current activity, for the termination message.
    pub fn text(&self) -> String {
        lock(&self.0).current.text.clone()
    }

    /// The activity that was set last, for the termination message of a stage that has run out of memory, which is
    /// allocated ahead of the device.
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

    /// Waits until a heartbeat has this text; the rest of it.
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
        // a device is done with something when it is told so, and fails if nobody is left to
        let set = |text: &str, waits_for| {
            let (done, wait) = mpsc::channel::<()>();
            activity.set_after(text, waits_for, move || wait.recv().is_ok());
            done
        };
        activity.set("DATA", None);
        let devices = [set("F 0", None), set("RECV_B of microbatch 0", Some(1)), set("B 0", None)];
        activity.set("EXCHANGE", None); // the host's, which is ahead too
        assert_eq!(until(&activity, "DATA"), (None, 1));
        devices[0].send(()).unwrap();
        assert_eq!(until(&activity, "F 0"), (None, 2));
        devices[1].send(()).unwrap();
        assert_eq!(until(&activity, "RECV_B of microbatch 0"), (Some(1), 3));
        assert_eq!((activity.text().as_str(), activity.last_set().as_str()), ("RECV_B of microbatch 0", "EXCHANGE"));
        drop(devices); // what can't be known is left out
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
