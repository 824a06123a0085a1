//! Makes the windows of a source, in a thread that stays one window ahead of training.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::position::StreamPosition;
use super::reader::WindowReader;
use super::window::WindowStore;
use crate::config::DataConfig;
use crate::corpus::Corpus;
use crate::error::DataError;
use crate::tokenizer::Tokenizer;

/// The number of windows that the thread makes before training needs them.
const AHEAD: u64 = 1;

/// The interval at which a waiting thread checks its condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The maker of a source's windows. Dropping the maker ends its thread.
pub(crate) struct WindowMaker {
    shared: Arc<MakerShared>,
}

struct MakerShared {
    state: Mutex<State>,
    changed: Condvar,
    activity: Arc<AtomicU64>,
}

struct State {
    /// The windows that training uses.
    in_use: RangeInclusive<u64>,
    /// The number of the first window that is still to be made.
    next: u64,
    /// The reason why no further window is made.
    error: Option<DataError>,
    is_stopped: bool,
}

/// The input of the maker's thread.
struct Work {
    config: DataConfig,
    corpus: Arc<Corpus>,
    source: usize,
    tokenizer: Arc<Tokenizer>,
    store: WindowStore,
    start: StreamPosition,
    max_bytes: u64,
}

impl WindowMaker {
    /// Starts a thread that makes the windows of the source with the index `source`, from `start` on. If the windows on
    /// the volume have more than `max_bytes` in total, the thread removes windows that are not in use. It increments
    /// `activity` while it reads and tokenises.
    pub(crate) fn start(
        config: &DataConfig,
        (corpus, source): (&Arc<Corpus>, usize),
        tokenizer: &Arc<Tokenizer>,
        (store, start): (&WindowStore, StreamPosition),
        max_bytes: u64,
        activity: &Arc<AtomicU64>,
    ) -> WindowMaker {
        let state = State { in_use: start.window..=start.window, next: start.window, error: None, is_stopped: false };
        let shared =
            Arc::new(MakerShared { state: Mutex::new(state), changed: Condvar::new(), activity: Arc::clone(activity) });
        let work = Work {
            config: config.clone(),
            corpus: Arc::clone(corpus),
            source,
            tokenizer: Arc::clone(tokenizer),
            store: store.clone(),
            start,
            max_bytes,
        };
        let thread_shared = Arc::clone(&shared);
        let name = format!("data-{source}");
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            if let Err(error) = work.run(&thread_shared) {
                thread_shared.update(|state| state.error = Some(error));
            }
        });
        if let Err(error) = spawned {
            let error = DataError::io("start a thread for", store.window_folder(0))(error);
            shared.update(|state| state.error = Some(error));
        }
        WindowMaker { shared }
    }

    /// Waits until all windows of `in_use` exist. `keep_waiting` receives the activity, a counter that grows unless the
    /// thread hangs. The wait ends early if `keep_waiting` returns false. After this call, the thread may remove
    /// windows before `in_use`.
    ///
    /// # Errors
    /// Fails if no further window can be made, or with `WaitEnded` if the wait ends early.
    pub(crate) fn wait_for(
        &self,
        in_use: RangeInclusive<u64>,
        keep_waiting: &dyn Fn(u64) -> bool,
    ) -> Result<(), DataError> {
        let end = *in_use.end();
        self.shared.update(|state| state.in_use = in_use);
        let mut state = self.shared.lock();
        while state.next <= end {
            if let Some(error) = state.error.take() {
                state.is_stopped = true;
                return Err(error);
            }
            if state.is_stopped || !keep_waiting(self.shared.activity.load(Ordering::Relaxed)) {
                return Err(DataError::WaitEnded);
            }
            state = self.shared.wait(state);
        }
        Ok(())
    }
}

impl Drop for WindowMaker {
    /// Stops the thread at its next piece of text. `drop` does not wait for the thread, because a read of a remote
    /// source may take long.
    fn drop(&mut self) {
        self.shared.update(|state| state.is_stopped = true);
    }
}

impl MakerShared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait_timeout(state, CHECK_INTERVAL).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until `window` must be made. Returns false if the maker is stopped.
    fn wait_until_due(&self, window: u64) -> bool {
        let mut state = self.lock();
        while window > state.in_use.end() + AHEAD && !state.is_stopped {
            state = self.wait(state);
        }
        !state.is_stopped
    }
}

impl Work {
    fn run(self, shared: &MakerShared) -> Result<(), DataError> {
        let Some(streaming) = &self.config.streaming else { return Ok(()) };
        self.store.remove_unfinished()?;
        let mut start = self.start.clone();
        // the maker reuses the windows of an earlier attempt
        while let Some(header) = self.store.complete(&start)? {
            start = header.next;
            shared.update(|state| state.next = start.window);
            if !shared.wait_until_due(start.window) {
                return Ok(());
            }
        }
        let source = (&*self.corpus, self.source);
        let mut reader = WindowReader::new(&self.config, streaming, source, &self.tokenizer, start.clone(), false)?;
        let mut on_tokens = |_| {
            shared.activity.fetch_add(1, Ordering::Relaxed);
            !shared.lock().is_stopped
        };
        reader.read(&mut on_tokens, &mut |window, _| {
            let (number, next) = (window.start.window, window.next.window);
            if shared.lock().is_stopped {
                return Ok(false);
            }
            if start.is_at(&window.start) {
                start.check(&window.digest())?;
            }
            self.store.write(&window)?;
            shared.update(|state| state.next = next);
            // The lock is held so that this maker is not stopped during the eviction. In a stopped maker, `in_use` may
            // be out of date.
            let state = shared.lock();
            if !state.is_stopped {
                let end = (*state.in_use.end() + AHEAD).max(number);
                self.store.evict(*state.in_use.start()..=end, self.max_bytes)?;
            }
            drop(state);
            Ok(shared.wait_until_due(next))
        })
    }
}
