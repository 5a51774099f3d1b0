//! A chunk as a timely container.

use std::io::{Cursor, Write};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use timely::container::Accountable;
use timely::dataflow::channels::ContainerBytes;

use crate::types::Chunk;

/// One chunk on its way, or none after it was taken.
#[derive(Clone, Default)]
pub(super) struct Packet(pub(super) Option<Chunk>);

impl Accountable for Packet {
    fn record_count(&self) -> i64 {
        self.0.as_ref().map_or(0, |chunk| chunk.rows() as i64)
    }
}

/// Name of the column that carries the diffs between processes, behind the row's own.
const DIFF_COLUMN: &str = "__diff";

impl Packet {
    /// The chunk as an Arrow IPC stream, with its diffs as a last column.
    fn to_ipc(&self) -> Vec<u8> {
        let Some(chunk) = &self.0 else { return Vec::new() };
        let mut fields = chunk.schema().fields().to_vec();
        let mut columns: Vec<ArrayRef> = chunk.batch().columns().to_vec();
        if let Some(diffs) = chunk.diffs() {
            fields.push(Arc::new(Field::new(DIFF_COLUMN, DataType::Int64, false)));
            columns.push(Arc::new(diffs.clone()));
        }
        let schema = Arc::new(Schema::new(fields));
        let write = || {
            let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(chunk.rows()));
            let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)?;
            let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
            writer.write(&batch)?;
            writer.into_inner()
        };
        write().expect("a batch in memory can be written to memory")
    }
}

// Only used between processes; the padding keeps what follows aligned, as timely asks.
impl ContainerBytes for Packet {
    fn from_bytes(bytes: timely::bytes::arc::Bytes) -> Packet {
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        if length == 0 {
            return Packet(None);
        }
        let read = || -> Result<Option<RecordBatch>, arrow::error::ArrowError> {
            StreamReader::try_new(Cursor::new(&bytes[8..8 + length]), None)?.next().transpose()
        };
        let batch = read().expect("a peer of the same incarnation writes what this one reads");
        Packet(batch.and_then(|batch| match batch.schema().column_with_name(DIFF_COLUMN) {
            Some((last, _)) => {
                let diffs = batch.column(last).as_primitive::<Int64Type>().clone();
                let rows = batch.project(&(0..last).collect::<Vec<_>>()).expect("columns of the batch");
                Chunk::changes(&rows, &diffs).into_iter().next()
            }
            None => Chunk::inserts(&batch).into_iter().next(),
        }))
    }

    fn length_in_bytes(&self) -> usize {
        (8 + self.to_ipc().len()).next_multiple_of(8)
    }

    fn into_bytes<W: Write>(&self, writer: &mut W) {
        let bytes = self.to_ipc();
        let padding = (8 + bytes.len()).next_multiple_of(8) - 8 - bytes.len();
        let mut write = || {
            writer.write_all(&(bytes.len() as u64).to_le_bytes())?;
            writer.write_all(&bytes)?;
            writer.write_all(&[0; 8][..padding])
        };
        write().expect("timely gives room for the length that was asked for");
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;

    use super::*;

    #[test]
    fn a_chunk_survives_the_wire() {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true)]));
        let rows = RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(vec![Some(1), None]))]).expect("fits");
        let diffs = Int64Array::from(vec![-1, 2]);
        for chunk in Chunk::changes(&rows, &diffs).into_iter().chain(Chunk::inserts(&rows)) {
            let packet = Packet(Some(chunk.clone()));
            let mut bytes = Vec::new();
            packet.into_bytes(&mut bytes);
            assert_eq!(bytes.len(), packet.length_in_bytes());
            let mut shared = timely::bytes::arc::BytesMut::from(bytes).freeze();
            let length = shared.len();
            let back = Packet::from_bytes(shared.extract_to(length)).0.expect("a chunk");
            assert_eq!(back.batch().columns(), chunk.batch().columns());
            assert_eq!(back.diffs(), chunk.diffs());
        }
    }
}
