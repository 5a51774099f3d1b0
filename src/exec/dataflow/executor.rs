//! Starts the worker threads and hands them commands.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::Duration;

use timely::WorkerConfig;
use timely::communication::WorkerGuards;

use super::clock::Clock;
use super::worker::{WorkerCommand, run};
use crate::exec::relation::{Progress, lock};
use crate::types::{Error, Result};

/// How the workers run.
pub(crate) struct ExecutorConfig {
    pub(crate) workers: usize,
    pub(crate) progress: Arc<Progress>,
    /// What workers ask the clock for.
    pub(crate) clock: Arc<dyn Clock>,
}

/// The worker threads of this process.
///
/// Commands go through unbounded channels: their number is bounded by what the coordinator lets be
/// under way (ticks by flow control, peeks by their readers).
pub(crate) struct Executor {
    config: ExecutorConfig,
    links: Mutex<Vec<Link>>,
    workers: AtomicUsize,
    /// How often the threads were started or stopped.
    generation: AtomicU64,
    guards: Mutex<Option<WorkerGuards<()>>>,
}

struct Link {
    commands: Sender<WorkerCommand>,
    thread: Thread,
}

impl Executor {
    /// Starts the threads; returns when all of them take commands.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(crate) fn start(config: ExecutorConfig) -> Result<Executor> {
        let workers = config.workers;
        let (links, guards) = start_threads(&config, workers)?;
        Ok(Executor {
            config,
            links: Mutex::new(links),
            workers: AtomicUsize::new(workers),
            generation: AtomicU64::new(0),
            guards: Mutex::new(Some(guards)),
        })
    }

    /// Ends the threads and starts so many others, which have nothing to run. What was asked of the former ones is not
    /// answered.
    ///
    /// # Errors
    /// When a thread cannot be started; then there are none.
    pub(crate) fn restart(&self, workers: usize) -> Result<()> {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.shutdown();
        lock(&self.links).clear();
        let (links, guards) = start_threads(&self.config, workers)?;
        *lock(&self.links) = links;
        *lock(&self.guards) = Some(guards);
        self.workers.store(workers, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Changes whenever the threads are others.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Number of worker threads.
    pub(crate) fn workers(&self) -> usize {
        self.workers.load(Ordering::Acquire)
    }

    /// Gives all workers a command, in one order.
    pub(crate) fn broadcast(&self, command: &WorkerCommand) {
        for link in lock(&self.links).iter() {
            link.send(command.clone());
        }
    }

    /// Gives one worker a command.
    pub(crate) fn send(&self, worker: usize, command: WorkerCommand) {
        if let Some(link) = lock(&self.links).get(worker) {
            link.send(command);
        }
    }

    /// Ends the threads and waits for them.
    pub(crate) fn shutdown(&self) {
        self.broadcast(&WorkerCommand::Shutdown);
        if let Some(guards) = lock(&self.guards).take() {
            for result in guards.join() {
                if let Err(error) = result {
                    tracing::error!(error, "a worker thread ended by a panic");
                }
            }
        }
    }
}

impl Link {
    fn send(&self, command: WorkerCommand) {
        // A worker that is gone was shut down, and with it all that could wait for an answer.
        let _ = self.commands.send(command);
        self.thread.unpark();
    }
}

/// Starts threads; returns when all of them take commands.
fn start_threads(config: &ExecutorConfig, workers: usize) -> Result<(Vec<Link>, WorkerGuards<()>)> {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| channel()).unzip();
    let receivers: Arc<Vec<Mutex<Option<Receiver<WorkerCommand>>>>> =
        Arc::new(receivers.into_iter().map(|receiver| Mutex::new(Some(receiver))).collect());
    let (announce, announced) = channel::<(usize, Thread)>();
    let announce = Mutex::new(announce);
    let timely_config = timely::Config {
        communication: timely::CommunicationConfig::Process(workers),
        worker: WorkerConfig::default().idle_spin(Duration::ZERO),
    };
    let (progress, clock) = (Arc::clone(&config.progress), Arc::clone(&config.clock));
    let guards = timely::execute(timely_config, move |worker| {
        let index = worker.index();
        // A coordinator that is gone has dropped the other end.
        let _ = lock(&announce).send((index, std::thread::current()));
        // Each thread takes its own.
        if let Some(commands) = lock(&receivers[index]).take() {
            run(worker, &commands, Arc::clone(&progress), Arc::clone(&clock));
        }
    })
    .map_err(|error| Error::internal(format!("the worker threads cannot be started: {error}")))?;
    let mut threads: Vec<(usize, Thread)> = announced.into_iter().take(workers).collect();
    threads.sort_by_key(|(index, _)| *index);
    let links = senders.into_iter().zip(threads).map(|(commands, (_, thread))| Link { commands, thread }).collect();
    Ok((links, guards))
}
