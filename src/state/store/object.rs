//! Parts as objects in a store of the S3 kind.
//!
//! Reads, and writes of names that are written once, are tried again after a failure; what is tried again is the same.
//! A swap is sent once: when its answer is unclear, the object is read back and tells who won.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path as ObjectPath;
use object_store::{
    Error as StoreError, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, WriteMultipart,
};
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;

use super::local::checksum;
use super::{Listed, Part, PartStore, Swap, Version, check_name};
use crate::types::{Error, Result, SqlState};

const ATTEMPTS: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The client tries again too, so one attempt at a store that is gone takes minutes: there is no further one then.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// From this size on, files go up in several pieces at once.
const MULTIPART_BYTES_MIN: u64 = 16 << 20;
const PIECE_BYTES: usize = 8 << 20;
const PIECES_AT_ONCE: usize = 4;

/// A prefix of an object store.
pub struct ObjectPartStore {
    store: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
    location: String,
    runtime: Handle,
}

impl std::fmt::Debug for ObjectPartStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectPartStore").field("location", &self.location).finish_non_exhaustive()
    }
}

impl ObjectPartStore {
    /// The objects of `store` below `prefix`; `location` names the place in messages. Requests run on `runtime`.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str, location: String, runtime: Handle) -> ObjectPartStore {
        ObjectPartStore { store, prefix: ObjectPath::from(prefix), location, runtime }
    }

    fn path(&self, name: &str) -> Result<ObjectPath> {
        check_name(name)?;
        Ok(name.split('/').fold(self.prefix.clone(), |path, part| path.join(part)))
    }

    fn failed(&self, name: &str, error: &StoreError) -> Error {
        let hint = "Check that the object store can be reached and that the credentials allow it.";
        Error::new(SqlState::IoError, format!("{}/{name}: {error}", self.location)).hint(hint)
    }

    /// Runs a request, again after failures that may pass.
    fn retried<T, F>(&self, request: impl Fn() -> F) -> object_store::Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        self.runtime.block_on(async {
            let (mut pause, begun) = (FIRST_PAUSE, Instant::now());
            for _ in 1..ATTEMPTS {
                match request().await {
                    Err(error) if may_pass(&error) && begun.elapsed() < GIVE_UP_AFTER => {}
                    decided => return decided,
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            request().await
        })
    }

    fn missing_or_failed(&self, part: &Part, error: &StoreError) -> Error {
        match error {
            StoreError::NotFound { .. } => part.damaged("it is missing"),
            error => self.failed(&part.name, error),
        }
    }

    async fn upload(&self, path: &ObjectPath, file: &Path) -> object_store::Result<()> {
        let generic = |error: std::io::Error| StoreError::Generic { store: "local file", source: Box::new(error) };
        let mut source = tokio::fs::File::open(file).await.map_err(generic)?;
        let upload = self.store.put_multipart(path).await?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, PIECE_BYTES);
        loop {
            writer.wait_for_capacity(PIECES_AT_ONCE).await?;
            let mut piece = BytesMut::with_capacity(PIECE_BYTES);
            if source.read_buf(&mut piece).await.map_err(generic)? == 0 {
                break;
            }
            writer.put(piece.freeze());
        }
        writer.finish().await.map(|_| ())
    }
}

/// Whether the same request may succeed later.
fn may_pass(error: &StoreError) -> bool {
    !matches!(
        error,
        StoreError::NotFound { .. }
            | StoreError::AlreadyExists { .. }
            | StoreError::Precondition { .. }
            | StoreError::NotModified { .. }
            | StoreError::NotSupported { .. }
            | StoreError::NotImplemented { .. }
            | StoreError::PermissionDenied { .. }
            | StoreError::Unauthenticated { .. }
            | StoreError::InvalidPath { .. }
            | StoreError::UnknownConfigurationKey { .. }
    )
}

impl PartStore for ObjectPartStore {
    fn put(&self, name: &str, content: Bytes) -> Result<Part> {
        let path = self.path(name)?;
        self.retried(|| self.store.put(&path, content.clone().into())).map_err(|error| self.failed(name, &error))?;
        Ok(Part::of(name, &content))
    }

    fn put_file(&self, name: &str, file: &Path, crc32c: Option<u32>) -> Result<Part> {
        let path = self.path(name)?;
        let bytes = std::fs::metadata(file)?.len();
        if bytes < MULTIPART_BYTES_MIN {
            return self.put(name, std::fs::read(file)?.into());
        }
        let crc32c = crc32c.map_or_else(|| checksum(file), Ok)?;
        self.retried(|| self.upload(&path, file)).map_err(|error| self.failed(name, &error))?;
        Ok(Part { name: name.to_owned(), bytes, crc32c })
    }

    fn get(&self, part: &Part) -> Result<Bytes> {
        let path = self.path(&part.name)?;
        let content = self.retried(|| async { self.store.get(&path).await?.bytes().await });
        let content = content.map_err(|error| self.missing_or_failed(part, &error))?;
        part.check(&content)?;
        Ok(content)
    }

    fn get_range(&self, part: &Part, range: Range<u64>) -> Result<Bytes> {
        let path = self.path(&part.name)?;
        let length = range.end.checked_sub(range.start).filter(|_| range.end <= part.bytes);
        let length = length.ok_or_else(|| part.damaged("it is shorter than what points into it"))?;
        let options = || GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let content = self.retried(|| async { self.store.get_opts(&path, options()).await?.bytes().await });
        let content = content.map_err(|error| self.missing_or_failed(part, &error))?;
        if content.len() as u64 == length { Ok(content) } else { Err(part.damaged("it is shorter than it was")) }
    }

    fn fetch(&self, part: &Part, file: &Path) -> Result<()> {
        let path = self.path(&part.name)?;
        let generic = |error: std::io::Error| StoreError::Generic { store: "local file", source: Box::new(error) };
        let fetched = self.retried(|| async {
            let mut body = self.store.get(&path).await?.into_stream();
            let mut target = tokio::fs::File::create(file).await.map_err(generic)?;
            let (mut bytes, mut crc32c) = (0, 0);
            while let Some(piece) = body.next().await {
                let piece = piece?;
                bytes += piece.len() as u64;
                crc32c = crc32c::crc32c_append(crc32c, &piece);
                tokio::io::AsyncWriteExt::write_all(&mut target, &piece).await.map_err(generic)?;
            }
            tokio::io::AsyncWriteExt::flush(&mut target).await.map_err(generic)?;
            Ok((bytes, crc32c))
        });
        let (bytes, crc32c) = fetched.map_err(|error| self.missing_or_failed(part, &error))?;
        if bytes != part.bytes {
            return Err(part.damaged(format!("it has {bytes} bytes, {} were written", part.bytes)));
        }
        if crc32c == part.crc32c { Ok(()) } else { Err(part.damaged("its checksum is wrong")) }
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        // Stores list by whole folders; the rest of the prefix is compared here.
        let folder = prefix.rsplit_once('/').map_or(Ok(self.prefix.clone()), |(folder, _)| self.path(folder))?;
        let found = self.retried(|| self.store.list(Some(&folder)).try_collect::<Vec<_>>());
        let found = found.map_err(|error| self.failed(prefix, &error))?;
        let mut listed: Vec<Listed> = found
            .into_iter()
            .filter_map(|object| {
                let parts: Vec<String> =
                    object.location.prefix_match(&self.prefix)?.map(|part| part.as_ref().to_owned()).collect();
                let name = parts.join("/");
                name.starts_with(prefix).then(|| Listed {
                    name,
                    bytes: object.size,
                    modified_millis: object.last_modified.timestamp_millis(),
                })
            })
            .collect();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        match self.retried(|| self.store.delete(&path)) {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed(name, &error)),
        }
    }

    fn read(&self, name: &str) -> Result<Option<Version>> {
        let path = self.path(name)?;
        let read = self.retried(|| async {
            let object = self.store.get(&path).await?;
            let update =
                object_store::UpdateVersion { e_tag: object.meta.e_tag.clone(), version: object.meta.version.clone() };
            Ok(Version { content: object.bytes().await?, update: Some(update) })
        });
        match read {
            Ok(version) => Ok(Some(version)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(name, &error)),
        }
    }

    fn swap(&self, name: &str, expected: Option<&Version>, content: Bytes) -> Result<Swap> {
        let path = self.path(name)?;
        let mode = match expected {
            None => PutMode::Create,
            Some(version) => PutMode::Update(
                version.update.clone().unwrap_or(object_store::UpdateVersion { e_tag: None, version: None }),
            ),
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        let answer = self.runtime.block_on(self.store.put_opts(&path, content.clone().into(), options));
        if let Err(error @ (StoreError::NotSupported { .. } | StoreError::NotImplemented { .. })) = &answer {
            return Err(Error::unsupported(format!("{} has no conditional writes: {error}", self.location))
                .hint("Use an object store with conditional writes (If-Match, If-None-Match)."));
        }
        if let Ok(result) = answer {
            let update = object_store::UpdateVersion { e_tag: result.e_tag, version: result.version };
            return Ok(Swap::Done(Version { content, update: Some(update) }));
        }
        // A refusal can be the echo of our own write whose answer was lost: the object knows.
        match self.read(name)? {
            Some(version) if version.content == content => Ok(Swap::Done(version)),
            found => {
                let unchanged = found.map(|version| version.content) == expected.map(|version| version.content.clone());
                match answer {
                    // The write may still be under way, so this is not settled.
                    Err(error) if unchanged && may_pass(&error) => Err(self.failed(name, &error)),
                    _ => Ok(Swap::Lost),
                }
            }
        }
    }

    fn is_local(&self) -> bool {
        false
    }

    fn location(&self) -> String {
        self.location.clone()
    }
}
