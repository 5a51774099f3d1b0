//! Work that is handed to a background thread, and done by whoever needs it first.

use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::types::{Error, Result};

type Work<T> = Box<dyn FnMut() -> Result<T> + Send>;

/// A result that is made once. Work that failed is tried again by the next who asks.
pub(super) struct Deferred<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    /// Not begun, or failed.
    Open(Work<T>, Option<Error>),
    Running,
    Done(T),
    /// The work panicked.
    Broken,
}

impl<T: Clone + Send> Deferred<T> {
    pub(super) fn new(work: impl FnMut() -> Result<T> + Send + 'static) -> Arc<Deferred<T>> {
        Arc::new(Deferred { state: Mutex::new(State::Open(Box::new(work), None)), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result: does the work, or waits for whoever is at it.
    pub(super) fn force(&self) -> Result<T> {
        let mut state = self.lock();
        loop {
            match std::mem::replace(&mut *state, State::Running) {
                State::Open(mut work, _) => {
                    drop(state);
                    let broken = BreakOnPanic(self);
                    let result = work();
                    std::mem::forget(broken);
                    let next = match &result {
                        Ok(value) => State::Done(value.clone()),
                        Err(error) => State::Open(work, Some(error.clone())),
                    };
                    *self.lock() = next;
                    self.changed.notify_all();
                    return result;
                }
                State::Running => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                State::Done(value) => {
                    *state = State::Done(value.clone());
                    return Ok(value);
                }
                State::Broken => {
                    *state = State::Broken;
                    return Err(Error::internal("work for a checkpoint panicked"));
                }
            }
        }
    }

    /// The result or the failure, when the work has been tried; does not wait.
    pub(super) fn outcome(&self) -> Option<Result<T>> {
        match &*self.lock() {
            State::Done(value) => Some(Ok(value.clone())),
            State::Open(_, Some(error)) => Some(Err(error.clone())),
            State::Broken => Some(Err(Error::internal("work for a checkpoint panicked"))),
            State::Open(_, None) | State::Running => None,
        }
    }
}

struct BreakOnPanic<'a, T: Clone + Send>(&'a Deferred<T>);

impl<T: Clone + Send> Drop for BreakOnPanic<'_, T> {
    fn drop(&mut self) {
        *self.0.lock() = State::Broken;
        self.0.changed.notify_all();
    }
}

type Task = Box<dyn FnOnce() + Send>;

/// A thread that does uploads and the like, one after the other. Ends when it is dropped, with what it was given done.
#[derive(Debug)]
pub struct Background {
    tasks: Option<SyncSender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Tasks that may wait.
    const QUEUE_TASKS: usize = 16;

    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start(name: &str) -> Result<Background> {
        let (tasks, queue) = sync_channel::<Task>(Self::QUEUE_TASKS);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            for task in queue {
                task();
            }
        })?;
        Ok(Background { tasks: Some(tasks), thread: Some(thread) })
    }

    /// Has the work begun early, unless the queue is full: then who needs it does it.
    pub(super) fn begin<T: Clone + Send + 'static>(&self, deferred: &Arc<Deferred<T>>) {
        let deferred = Arc::clone(deferred);
        // A failure is seen by whoever needs the result, who tries again.
        let task: Task = Box::new(move || drop(deferred.force()));
        match self.tasks.as_ref().map(|tasks| tasks.try_send(task)) {
            None | Some(Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) => {}
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // A panic of a task was reported by its result.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_once_and_again_after_a_failure() {
        let mut attempts = 0;
        let deferred = Deferred::new(move || {
            attempts += 1;
            if attempts == 1 { Err(Error::internal("first")) } else { Ok(attempts) }
        });
        assert!(deferred.outcome().is_none());
        assert!(deferred.force().is_err());
        assert!(deferred.outcome().expect("tried").is_err());
        let background = Background::start("test").expect("starts");
        background.begin(&deferred);
        drop(background);
        assert_eq!(deferred.outcome().expect("tried").expect("done"), 2);
        assert_eq!(deferred.force().expect("done"), 2);
    }

    #[test]
    fn a_panic_reaches_those_who_wait() {
        let deferred = Deferred::<u32>::new(|| panic!("on purpose"));
        let other = Arc::clone(&deferred);
        assert!(std::thread::spawn(move || other.force()).join().is_err());
        assert!(deferred.force().is_err());
    }
}
