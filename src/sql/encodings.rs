//! Bytes as texts and back: `encode`, `decode`, `convert_from`, `convert_to`.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, BinaryArray, StringArray};
use arrow::datatypes::DataType;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::row_functions::{Arguments, Function, is_text, text_at};
use crate::types::{Error, Result, SqlState};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: "encode", returns: |types| of_bytes(types, DataType::Utf8), answer: encode },
    Function { name: "decode", returns: |types| of_texts(types, DataType::Binary), answer: decode },
    Function { name: "convert_from", returns: |types| of_bytes(types, DataType::Utf8), answer: convert_from },
    Function { name: "convert_to", returns: |types| of_texts(types, DataType::Binary), answer: convert_to },
];

fn of_bytes(types: &[DataType], result: DataType) -> Option<DataType> {
    let bytes = matches!(types.first(), Some(DataType::Binary)) || is_text(types.first());
    (types.len() == 2 && bytes && is_text(types.get(1))).then_some(result)
}

fn of_texts(types: &[DataType], result: DataType) -> Option<DataType> {
    (types.len() == 2 && is_text(types.first()) && is_text(types.get(1))).then_some(result)
}

#[derive(Clone, Copy)]
enum Encoding {
    Hex,
    Base64,
    Escape,
}

impl Encoding {
    fn of(name: &str) -> Result<Encoding> {
        match name.to_lowercase().as_str() {
            "hex" => Ok(Encoding::Hex),
            "base64" => Ok(Encoding::Base64),
            "escape" => Ok(Encoding::Escape),
            _ => Err(wrong(format!("unrecognized encoding: \"{name}\"")).hint("Write hex, base64 or escape.")),
        }
    }

    fn encode(self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len() * 2);
        match self {
            Encoding::Hex => {
                for byte in bytes {
                    // Writing into a text cannot fail.
                    let _ = write!(text, "{byte:02x}");
                }
            }
            Encoding::Base64 => {
                /// As MIME breaks its lines.
                const LINE: usize = 76;
                for (at, character) in BASE64_STANDARD.encode(bytes).chars().enumerate() {
                    if at > 0 && at % LINE == 0 {
                        text.push('\n');
                    }
                    text.push(character);
                }
            }
            Encoding::Escape => {
                for byte in bytes {
                    match byte {
                        b'\\' => text.push_str("\\\\"),
                        0 | 0x80.. => {
                            let _ = write!(text, "\\{byte:03o}");
                        }
                        byte => text.push(char::from(*byte)),
                    }
                }
            }
        }
        text
    }

    fn decode(self, text: &str) -> Result<Vec<u8>> {
        let solid = || text.chars().filter(|c| !matches!(c, ' ' | '\n' | '\t' | '\r'));
        match self {
            Encoding::Hex => {
                let digit = |c: char| {
                    let value = c.to_digit(16).and_then(|value| u8::try_from(value).ok());
                    value.ok_or_else(|| wrong(format!("invalid hexadecimal digit: \"{c}\"")))
                };
                let digits = solid().map(digit).collect::<Result<Vec<u8>>>()?;
                let (pairs, rest) = digits.as_chunks::<2>();
                if !rest.is_empty() {
                    return Err(wrong("invalid hexadecimal data: odd number of digits".into()));
                }
                Ok(pairs.iter().map(|[high, low]| (high << 4) | low).collect())
            }
            Encoding::Base64 => BASE64_STANDARD
                .decode(solid().collect::<String>())
                .map_err(|error| wrong(format!("invalid base64 data: {error}"))),
            Encoding::Escape => unescaped(text.as_bytes()).ok_or_else(|| {
                Error::new(SqlState::InvalidText, "invalid input syntax for type bytea")
                    .hint("Write a backslash twice, or three octal digits behind it.")
            }),
        }
    }
}

fn wrong(message: String) -> Error {
    Error::new(SqlState::InvalidParameterValue, message)
}

fn unescaped(mut rest: &[u8]) -> Option<Vec<u8>> {
    let octal = |digit: u8, most: u8| (b'0'..=most).contains(&digit).then(|| digit - b'0');
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((first, after)) = rest.split_first() {
        let byte;
        (byte, rest) = match (first, after) {
            (b'\\', [b'\\', after @ ..]) => (b'\\', after),
            (b'\\', [high, middle, low, after @ ..]) => {
                let (high, middle, low) = (octal(*high, b'3')?, octal(*middle, b'7')?, octal(*low, b'7')?);
                ((high << 6) | (middle << 3) | low, after)
            }
            (b'\\', _) => return None,
            (plain, after) => (*plain, after),
        };
        bytes.push(byte);
    }
    Some(bytes)
}

fn bytes_of(arguments: &Arguments) -> Result<BinaryArray> {
    Ok(arguments.cast(0, &DataType::Binary)?.as_binary::<i32>().clone())
}

fn encode(arguments: &Arguments) -> Result<ArrayRef> {
    let (values, names) = (bytes_of(arguments)?, arguments.texts(1)?);
    let texts = (0..arguments.rows).map(|row| match text_at(&names, row).filter(|_| values.is_valid(row)) {
        Some(name) => Ok(Some(Encoding::of(name)?.encode(values.value(row)))),
        None => Ok(None),
    });
    Ok(Arc::new(texts.collect::<Result<StringArray>>()?))
}

fn decode(arguments: &Arguments) -> Result<ArrayRef> {
    let (values, names) = (arguments.texts(0)?, arguments.texts(1)?);
    let bytes = (0..arguments.rows).map(|row| match (text_at(&values, row), text_at(&names, row)) {
        (Some(text), Some(name)) => Encoding::of(name)?.decode(text).map(Some),
        _ => Ok(None),
    });
    Ok(Arc::new(BinaryArray::from_iter(bytes.collect::<Result<Vec<_>>>()?)))
}

fn check_utf8(name: &str) -> Result<()> {
    if matches!(name.to_lowercase().replace('-', "").as_str(), "utf8" | "unicode") {
        return Ok(());
    }
    Err(Error::unsupported(format!("encoding \"{name}\" is not supported")).hint("Texts are UTF-8: write 'UTF8'."))
}

fn convert_from(arguments: &Arguments) -> Result<ArrayRef> {
    let (values, names) = (bytes_of(arguments)?, arguments.texts(1)?);
    let texts = (0..arguments.rows).map(|row| {
        let Some(name) = text_at(&names, row).filter(|_| values.is_valid(row)) else { return Ok(None) };
        check_utf8(name)?;
        match std::str::from_utf8(values.value(row)) {
            Ok(text) if !text.contains('\0') => Ok(Some(text.to_owned())),
            _ => Err(Error::new(SqlState::CharacterNotInRepertoire, "invalid byte sequence for encoding \"UTF8\"")),
        }
    });
    Ok(Arc::new(texts.collect::<Result<StringArray>>()?))
}

fn convert_to(arguments: &Arguments) -> Result<ArrayRef> {
    let (values, names) = (arguments.texts(0)?, arguments.texts(1)?);
    let bytes = (0..arguments.rows).map(|row| match (text_at(&values, row), text_at(&names, row)) {
        (Some(text), Some(name)) => check_utf8(name).map(|()| Some(text.as_bytes())),
        _ => Ok(None),
    });
    Ok(Arc::new(BinaryArray::from_iter(bytes.collect::<Result<Vec<_>>>()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_there_and_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        for encoding in [Encoding::Hex, Encoding::Base64, Encoding::Escape] {
            assert_eq!(encoding.decode(&encoding.encode(&bytes)).unwrap(), bytes);
        }
        assert_eq!(Encoding::Escape.encode(b"a\\\x00\xff"), "a\\\\\\000\\377");
        assert_eq!(Encoding::Base64.encode(&[0; 60]).lines().map(str::len).collect::<Vec<_>>(), [76, 4]);
        for (encoding, text) in
            [(Encoding::Hex, "abc"), (Encoding::Hex, "xy"), (Encoding::Base64, "a"), (Encoding::Escape, "\\9")]
        {
            assert!(encoding.decode(text).is_err(), "{text}");
        }
    }
}
