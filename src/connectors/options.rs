//! `WITH (…)` options: each is taken once by who knows it, and none may be left over.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::types::{Error, Result, SqlState};

/// No option names a longer span of time: a thousand years.
const DURATION_MAX: Duration = Duration::from_secs(365_250 * 86_400);

/// A value of a `WITH` option and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionValue {
    /// The value without quotes.
    pub text: String,
    /// Where the option's key stands: characters from 1.
    pub position: usize,
    /// True for a number without quotes.
    pub number: bool,
}

impl OptionValue {
    /// An error about this value.
    pub(crate) fn invalid(&self, name: &str, expected: &str) -> Error {
        Error::new(SqlState::InvalidParameterValue, format!("invalid value for option \"{name}\": \"{}\"", self.text))
            .hint(format!("{expected}."))
            .position(self.position)
    }

    /// The value of an option that is a text.
    ///
    /// # Errors
    /// 22023 for a number without quotes.
    pub(crate) fn string(&self, name: &str) -> Result<&str> {
        match self.number {
            true => Err(self.invalid(name, &format!("Write it as a text: {name} = '{}'", self.text))),
            false => Ok(&self.text),
        }
    }

    /// The value as a span of time.
    ///
    /// # Errors
    /// 22023 when it is not a number with a unit.
    pub(crate) fn duration(&self, name: &str) -> Result<Duration> {
        let text = self.text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let seconds = match unit.trim().to_ascii_lowercase().as_str() {
            "us" | "microsecond" | "microseconds" => 1e-6,
            "ms" | "millisecond" | "milliseconds" => 1e-3,
            "s" | "sec" | "second" | "seconds" => 1.0,
            "min" | "minute" | "minutes" => 60.0,
            "h" | "hour" | "hours" => 3_600.0,
            "d" | "day" | "days" => 86_400.0,
            _ => return Err(self.invalid(name, "Use a number and a unit, such as '5 seconds' or '100 ms'")),
        };
        let duration = number.parse::<f64>().ok().and_then(|number| Duration::try_from_secs_f64(number * seconds).ok());
        duration
            .filter(|duration| *duration <= DURATION_MAX)
            .ok_or_else(|| self.invalid(name, "Use a number and a unit, such as '5 seconds' or '100 ms'"))
    }

    /// The meaning of the value among some words, in any case.
    ///
    /// # Errors
    /// 22023 with the near miss when it is none of them.
    pub(crate) fn choose<T: Clone>(&self, name: &str, choices: &[(&str, T)]) -> Result<T> {
        let given = self.text.to_ascii_lowercase();
        if let Some((_, meaning)) = choices.iter().find(|(word, _)| *word == given) {
            return Ok(meaning.clone());
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let list = match words.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => String::new(),
        };
        let expected = match near_miss(&given, &words) {
            Some(near) => format!("Did you mean \"{near}\"? Use {list}"),
            None => format!("Use {list}"),
        };
        Err(self.invalid(name, &expected))
    }
}

/// The options of one statement, and which of them were asked for.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    values: &'a BTreeMap<String, OptionValue>,
    known: RefCell<Vec<&'static str>>,
    /// Beginnings of names that stand for many.
    families: RefCell<Vec<String>>,
}

impl<'a> Options<'a> {
    pub(crate) fn new(values: &'a BTreeMap<String, OptionValue>) -> Options<'a> {
        Options { values, known: RefCell::default(), families: RefCell::default() }
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
            // A slip of the hand in its name is the likelier fault.
            let known = self.known.borrow();
            let meant = |key: &str| !known.contains(&key) && near_miss(key, &[name]).is_some();
            if let Some((key, value)) = self.values.iter().find(|(key, _)| meant(key)) {
                return Error::new(SqlState::InvalidParameterValue, format!("unknown option \"{key}\""))
                    .hint(format!("Did you mean \"{name}\"?"))
                    .position(value.position);
            }
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

    /// A whole number within bounds.
    ///
    /// # Errors
    /// 22023 when it is not one, or beyond the bounds.
    pub(crate) fn integer(&self, name: &'static str, bounds: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match value.text.trim().parse::<u64>() {
            Ok(number) if bounds.contains(&number) => Ok(Some(number)),
            _ => Err(value.invalid(name, &format!("Use a whole number from {} to {}", bounds.start(), bounds.end()))),
        }
    }

    /// A share: a number from 0 to 1.
    ///
    /// # Errors
    /// 22023 when it is not one.
    pub(crate) fn share(&self, name: &'static str) -> Result<f64> {
        let Some(value) = self.take(name) else {
            return Ok(0.0);
        };
        match value.text.trim().parse::<f64>() {
            Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
            _ => Err(value.invalid(name, "Use a number from 0 to 1, such as 0.01")),
        }
    }

    /// A span of time.
    ///
    /// # Errors
    /// 22023 when it is not a number with a unit.
    pub(crate) fn duration(&self, name: &'static str) -> Result<Option<Duration>> {
        self.take(name).map(|value| value.duration(name)).transpose()
    }

    /// One of some words.
    ///
    /// # Errors
    /// 22023 with the near miss when it is none of them.
    pub(crate) fn choice<T: Clone>(&self, name: &'static str, choices: &[(&str, T)]) -> Result<Option<T>> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => value.choose(name, choices).map(Some),
        }
    }

    /// The options whose names begin with `prefix`, which thereby are known: the rest of the name and the value.
    pub(crate) fn take_all(&self, prefix: &str) -> Vec<(&'a str, &'a OptionValue)> {
        let found: Vec<_> =
            self.values.iter().filter_map(|(key, value)| Some((key.strip_prefix(prefix)?, value))).collect();
        self.families.borrow_mut().push(prefix.to_owned());
        found
    }

    /// Refuses what nobody took.
    ///
    /// # Errors
    /// 22023 for the first option that is not known, with the near miss and the known ones.
    pub(crate) fn finish(&self) -> Result<()> {
        let known = self.known.borrow();
        for (name, value) in self.values {
            if known.contains(&name.as_str()) || self.families.borrow().iter().any(|family| name.starts_with(family)) {
                continue;
            }
            let mut list: Vec<&str> = known.clone();
            list.sort_unstable();
            list.dedup();
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
            .map(|(i, (k, v))| {
                ((*k).to_owned(), OptionValue { text: (*v).to_owned(), position: 10 + i, number: false })
            })
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
    fn spans_of_time() {
        let duration =
            |text: &str| OptionValue { text: text.to_owned(), position: 1, number: false }.duration("o").ok();
        assert_eq!(duration("5 seconds"), Some(Duration::from_secs(5)));
        assert_eq!(duration("1.5ms"), Some(Duration::from_micros(1_500)));
        assert_eq!(duration("2 h"), Some(Duration::from_secs(7_200)));
        for wrong in ["5", "", "s", "-1 s", "5 parsecs", "1e9 d"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn distances() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", "abc"), 0);
        assert_eq!(near_miss("zzzz", &["path", "format"]), None);
    }
}
