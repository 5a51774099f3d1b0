//! Everything ambient, passed as a value: the wall clock, randomness, failpoints, counters.

mod failpoints;
mod progress;

pub use failpoints::Failpoints;
pub use progress::{LongWork, Step};

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the process is given by its surroundings. Cheap to clone; tests make their own.
#[derive(Clone)]
pub struct Env {
    wall_clock: Arc<dyn WallClock>,
    failpoints: Failpoints,
    long_work: LongWork,
}

impl Env {
    /// The machine's clock, and failpoints that are off.
    pub fn system() -> Env {
        Env::new(Arc::new(SystemClock), Failpoints::default())
    }

    /// An environment of parts.
    pub fn new(wall_clock: Arc<dyn WallClock>, failpoints: Failpoints) -> Env {
        Env { wall_clock, failpoints, long_work: LongWork::default() }
    }

    /// Milliseconds since 1970 by the wall clock; may step back.
    pub fn now_millis(&self) -> u64 {
        self.wall_clock.now_millis()
    }

    /// Microseconds since 1970 by the wall clock, as far as it knows them.
    pub fn now_micros(&self) -> i64 {
        self.wall_clock.now_micros()
    }

    /// Where work that takes long says how far it is.
    pub fn long_work(&self) -> &LongWork {
        &self.long_work
    }

    /// The named places at which tests let things fail.
    pub fn failpoints(&self) -> &Failpoints {
        &self.failpoints
    }
}

/// A source of wall-clock time.
pub trait WallClock: Send + Sync {
    /// Milliseconds since 1970.
    fn now_millis(&self) -> u64;

    /// Microseconds since 1970.
    fn now_micros(&self) -> i64 {
        i64::try_from(self.now_millis()).unwrap_or(i64::MAX).saturating_mul(1_000)
    }
}

struct SystemClock;

/// The one place that asks the machine.
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl WallClock for SystemClock {
    fn now_millis(&self) -> u64 {
        u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
    }

    fn now_micros(&self) -> i64 {
        i64::try_from(since_1970().as_micros()).unwrap_or(i64::MAX)
    }
}
