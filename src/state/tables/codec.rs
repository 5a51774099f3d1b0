//! Values as bytes, in the encodings of the snapshot contract: integers little endian, text as it is, compounds with
//! `u32` lengths.

use crate::types::{Error, Result, SqlState};

/// Turns values into bytes and back. Equal values have equal bytes.
pub trait Codec {
    /// The values.
    type Value;

    /// Appends a value's bytes.
    fn encode(&self, value: &Self::Value, into: &mut Vec<u8>);

    /// The value of bytes that are all its own.
    ///
    /// # Errors
    /// XX001 when they are no value.
    fn decode(&self, bytes: &[u8]) -> Result<Self::Value>;

    /// A value's bytes.
    fn to_bytes(&self, value: &Self::Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(value, &mut bytes);
        bytes
    }
}

pub(super) fn damaged(what: &str) -> Error {
    Error::new(SqlState::DataCorrupted, format!("a stored {what} is damaged")).hint("Restore a checkpoint.")
}

macro_rules! integers {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl Codec for $name {
            type Value = $type;

            fn encode(&self, value: &$type, into: &mut Vec<u8>) {
                into.extend(value.to_le_bytes());
            }

            fn decode(&self, bytes: &[u8]) -> Result<$type> {
                bytes.try_into().map(<$type>::from_le_bytes).map_err(|_| damaged(stringify!($type)))
            }
        }
    )* };
}

integers! {
    /// `i64`, 8 bytes.
    I64Codec: i64,
    /// `u64`, 8 bytes.
    U64Codec: u64,
    /// `u32`, 4 bytes.
    U32Codec: u32,
}

/// Bytes as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct BytesCodec;

impl Codec for BytesCodec {
    type Value = Vec<u8>;

    fn encode(&self, value: &Vec<u8>, into: &mut Vec<u8>) {
        into.extend(value);
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        Ok(bytes.to_vec())
    }
}

/// Text in UTF-8.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextCodec;

impl Codec for TextCodec {
    type Value = String;

    fn encode(&self, value: &String, into: &mut Vec<u8>) {
        into.extend(value.as_bytes());
    }

    fn decode(&self, bytes: &[u8]) -> Result<String> {
        String::from_utf8(bytes.to_vec()).map_err(|_| damaged("text"))
    }
}

/// `u32` length of the first, the first, the second up to the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct PairCodec<A, B>(pub A, pub B);

impl<A: Codec, B: Codec> Codec for PairCodec<A, B> {
    type Value = (A::Value, B::Value);

    fn encode(&self, (first, second): &Self::Value, into: &mut Vec<u8>) {
        sized(into, |into| self.0.encode(first, into));
        self.1.encode(second, into);
    }

    fn decode(&self, bytes: &[u8]) -> Result<Self::Value> {
        let mut rest = bytes;
        let first = take_sized(&mut rest).ok_or_else(|| damaged("pair"))?;
        Ok((self.0.decode(first)?, self.1.decode(rest)?))
    }
}

/// `u32` count, then each element with its `u32` length.
#[derive(Clone, Copy, Debug, Default)]
pub struct VecCodec<T>(pub T);

impl<T: Codec> Codec for VecCodec<T> {
    type Value = Vec<T::Value>;

    fn encode(&self, value: &Self::Value, into: &mut Vec<u8>) {
        // Four billion elements do not fit a value.
        into.extend((value.len() as u32).to_le_bytes());
        for element in value {
            sized(into, |into| self.0.encode(element, into));
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<Self::Value> {
        let (count, mut rest) = bytes.split_first_chunk::<4>().ok_or_else(|| damaged("list"))?;
        let mut value = Vec::new();
        for _ in 0..u32::from_le_bytes(*count) {
            value.push(self.0.decode(take_sized(&mut rest).ok_or_else(|| damaged("list"))?)?);
        }
        if rest.is_empty() { Ok(value) } else { Err(damaged("list")) }
    }
}

fn sized(into: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = into.len();
    into.extend([0; 4]);
    fill(into);
    let length = ((into.len() - at - 4) as u32).to_le_bytes();
    into[at..at + 4].copy_from_slice(&length);
}

fn take_sized<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, behind) = rest.split_first_chunk::<4>()?;
    let (taken, left) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *rest = left;
    Some(taken)
}
