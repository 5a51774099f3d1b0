//! What the workers ask of the clock: the next time at once, or one that is still to come.
//!
//! The clock rests while nothing comes in. An operator that waits for a time, as a temporal filter does for the next row
//! that comes or goes, sets the alarm; the sequencer then hands out a time when that one has come. A time of any kind
//! clears the alarm, since all operators see it: who still waits sets it again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::feeds::WakeOnce;
use super::sequencer::Request;
use crate::exec::Clock;
use crate::exec::relation::lock;
use crate::types::Time;

/// The wall clock can be set: it is looked at again so often.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const OFF: u64 = u64::MAX;

/// The earliest time that an operator waits for. Clones share it.
#[derive(Clone)]
pub(super) struct Alarm {
    millis: Arc<AtomicU64>,
    /// The sequencer is asked to look at it.
    pub(super) wake: WakeOnce,
    /// It does not ring before, so that times keep their pace.
    rests_until: Instant,
}

impl Alarm {
    pub(super) fn new() -> Alarm {
        Alarm { millis: Arc::new(AtomicU64::new(OFF)), wake: WakeOnce::default(), rests_until: Instant::now() }
    }

    /// How long the sequencer may sleep; `None`: the alarm is off.
    pub(super) fn wait(&self, now_millis: u64) -> Option<Duration> {
        let millis = self.millis.load(Ordering::Acquire);
        let left = Duration::from_millis(millis.saturating_sub(now_millis)).min(LOOK_AGAIN);
        (millis != OFF).then(|| left.max(self.rests_until.saturating_duration_since(Instant::now())))
    }

    /// True when somebody's time has come; not again for a while then.
    pub(super) fn rings(&mut self, now_millis: u64, pace: Duration) -> bool {
        let now = Instant::now();
        let rings = self.millis.load(Ordering::Acquire) <= now_millis && now >= self.rests_until;
        if rings {
            self.rests_until = now + pace;
        }
        rings
    }

    /// A time is about to be handed out.
    pub(super) fn clear(&self) {
        self.millis.store(OFF, Ordering::Release);
    }

    /// Sets it; true when it is earlier now.
    fn set(&self, time: Time) -> bool {
        time.as_millis() < self.millis.fetch_min(time.as_millis(), Ordering::AcqRel)
    }
}

/// The clock for the workers.
pub(super) struct ClockRequests {
    pub(super) tick_wake: WakeOnce,
    pub(super) alarm: Alarm,
    pub(super) requests: Mutex<Sender<Request>>,
}

impl ClockRequests {
    fn send(&self, wake: &WakeOnce, request: Request) {
        if wake.set() {
            // The sequencer is gone when the server stops.
            let _ = lock(&self.requests).send(request);
        }
    }
}

impl Clock for ClockRequests {
    fn request_tick(&self) {
        self.send(&self.tick_wake, Request::Tick { answer: None });
    }

    fn wake_at(&self, time: Time) {
        if self.alarm.set(time) {
            self.send(&self.alarm.wake, Request::AlarmSet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_time_counts_until_one_is_handed_out() {
        let mut alarm = Alarm::new();
        let pace = Duration::from_secs(3_600);
        assert_eq!(alarm.wait(0), None);
        assert!(!alarm.rings(u64::MAX - 1, pace));
        assert!(alarm.set(Time::from_millis(5_000)) && !alarm.set(Time::from_millis(9_000)));
        assert_eq!(alarm.wait(4_990), Some(Duration::from_millis(10)));
        assert_eq!(alarm.wait(0), Some(LOOK_AGAIN));
        assert!(!alarm.rings(4_999, pace) && alarm.rings(5_000, pace));
        alarm.clear();
        assert_eq!(alarm.wait(6_000), None);
        assert!(alarm.set(Time::from_millis(5_500)));
        assert!(!alarm.rings(6_000, pace), "not again so soon");
    }
}
