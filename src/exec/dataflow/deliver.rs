//! The end of a job whose rows leave clink: closed times go to the sink's queue, from one worker.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use timely::dataflow::channels::pact::{ParallelizationContract, Pipeline};
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

use super::container::Packet;
use super::driver::{JobContext, Packets, by_keys};
use super::exchange::Route;
use crate::exec::operators::{Context, Operator, StateSize, Step};
use crate::exec::sink::SinkQueue;
use crate::types::{Chunk, Result, Time};

/// Hands a stream's changes, time by time as they close, to a sink's queue. While the queue is full
/// the time stays open, so what feeds the job holds.
pub(super) fn deliver(stream: Packets<'_>, route: Route, queue: &Arc<SinkQueue>, job: &JobContext) {
    match route {
        Route::Keys { columns, codec } if job.peers > 1 => deliver_by(stream, by_keys(columns, codec), queue, job),
        Route::Local | Route::Keys { .. } => deliver_by(stream, Pipeline, queue, job),
    }
}

fn deliver_by<P>(stream: Packets<'_>, pact: P, queue: &Arc<SinkQueue>, job: &JobContext)
where
    P: ParallelizationContract<u64, Packet>,
{
    let scope = stream.scope();
    let mut builder = OperatorBuilder::new("deliver".to_owned(), scope);
    let address = builder.operator_info().address.to_vec();
    let activator = scope.activator_for(builder.operator_info().address);
    let mut input = builder.new_input(stream, pact);
    let (queue, job) = (Arc::clone(queue), job.clone());
    // It has no state, but a job may have no other operator that tells of its barriers.
    let mut member = job.store.join(activator);
    // One worker gets all rows; the others only say how far they are.
    let owner = Route::one_worker(job.peers) == job.worker;
    if owner {
        let activator = scope.worker().sync_activator_for(address);
        queue.when_room(Box::new(move || {
            // A worker that is gone needs no rows.
            let _ = activator.activate();
        }));
    }
    builder.build(move |_| {
        let mut stash: BTreeMap<u64, VecDeque<Chunk>> = BTreeMap::new();
        move |frontiers| {
            if job.failed() {
                input.for_each(|_, packet| packet.0 = None);
                stash.clear();
                return;
            }
            input.for_each(|capability, packet| {
                if let (Some(chunk), Some(time)) = (packet.0.take(), capability.least()) {
                    stash.entry(*time).or_default().push_back(chunk);
                }
            });
            let frontier = frontiers[0].frontier().first().copied().unwrap_or(u64::MAX);
            while let Some(entry) = stash.first_entry().filter(|entry| *entry.key() < frontier) {
                let (time, chunks) = entry.remove_entry();
                let rows: usize = chunks.iter().map(Chunk::rows).sum();
                match queue.put(Time::from_millis(time), chunks.into()) {
                    Ok(()) => job.shared.count_out(rows),
                    Err(chunks) => {
                        stash.insert(time, chunks.into());
                        break;
                    }
                }
            }
            let held = stash.first_key_value().map_or(u64::MAX, |(time, _)| *time);
            let upper = Time::from_millis(frontier.min(held));
            if member.is_due(upper) && member.pass(&job, &mut Stateless, Instant::now()).is_none() {
                return;
            }
            if owner {
                queue.advance(upper);
            }
            if job.shared.advance(job.worker, upper) {
                job.signal();
            }
        }
    });
}

/// What is captured of the delivery itself: nothing.
struct Stateless;

impl Operator for Stateless {
    fn open(&mut self, _: &mut Context<'_>) -> Result<()> {
        Ok(())
    }

    fn push(&mut self, _: usize, _: Chunk) -> Result<()> {
        Ok(())
    }

    fn close(&mut self, _: Time, _: &mut Vec<Chunk>, _: &mut Context<'_>) -> Result<Step> {
        Ok(Step::Done)
    }

    fn barrier(&mut self, _: &mut Context<'_>) -> Result<Step> {
        Ok(Step::Done)
    }

    fn state_size(&self) -> StateSize {
        StateSize::default()
    }
}
