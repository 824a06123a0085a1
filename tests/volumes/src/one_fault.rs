//! An injector of one fault for volumes in the test's own process, where a crash is only simulated.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stagecoach_checkpoint::{CheckpointError, Volume};

use crate::faulty::{FaultInjector, FaultyVolume, VolumeCall, VolumeFault};

/// Records all calls, numbered from 0, and injects at most one fault.
#[derive(Default)]
pub struct OneFault {
    state: Mutex<OneFaultState>,
}

#[derive(Default)]
struct OneFaultState {
    trace: Vec<VolumeCall>,
    planned: Option<(usize, PlannedFault)>,
    crashed: bool,
}

enum PlannedFault {
    Fault(VolumeFault),
    /// A function that runs before the call. It simulates another process that uses the volume while this process is
    /// suspended.
    Interruption(Box<dyn FnOnce() + Send>),
}

/// The error of every call after the process has crashed.
#[derive(Debug, thiserror::Error)]
#[error("the process has crashed (simulated by a test)")]
pub struct Crashed;

impl Crashed {
    /// Whether `error` is [`Crashed`].
    pub fn is(error: &CheckpointError) -> bool {
        matches!(error, CheckpointError::Io { source, .. } if source.get_ref().is_some_and(|e| e.is::<Crashed>()))
    }
}

impl OneFault {
    fn lock(&self) -> MutexGuard<'_, OneFaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultInjector for OneFault {
    fn next(&self, call: VolumeCall) -> io::Result<Option<VolumeFault>> {
        let planned = {
            let mut state = self.lock();
            if state.crashed {
                return Err(io::Error::other(Crashed));
            }
            let number = state.trace.len();
            state.trace.push(call);
            state.planned.take_if(|(at, _)| *at == number).map(|(_, planned)| planned)
        };
        match planned {
            None => Ok(None),
            Some(PlannedFault::Fault(fault)) => Ok(Some(fault)),
            Some(PlannedFault::Interruption(run)) => {
                run();
                Ok(None)
            }
        }
    }

    fn crash(&self) -> io::Error {
        self.lock().crashed = true;
        io::Error::other(Crashed)
    }
}

impl FaultyVolume<OneFault> {
    /// Returns a volume that records its calls and never fails.
    pub fn counting(inner: Arc<dyn Volume>) -> Self {
        FaultyVolume::new(inner, OneFault::default())
    }

    /// Returns a volume with `fault` at call `at`.
    pub fn failing(inner: Arc<dyn Volume>, at: usize, fault: VolumeFault) -> Self {
        FaultyVolume::planned(inner, at, PlannedFault::Fault(fault))
    }

    /// Returns a volume that runs `other` before call `at`. `other` simulates another process that uses the volume
    /// while this process is suspended.
    pub fn interrupted(inner: Arc<dyn Volume>, at: usize, other: impl FnOnce() + Send + 'static) -> Self {
        FaultyVolume::planned(inner, at, PlannedFault::Interruption(Box::new(other)))
    }

    fn planned(inner: Arc<dyn Volume>, at: usize, planned: PlannedFault) -> Self {
        let state = OneFaultState { planned: Some((at, planned)), ..OneFaultState::default() };
        FaultyVolume::new(inner, OneFault { state: Mutex::new(state) })
    }

    /// Returns the calls so far.
    pub fn trace(&self) -> Vec<VolumeCall> {
        self.injector().lock().trace.clone()
    }

    /// Whether the fault or interruption has occurred. Also true if none was planned.
    pub fn has_fired(&self) -> bool {
        self.injector().lock().planned.is_none()
    }
}
