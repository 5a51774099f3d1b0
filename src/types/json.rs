//! `jsonb`: documents as canonical text, so that equal documents are equal texts.
//!
//! Members stand in PostgreSQL's order (by length, then by bytes), the last of those with one name
//! counts, numbers keep their digits, and a space stands behind each colon and comma. What looks into
//! a document relies on that form and copies parts of it as they are.

use std::borrow::Cow;
use std::collections::HashMap;

use arrow::datatypes::DataType;
use serde_json::value::RawValue;

use super::error::{Error, Result, SqlState};

/// How documents are stored. Nothing else has this type, so it is also how they are told from text.
pub const JSONB: DataType = DataType::LargeUtf8;

/// The deepest nesting of a document: every walk over one goes as deep.
const DEPTH_MAX: usize = 128;
/// The most digits that an exponent may add to a number.
const EXPONENT_MAX: i64 = 16_383;

/// A document, looked at one level deep.
#[derive(Debug)]
pub enum Json<'a> {
    /// `null`
    Null,
    /// `true`, `false`
    Boolean(bool),
    /// A number as it is written.
    Number(&'a str),
    /// A string without its quotes and escapes.
    String(String),
    /// The elements.
    Array(Vec<&'a str>),
    /// The members in order.
    Object(Vec<(Cow<'a, str>, &'a str)>),
}

fn invalid(text: &str, reason: &str) -> Error {
    let shown: String = text.chars().take(80).collect();
    Error::new(SqlState::InvalidText, format!("invalid input syntax for type json: \"{shown}\""))
        .detail(format!("{reason}."))
        .hint("Strings stand in double quotes, as in {\"a\": \"b\"}.")
}

/// Looks at a document.
///
/// # Errors
/// 22P02 for what is no JSON.
pub fn look(text: &str) -> Result<Json<'_>> {
    let failed = |error: serde_json::Error| invalid(text, &error.to_string());
    let trimmed = text.trim_matches([' ', '\t', '\n', '\r']);
    Ok(match trimmed.as_bytes().first() {
        Some(b'{') => {
            let members: HashMap<Cow<'_, str>, &RawValue> =
                serde_json::from_str::<Members<'_>>(trimmed).map_err(failed)?.0;
            let mut members: Vec<_> = members.into_iter().map(|(name, value)| (name, value.get())).collect();
            members.sort_unstable_by(|(a, _), (b, _)| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
            Json::Object(members)
        }
        Some(b'[') => {
            let elements: Vec<&RawValue> = serde_json::from_str(trimmed).map_err(failed)?;
            Json::Array(elements.into_iter().map(RawValue::get).collect())
        }
        Some(b'"') => Json::String(serde_json::from_str(trimmed).map_err(failed)?),
        _ => {
            // Checks the form; the digits are kept as they are.
            let _: &RawValue = serde_json::from_str(trimmed).map_err(failed)?;
            match trimmed {
                "null" => Json::Null,
                "true" => Json::Boolean(true),
                "false" => Json::Boolean(false),
                number => Json::Number(number),
            }
        }
    })
}

/// The members of an object, names decoded.
struct Members<'a>(HashMap<Cow<'a, str>, &'a RawValue>);

impl<'de: 'a, 'a> serde::Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        // Names with escapes cannot be borrowed.
        #[derive(serde::Deserialize, PartialEq, Eq, Hash)]
        struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
        let members = HashMap::<Name<'a>, &'a RawValue>::deserialize(deserializer)?;
        Ok(Members(members.into_iter().map(|(name, value)| (name.0, value)).collect()))
    }
}

/// The canonical form of a text.
///
/// # Errors
/// 22P02 for what is no JSON, 22003 for numbers with too large an exponent, 54001 for too deep a nesting.
pub fn canonical(text: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len() + 8);
    write_canonical(text, 0, &mut out)?;
    Ok(out)
}

fn write_canonical(text: &str, depth: usize, out: &mut String) -> Result<()> {
    if depth > DEPTH_MAX {
        let message = format!("a document may be nested at most {DEPTH_MAX} levels deep");
        return Err(Error::new(SqlState::StatementTooComplex, message).hint("Store the text as text."));
    }
    match look(text)? {
        Json::Null => out.push_str("null"),
        Json::Boolean(value) => out.push_str(if value { "true" } else { "false" }),
        Json::Number(number) => write_number(number, out)?,
        Json::String(value) => write_string(&value, out)?,
        Json::Array(elements) => write_array(elements, out, |element, out| write_canonical(element, depth + 1, out))?,
        Json::Object(members) => {
            for (name, _) in &members {
                no_zero(name)?;
            }
            write_object(members, out, |value, out| write_canonical(value, depth + 1, out))?;
        }
    }
    Ok(())
}

fn no_zero(text: &str) -> Result<()> {
    if text.contains('\0') {
        return Err(Error::new(SqlState::InvalidText, "unsupported Unicode escape sequence")
            .detail("\\u0000 cannot be converted to text.")
            .hint("Leave the character out."));
    }
    Ok(())
}

fn write_array<T>(
    elements: impl IntoIterator<Item = T>,
    out: &mut String,
    mut write: impl FnMut(T, &mut String) -> Result<()>,
) -> Result<()> {
    out.push('[');
    for (at, element) in elements.into_iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        write(element, out)?;
    }
    out.push(']');
    Ok(())
}

fn write_object<'a, T>(
    members: impl IntoIterator<Item = (Cow<'a, str>, T)>,
    out: &mut String,
    mut write: impl FnMut(T, &mut String) -> Result<()>,
) -> Result<()> {
    out.push('{');
    for (at, (name, value)) in members.into_iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        write_string(&name, out)?;
        out.push_str(": ");
        write(value, out)?;
    }
    out.push('}');
    Ok(())
}

/// A string with its quotes and escapes.
///
/// # Errors
/// 22P02 for a zero character, which no text may have.
pub fn write_string(text: &str, out: &mut String) -> Result<()> {
    no_zero(text)?;
    out.push_str(&serde_json::to_string(text).map_err(|error| Error::internal(error.to_string()))?);
    Ok(())
}

/// An object of members whose values are canonical; the last of those with one name counts.
///
/// # Errors
/// 22P02 for a zero character in a name.
pub fn object<'a>(members: impl IntoIterator<Item = (Cow<'a, str>, Cow<'a, str>)>) -> Result<String> {
    let last: HashMap<_, _> = members.into_iter().collect();
    let mut members: Vec<_> = last.into_iter().collect();
    members.sort_unstable_by(|(a, _), (b, _)| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    let mut out = String::new();
    write_object(members, &mut out, |value, out| {
        out.push_str(&value);
        Ok(())
    })?;
    Ok(out)
}

/// An array of canonical elements.
pub fn array<'a>(elements: impl IntoIterator<Item = Cow<'a, str>>) -> String {
    let parts: Vec<Cow<'a, str>> = elements.into_iter().collect();
    format!("[{}]", parts.join(", "))
}

/// A number with all its digits and without an exponent, as PostgreSQL's numeric keeps it.
fn write_number(number: &str, out: &mut String) -> Result<()> {
    let (negative, digits) = match number.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, number),
    };
    let (mantissa, exponent) = digits.split_once(['e', 'E']).unwrap_or((digits, "0"));
    let exponent: i64 =
        exponent.parse().ok().filter(|exponent: &i64| exponent.abs() <= EXPONENT_MAX).ok_or_else(|| {
            Error::new(SqlState::NumericOutOfRange, "value overflows numeric format")
                .hint("Write the number with a smaller exponent.")
        })?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all: String = [whole, fraction].concat();
    let point = i64::try_from(whole.len()).unwrap_or(i64::MAX).saturating_add(exponent);
    if negative && all.bytes().any(|digit| digit != b'0') {
        out.push('-');
    }
    let length = i64::try_from(all.len()).unwrap_or(i64::MAX);
    if point <= 0 {
        out.push_str("0.");
        (point..0).for_each(|_| out.push('0'));
        out.push_str(&all);
        return Ok(());
    }
    let (head, tail) = all.split_at(usize::try_from(point.min(length)).unwrap_or(0));
    let zeros: String = (length..point).map(|_| '0').collect();
    let head = [head, &zeros].concat();
    let trimmed = head.trim_start_matches('0');
    out.push_str(if trimmed.is_empty() { "0" } else { trimmed });
    if !tail.is_empty() {
        out.push('.');
        out.push_str(tail);
    }
    Ok(())
}

/// The member of an object; `None` when there is none, or no object.
///
/// # Errors
/// None for a stored document.
pub fn member<'a>(text: &'a str, name: &str) -> Result<Option<&'a str>> {
    if !text.starts_with('{') {
        return Ok(None);
    }
    let Json::Object(members) = look(text)? else { return Ok(None) };
    Ok(members.into_iter().find(|(found, _)| found == name).map(|(_, value)| value))
}

/// The element of an array, from 0, or from -1 at its end.
///
/// # Errors
/// None for a stored document.
pub fn element(text: &str, index: i64) -> Result<Option<&str>> {
    if !text.starts_with('[') {
        return Ok(None);
    }
    let Json::Array(elements) = look(text)? else { return Ok(None) };
    let length = i64::try_from(elements.len()).unwrap_or(i64::MAX);
    let at = if index < 0 { index.saturating_add(length) } else { index };
    Ok(usize::try_from(at).ok().and_then(|at| elements.get(at).copied()))
}

/// What stands at the end of a path of names and indexes.
///
/// # Errors
/// None for a stored document.
pub fn at_path<'a, 'p>(text: &'a str, path: impl IntoIterator<Item = &'p str>) -> Result<Option<&'a str>> {
    let mut here = text;
    for step in path {
        let next = match here.as_bytes().first() {
            Some(b'[') => match step.trim().parse() {
                Ok(index) => element(here, index)?,
                Err(_) => None,
            },
            _ => member(here, step)?,
        };
        match next {
            Some(next) => here = next,
            None => return Ok(None),
        }
    }
    Ok(Some(here))
}

/// A document as text: a string without its quotes, `null` as NULL.
///
/// # Errors
/// None for a stored document.
pub fn as_text(text: &str) -> Result<Option<Cow<'_, str>>> {
    Ok(match text.as_bytes().first() {
        Some(b'n') => None,
        Some(b'"') => match look(text)? {
            Json::String(value) => Some(Cow::Owned(value)),
            _ => None,
        },
        _ => Some(Cow::Borrowed(text)),
    })
}

/// The kind of a document, as `jsonb_typeof` says it.
pub fn type_of(text: &str) -> &'static str {
    match text.as_bytes().first() {
        Some(b'n') => "null",
        Some(b't' | b'f') => "boolean",
        Some(b'"') => "string",
        Some(b'[') => "array",
        Some(b'{') => "object",
        _ => "number",
    }
}

/// `@>`: whether one document contains another, as PostgreSQL has it.
///
/// # Errors
/// None for stored documents.
pub fn contains(whole: &str, part: &str) -> Result<bool> {
    match (look(whole)?, look(part)?) {
        (Json::Object(whole), Json::Object(part)) => {
            for (name, value) in part {
                let Some((_, found)) = whole.iter().find(|(other, _)| *other == name) else { return Ok(false) };
                if !contained_value(found, value)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Json::Array(whole), Json::Array(part)) => {
            for value in part {
                if !any_contains(&whole, value)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        // An array may contain a bare value, for once.
        (Json::Array(whole), Json::Object(_)) => {
            let _ = whole;
            Ok(false)
        }
        (Json::Array(whole), _) => any_contains(&whole, part),
        _ => Ok(same(whole, part)),
    }
}

fn any_contains(whole: &[&str], part: &str) -> Result<bool> {
    for value in whole {
        if contained_value(value, part)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Containment below the top: an array does not contain a bare value there.
fn contained_value(whole: &str, part: &str) -> Result<bool> {
    let nested = |text: &str| matches!(text.as_bytes().first(), Some(b'{' | b'['));
    if nested(whole) && whole.as_bytes().first() == part.as_bytes().first() {
        return contains(whole, part);
    }
    Ok(!nested(whole) && !nested(part) && same(whole, part))
}

/// Equal values that are no containers; numbers may end in zeros.
fn same(a: &str, b: &str) -> bool {
    let number = |text: &str| type_of(text) == "number";
    if number(a) && number(b) {
        return without_zeros(a) == without_zeros(b);
    }
    a == b
}

fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// `?`: whether a text is a name of an object, a string of an array, or the string itself.
///
/// # Errors
/// None for a stored document.
pub fn exists(text: &str, name: &str) -> Result<bool> {
    Ok(match look(text)? {
        Json::Object(members) => members.iter().any(|(found, _)| found == name),
        Json::Array(elements) => {
            let mut quoted = String::new();
            write_string(name, &mut quoted)?;
            elements.contains(&quoted.as_str())
        }
        Json::String(value) => value == name,
        _ => false,
    })
}

/// `||`: members of both objects, or the elements of both.
///
/// # Errors
/// None for stored documents.
pub fn concat(left: &str, right: &str) -> Result<String> {
    if let (Json::Object(left), Json::Object(right)) = (look(left)?, look(right)?) {
        return object(left.into_iter().chain(right).map(|(name, value)| (name, Cow::Borrowed(value))));
    }
    let mut elements = Vec::new();
    for side in [left, right] {
        match look(side)? {
            Json::Array(inner) => elements.extend(inner),
            _ => elements.push(side),
        }
    }
    Ok(array(elements.into_iter().map(Cow::Borrowed)))
}

/// `-` with a name: without the member, or the elements that are this string.
///
/// # Errors
/// 22023 for what has no members and no elements.
pub fn without(text: &str, name: &str) -> Result<String> {
    match look(text)? {
        Json::Object(members) => object(
            members.into_iter().filter(|(found, _)| found != name).map(|(name, value)| (name, Cow::Borrowed(value))),
        ),
        Json::Array(elements) => {
            let mut quoted = String::new();
            write_string(name, &mut quoted)?;
            Ok(array(elements.into_iter().filter(|element| *element != quoted).map(Cow::Borrowed)))
        }
        _ => Err(Error::new(SqlState::InvalidParameterValue, "cannot delete from scalar")
            .hint("Delete from an object or an array.")),
    }
}

/// `-` with a number: without the element there.
///
/// # Errors
/// 22023 for what is no array.
pub fn without_element(text: &str, index: i64) -> Result<String> {
    let Json::Array(elements) = look(text)? else {
        return Err(Error::new(SqlState::InvalidParameterValue, "cannot delete from object using integer index")
            .hint("Name the member."));
    };
    let length = i64::try_from(elements.len()).unwrap_or(i64::MAX);
    let at = if index < 0 { index.saturating_add(length) } else { index };
    let kept = elements.into_iter().zip(0_i64..).filter(|(_, place)| *place != at).map(|(element, _)| element);
    Ok(array(kept.map(Cow::Borrowed)))
}

/// The document without members that are `null`, at any depth.
///
/// # Errors
/// None for a stored document.
pub fn without_nulls(text: &str) -> Result<String> {
    fn write(text: &str, out: &mut String) -> Result<()> {
        match look(text)? {
            Json::Object(members) => {
                write_object(members.into_iter().filter(|(_, value)| *value != "null"), out, write)
            }
            Json::Array(elements) => write_array(elements, out, write),
            _ => {
                out.push_str(text);
                Ok(())
            }
        }
    }
    let mut out = String::new();
    write(text, &mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_printed_as_postgresql_prints_them() {
        // Checked on PostgreSQL 15.
        for (text, printed) in [
            (
                r#"{"b":1,"a":[1,2,{"x":null}],"aa":"q\"\u00e9\n","b":2}"#,
                r#"{"a": [1, 2, {"x": null}], "b": 2, "aa": "q\"é\n"}"#,
            ),
            (" [ ] ", "[]"),
            ("{}", "{}"),
            ("1e2", "100"),
            ("1.50", "1.50"),
            ("-0", "0"),
            ("-0.0", "0.0"),
            ("1E-3", "0.001"),
            ("12.5e1", "125"),
            ("12.345e2", "1234.5"),
            ("123456789012345678901234567890.123", "123456789012345678901234567890.123"),
            ("true", "true"),
            (r#""a\/b""#, r#""a/b""#),
        ] {
            assert_eq!(canonical(text).expect(text), printed, "{text}");
            assert_eq!(canonical(printed).expect(printed), printed);
        }
        for wrong in ["", "{", "{a: 1}", "[1,]", "01", "nul", "1 2", "'a'", r#""\u0000""#, "NaN", "\u{a0}1"] {
            assert_eq!(canonical(wrong).expect_err(wrong).code(), SqlState::InvalidText, "{wrong}");
        }
        assert_eq!(canonical("1e999999").expect_err("large").code(), SqlState::NumericOutOfRange);
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(canonical(&nested(128)).is_ok());
        for deep in [nested(200), nested(100_000), "[".repeat(100_000)] {
            assert!(canonical(&deep).is_err());
        }
    }

    #[test]
    fn containment_is_that_of_postgresql() {
        for (whole, part, wanted) in [
            ("{\"a\": 1, \"b\": 2}", "{\"b\": 2}", true),
            ("{\"a\": {\"b\": 2, \"c\": 3}}", "{\"a\": {\"c\": 3}}", true),
            ("{\"a\": {\"b\": 2}}", "{\"b\": 2}", false),
            ("[1, 2, [1, 3]]", "[1, 3]", false),
            ("[1, 2, [1, 3]]", "[[1, 3]]", true),
            ("[1, 2, 2]", "[2, 1]", true),
            ("[\"foo\", \"bar\"]", "\"bar\"", true),
            ("\"bar\"", "[\"bar\"]", false),
            ("{\"a\": [1]}", "{\"a\": 1}", false),
            ("1.0", "1", true),
        ] {
            assert_eq!(contains(whole, part).expect("documents"), wanted, "{whole} @> {part}");
        }
    }

    #[test]
    fn parts_are_found_and_taken_away() {
        let text = "{\"a\": [1, \"x\", null], \"b\": {\"c\": \"d\"}}";
        assert_eq!(at_path(text, ["b", "c"]).expect("a document"), Some("\"d\""));
        assert_eq!(at_path(text, ["a", "-2"]).expect("a document"), Some("\"x\""));
        assert_eq!(at_path(text, ["a", "x"]).expect("a document"), None);
        assert_eq!(as_text("null").expect("a document"), None);
        assert_eq!(concat("{\"a\": 1}", "{\"a\": 2, \"b\": 3}").expect("documents"), "{\"a\": 2, \"b\": 3}");
        assert_eq!(concat("[1]", "2").expect("documents"), "[1, 2]");
        assert_eq!(without("[\"a\", \"b\"]", "a").expect("a document"), "[\"b\"]");
        assert_eq!(without_element("[1, 2, 3]", -1).expect("a document"), "[1, 2]");
        assert_eq!(
            without_nulls("{\"a\": null, \"b\": [null, {\"c\": null}]}").expect("a document"),
            "{\"b\": [null, {}]}"
        );
        assert!(exists("{\"a\": 1}", "a").expect("a document") && !exists("[1]", "1").expect("a document"));
    }
}
