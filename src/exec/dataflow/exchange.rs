//! Sends each row to the worker that owns its key group.

use arrow::array::{ArrayRef, AsArray, UInt32Array};
use arrow::compute::{take, take_record_batch};
use arrow::datatypes::{Int64Type, SchemaRef};
use timely::communication::Push;
use timely::dataflow::channels::pushers::exchange::Distributor;
use timely::dataflow::channels::{Message, Stamp};

use super::container::Packet;
use crate::state::RowCodec;
use crate::types::{Chunk, KeyGroup};

/// How rows find their worker.
pub(super) enum Route {
    /// They stay where they are.
    Local,
    /// By the key group of these columns.
    Keys { columns: Vec<usize>, codec: RowCodec },
}

impl Route {
    /// By columns that are compared as SQL compares them.
    pub(super) fn by_keys(schema: &SchemaRef, columns: &[usize]) -> Route {
        let types = columns.iter().map(|column| schema.field(*column).data_type());
        let codec = RowCodec::for_keys(types).expect("the job was checked");
        Route::Keys { columns: columns.to_vec(), codec }
    }

    /// All to one worker, see [`Self::one_worker`].
    pub(super) fn to_one(schema: &SchemaRef) -> Route {
        Route::by_keys(schema, &[])
    }

    /// The worker of rows without a key.
    pub(super) fn one_worker(peers: usize) -> usize {
        KeyGroup::of(&[]).worker(peers)
    }

    /// By whole rows.
    pub(super) fn by_rows(schema: &SchemaRef) -> Route {
        let codec =
            RowCodec::for_rows(schema.fields().iter().map(|field| field.data_type())).expect("the job was checked");
        Route::Keys { columns: (0..schema.fields().len()).collect(), codec }
    }
}

/// Splits chunks among workers by key group.
pub(super) struct ByKeyGroup {
    pub(super) columns: Vec<usize>,
    pub(super) codec: RowCodec,
    pub(super) peers: usize,
}

impl ByKeyGroup {
    fn split(&self, chunk: &Chunk) -> Vec<Vec<u32>> {
        let keys: Vec<ArrayRef> = self.columns.iter().map(|column| chunk.column(*column).clone()).collect();
        let encoded = self.codec.encode(&keys, chunk.rows()).expect("chunks have the planned types");
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.peers];
        for row in 0..chunk.rows() {
            rows[KeyGroup::of(encoded.row(row)).worker(self.peers)].push(row as u32);
        }
        rows
    }
}

impl Distributor<Packet> for ByKeyGroup {
    fn partition<T: Clone, P: Push<Message<T, Packet>>>(
        &mut self,
        container: &mut Packet,
        stamp: &Stamp<T>,
        pushers: &mut [P],
    ) {
        let Some(chunk) = container.0.take() else { return };
        for (worker, rows) in self.split(&chunk).into_iter().enumerate() {
            let part = if rows.is_empty() {
                continue;
            } else if rows.len() == chunk.rows() {
                chunk.clone()
            } else {
                pick(&chunk, rows)
            };
            Message::push_at(&mut Packet(Some(part)), stamp.clone(), &mut pushers[worker]);
        }
    }

    fn flush<T: Clone, P: Push<Message<T, Packet>>>(&mut self, _: &Stamp<T>, _: &mut [P]) {}
}

/// Some rows of a chunk, at least one.
fn pick(chunk: &Chunk, rows: Vec<u32>) -> Chunk {
    let rows = UInt32Array::from(rows);
    let batch = take_record_batch(chunk.batch(), &rows).expect("rows of the chunk");
    let parts = match chunk.diffs() {
        None => Chunk::inserts(&batch),
        Some(diffs) => {
            let diffs = take(diffs, &rows, None).expect("rows of the chunk");
            Chunk::changes(&batch, diffs.as_primitive::<Int64Type>())
        }
    };
    parts.into_iter().next().expect("a part of a chunk is a chunk")
}
