//! The windows of a source, as a dataset reads them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::maker::WindowMaker;
use super::position::{DocumentCounts, StreamPosition};
use super::window::{WindowHeader, WindowStore};
use crate::error::DataError;
use crate::sequences::{Packing, Sequences};

/// The longest time until a window that the leader has announced becomes visible on the volume.
const VISIBLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of steps whose windows stay open: the leader's step, the previous step (another stage may be one step
/// behind), and the next step (the leader announces this step in advance).
const STEPS_IN_USE: usize = 3;

/// The windows of a source.
pub(crate) struct SourceStream {
    store: WindowStore,
    /// The number of sequences of a window.
    pub(crate) sequences: u64,
    length: usize,
    cut: Packing,
    /// The maker of the windows; `None` in a process that does not make windows.
    maker: Option<WindowMaker>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<u64, (WindowHeader, Arc<Sequences>)>,
    /// The first window of each of the last `STEPS_IN_USE` steps.
    first: VecDeque<u64>,
    /// The position at which reading began.
    start: StreamPosition,
}

impl SourceStream {
    /// Returns the windows in `store`, with `sequences` sequences each.
    pub(crate) fn new(store: WindowStore, sequences: u64, length: usize, cut: Packing) -> SourceStream {
        SourceStream { store, sequences, length, cut, maker: None, state: Mutex::default() }
    }

    /// Starts `maker`, which makes the windows from `start` on.
    pub(crate) fn make_with(&mut self, maker: impl FnOnce(&WindowStore) -> WindowMaker, start: StreamPosition) {
        self.maker = Some(maker(&self.store));
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).start = start;
    }

    /// Waits for the windows of a step and opens them. The wait ends early if `keep_waiting` returns false. The
    /// function closes the windows before the first window of the last `STEPS_IN_USE` steps.
    ///
    /// # Errors
    /// Fails if a window can't be made or opened, or with `WaitEnded` if the wait ends early.
    pub(crate) fn wait_for(
        &self,
        windows: RangeInclusive<u64>,
        keep_waiting: &dyn Fn(u64) -> bool,
    ) -> Result<(), DataError> {
        let first = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.first.push_back(*windows.start());
            while state.first.len() > STEPS_IN_USE {
                state.first.pop_front();
            }
            let first = state.first.iter().copied().min().unwrap_or_default();
            state.open = state.open.split_off(&first);
            first
        };
        if let Some(maker) = &self.maker {
            maker.wait_for(first..=*windows.end(), keep_waiting)?;
        }
        windows.into_iter().try_for_each(|window| self.open(window, keep_waiting).map(drop))
    }

    /// Returns the sequences of a window that already exists.
    ///
    /// # Errors
    /// Fails if the window can't be opened.
    pub(crate) fn window(&self, window: u64) -> Result<Arc<Sequences>, DataError> {
        self.open(window, &|_| true)
    }

    /// Returns the beginning of the window that training reads after `sequences` sequences. Returns `None` if neither
    /// this window nor the previous window is open, and reading did not begin at this window.
    pub(crate) fn position_after(&self, sequences: u64) -> Option<StreamPosition> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let window = sequences / self.sequences;
        let start = state
            .open
            .get(&window)
            .map(|(header, _)| StreamPosition { digest: Some(header.digest.clone()), ..header.start.clone() });
        let next = || Some(state.open.get(&window.checked_sub(1)?)?.0.next.clone());
        let begun = || Some(&state.start).filter(|start| start.window == window).cloned();
        start.or_else(next).or_else(begun)
    }

    /// Returns the counts of documents up to the end of the window that holds the last of `sequences` sequences, or
    /// `None` if that window is not open.
    pub(crate) fn counts_after(&self, sequences: u64) -> Option<DocumentCounts> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (header, _) = state.open.get(&(sequences.checked_sub(1)? / self.sequences))?;
        Some(header.next.counts().clone())
    }

    fn open(&self, window: u64, keep_waiting: &dyn Fn(u64) -> bool) -> Result<Arc<Sequences>, DataError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, sequences)) = state.open.get(&window) {
            return Ok(Arc::clone(sequences));
        }
        let header = self.wait_for_header(window, keep_waiting)?;
        let stream = self.store.open(&header)?;
        let sequences = Arc::new(Sequences::new(stream, self.length, self.cut));
        if sequences.count != self.sequences {
            return Err(DataError::OtherWindow { path: self.store.window_folder(window) });
        }
        state.open.insert(window, (header, Arc::clone(&sequences)));
        Ok(sequences)
    }

    /// Returns the header of a window that the leader has made. On a network file system, the window may become visible
    /// later.
    fn wait_for_header(&self, window: u64, keep_waiting: &dyn Fn(u64) -> bool) -> Result<WindowHeader, DataError> {
        let deadline = Instant::now() + VISIBLE_TIMEOUT;
        loop {
            if let Some(header) = self.store.header(window)? {
                return Ok(header);
            }
            if !keep_waiting(0) {
                return Err(DataError::WaitEnded);
            }
            if Instant::now() > deadline {
                let path = self.store.window_folder(window);
                return Err(DataError::io("open", path)(std::io::ErrorKind::NotFound.into()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
