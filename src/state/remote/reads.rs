//! Threads that read, the most urgent first.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::types::Result;

struct Job {
    deadline: u64,
    /// Of equal deadlines, first come first served.
    number: u64,
    run: Box<dyn FnOnce() + Send>,
}

impl PartialEq for Job {
    fn eq(&self, other: &Job) -> bool {
        (self.deadline, self.number) == (other.deadline, other.number)
    }
}

impl Eq for Job {}

impl PartialOrd for Job {
    fn partial_cmp(&self, other: &Job) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Job {
    // The heap gives the greatest first.
    fn cmp(&self, other: &Job) -> Ordering {
        (other.deadline, other.number).cmp(&(self.deadline, self.number))
    }
}

#[derive(Default)]
struct Queue {
    jobs: BinaryHeap<Job>,
    next: u64,
    closed: bool,
}

/// A fixed number of threads with a queue by deadline. Who asks bounds the queue: each request is waited for.
pub(super) struct ReadThreads {
    queue: Arc<(Mutex<Queue>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
}

impl ReadThreads {
    pub(super) fn start(threads: usize) -> Result<ReadThreads> {
        let queue = Arc::new((Mutex::new(Queue::default()), Condvar::new()));
        let mut started = ReadThreads { queue: Arc::clone(&queue), threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let queue = Arc::clone(&queue);
            let thread = std::thread::Builder::new().name("state-read".to_owned()).spawn(move || work(&queue))?;
            started.threads.push(thread);
        }
        Ok(started)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.threads.len()
    }

    pub(super) fn run(&self, deadline: u64, run: impl FnOnce() + Send + 'static) {
        let (queue, changed) = &*self.queue;
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        let number = queue.next;
        queue.next += 1;
        queue.jobs.push(Job { deadline, number, run: Box::new(run) });
        changed.notify_one();
    }
}

fn work((queue, changed): &(Mutex<Queue>, Condvar)) {
    let mut guard = queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(job) = guard.jobs.pop() {
            drop(guard);
            (job.run)();
            guard = queue.lock().unwrap_or_else(PoisonError::into_inner);
        } else if guard.closed {
            return;
        } else {
            guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for ReadThreads {
    fn drop(&mut self) {
        let (queue, changed) = &*self.queue;
        queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        changed.notify_all();
        for thread in self.threads.drain(..) {
            // A job that panicked has dropped its answer, which its caller sees.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn the_most_urgent_goes_first() {
        let threads = ReadThreads::start(1).expect("starts");
        let (go, wait) = channel::<()>();
        let (told, order) = channel();
        threads.run(0, move || wait.recv().expect("told"));
        for deadline in [7, 3, 9, 3] {
            let told = told.clone();
            threads.run(deadline, move || told.send(deadline).expect("listens"));
        }
        go.send(()).expect("listens");
        drop((threads, told));
        assert_eq!(order.iter().collect::<Vec<_>>(), [3, 3, 7, 9]);
    }
}
