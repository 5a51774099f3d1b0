//! Which files a path means: one file, the files of a folder, or those that match a pattern.

use std::path::{Component, Path, PathBuf};

use crate::connectors::options::OptionValue;
use crate::types::{Error, Result, SqlState};

/// Files that one pattern may match.
const FILES_MAX: usize = 100_000;

/// A path as the user gave it, made absolute.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    path: PathBuf,
    position: usize,
}

impl Paths {
    /// Takes the value of the option `path`; looks at nothing.
    pub(crate) fn parse(value: &OptionValue) -> Result<Paths> {
        let text = value.text.as_str();
        if text.is_empty() || text.contains('\0') {
            return Err(value.invalid("path", "Name a file, a folder or a pattern such as 'logs/*.ndjson'"));
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(Error::unsupported(format!("reading from {scheme}:// is not supported yet: \"{text}\""))
                .hint("Name local files.")
                .position(value.position));
        }
        Ok(Paths { path: std::env::current_dir()?.join(text), position: value.position })
    }

    /// The files that are there, in order of their names.
    ///
    /// # Errors
    /// 58P01 when a single file is not there; 58030 when a folder cannot be read.
    pub(crate) fn find(&self) -> Result<Vec<PathBuf>> {
        match std::fs::metadata(&self.path) {
            Ok(metadata) if metadata.is_file() => return Ok(vec![self.path.clone()]),
            Ok(metadata) if metadata.is_dir() => return self.in_folder(),
            Ok(_) => {
                return Err(Error::new(
                    SqlState::InvalidParameterValue,
                    format!("\"{}\" is neither a file nor a folder", self.path.display()),
                )
                .hint("Name a regular file, a folder or a pattern.")
                .position(self.position));
            }
            Err(error) if !self.is_pattern() => {
                return Err(open_error(&self.path, &error)
                    .hint("Relative paths start at the server's working directory.")
                    .position(self.position));
            }
            Err(_) => {}
        }
        let mut found = vec![PathBuf::new()];
        for component in self.path.components() {
            match component {
                Component::Normal(name) if is_pattern(&name.to_string_lossy()) => {
                    let pattern: Vec<char> = name.to_string_lossy().chars().collect();
                    let mut next = Vec::new();
                    for folder in &found {
                        for entry in entries(folder)? {
                            let text = entry.file_name().map(|name| name.to_string_lossy().into_owned());
                            let text: Vec<char> = text.unwrap_or_default().chars().collect();
                            // As in a shell, hidden files want to be named.
                            let hidden = text.first() == Some(&'.') && pattern.first() != Some(&'.');
                            if !hidden && matches(&pattern, &text) {
                                next.push(entry);
                            }
                        }
                    }
                    found = next;
                }
                other => found.iter_mut().for_each(|path| path.push(other)),
            }
        }
        found.retain(|path| path.is_file());
        self.checked(found)
    }

    fn in_folder(&self) -> Result<Vec<PathBuf>> {
        let mut found = entries(&self.path)?;
        found.retain(|path| {
            let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            // Other programs keep unfinished and administrative files under such names.
            !name.starts_with(['.', '_']) && path.is_file()
        });
        self.checked(found)
    }

    fn checked(&self, mut found: Vec<PathBuf>) -> Result<Vec<PathBuf>> {
        if found.len() > FILES_MAX {
            return Err(Error::new(
                SqlState::ProgramLimitExceeded,
                format!("\"{}\" means more than {FILES_MAX} files", self.path.display()),
            )
            .hint("Use a narrower pattern.")
            .position(self.position));
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Every file in the folders where the files are looked for, whatever its name.
    pub(crate) fn neighbours(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = Vec::new();
        if self.path.is_dir() {
            folders.push(self.path.clone());
        } else if let Ok(found) = self.find() {
            folders.extend(found.iter().filter_map(|path| path.parent()).map(Path::to_path_buf));
        }
        folders.extend(self.path.parent().filter(|parent| parent.is_dir()).map(Path::to_path_buf));
        folders.sort_unstable();
        folders.dedup();
        folders.iter().filter_map(|folder| entries(folder).ok()).flatten().filter(|path| path.is_file()).collect()
    }

    /// True for a folder and for a pattern.
    pub(crate) fn several(&self) -> bool {
        self.path.is_dir() || (self.is_pattern() && !self.path.exists())
    }

    /// The error of a place where nothing is.
    pub(crate) fn nothing(&self) -> Error {
        Error::new(SqlState::UndefinedFile, format!("no file matches \"{}\"", self.path.display()))
            .hint("Relative paths start at the server's working directory; mode = 'follow' waits for files to come.")
            .position(self.position)
    }

    fn is_pattern(&self) -> bool {
        is_pattern(&self.path.to_string_lossy())
    }

    /// A file's name for people and for splits: below the folder of the path when it is.
    pub(crate) fn short<'a>(&self, file: &'a Path) -> std::borrow::Cow<'a, str> {
        let root = if self.path.is_dir() { Some(self.path.as_path()) } else { self.path.parent() };
        root.and_then(|root| file.strip_prefix(root).ok()).unwrap_or(file).to_string_lossy()
    }

    /// The folder that [`Self::short`] names are below.
    pub(crate) fn root(&self) -> &Path {
        if self.path.is_dir() { &self.path } else { self.path.parent().unwrap_or(&self.path) }
    }
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = match std::fs::read_dir(folder) {
        Ok(read) => read,
        // A folder of a pattern that is not there, or is a file, matches nothing.
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(open_error(folder, &error)),
    };
    Ok(read.collect::<std::io::Result<Vec<_>>>()?.into_iter().map(|entry| entry.path()).collect())
}

/// Shell patterns within one name: `*`, `?`, `[a-z]`, `[!a-z]`.
fn matches(pattern: &[char], name: &[char]) -> bool {
    match pattern {
        [] => name.is_empty(),
        ['*', rest @ ..] => (0..=name.len()).any(|from| name.get(from..).is_some_and(|name| matches(rest, name))),
        ['[', rest @ ..] => {
            let Some(close) = rest.iter().skip(1).position(|c| *c == ']').map(|at| at + 1) else {
                return name.first() == Some(&'[') && matches(rest, &name[1..]);
            };
            let (mut set, behind) = (&rest[..close], &rest[close + 1..]);
            let Some((first, others)) = name.split_first() else { return false };
            let negated = set.first() == Some(&'!');
            if negated {
                set = &set[1..];
            }
            let mut found = false;
            while let [from, tail @ ..] = set {
                match tail {
                    ['-', to, tail @ ..] => {
                        found |= (*from..=*to).contains(first);
                        set = tail;
                    }
                    tail => {
                        found |= from == first;
                        set = tail;
                    }
                }
            }
            found != negated && matches(behind, others)
        }
        [wanted, rest @ ..] => match name.split_first() {
            Some((first, others)) => (*wanted == '?' || wanted == first) && matches(rest, others),
            None => false,
        },
    }
}

/// The error of a file that cannot be opened.
pub(crate) fn open_error(path: &Path, error: &std::io::Error) -> Error {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => SqlState::UndefinedFile,
        _ => SqlState::IoError,
    };
    // In PostgreSQL's words where it has some.
    let reason = match error.kind() {
        std::io::ErrorKind::NotFound => "No such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
        _ => error.to_string(),
    };
    Error::new(code, format!("could not open file \"{}\": {reason}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, name: &str) -> bool {
        matches(&pattern.chars().collect::<Vec<_>>(), &name.chars().collect::<Vec<_>>())
    }

    #[test]
    fn patterns_as_a_shell_reads_them() {
        for (pattern, name) in
            [("*.csv", "a.csv"), ("*", ""), ("a?c", "abc"), ("[a-c]x", "bx"), ("[!a]x", "bx"), ("[]]", "]")]
        {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("*.csv", "a.csv.gz"), ("a?c", "ac"), ("[a-c]x", "dx"), ("[!a]x", "ax"), ("", "a")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
