//! The changelog variant of the snapshot format, as the C++ engine writes it. It is read, not written.
//!
//! A stream with a leading column `row_kind uint8`. Its first row is the base: kind 0 with a complete snapshot in the
//! value, or kind 3 with a handle of one kept elsewhere, empty when there is none yet. The others are changes in order:
//! 1 sets a key, 2 erases it. Several streams stand behind each other as `CLMB`, a count, and each with its length.

use std::collections::BTreeMap;
use std::io::Cursor;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, UInt8Type, UInt64Type};
use arrow::ipc::reader::StreamReader;

use super::format::{SnapshotReader, SnapshotWriter, check_end, check_fields, check_nulls, damaged, unreadable};
use super::versions::StateVersions;
use crate::types::{Error, OperatorId, Result, SqlState};

const MULTI_MAGIC: &[u8; 4] = b"CLMB";
const BASE_IN_PLACE: u8 = 0;
const PUT: u8 = 1;
const ERASE: u8 = 2;
const BASE_BY_HANDLE: u8 = 3;

/// Gives the bytes of a base by its handle.
pub type MaterialisationStore<'a> = dyn Fn(&str) -> Result<Vec<u8>> + 'a;

/// Entries by operator and key.
type Entries = BTreeMap<(OperatorId, Vec<u8>), Vec<u8>>;

/// Turns changelog snapshots into canonical ones.
pub struct ChangelogReader<'a> {
    store: Option<&'a MaterialisationStore<'a>>,
}

impl<'a> ChangelogReader<'a> {
    /// A reader; without `store` bases by handle are refused.
    pub fn new(store: Option<&'a MaterialisationStore<'a>>) -> ChangelogReader<'a> {
        ChangelogReader { store }
    }

    /// Whether these bytes are a changelog snapshot, in one stream or several.
    pub fn recognizes(bytes: &[u8]) -> bool {
        bytes.starts_with(MULTI_MAGIC)
            || StreamReader::try_new(Cursor::new(bytes), None)
                .is_ok_and(|stream| stream.schema().fields().first().is_some_and(|field| field.name() == "row_kind"))
    }

    /// The canonical stream of a changelog snapshot: bases united, then the changes of each stream in order.
    ///
    /// # Errors
    /// XX001 when it is damaged or has no base; 22023 when a base lies in a store that was not given.
    pub fn canonicalize(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut versions = StateVersions::default();
        let mut entries = Entries::new();
        let blobs = split(bytes)?;
        let mut changes = Vec::new();
        for blob in blobs {
            let (base, blob_changes) = self.read(blob)?;
            if !base.is_empty() {
                let base = if Self::recognizes(&base) { self.canonicalize(&base)? } else { base };
                let reader = SnapshotReader::new(&base)?;
                versions.merge(reader.versions())?;
                reader.visit(&mut |operator, key, value| {
                    entries.insert((operator, key.to_vec()), value.to_vec());
                    Ok(())
                })?;
            }
            changes.extend(blob_changes);
        }
        for (key, value) in changes {
            match value {
                Some(value) => entries.insert(key, value),
                None => entries.remove(&key),
            };
        }
        let mut writer = SnapshotWriter::new(Vec::new(), &versions)?;
        for ((operator, key), value) in &entries {
            writer.push(*operator, key, value)?;
        }
        writer.finish()
    }

    /// Base and changes of one stream.
    #[expect(clippy::type_complexity, reason = "used here alone")]
    fn read(&self, bytes: &[u8]) -> Result<(Vec<u8>, Vec<((OperatorId, Vec<u8>), Option<Vec<u8>>)>)> {
        check_end(bytes)?;
        let stream = StreamReader::try_new(Cursor::new(bytes), None).map_err(unreadable)?;
        let expected = [
            ("row_kind", DataType::UInt8),
            ("op_id", DataType::UInt64),
            ("key_bytes", DataType::Binary),
            ("value_bytes", DataType::Binary),
        ];
        check_fields(&stream.schema(), &expected)?;
        let mut base = None;
        let mut changes = Vec::new();
        for batch in stream {
            let batch = batch.map_err(unreadable)?;
            check_nulls(&batch)?;
            let kinds = batch.column(0).as_primitive::<UInt8Type>();
            let operators = batch.column(1).as_primitive::<UInt64Type>();
            let (keys, values) = (batch.column(2).as_binary::<i32>(), batch.column(3).as_binary::<i32>());
            for row in 0..batch.num_rows() {
                let key = (OperatorId::from_u64(operators.value(row)), keys.value(row).to_vec());
                match (kinds.value(row), &base) {
                    (BASE_IN_PLACE, None) => base = Some(values.value(row).to_vec()),
                    (BASE_BY_HANDLE, None) => base = Some(self.fetch(values.value(row))?),
                    (PUT, Some(_)) => changes.push((key, Some(values.value(row).to_vec()))),
                    (ERASE, Some(_)) => changes.push((key, None)),
                    (kind, Some(_)) => return Err(damaged(format!("row {row} has kind {kind}"))),
                    (_, None) => return Err(damaged("its first row is no base")),
                }
            }
        }
        Ok((base.ok_or_else(|| damaged("it has no base"))?, changes))
    }

    fn fetch(&self, handle: &[u8]) -> Result<Vec<u8>> {
        let handle = std::str::from_utf8(handle).map_err(|_| damaged("the handle of its base is not text"))?;
        if handle.is_empty() {
            return Ok(Vec::new());
        }
        let store = self.store.ok_or_else(|| {
            Error::new(SqlState::InvalidParameterValue, format!("the snapshot's base lies elsewhere: {handle}"))
                .hint("Name the store of the bases with --materialisation-store.")
        })?;
        store(handle)
    }
}

fn split(bytes: &[u8]) -> Result<Vec<&[u8]>> {
    let Some(mut rest) = bytes.strip_prefix(MULTI_MAGIC) else { return Ok(vec![bytes]) };
    let cut = || damaged("its list of streams is cut short");
    let mut take = |length: usize| -> Result<&[u8]> {
        let (taken, left) = rest.split_at_checked(length).ok_or_else(cut)?;
        rest = left;
        Ok(taken)
    };
    let number = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).map(|n| n as usize).map_err(|_| cut());
    let count = number(take(4)?)?;
    // The count is not trusted for an allocation.
    let mut blobs = Vec::new();
    for _ in 0..count {
        let length = number(take(4)?)?;
        blobs.push(take(length)?);
    }
    if rest.is_empty() { Ok(blobs) } else { Err(damaged("bytes follow its last stream")) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, BinaryArray, RecordBatch, UInt8Array, UInt64Array};
    use arrow::datatypes::{Field, Schema};
    use arrow::ipc::writer::StreamWriter;

    use super::*;

    fn stream(rows: &[(u8, u64, &[u8], &[u8])]) -> Vec<u8> {
        let schema = Arc::new(Schema::new(vec![
            Field::new("row_kind", DataType::UInt8, false),
            Field::new("op_id", DataType::UInt64, false),
            Field::new("key_bytes", DataType::Binary, false),
            Field::new("value_bytes", DataType::Binary, false),
        ]));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt8Array::from_iter_values(rows.iter().map(|row| row.0))),
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.1))),
            Arc::new(BinaryArray::from_iter_values(rows.iter().map(|row| row.2))),
            Arc::new(BinaryArray::from_iter_values(rows.iter().map(|row| row.3))),
        ];
        let mut stream = StreamWriter::try_new(Vec::new(), &schema).expect("memory");
        stream.write(&RecordBatch::try_new(schema, columns).expect("fits")).expect("memory");
        stream.into_inner().expect("memory")
    }

    fn canonical(entries: &[(u64, &[u8], &[u8])]) -> Vec<u8> {
        let mut writer = SnapshotWriter::new(Vec::new(), &StateVersions::default()).expect("memory");
        for (operator, key, value) in entries {
            writer.push(OperatorId::from_u64(*operator), key, value).expect("in order");
        }
        writer.finish().expect("memory")
    }

    #[test]
    fn replays_the_changes_on_the_base() {
        let base = canonical(&[(1, b"\x01s|a", b"1"), (1, b"\x01s|b", b"2")]);
        let changes: &[(u8, u64, &[u8], &[u8])] =
            &[(0, 0, b"", &base), (1, 1, b"\x01s|c", b"3"), (2, 1, b"\x01s|a", b""), (1, 1, b"\x01s|c", b"4")];
        let expected = canonical(&[(1, b"\x01s|b", b"2"), (1, b"\x01s|c", b"4")]);
        let bytes = stream(changes);
        assert!(ChangelogReader::recognizes(&bytes) && !ChangelogReader::recognizes(&base));
        assert_eq!(ChangelogReader::new(None).canonicalize(&bytes).expect("whole"), expected);

        let by_handle = stream(&[(3, 0, b"", b"/mat-1.bin"), (2, 1, b"\x01s|a", b"")]);
        let refused = ChangelogReader::new(None).canonicalize(&by_handle).expect_err("no store");
        assert_eq!(refused.code(), SqlState::InvalidParameterValue);
        let store = |handle: &str| {
            assert_eq!(handle, "/mat-1.bin");
            Ok(base.clone())
        };
        let reader = ChangelogReader::new(Some(&store));
        assert_eq!(reader.canonicalize(&by_handle).expect("whole"), canonical(&[(1, b"\x01s|b", b"2")]));
        // No base yet.
        let first = stream(&[(3, 0, b"", b""), (1, 1, b"\x02s|z", b"9")]);
        assert_eq!(reader.canonicalize(&first).expect("whole"), canonical(&[(1, b"\x02s|z", b"9")]));

        let mut several = b"CLMB".to_vec();
        several.extend(2_u32.to_le_bytes());
        for blob in [&bytes, &first] {
            several.extend((blob.len() as u32).to_le_bytes());
            several.extend(blob);
        }
        let united = canonical(&[(1, b"\x01s|b", b"2"), (1, b"\x01s|c", b"4"), (1, b"\x02s|z", b"9")]);
        assert_eq!(reader.canonicalize(&several).expect("whole"), united);
        assert!(reader.canonicalize(&several[..several.len() - 1]).is_err());
        several.push(0);
        assert!(reader.canonicalize(&several).is_err());
    }

    #[test]
    fn refuses_what_it_cannot_read() {
        let reader = ChangelogReader::new(None);
        let put: (u8, u64, &[u8], &[u8]) = (1, 1, b"\x01s|c", b"3");
        for rows in [vec![], vec![put], vec![(3, 0, &b""[..], &b""[..]), (7, 1, b"k", b"v")]] {
            assert_eq!(reader.canonicalize(&stream(&rows)).expect_err("refused").code(), SqlState::DataCorrupted);
        }
    }
}
