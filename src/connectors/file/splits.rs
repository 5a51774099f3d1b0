//! The names of a source's splits, which mean the same bytes for ever.
//!
//! Read once, a file is told by its path. Large files of plain JSON lines are several splits, `path#1`, `path#2`, …:
//! each has the lines that start within its [`RANGE_BYTES`], so the cuts stay where they are when the file grows.
//!
//! Followed, a file is told by inode number and first bytes, since programs that write logs rename, replace and cut
//! them: `name@inode-hash` with the name that it had when it was seen first. When a file is shorter than what was read
//! of it and begins as before, it was cut and written again: it goes on as `name@inode-hash.1`, and so on.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::input::detect;
use super::options::{Compression, FileOptions, Format, Mode};
use super::paths::open_error;
use crate::exec::source::{Offset, Split, SplitId, Splits};
use crate::types::{Error, Result, SqlState, fnv1a};

/// Bytes of a file in one split. Never changed: the names of splits rest on it.
pub(crate) const RANGE_BYTES: u64 = 64 << 20;
/// First bytes that tell a file, at most.
const HEAD_BYTES: u64 = 1024;
/// First bytes that tell a packed file.
const PACKED_HEAD_BYTES: usize = 16;
/// Last bytes that tell a Parquet file, which is whole when it is there.
const TAIL_BYTES: u64 = 64;

/// A split's file and the part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The file.
    pub(crate) path: PathBuf,
    /// Lines that start in this range belong to the split.
    pub(crate) range: std::ops::Range<u64>,
    /// What [`FollowedFiles::is_current`] knows the file by; empty when it is read once.
    pub(crate) key: String,
}

/// The files of a source that is followed, as last seen.
#[derive(Default)]
pub(crate) struct FollowedFiles {
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// By key: the files that match the path now.
    current: HashMap<String, PathBuf>,
    /// By key: how often the file was cut so far.
    generations: HashMap<String, u32>,
    /// Splits whose files were cut under their readers.
    cut: HashSet<SplitId>,
}

impl FollowedFiles {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while a file that matches the path is known by this key.
    pub(crate) fn is_current(&self, key: &str) -> bool {
        self.lock().current.contains_key(key)
    }

    /// A reader found its file cut.
    pub(crate) fn was_cut(&self, split: &SplitId) {
        self.lock().cut.insert(split.clone());
    }
}

/// The splits that are there.
///
/// # Errors
/// When the files cannot be looked for.
pub(crate) fn find(options: &FileOptions, followed: &FollowedFiles, known: &[(SplitId, Offset)]) -> Result<Splits> {
    match options.mode {
        Mode::Once => once(options),
        Mode::Follow => follow(options, followed, known),
    }
}

fn once(options: &FileOptions) -> Result<Splits> {
    let mut found = Vec::new();
    for path in options.paths.find()? {
        let name = options.paths.short(&path);
        let mut file = File::open(&path).map_err(|error| open_error(&path, &error))?;
        let length = file.metadata()?.len();
        let plain = match options.compression {
            Compression::Auto => detect(&mut file)? == Compression::None,
            Compression::None => true,
            Compression::Gzip | Compression::Zstd => false,
        };
        let ranges = if plain && options.format == Format::Json { length.div_ceil(RANGE_BYTES).max(1) } else { 1 };
        let bytes = plain && options.format != Format::Parquet;
        for range in 0..ranges {
            let id = if range == 0 { name.clone().into_owned() } else { format!("{name}#{range}") };
            let end = if range + 1 == ranges { length } else { (range + 1) * RANGE_BYTES };
            let size = bytes.then_some(Offset(end));
            found.push(Split { id: SplitId::new(id), start: Offset(range * RANGE_BYTES), size });
        }
    }
    Ok(Splits { found, complete: true })
}

fn follow(options: &FileOptions, followed: &FollowedFiles, known: &[(SplitId, Offset)]) -> Result<Splits> {
    let matching = match options.paths.find() {
        // It may come, or come back.
        Err(error) if error.code() == SqlState::UndefinedFile => Vec::new(),
        other => other?,
    };
    // By key: the last generation of each file that was read before.
    let mut before: HashMap<&str, (u32, &SplitId, Offset)> = HashMap::new();
    for (id, offset) in known {
        let (key, generation) = key_of(id);
        let entry = before.entry(key).or_insert((generation, id, *offset));
        if generation > entry.0 {
            *entry = (generation, id, *offset);
        }
    }
    let mut seen = followed.lock();
    for (key, (generation, _, _)) in &before {
        let entry = seen.generations.entry((*key).to_owned()).or_default();
        *entry = (*generation).max(*entry);
    }
    let mut found = Vec::new();
    let mut current = HashMap::new();
    for path in matching {
        let Some((key, length)) = identify(&path, &options.format)? else { continue };
        // Two names of one file.
        if current.contains_key(&key) {
            continue;
        }
        let id = match before.get(key.as_str()) {
            None => {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                // Whoever knows nothing of the past reads what is there now.
                match seen.generations.get(&key).filter(|generation| **generation > 0) {
                    Some(generation) => SplitId::new(format!("{name}@{key}.{generation}")),
                    None => SplitId::new(format!("{name}@{key}")),
                }
            }
            Some((generation, id, offset)) => {
                let cut = seen.cut.contains(*id) || length.is_some_and(|length| length < offset.0);
                if cut {
                    seen.generations.insert(key.clone(), generation + 1);
                    let name = id.as_str().rsplit_once('@').map_or("", |(name, _)| name);
                    SplitId::new(format!("{name}@{key}.{}", generation + 1))
                } else {
                    (*id).clone()
                }
            }
        };
        found.push(Split { id, start: Offset::default(), size: length.map(Offset) });
        current.insert(key, path);
    }
    // Files that were renamed away before they were read to their end.
    let lost: HashMap<&str, &SplitId> =
        before.iter().filter(|(key, _)| !current.contains_key(**key)).map(|(key, (_, id, _))| (*key, *id)).collect();
    if !lost.is_empty() {
        let inodes: HashSet<&str> = lost.keys().filter_map(|key| Some(key.split_once('-')?.0)).collect();
        for path in options.paths.neighbours() {
            let inode = std::fs::metadata(&path).map(|metadata| format!("{:x}", metadata.ino()));
            if !inode.is_ok_and(|inode| inodes.contains(inode.as_str())) {
                continue;
            }
            if let Some((key, length)) = identify(&path, &options.format)?
                && let Some(id) = lost.get(key.as_str())
            {
                found.push(Split { id: (*id).clone(), start: Offset::default(), size: length.map(Offset) });
            }
        }
    }
    seen.current = current;
    Ok(Splits { found, complete: false })
}

/// The part of a followed split's name that tells the file, and how often it was cut before.
fn key_of(id: &SplitId) -> (&str, u32) {
    let behind = id.as_str().rsplit_once('@').map_or(id.as_str(), |(_, behind)| behind);
    match behind.split_once('.') {
        Some((key, generation)) => (key, generation.parse().unwrap_or(0)),
        None => (behind, 0),
    }
}

/// What tells a followed file, and its length when that is in the unit of offsets; `None` while it is too short to
/// be told, or gone.
fn identify(path: &Path, format: &Format) -> Result<Option<(String, Option<u64>)>> {
    let gone = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if gone(&error) => return Ok(None),
        Err(error) => return Err(open_error(path, &error)),
    };
    let metadata = file.metadata()?;
    let length = metadata.len();
    let mut bytes = Vec::new();
    if *format == Format::Parquet {
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        file.read_to_end(&mut bytes)?;
        if !bytes.ends_with(b"PAR1") || length < TAIL_BYTES {
            return Ok(None);
        }
        return Ok(Some((format!("{:x}-{:x}", metadata.ino(), fnv1a(&bytes)), None)));
    }
    let packed = detect(&mut file)? != Compression::None;
    file.take(HEAD_BYTES).read_to_end(&mut bytes)?;
    let head = if packed {
        bytes.get(..PACKED_HEAD_BYTES)
    } else {
        // A header is the same in every file.
        let lines = if matches!(format, Format::Csv(csv) if csv.header) { 2 } else { 1 };
        let end = memchr::memchr_iter(b'\n', &bytes).nth(lines - 1).map(|at| at + 1);
        end.or_else(|| (bytes.len() as u64 == HEAD_BYTES).then_some(bytes.len())).and_then(|end| bytes.get(..end))
    };
    let key = head.map(|head| format!("{:x}-{:x}", metadata.ino(), fnv1a(head)));
    Ok(key.map(|key| (key, (!packed).then_some(length))))
}

/// Where a split is read.
///
/// # Errors
/// 58P01 when its file is not there any more, or was cut since.
pub(crate) fn locate(options: &FileOptions, followed: &FollowedFiles, split: &SplitId) -> Result<Place> {
    if options.mode == Mode::Once {
        return Ok(locate_once(options, split));
    }
    let (key, generation) = key_of(split);
    let whole = 0..u64::MAX;
    let known = {
        let seen = followed.lock();
        if seen.generations.get(key).is_some_and(|last| *last > generation) {
            return Err(Error::new(
                SqlState::UndefinedFile,
                format!("file \"{split}\" was cut, so that its former rows cannot be read again"),
            )
            .hint("Rename files instead of cutting them, and keep them for as long as views are made from them."));
        }
        seen.current.get(key).cloned()
    };
    let is_it = |path: &Path| matches!(identify(path, &options.format), Ok(Some((found, _))) if found == key);
    let path = match known.filter(|path| is_it(path)) {
        Some(path) => Some(path),
        None => {
            let matching = options.paths.find().unwrap_or_default();
            matching.into_iter().chain(options.paths.neighbours()).find(|path| is_it(path))
        }
    };
    match path {
        Some(path) => Ok(Place { path, range: whole, key: key.to_owned() }),
        None => Err(Error::new(SqlState::UndefinedFile, format!("file \"{split}\" is not there any more"))
            .hint("A file that was followed and renamed is looked for in its folder.")),
    }
}

fn locate_once(options: &FileOptions, split: &SplitId) -> Place {
    let name = split.as_str();
    let root = options.paths.root();
    let whole = root.join(name);
    // A name may itself end in `#1`.
    if !whole.exists()
        && let Some((name, range)) = name.rsplit_once('#')
        && let Ok(range) = range.parse::<u64>()
    {
        let start = range * RANGE_BYTES;
        return Place { path: root.join(name), range: start..start + RANGE_BYTES, key: String::new() };
    }
    let end = if options.format == Format::Json { RANGE_BYTES } else { u64::MAX };
    Place { path: whole, range: 0..end, key: String::new() }
}
