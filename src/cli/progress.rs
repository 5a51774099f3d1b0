//! A line that says how far something is, on a terminal alone, once it takes long.

use std::future::Future;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clink::env::Step;

/// Work that is done sooner needs no line.
const QUIET: Duration = Duration::from_secs(1);
const REDRAW: Duration = Duration::from_millis(200);
const BAR: u64 = 30;

/// Does some work and shows how far it is.
pub(super) async fn shown<T>(work: impl Future<Output = T>, how_far: impl Fn() -> Option<Step>) -> T {
    let mut work = std::pin::pin!(work);
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    let mut wait = QUIET;
    let mut drawn = false;
    loop {
        match tokio::time::timeout(wait, &mut work).await {
            Ok(done) => {
                if drawn {
                    eprint!("\r\x1b[K");
                }
                return done;
            }
            Err(_) => {
                if let Some(step) = how_far() {
                    eprint!("\r{}\x1b[K", line(&step));
                    // A terminal that is gone sees nothing.
                    let _ = std::io::stderr().flush();
                    drawn = true;
                }
                wait = REDRAW;
            }
        }
    }
}

fn line(step: &Step) -> String {
    let done = step.done.min(step.total);
    let full = (done * BAR).checked_div(step.total).unwrap_or(BAR);
    let percent = (done * 100).checked_div(step.total).unwrap_or(100);
    let bar: String = (0..BAR).map(|at| if at < full { '#' } else { '.' }).collect();
    format!("{} [{bar}] {percent:>3} %", step.what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is() {
        let step = |done, total| line(&Step { what: "reading", done, total });
        assert_eq!(step(0, 10), format!("reading [{}]   0 %", ".".repeat(30)));
        assert_eq!(step(5, 10), format!("reading [{}{}]  50 %", "#".repeat(15), ".".repeat(15)));
        assert_eq!(step(12, 10), format!("reading [{}] 100 %", "#".repeat(30)));
        assert_eq!(step(0, 0), format!("reading [{}] 100 %", "#".repeat(30)));
    }
}
