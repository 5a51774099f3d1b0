//! Parts as files below a folder.
//!
//! A file is written under a name with the ending `.part`, synced, renamed, and its folder synced: after a crash the
//! name shows the whole content or nothing. What a crash leaves behind ends in `.part` and is swept.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use bytes::Bytes;

use super::{Listed, Part, PartStore, Swap, Version, check_name};
use crate::env::Failpoints;
use crate::types::{Error, Result, SqlState};

const COPY_BUFFER_BYTES: usize = 1 << 20;
/// How often a folder is made again that others remove.
const FOLDER_ATTEMPTS_MAX: usize = 1_000;

/// A folder of parts.
pub struct LocalStore {
    root: PathBuf,
    sync: bool,
    failpoints: Failpoints,
    unfinished: AtomicU64,
    // One process has the folder; this orders its own swaps.
    swaps: Mutex<()>,
}

impl std::fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalStore").field("root", &self.root).finish_non_exhaustive()
    }
}

impl LocalStore {
    /// The folder, made when absent. Without `sync` a crash of the machine can lose parts that were said to be durable.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(root: &Path, sync: bool, failpoints: Failpoints) -> Result<LocalStore> {
        let store = LocalStore {
            root: root.to_owned(),
            sync,
            failpoints,
            unfinished: AtomicU64::new(0),
            swaps: Mutex::new(()),
        };
        store.make_folder(root)?;
        Ok(store)
    }

    /// The file of a part.
    ///
    /// # Errors
    /// XX001 for a name that is none.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        check_name(name)?;
        Ok(self.root.join(name))
    }

    fn make_folder(&self, folder: &Path) -> Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            self.make_folder(parent)?;
        }
        match std::fs::create_dir(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(at(folder, &error)),
            _ => {}
        }
        parent.map_or(Ok(()), |parent| self.sync_folder(parent))
    }

    fn sync_folder(&self, folder: &Path) -> Result<()> {
        if self.sync { File::open(folder).and_then(|file| file.sync_all()).map_err(|e| at(folder, &e)) } else { Ok(()) }
    }

    /// Makes a file with `fill` and shows it under its name when it is whole.
    fn publish(&self, name: &str, fill: impl Fn(&Path) -> Result<()>) -> Result<()> {
        let path = self.path(name)?;
        let folder = path.parent().unwrap_or(&self.root).to_owned();
        let number = self.unfinished.fetch_add(1, Ordering::Relaxed);
        let mut unfinished = path.clone().into_os_string();
        unfinished.push(format!(".{}-{number}.part", std::process::id()));
        let unfinished = PathBuf::from(unfinished);
        // A crashed process of the same number can have left a link there, whose file others share.
        unless_gone(&unfinished, std::fs::remove_file(&unfinished))?;
        self.failpoints.pass("part.write")?;
        // The folder goes when its last part is deleted, which can be just now.
        let mut attempts = 0;
        while let Err(error) = self.make_folder(&folder).and_then(|()| fill(&unfinished)) {
            attempts += 1;
            if error.code() != SqlState::UndefinedFile || attempts > FOLDER_ATTEMPTS_MAX {
                return Err(error);
            }
        }
        self.failpoints.pass("part.sync")?;
        if self.sync {
            File::open(&unfinished).and_then(|file| file.sync_all()).map_err(|error| at(&unfinished, &error))?;
        }
        self.failpoints.pass("part.rename")?;
        std::fs::rename(&unfinished, &path).map_err(|error| at(&path, &error))?;
        self.failpoints.pass("part.sync_folder")?;
        self.sync_folder(&folder)?;
        self.failpoints.pass("part.written")
    }

    fn open_part(&self, part: &Part) -> Result<File> {
        let path = self.path(&part.name)?;
        let file = File::open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => part.damaged("it is missing"),
            _ => at(&path, &error),
        })?;
        let bytes = file.metadata().map_err(|error| at(&path, &error))?.len();
        if bytes == part.bytes {
            Ok(file)
        } else {
            Err(part.damaged(format!("it has {bytes} bytes, {} were written", part.bytes)))
        }
    }
}

impl PartStore for LocalStore {
    fn put(&self, name: &str, content: Bytes) -> Result<Part> {
        self.publish(name, |path| {
            File::create(path).and_then(|mut file| file.write_all(&content)).map_err(|error| at(path, &error))
        })?;
        Ok(Part::of(name, &content))
    }

    fn put_stream(&self, name: &str, fill: &dyn Fn(&mut dyn Write) -> Result<()>) -> Result<Part> {
        let written = Cell::new((0, 0));
        self.publish(name, |path| {
            let file = File::create(path).map_err(|error| at(path, &error))?;
            let mut out = Summed { file: BufWriter::with_capacity(COPY_BUFFER_BYTES, file), bytes: 0, crc32c: 0 };
            fill(&mut out)?;
            out.flush().map_err(|error| at(path, &error))?;
            written.set((out.bytes, out.crc32c));
            Ok(())
        })?;
        let (bytes, crc32c) = written.get();
        Ok(Part { name: name.to_owned(), bytes, crc32c })
    }

    fn put_file(&self, name: &str, file: &Path, crc32c: Option<u32>) -> Result<Part> {
        let bytes = std::fs::metadata(file).map_err(|error| at(file, &error))?.len();
        let crc32c = match crc32c {
            Some(crc32c) => crc32c,
            None => checksum(file)?,
        };
        self.publish(name, |path| {
            if std::fs::hard_link(file, path).is_err() {
                // Another file system, or one without links.
                std::fs::copy(file, path).map_err(|error| at(path, &error))?;
            }
            Ok(())
        })?;
        Ok(Part { name: name.to_owned(), bytes, crc32c })
    }

    fn get(&self, part: &Part) -> Result<Bytes> {
        let mut content = Vec::new();
        self.open_part(part)?.read_to_end(&mut content).map_err(|error| at(&self.root.join(&part.name), &error))?;
        part.check(&content)?;
        Ok(content.into())
    }

    fn get_range(&self, part: &Part, range: Range<u64>) -> Result<Bytes> {
        let mut file = self.open_part(part)?;
        let length = range.end.checked_sub(range.start).filter(|_| range.end <= part.bytes);
        let length = length.ok_or_else(|| part.damaged("it is shorter than what points into it"))?;
        // A block of a file that fits a disk and is read at once fits the memory.
        let mut content = vec![0; length as usize];
        let read = file.seek(SeekFrom::Start(range.start)).and_then(|_| file.read_exact(&mut content));
        read.map_err(|error| at(&self.root.join(&part.name), &error))?;
        Ok(content.into())
    }

    fn fetch(&self, part: &Part, file: &Path) -> Result<()> {
        drop(self.open_part(part)?);
        let path = self.path(&part.name)?;
        if checksum(&path)? != part.crc32c {
            return Err(part.damaged("its checksum is wrong"));
        }
        if std::fs::hard_link(&path, file).is_err() {
            std::fs::copy(&path, file).map_err(|error| at(file, &error))?;
        }
        Ok(())
    }

    fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            // What goes away meanwhile, as unfinished files do, is not listed.
            let Some(entries) = unless_gone(&folder, std::fs::read_dir(&folder))? else { continue };
            for entry in entries {
                let path = entry.map_err(|error| at(&folder, &error))?.path();
                let Some(metadata) = unless_gone(&path, std::fs::symlink_metadata(&path))? else { continue };
                if metadata.is_dir() {
                    folders.push(path);
                    continue;
                }
                let Some(name) = path.strip_prefix(&self.root).ok().and_then(Path::to_str) else { continue };
                if name.starts_with(prefix) {
                    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                    listed.push(Listed {
                        name: name.to_owned(),
                        bytes: metadata.len(),
                        modified_millis: modified.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX)),
                    });
                }
            }
        }
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
    }

    fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        self.failpoints.pass("part.delete")?;
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at(&path, &error)),
            _ => {}
        }
        // Folders go with their last part; one that is not empty stays.
        let mut folder = path.parent();
        while let Some(empty) = folder.filter(|folder| *folder != self.root && std::fs::remove_dir(folder).is_ok()) {
            folder = empty.parent();
        }
        Ok(())
    }

    fn read(&self, name: &str) -> Result<Option<Version>> {
        let path = self.path(name)?;
        let content = unless_gone(&path, std::fs::read(&path))?;
        Ok(content.map(|content| Version { content: content.into(), update: None }))
    }

    fn swap(&self, name: &str, expected: Option<&Version>, content: Bytes) -> Result<Swap> {
        let _turn = self.swaps.lock().unwrap_or_else(PoisonError::into_inner);
        if self.read(name)?.map(|version| version.content).as_ref() != expected.map(|version| &version.content) {
            return Ok(Swap::Lost);
        }
        self.put(name, content.clone())?;
        Ok(Swap::Done(Version { content, update: None }))
    }

    fn is_local(&self) -> bool {
        true
    }

    fn location(&self) -> String {
        self.root.display().to_string()
    }
}

/// A file that is being written, with its length and checksum so far.
struct Summed {
    file: BufWriter<File>,
    bytes: u64,
    crc32c: u32,
}

impl Write for Summed {
    fn write(&mut self, content: &[u8]) -> std::io::Result<usize> {
        self.file.write_all(content)?;
        self.bytes += content.len() as u64;
        self.crc32c = crc32c::crc32c_append(self.crc32c, content);
        Ok(content.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// The CRC-32C of a file.
pub(in crate::state) fn checksum(path: &Path) -> Result<u32> {
    let mut file = File::open(path).map_err(|error| at(path, &error))?;
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    let mut crc32c = 0;
    loop {
        match file.read(&mut buffer).map_err(|error| at(path, &error))? {
            0 => return Ok(crc32c),
            read => crc32c = crc32c::crc32c_append(crc32c, &buffer[..read]),
        }
    }
}

/// What was read of a path, unless there is nothing.
fn unless_gone<T>(path: &Path, read: std::io::Result<T>) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path, &error)),
    }
}

/// An error of the file system with the path that it is about.
fn at(path: &Path, error: &std::io::Error) -> Error {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => SqlState::UndefinedFile,
        std::io::ErrorKind::StorageFull => SqlState::DiskFull,
        _ => SqlState::IoError,
    };
    Error::new(code, format!("{}: {error}", path.display()))
}
