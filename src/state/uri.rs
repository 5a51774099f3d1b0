//! The URI that chooses a backend: `scheme://place?parameter=value`, read strictly.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use url::Url;

use crate::types::{Error, Result, SqlState};

/// Where a scheme keeps what it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the process; checkpoints go to the server's checkpoint folder. The URI names no place.
    Process,
    /// In a local folder: `scheme:///absolute/path`.
    Folder,
    /// In an object store: `scheme://bucket/prefix`.
    Bucket,
}

/// A state URI whose scheme, place and parameters are known to be right in form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateUri {
    scheme: String,
    bucket: Option<String>,
    path: String,
    parameters: BTreeMap<String, String>,
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(SqlState::InvalidParameterValue, message)
}

impl StateUri {
    /// Takes a URI apart. Nothing is `memory://`, and an absolute path is that of `file://`.
    ///
    /// # Errors
    /// 22023 when it is no URI, or names a user or password, which are not repeated in the message.
    pub fn parse(text: &str) -> Result<StateUri> {
        let text = text.trim();
        if text.is_empty() {
            return StateUri::parse("memory://");
        }
        if text.starts_with('/') {
            let plain = StateUri {
                scheme: "file".to_owned(),
                bucket: None,
                path: text.to_owned(),
                parameters: BTreeMap::new(),
            };
            return Ok(plain);
        }
        let hint = "Write for example rocksdb:///var/lib/clink/state or remote-read://bucket/prefix?region=eu-west-1.";
        let url = Url::parse(text).map_err(|error| invalid(format!("this is no state URI: {error}")).hint(hint))?;
        if !text.starts_with(&format!("{}://", url.scheme())) {
            return Err(invalid("a state URI begins with a scheme and ://").hint(hint));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid("a state URI must not hold a user or password")
                .hint("Give credentials in the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY."));
        }
        if url.fragment().is_some() || url.port().is_some() {
            return Err(invalid("a state URI has no port and no fragment")
                .hint("Give the address of the store as the parameter endpoint."));
        }
        let mut parameters = BTreeMap::new();
        for (name, value) in url.query_pairs() {
            if parameters.insert(name.to_string(), value.to_string()).is_some() {
                return Err(invalid(format!("parameter {name:?} of the state URI is given twice")));
            }
        }
        Ok(StateUri {
            scheme: url.scheme().to_owned(),
            bucket: url.host_str().filter(|host| !host.is_empty()).map(str::to_owned),
            path: url.path().to_owned(),
            parameters,
        })
    }

    /// The scheme.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The bucket.
    ///
    /// # Errors
    /// 22023 when there is none.
    pub fn bucket(&self) -> Result<&str> {
        self.bucket.as_deref().ok_or_else(|| {
            invalid(format!("{}:// needs a bucket", self.scheme))
                .hint(format!("Write {}://bucket/prefix.", self.scheme))
        })
    }

    /// The prefix in the bucket, without slashes around it.
    pub fn prefix(&self) -> &str {
        self.path.trim_matches('/')
    }

    /// The folder.
    ///
    /// # Errors
    /// 22023 when there is none.
    pub fn folder(&self) -> Result<PathBuf> {
        let path = Path::new(&self.path);
        let climbs = path.components().any(|part| matches!(part, std::path::Component::ParentDir));
        if self.path.len() > 1 && path.is_absolute() && !climbs {
            Ok(path.to_owned())
        } else {
            Err(invalid(format!("{}:// needs an absolute folder", self.scheme))
                .hint(format!("Write {}:///var/lib/clink/state, with three slashes.", self.scheme)))
        }
    }

    /// Checks the place and that only these parameters are given.
    ///
    /// # Errors
    /// 22023 naming what is wrong and, for parameters, the known ones; 0A000 is left to the registry.
    pub(super) fn check(&self, place: Place, known: &[&str]) -> Result<()> {
        match place {
            Place::Process if self.bucket.is_some() || !self.prefix().is_empty() => {
                return Err(invalid(format!("{}:// takes no path", self.scheme))
                    .hint(format!("Write {}://, or choose file:///folder.", self.scheme)));
            }
            Place::Process => {}
            Place::Folder => {
                if let Some(bucket) = &self.bucket {
                    return Err(invalid(format!("{}:// is local, {bucket:?} is no folder", self.scheme))
                        .hint(format!("Write {}:///{bucket}{}, with three slashes.", self.scheme, self.path)));
                }
                self.folder()?;
            }
            Place::Bucket => {
                self.bucket()?;
            }
        }
        match self.parameters.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => {
                let error = invalid(format!("{}:// has no parameter {name:?}", self.scheme));
                Err(match known {
                    [] => error.hint("This scheme has no parameters."),
                    known => error.hint(format!("The parameters are: {}.", known.join(", "))),
                })
            }
        }
    }

    fn malformed(&self, name: &str, what: &str) -> Error {
        invalid(format!("parameter {name:?} of {}:// is not {what}", self.scheme))
    }

    /// A parameter's text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// A parameter that is one of some words.
    ///
    /// # Errors
    /// 22023 when it is another.
    pub fn word(&self, name: &str, words: &[&'static str]) -> Result<Option<&'static str>> {
        let parse = |text: &str| words.iter().copied().find(|word| *word == text);
        let what = format!("one of {}", words.join(", "));
        self.text(name).map(|text| parse(text).ok_or_else(|| self.malformed(name, &what))).transpose()
    }

    /// A parameter that is a number from 1.
    ///
    /// # Errors
    /// 22023 when it is not.
    pub fn count(&self, name: &str) -> Result<Option<usize>> {
        let parse = |text: &str| text.parse::<usize>().ok().filter(|number| (1..=1 << 20).contains(number));
        let what = "a whole number from 1 to 1048576";
        self.text(name).map(|text| parse(text).ok_or_else(|| self.malformed(name, what))).transpose()
    }

    /// A parameter that is a number of bytes, with or without one of the units KiB, MiB, GiB.
    ///
    /// # Errors
    /// 22023 when it is not.
    pub fn bytes(&self, name: &str) -> Result<Option<usize>> {
        let parse = |text: &str| {
            let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
            let unit = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
            let (digits, shift) = unit.unwrap_or((text, 0));
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse::<usize>().ok().filter(|_| plain)?.checked_mul(1 << shift)
        };
        let what = "a number of bytes, such as 65536 or 64MiB";
        self.text(name).map(|text| parse(text).ok_or_else(|| self.malformed(name, what))).transpose()
    }

    /// A parameter that says yes or no.
    ///
    /// # Errors
    /// 22023 when it does neither.
    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        let parse = |text: &str| match text {
            "1" | "true" => Some(true),
            "0" | "false" => Some(false),
            _ => None,
        };
        self.text(name).map(|text| parse(text).ok_or_else(|| self.malformed(name, "true or false"))).transpose()
    }
}

impl fmt::Display for StateUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.bucket.as_deref().unwrap_or_default(), self.path)?;
        if !self.parameters.is_empty() {
            let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(&self.parameters).finish();
            write!(f, "?{query}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_come_apart_and_together() {
        let uri =
            StateUri::parse("changelog+rocksdb:///var/lib/x?materialization_threshold_bytes=64KiB&log_compaction=0")
                .expect("valid");
        assert_eq!((uri.scheme(), uri.folder().expect("there")), ("changelog+rocksdb", PathBuf::from("/var/lib/x")));
        assert_eq!(uri.bytes("materialization_threshold_bytes").expect("valid"), Some(65_536));
        assert_eq!(uri.flag("log_compaction").expect("valid"), Some(false));
        assert_eq!(uri.count("io_threads").expect("valid"), None);
        assert_eq!(StateUri::parse(&uri.to_string()).expect("valid"), uri);
        let uri = StateUri::parse("remote-read://bucket/a/b/?endpoint=http%3A%2F%2F127.0.0.1%3A9000").expect("valid");
        assert_eq!((uri.bucket().expect("there"), uri.prefix()), ("bucket", "a/b"));
        assert_eq!(uri.text("endpoint"), Some("http://127.0.0.1:9000"));
        assert_eq!(StateUri::parse("").expect("valid").to_string(), "memory://");
        assert_eq!(StateUri::parse("/data/x").expect("valid").to_string(), "file:///data/x");
    }

    #[test]
    fn what_is_malformed_is_refused_without_repeating_secrets() {
        for text in
            ["rocksdb", "rocksdb:/x", "rocksdb:x", "://x", "file:///x#y", "remote-read://b:90/x", "a://b?x=1&x=2"]
        {
            assert_eq!(StateUri::parse(text).expect_err(text).code(), SqlState::InvalidParameterValue);
        }
        let secret = StateUri::parse("remote-read://me:hunter2@bucket/x").expect_err("a password");
        assert!(!format!("{secret:?} {:?}", secret.hint_text()).contains("hunter2"));
        let uri = StateUri::parse("x://?n=0&b=1kb&c=-1&f=yes&d=&big=99999999999999999999GiB").expect("valid");
        for name in ["n", "b", "c", "d"] {
            assert!(uri.count(name).is_err(), "{name}");
        }
        for name in ["b", "c", "d", "big"] {
            assert!(uri.bytes(name).is_err(), "{name}");
        }
        assert!(uri.flag("f").is_err());
        let known = uri.check(Place::Process, &["n", "b"]).expect_err("unknown parameter");
        assert_eq!(known.hint_text(), Some("The parameters are: n, b."));
        assert!(StateUri::parse("file://x/y").expect("valid").check(Place::Folder, &[]).is_err());
        assert!(StateUri::parse("memory:///x").expect("valid").check(Place::Process, &[]).is_err());
        assert!(StateUri::parse("remote-read:///x").expect("valid").check(Place::Bucket, &[]).is_err());
    }
}
