//! How keys are laid out, see the module's page.

use super::share::OPERATOR_STATE;
use crate::types::{Error, KeyGroup, Result, SqlState};

const MAP_FORM: &str = "#map";
const LIST_FORM: &str = "#list";

/// Checks a slot's name: `|` ends it in a key, `#` sets off the form, and a line feed ends it in a stamp.
///
/// # Errors
/// 22023 naming the character.
pub fn check_slot(slot: &str) -> Result<()> {
    match slot.chars().find(|c| matches!(c, '|' | '#' | '\n')) {
        None => Ok(()),
        Some(c) => Err(Error::new(
            SqlState::InvalidParameterValue,
            format!("a state slot cannot be named {slot:?}: {c:?} is a separator"),
        )
        .hint("Use letters, digits, dots and underscores.")),
    }
}

/// Key of operator state: `[0xFF][logical key]`.
pub fn operator_key(logical: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + logical.len());
    bytes.push(OPERATOR_STATE);
    bytes.extend_from_slice(logical);
    bytes
}

/// Key of a value: `[key group][slot '|'][key]`.
pub fn value_key(slot: &str, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2 + slot.len() + key.len());
    push_head(&mut bytes, slot, "", key);
    bytes.extend_from_slice(key);
    bytes
}

/// What the keys of all entries of `key`'s map start with.
pub fn map_prefix(slot: &str, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + slot.len() + key.len());
    push_head(&mut bytes, slot, MAP_FORM, key);
    // A key of 4 GiB does not fit a row.
    bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes
}

/// Key of a map's entry: `[key group][slot "#map" '|'][u32 length][key][entry]`.
pub fn map_key(slot: &str, key: &[u8], entry: &[u8]) -> Vec<u8> {
    let mut bytes = map_prefix(slot, key);
    bytes.extend_from_slice(entry);
    bytes
}

/// What the keys of all values of a slot in a key group start with.
pub fn slot_prefix(slot: &str, group: KeyGroup) -> Vec<u8> {
    head(slot, "", group)
}

/// `[key group][slot][form '|']`.
pub(super) fn head(slot: &str, form: &str, group: KeyGroup) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32 + slot.len());
    // A group's number is below 128.
    bytes.push(group.index() as u8);
    bytes.extend_from_slice(slot.as_bytes());
    bytes.extend_from_slice(form.as_bytes());
    bytes.push(b'|');
    bytes
}

/// What the keys of all elements of `key`'s list start with.
pub fn list_prefix_of(slot: &str, key: &[u8]) -> Vec<u8> {
    let mut bytes = head(slot, LIST_FORM, KeyGroup::of(key));
    // A key of 4 GiB does not fit a row.
    bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes
}

/// Key of a list's element: `[key group][slot "#list" '|'][u32 length][key][u64 BE position]`.
pub fn list_key(slot: &str, key: &[u8], position: u64) -> Vec<u8> {
    let mut bytes = list_prefix_of(slot, key);
    bytes.extend_from_slice(&position.to_be_bytes());
    bytes
}

fn push_head(bytes: &mut Vec<u8>, slot: &str, form: &str, key: &[u8]) {
    debug_assert!(check_slot(slot).is_ok(), "slot names have no separator");
    // A group's number is below 128.
    bytes.push(KeyGroup::of(key).index() as u8);
    bytes.extend_from_slice(slot.as_bytes());
    bytes.extend_from_slice(form.as_bytes());
    bytes.push(b'|');
}

/// The user key of a value's key, if it is one of `slot`.
pub fn split_value_key<'a>(slot: &str, key: &'a [u8]) -> Option<&'a [u8]> {
    key.get(1..)?.strip_prefix(slot.as_bytes())?.strip_prefix(b"|")
}

/// The user key and the entry of a map entry's key, if it is one of `slot`.
///
/// # Errors
/// XX001 when the lengths do not fit.
pub fn split_map_key<'a>(slot: &str, key: &'a [u8]) -> Result<Option<(&'a [u8], &'a [u8])>> {
    let Some(rest) =
        key.get(1..).and_then(|rest| rest.strip_prefix(slot.as_bytes())).and_then(|rest| rest.strip_prefix(b"#map|"))
    else {
        return Ok(None);
    };
    let damaged = || Error::new(SqlState::DataCorrupted, "a map entry's key is cut short");
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
    let length = u32::from_le_bytes(*length) as usize;
    if rest.len() < length {
        return Err(damaged());
    }
    Ok(Some(rest.split_at(length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_apart_as_they_were_put_together() {
        let key = b"k|1";
        assert_eq!(split_value_key("agg", &value_key("agg", key)), Some(&key[..]));
        assert_eq!(split_value_key("agg", &map_key("agg", key, b"e")), None);
        let entry = map_key("min", key, b"e|f");
        assert_eq!(split_map_key("min", &entry).expect("whole"), Some((&key[..], &b"e|f"[..])));
        assert_eq!(split_map_key("max", &entry).expect("whole"), None);
        assert!(entry.starts_with(&map_prefix("min", key)));
        assert!(split_map_key("min", &entry[..10]).is_err());
        // The group is that of the user key alone, so a key's value and entries are neighbours.
        assert_eq!(entry[0], value_key("agg", key)[0]);
    }
}
