//! The bytes of a file, packed or not.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use super::options::Compression;

const PACKED_BUFFER_BYTES: usize = 256 << 10;

/// A file's bytes from a place on; of a packed file those that were packed.
pub(crate) enum Input {
    /// As they are.
    Plain(File),
    /// Unpacked on the way.
    Packed(Box<dyn Read + Send>),
}

impl Input {
    /// Opens a file at an offset in its unpacked bytes.
    pub(crate) fn open(mut file: File, compression: Compression, offset: u64) -> io::Result<Input> {
        let compression = match compression {
            Compression::Auto => detect(&mut file)?,
            given => given,
        };
        let buffered = |file| BufReader::with_capacity(PACKED_BUFFER_BYTES, file);
        let mut unpacked: Box<dyn Read + Send> = match compression {
            Compression::Auto | Compression::None => {
                file.seek(SeekFrom::Start(offset))?;
                return Ok(Input::Plain(file));
            }
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(buffered(file))),
            Compression::Zstd => Box::new(zstd::Decoder::with_buffer(buffered(file))?),
        };
        let skipped = io::copy(&mut (&mut unpacked).take(offset), &mut io::sink())?;
        if skipped < offset {
            return Err(shorter(skipped, offset));
        }
        Ok(Input::Packed(unpacked))
    }

    /// True when the bytes come out of a packed file.
    pub(crate) fn is_packed(&self) -> bool {
        matches!(self, Input::Packed(_))
    }

    /// The file, when its bytes are taken as they are.
    pub(crate) fn file(&self) -> Option<&File> {
        match self {
            Input::Plain(file) => Some(file),
            Input::Packed(_) => None,
        }
    }

    /// Appends at most `most` bytes; fewer only at the end of what is there.
    pub(crate) fn read(&mut self, most: u64, into: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Input::Plain(file) => file.take(most).read_to_end(into),
            Input::Packed(unpacked) => unpacked.take(most).read_to_end(into),
        }
    }
}

/// The error of a file that ends before a place up to which it was read.
pub(crate) fn shorter(has: u64, needs: u64) -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("it ends at byte {has}, but was read up to byte {needs} before"),
    )
}

/// How a file is packed, by its first bytes. Neither JSON nor CSV nor a text begins with them.
pub(crate) fn detect(file: &mut File) -> io::Result<Compression> {
    let mut head = Vec::with_capacity(4);
    file.seek(SeekFrom::Start(0))?;
    Read::by_ref(file).take(4).read_to_end(&mut head)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(match head.as_slice() {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd] => Compression::Zstd,
        _ => Compression::None,
    })
}
