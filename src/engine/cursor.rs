//! Where a scan goes on, as opaque text.
//!
//! base64url without padding of:
//!
//! ```text
//! offset  size  what
//!      0     1  format, 1
//!      1     4  CRC-32 of all that follows, little endian
//!      5     8  relation, little endian
//!     13     8  rows to skip at the place, little endian
//!     21     1  0: the start of a worker's part; 1: a page's end
//!     22     n  0: worker and number of workers, 4 bytes each, little endian; 1: the page's own bytes
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::types::{Error, RelationId, Result, SqlState};

const FORMAT: u8 = 1;

/// A place in a relation's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The relation.
    pub(crate) relation: RelationId,
    /// Rows behind the place that were given already: of one row that is there several times.
    pub(crate) skip: u64,
    /// The place.
    pub(crate) place: Place,
}

/// Where a page starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The first row that a worker keeps.
    Start {
        /// The worker.
        worker: u32,
        /// Among so many.
        workers: u32,
    },
    /// Where another page ended.
    After(Vec<u8>),
}

impl Cursor {
    /// As text.
    pub(crate) fn encode(&self) -> String {
        let mut body = Vec::new();
        body.extend_from_slice(&self.relation.0.to_le_bytes());
        body.extend_from_slice(&self.skip.to_le_bytes());
        match &self.place {
            Place::Start { worker, workers } => {
                body.push(0);
                body.extend_from_slice(&worker.to_le_bytes());
                body.extend_from_slice(&workers.to_le_bytes());
            }
            Place::After(bytes) => {
                body.push(1);
                body.extend_from_slice(bytes);
            }
        }
        let mut bytes = vec![FORMAT];
        bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// From text.
    ///
    /// # Errors
    /// 22023 when it is not what [`Cursor::encode`] gave, or for another relation or number of workers.
    pub(crate) fn decode(text: &str, relation: RelationId, workers: usize) -> Result<Cursor> {
        let invalid = |reason: &str| {
            Error::new(SqlState::InvalidParameterValue, format!("invalid cursor: {reason}"))
                .hint("Give the cursor as the scan before answered it, or none to begin at the start.")
        };
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid("it is not base64url"))?;
        let cursor = parse(&bytes).ok_or_else(|| invalid("it is damaged"))?;
        if cursor.relation != relation {
            return Err(invalid("it is of another view or table"));
        }
        if let Place::Start { worker, workers: of } = cursor.place
            && (of as usize != workers || worker >= of)
        {
            return Err(invalid("the number of workers has changed since"));
        }
        Ok(cursor)
    }
}

fn parse(bytes: &[u8]) -> Option<Cursor> {
    let (format, rest) = bytes.split_first()?;
    let (checksum, body) = rest.split_first_chunk::<4>()?;
    if *format != FORMAT || u32::from_le_bytes(*checksum) != crc32fast::hash(body) {
        return None;
    }
    let (relation, rest) = body.split_first_chunk::<8>()?;
    let (skip, rest) = rest.split_first_chunk::<8>()?;
    let (kind, rest) = rest.split_first()?;
    let place = match kind {
        0 => {
            let (worker, rest) = rest.split_first_chunk::<4>()?;
            let (workers, _) = rest.split_first_chunk::<4>()?;
            Place::Start { worker: u32::from_le_bytes(*worker), workers: u32::from_le_bytes(*workers) }
        }
        1 => Place::After(rest.to_vec()),
        _ => return None,
    };
    Some(Cursor { relation: RelationId(u64::from_le_bytes(*relation)), skip: u64::from_le_bytes(*skip), place })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was() {
        for place in [Place::Start { worker: 1, workers: 2 }, Place::After(vec![0, 255, 7]), Place::After(Vec::new())] {
            let cursor = Cursor { relation: RelationId(7), skip: 3, place };
            assert_eq!(Cursor::decode(&cursor.encode(), RelationId(7), 2).unwrap(), cursor);
        }
    }

    #[test]
    fn a_wrong_one_is_refused() {
        let cursor = Cursor { relation: RelationId(7), skip: 0, place: Place::Start { worker: 1, workers: 2 } };
        let text = cursor.encode();
        assert!(Cursor::decode(&text, RelationId(8), 2).is_err());
        assert!(Cursor::decode(&text, RelationId(7), 3).is_err());
        assert!(Cursor::decode("", RelationId(7), 2).is_err());
        assert!(Cursor::decode("!", RelationId(7), 2).is_err());
        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] = if damaged[at] == b'A' { b'B' } else { b'A' };
            let error = Cursor::decode(std::str::from_utf8(&damaged).unwrap(), RelationId(7), 2).unwrap_err();
            assert_eq!(error.code(), SqlState::InvalidParameterValue);
        }
    }
}
