//! Frames of the protocol, checked before the library decodes them: its decoder trusts the counts and
//! lengths that it finds.
//!
//! A frame whose length or kind is wrong ends the connection, since nobody can tell where the next one
//! begins. One that is only filled wrong is an error like any other.

use crate::types::{Error, Limit, Limits, Result, SqlState};

/// Messages that carry no text of the user are short.
const SHORT_BYTES_MAX: usize = 10_000;
/// The code of protocol 3 in the upper half of a startup message's first number.
const PROTOCOL: u16 = 3;
const CANCEL: u32 = 80_877_102;
const SSL: u32 = 80_877_103;
const GSS: u32 = 80_877_104;
/// The longest key with which a client may ask for a cancel.
const CANCEL_KEY_BYTES_MAX: usize = 256;

/// What a client says before it has logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// It asks for TLS or GSS encryption.
    Encryption,
    /// It logs in, or cancels.
    Message,
}

/// The first frame of a connection, when all of it is there: its length and what it is.
///
/// # Errors
/// 08P01 for what is no such frame; the connection ends.
pub(super) fn opening(bytes: &[u8], limits: &Limits) -> Result<Option<(usize, Opening)>> {
    let Some(length) = number(bytes, 0) else { return Ok(None) };
    // A length and a code.
    let length = usize::try_from(length).ok().filter(|length| *length >= 8).ok_or_else(|| {
        violation("invalid length of startup packet").hint("Is the client one of PostgreSQL's protocol, version 3?")
    })?;
    let most = limits.size(Limit::StartupBytes);
    if length > most {
        let message = format!("invalid length of startup packet: at most {most} bytes are taken");
        return Err(limits
            .exceeded(Limit::StartupBytes, message)
            .hint("Is the client one of PostgreSQL's protocol, version 3, without direct TLS?"));
    }
    let Some(frame) = bytes.get(..length) else { return Ok(None) };
    let code = number(frame, 4).unwrap_or_default();
    let (fits, opening) = match code {
        SSL | GSS => (length == 8, Opening::Encryption),
        CANCEL => ((16..=12 + CANCEL_KEY_BYTES_MAX).contains(&length), Opening::Message),
        version if version >> 16 == u32::from(PROTOCOL) => {
            // Pairs of texts, and a zero behind them.
            let mut body = Body(frame.get(8..).unwrap_or_default());
            let mut fits = false;
            while let Ok(name) = body.text() {
                if name.is_empty() {
                    fits = body.0.is_empty();
                    break;
                }
                if body.text().is_err() {
                    break;
                }
            }
            (fits, Opening::Message)
        }
        version => {
            return Err(Error::unsupported(format!(
                "unsupported frontend protocol {}.{}: server supports 3.0 to 3.2",
                version >> 16,
                version & 0xffff
            ))
            .hint("Use a client of PostgreSQL 7.4 or later."));
        }
    };
    if !fits {
        return Err(violation("invalid startup packet layout").hint("The client does not speak PostgreSQL's protocol."));
    }
    Ok(Some((length, opening)))
}

/// The length of the next frame of a session, when all of it is there.
///
/// # Errors
/// 08P01 for an unknown kind or a wrong length, 54000 for one that is too long; the connection ends.
pub(super) fn length(bytes: &[u8], limits: &Limits) -> Result<Option<usize>> {
    let Some(kind) = bytes.first() else { return Ok(None) };
    let long = match kind {
        b'Q' | b'P' | b'B' | b'd' => true,
        b'C' | b'D' | b'E' | b'H' | b'S' | b'X' | b'c' | b'f' => false,
        other => {
            return Err(violation(format!("invalid frontend message type {other}"))
                .hint("Function calls, and passwords after the login, are no messages of a session."));
        }
    };
    let Some(length) = number(bytes, 1) else { return Ok(None) };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let most = if long { limits.size(Limit::MessageBytes) } else { SHORT_BYTES_MAX };
    if length < 4 || (!long && length > most) || length > i32::MAX as usize {
        return Err(violation("invalid message length").hint("The client does not speak PostgreSQL's protocol."));
    }
    if length > most {
        let message = format!("a message of {length} bytes is too long: at most {most} are taken");
        return Err(limits.exceeded(Limit::MessageBytes, message).hint("Send large values and rows in parts."));
    }
    Ok((bytes.len() > length).then_some(length + 1))
}

/// True for the messages after whose error all is skipped up to a Sync.
pub(super) fn is_extended(kind: u8) -> bool {
    matches!(kind, b'P' | b'B' | b'C' | b'D' | b'E' | b'H' | b'S')
}

/// Checks that a whole frame of a session is filled as its kind says.
///
/// # Errors
/// 08P01 for another layout, 22021 for text that is not UTF-8.
pub(super) fn check(frame: &[u8]) -> Result<()> {
    let mut body = Body(frame.get(5..).unwrap_or_default());
    match frame.first() {
        Some(b'Q' | b'f') => {
            body.text()?;
        }
        Some(b'P') => {
            body.text()?;
            body.text()?;
            let types = body.count()?;
            body.skip(types * 4)?;
        }
        Some(b'B') => {
            body.text()?;
            body.text()?;
            let formats = body.count()?;
            body.skip(formats * 2)?;
            for _ in 0..body.count()? {
                match body.number()? {
                    u32::MAX => {}
                    length if length > i32::MAX as u32 => return Err(violation("invalid length of a parameter")),
                    length => body.skip(length as usize)?,
                }
            }
            let formats = body.count()?;
            body.skip(formats * 2)?;
        }
        Some(b'C' | b'D') => {
            body.skip(1)?;
            body.text()?;
        }
        Some(b'E') => {
            body.text()?;
            body.skip(4)?;
        }
        // The bytes of a COPY are its own matter; a client that ends may say anything.
        Some(b'd' | b'X') => return Ok(()),
        _ => {}
    }
    if !body.0.is_empty() {
        return Err(violation("invalid message format").hint("There are bytes behind the end of the message."));
    }
    Ok(())
}

fn violation(message: impl Into<String>) -> Error {
    Error::new(SqlState::ProtocolViolation, message)
}

/// A number of four bytes.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// What is left of a message.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.0.split_at_checked(bytes) else {
            return Err(violation("insufficient data left in message").hint("The message is shorter than it says."));
        };
        self.0 = rest;
        Ok(taken)
    }

    fn skip(&mut self, bytes: usize) -> Result<()> {
        self.take(bytes).map(|_| ())
    }

    fn count(&mut self) -> Result<usize> {
        let bytes = self.take(2)?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn number(&mut self) -> Result<u32> {
        let bytes = self.take(4)?;
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    /// A text up to its zero.
    fn text(&mut self) -> Result<&'a str> {
        let Some(end) = memchr::memchr(0, self.0) else {
            return Err(violation("invalid string in message").hint("A text ends with a zero byte."));
        };
        let text = self.take(end)?;
        self.skip(1)?;
        std::str::from_utf8(text).map_err(|_| {
            Error::new(SqlState::CharacterNotInRepertoire, "invalid byte sequence for encoding \"UTF8\"")
                .hint("Text is UTF-8; send other bytes as bytea.")
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use pgwire::messages::{DecodeContext, PgWireFrontendMessage};
    use proptest::prelude::*;

    use super::*;

    fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![kind];
        frame.extend_from_slice(&u32::try_from(body.len() + 4).expect("short").to_be_bytes());
        frame.extend_from_slice(body);
        frame
    }

    fn code(checked: Result<()>) -> Option<SqlState> {
        checked.err().map(|error| error.code())
    }

    #[test]
    fn whole_messages_pass_and_parts_of_them_do_not() {
        let frames: [(u8, &[u8]); 9] = [
            (b'Q', b"SELECT 1\0"),
            (b'P', b"s\0SELECT $1\0\0\x01\0\0\0\x17"),
            (b'B', b"p\0s\0\0\x01\0\x01\0\x02\0\0\0\x02ab\xff\xff\xff\xff\0\x01\0\x01"),
            (b'D', b"Ss\0"),
            (b'C', b"Pp\0"),
            (b'E', b"p\0\0\0\0\x05"),
            (b'S', b""),
            (b'c', b""),
            (b'f', b"no\0"),
        ];
        for (kind, body) in frames {
            assert_eq!(check(&framed(kind, body)), Ok(()), "{}", kind as char);
            for cut in 0..body.len() {
                let part = framed(kind, &body[..cut]);
                assert_eq!(code(check(&part)), Some(SqlState::ProtocolViolation), "{} cut at {cut}", kind as char);
            }
            let more = framed(kind, &[body, b"x"].concat());
            assert_eq!(code(check(&more)), Some(SqlState::ProtocolViolation), "{}", kind as char);
        }
        assert_eq!(code(check(&framed(b'Q', b"SELECT '\xff'\0"))), Some(SqlState::CharacterNotInRepertoire));
        assert_eq!(check(&framed(b'd', b"\xff\0\xff")), Ok(()));
    }

    #[test]
    fn lengths_are_bounded() {
        let limits = Limits::default();
        let header = |kind: u8, length: i32| [&[kind][..], &length.to_be_bytes()].concat();
        for (kind, wrong, code) in [
            (b'Q', 3, SqlState::ProtocolViolation),
            (b'Q', -1, SqlState::ProtocolViolation),
            (b'Q', (64 << 20) + 1, SqlState::ProgramLimitExceeded),
            (b'd', i32::MAX, SqlState::ProgramLimitExceeded),
            (b'S', 10_001, SqlState::ProtocolViolation),
            (b'F', 4, SqlState::ProtocolViolation),
            (b'p', 4, SqlState::ProtocolViolation),
        ] {
            let error = length(&header(kind, wrong), &limits).expect_err("refused");
            assert_eq!(error.code(), code, "{} {wrong}", kind as char);
        }
        assert_eq!(length(&header(b'Q', 64 << 20), &limits), Ok(None));
        assert_eq!(length(&header(b'S', 4), &limits), Ok(Some(5)));
        assert_eq!(length(b"Q\0", &limits), Ok(None));
        for wrong in [0_i32, 3, 7, -1, 10_001, i32::MAX] {
            assert!(opening(&wrong.to_be_bytes(), &limits).is_err(), "{wrong}");
        }
        assert_eq!(opening(&10_000_i32.to_be_bytes(), &limits), Ok(None));
    }

    proptest! {
        /// Whatever passes the check, the library decodes.
        #[test]
        fn the_decoder_gets_only_what_it_can_read(
            kind in prop::sample::select(b"QPBCDEHSXcdf".to_vec()),
            body in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 0..60),
        ) {
            let frame = framed(kind, &body);
            if check(&frame).is_ok() {
                let mut context = DecodeContext::default();
                context.awaiting_frontend_ssl = false;
                context.awaiting_frontend_startup = false;
                let decoded = PgWireFrontendMessage::decode(&mut BytesMut::from(&frame[..]), &context);
                prop_assert!(matches!(decoded, Ok(Some(_))), "{decoded:?}");
            }
        }

        #[test]
        fn nothing_before_the_login_makes_it_panic(
            code in prop::sample::select(vec![196_608_u32, 196_610, CANCEL, SSL, GSS, 0]),
            rest in prop::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..40),
        ) {
            let length = u32::try_from(rest.len() + 8).expect("short");
            let frame = [&length.to_be_bytes()[..], &code.to_be_bytes(), &rest].concat();
            if let Ok(Some((length, Opening::Message))) = opening(&frame, &Limits::default()) {
                let mut context = DecodeContext::default();
                context.awaiting_frontend_ssl = false;
                let decoded = PgWireFrontendMessage::decode(&mut BytesMut::from(&frame[..length]), &context);
                prop_assert!(matches!(decoded, Ok(Some(_))), "{decoded:?}");
            }
        }
    }
}
