//! What operators ask the clock for.

use crate::types::Time;

/// The one clock, as the workers see it. Both calls return at once.
pub(crate) trait Clock: Send + Sync {
    /// Asks for the next time: there is work that waits for one.
    fn request_tick(&self);

    /// Asks for a time at or after this one, when it has come. Forgotten with the next time of any kind: who still waits
    /// then asks again.
    fn wake_at(&self, time: Time);
}
