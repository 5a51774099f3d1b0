//! State that belongs to an operator and to no key: offsets, broadcast values, lists that are dealt out.
//!
//! Its keys begin with 0xFF, so a filter by key group never drops it. When workers change, the copies of all workers come
//! together by their form:
//!
//! | key after 0xFF | form | at a restore |
//! | --- | --- | --- |
//! | `slot\|` | broadcast | each worker gets the value; copies that differ are refused, but for numbers |
//! | `slot#union\|entry` | union | each worker gets all entries; of one that differs, numbers only |
//! | `slot#list\|` + `u32` BE | split list | items of all, in order of workers, dealt out one by one |
//! | anything else | written by others | each worker gets it; numbers, or else the copy of the last worker |
//!
//! *Numbers*: of values with 8 bytes that differ, the greater little-endian `i64` is kept. Offsets only grow.

use std::collections::BTreeMap;

use super::backend::{StateBackend, WriteBatch};
use super::layout::{check_slot, operator_key};
use super::share::Share;
use crate::types::{Error, OperatorId, Result, SqlState};

const UNION_FORM: &[u8] = b"#union";
const LIST_FORM: &[u8] = b"#list";

/// Key of a value of which each worker has a copy.
///
/// # Errors
/// 22023 for a name that no slot can have.
pub fn broadcast_key(slot: &str) -> Result<Vec<u8>> {
    check_slot(slot)?;
    Ok(operator_key(format!("{slot}|").as_bytes()))
}

/// Key of an entry that each worker is told of after a restore.
///
/// # Errors
/// 22023 for a name that no slot can have.
pub fn union_key(slot: &str, entry: &[u8]) -> Result<Vec<u8>> {
    Ok([&union_prefix(slot)?, entry].concat())
}

/// What the keys of all entries of a union start with.
///
/// # Errors
/// 22023 for a name that no slot can have.
pub fn union_prefix(slot: &str) -> Result<Vec<u8>> {
    check_slot(slot)?;
    Ok(operator_key(&[slot.as_bytes(), UNION_FORM, b"|"].concat()))
}

/// Key of an item of a list that is dealt out among the workers.
///
/// # Errors
/// 22023 for a name that no slot can have.
pub fn list_item_key(slot: &str, position: u32) -> Result<Vec<u8>> {
    Ok([list_prefix(slot)?.as_slice(), &position.to_be_bytes()].concat())
}

/// What the keys of all items of a list start with.
///
/// # Errors
/// 22023 for a name that no slot can have.
pub fn list_prefix(slot: &str) -> Result<Vec<u8>> {
    check_slot(slot)?;
    Ok(operator_key(&[slot.as_bytes(), LIST_FORM, b"|"].concat()))
}

/// A value of operator state; one that an old snapshot has without the leading 0xFF is found too.
///
/// # Errors
/// When the store cannot be read.
pub fn get_operator_state(backend: &dyn StateBackend, operator: OperatorId, logical: &[u8]) -> Result<Option<Vec<u8>>> {
    match backend.get(operator, &operator_key(logical))? {
        Some(value) => Ok(Some(value)),
        None => backend.get(operator, logical),
    }
}

/// Brings the operator state of several workers together.
#[derive(Debug)]
pub(super) struct OperatorRows {
    share: Share,
    rows: BTreeMap<(OperatorId, Vec<u8>), Vec<u8>>,
    // By operator and prefix: items in order of workers.
    lists: BTreeMap<(OperatorId, Vec<u8>), Vec<Vec<u8>>>,
}

impl OperatorRows {
    pub(super) fn new(share: Share) -> OperatorRows {
        OperatorRows { share, rows: BTreeMap::new(), lists: BTreeMap::new() }
    }

    /// Takes in an entry; workers come in order, and the entries of each in order of keys.
    pub(super) fn add(&mut self, operator: OperatorId, key: &[u8], value: &[u8]) -> Result<()> {
        if let Some((prefix, [_, _, _, _])) = split_form(key, LIST_FORM) {
            self.lists.entry((operator, prefix.to_vec())).or_default().push(value.to_vec());
            return Ok(());
        }
        let Some(kept) = self.rows.get_mut(&(operator, key.to_vec())) else {
            self.rows.insert((operator, key.to_vec()), value.to_vec());
            return Ok(());
        };
        if kept == value {
            return Ok(());
        }
        let number = |bytes: &[u8]| bytes.try_into().ok().map(i64::from_le_bytes);
        if let (Some(ours), Some(theirs)) = (number(kept), number(value)) {
            *kept = ours.max(theirs).to_le_bytes().to_vec();
        } else if split_form(key, UNION_FORM).is_some() || is_broadcast(key) {
            let slot = String::from_utf8_lossy(&key[1..]).into_owned();
            return Err(Error::new(
                SqlState::DataCorrupted,
                format!("workers kept different copies of {slot:?} of operator {operator}"),
            )
            .hint("Restore another checkpoint."));
        } else {
            *kept = value.to_vec();
        }
        Ok(())
    }

    /// What this worker keeps.
    pub(super) fn finish(mut self) -> Result<BTreeMap<OperatorId, WriteBatch>> {
        for ((operator, prefix), items) in self.lists {
            let dealt = items.into_iter().skip(self.share.worker()).step_by(self.share.workers());
            for (position, item) in dealt.enumerate() {
                let position = u32::try_from(position)
                    .map_err(|_| Error::new(SqlState::ProgramLimitExceeded, "a list of operator state is too long"))?;
                self.rows.insert((operator, [prefix.as_slice(), &position.to_be_bytes()].concat()), item);
            }
        }
        let mut batches: BTreeMap<OperatorId, WriteBatch> = BTreeMap::new();
        for ((operator, key), value) in self.rows {
            batches.entry(operator).or_default().put(key, value);
        }
        Ok(batches)
    }
}

/// The part of a key up to and with the `|` behind its form, and the rest.
fn split_form<'a>(key: &'a [u8], form: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let end = key.iter().position(|byte| *byte == b'|')?;
    key[..end].ends_with(form).then(|| key.split_at(end + 1))
}

fn is_broadcast(key: &[u8]) -> bool {
    key.iter().position(|byte| *byte == b'|') == key.len().checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(share: Share, copies: &[(Vec<u8>, &[u8])]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let operator = OperatorId::from_u64(1);
        let mut rows = OperatorRows::new(share);
        for (key, value) in copies {
            rows.add(operator, key, value)?;
        }
        let batches = rows.finish()?;
        Ok(batches
            .into_values()
            .flat_map(|batch| batch.entries)
            .map(|(key, value)| (key, value.expect("set")))
            .collect())
    }

    #[test]
    fn each_form_comes_together_by_its_rule() {
        let (union, broadcast) =
            (|e: &[u8]| union_key("offsets", e).expect("valid"), broadcast_key("rules").expect("valid"));
        let rows = merged(
            Share::WHOLE,
            &[
                (union(b"p0"), &7_i64.to_le_bytes()),
                (broadcast.clone(), b"x > 1"),
                (union(b"p0"), &9_i64.to_le_bytes()),
                (union(b"p1"), &(-1_i64).to_le_bytes()),
                (broadcast.clone(), b"x > 1"),
                (operator_key(b"_xo"), b"old"),
                (operator_key(b"_xo"), b"new"),
                (operator_key(b"pos"), &7_i64.to_le_bytes()),
                (operator_key(b"pos"), &(-7_i64).to_le_bytes()),
            ],
        )
        .expect("no conflict");
        let expected = [
            (operator_key(b"_xo"), b"new".to_vec()),
            (union(b"p0"), 9_i64.to_le_bytes().to_vec()),
            (union(b"p1"), (-1_i64).to_le_bytes().to_vec()),
            (operator_key(b"pos"), 7_i64.to_le_bytes().to_vec()),
            (broadcast.clone(), b"x > 1".to_vec()),
        ];
        assert_eq!(rows, expected);
        let conflict = merged(Share::WHOLE, &[(broadcast.clone(), b"a"), (broadcast, b"b")]).expect_err("differs");
        assert_eq!(conflict.code(), SqlState::DataCorrupted);
        assert!(merged(Share::WHOLE, &[(union(b"p"), b"a"), (union(b"p"), b"b")]).is_err());
    }

    #[test]
    fn a_list_is_dealt_out_without_loss() {
        let item = |position| list_item_key("splits", position).expect("valid");
        let copies: Vec<(Vec<u8>, &[u8])> =
            vec![(item(0), b"a"), (item(1), b"b"), (item(0), b"c"), (item(1), b"d"), (item(2), b"e")];
        let mut all = Vec::new();
        for worker in 0..3 {
            let rows = merged(Share::new(worker, 3).expect("valid"), &copies).expect("no conflict");
            assert_eq!(rows[0].0, item(0));
            all.extend(rows.into_iter().map(|(_, value)| value));
        }
        all.sort();
        assert_eq!(all, [b"a", b"b", b"c", b"d", b"e"]);
        assert!(list_item_key("a|b", 0).is_err() && union_key("a#b", b"").is_err() && broadcast_key("a\nb").is_err());
    }
}
