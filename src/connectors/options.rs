//! `WITH (…)` options: each is taken once by who knows it, and none may be left over.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::types::{Error, Result, SqlState};

/// A value of a `WITH` option and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionValue {
    /// The value without quotes.
    pub text: String,
    /// Where the option's key stands: characters from 1.
    pub position: usize,
}

impl OptionValue {
    /// An error about this value.
    pub(crate) fn invalid(&self, name: &str, expected: &str) -> Error {
        Error::new(SqlState::InvalidParameterValue, format!("invalid value for option \"{name}\": \"{}\"", self.text))
            .hint(format!("{expected}."))
            .position(self.position)
    }
}

/// The options of one statement, and which of them were asked for.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    values: &'a BTreeMap<String, OptionValue>,
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Options<'a> {
    pub(crate) fn new(values: &'a BTreeMap<String, OptionValue>) -> Options<'a> {
        Options { values, known: RefCell::new(Vec::new()) }
    }

    /// The value of an option, which thereby is a known one.
    pub(crate) fn take(&self, name: &'static str) -> Option<&'a OptionValue> {
        self.known.borrow_mut().push(name);
        self.values.get(name)
    }

    /// The value of an option that has to be there.
    ///
    /// # Errors
    /// 22023 when it is missing.
    pub(crate) fn require(&self, name: &'static str, example: &str) -> Result<&'a OptionValue> {
        self.take(name).ok_or_else(|| {
            Error::new(SqlState::InvalidParameterValue, format!("option \"{name}\" is missing"))
                .hint(format!("Add it, such as {name} = '{example}'."))
        })
    }

    /// A boolean option.
    ///
    /// # Errors
    /// 22023 when it is not a boolean.
    pub(crate) fn boolean(&self, name: &'static str, default: bool) -> Result<bool> {
        let Some(value) = self.take(name) else {
            return Ok(default);
        };
        match value.text.to_ascii_lowercase().as_str() {
            "true" | "on" | "yes" | "1" => Ok(true),
            "false" | "off" | "no" | "0" => Ok(false),
            _ => Err(value.invalid(name, "Use true or false")),
        }
    }

    /// Refuses by name options that are known and not built.
    ///
    /// # Errors
    /// 0A000 when one of them is given.
    pub(crate) fn refuse(&self, names: &[&str]) -> Result<()> {
        for name in names {
            if let Some(value) = self.values.get(*name) {
                return Err(Error::unsupported(format!("option \"{name}\" is not supported yet"))
                    .hint("Leave the option out.")
                    .position(value.position));
            }
        }
        Ok(())
    }

    /// Refuses what nobody took.
    ///
    /// # Errors
    /// 22023 for the first option that is not known, with the near miss and the known ones.
    pub(crate) fn finish(&self) -> Result<()> {
        let known = self.known.borrow();
        for (name, value) in self.values {
            if known.contains(&name.as_str()) {
                continue;
            }
            let mut list: Vec<&str> = known.clone();
            list.sort_unstable();
            let list = list.join(", ");
            let hint = match near_miss(name, &known) {
                Some(near) => format!("Did you mean \"{near}\"? Known options: {list}."),
                None => format!("Known options: {list}."),
            };
            return Err(Error::new(SqlState::InvalidParameterValue, format!("unknown option \"{name}\""))
                .hint(hint)
                .position(value.position));
        }
        Ok(())
    }
}

/// The known name that is at most two typing errors away, if any.
pub(crate) fn near_miss<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|candidate| (edit_distance(name, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= 2 && *distance < candidate.len())
        .min()
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance: insertions, deletions and replacements that lead from one to the other.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut next = Vec::with_capacity(row.len());
        next.push(i + 1);
        let mut last = i + 1;
        for ((right, above), diagonal) in b.iter().zip(row.iter().skip(1)).zip(row.iter()) {
            last = (above + 1).min(last + 1).min(diagonal + usize::from(left != *right));
            next.push(last);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> BTreeMap<String, OptionValue> {
        pairs
            .iter()
            .enumerate()
            .map(|(i, (k, v))| ((*k).to_owned(), OptionValue { text: (*v).to_owned(), position: 10 + i }))
            .collect()
    }

    #[test]
    fn an_unknown_option_names_the_near_miss_and_its_place() {
        let values = options(&[("formt", "json")]);
        let options = Options::new(&values);
        options.take("format");
        options.take("path");
        let error = options.finish().expect_err("unknown");
        assert_eq!(error.code(), SqlState::InvalidParameterValue);
        assert_eq!(error.message(), "unknown option \"formt\"");
        assert_eq!(error.hint_text(), Some("Did you mean \"format\"? Known options: format, path."));
        assert_eq!(error.position_at(), Some(10));
    }

    #[test]
    fn distances() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", "abc"), 0);
        assert_eq!(near_miss("zzzz", &["path", "format"]), None);
    }
}
