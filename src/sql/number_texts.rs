//! `to_char` of numbers, such as `to_char(1234.5, 'FM9,999.00')`.
//!
//! The rules are those of PostgreSQL's `NUM_processor` (src/backend/utils/adt/formatting.c), in the C locale: a digit at
//! a time, blanks before the first one, the sign just before it.

use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, StringBuilder};
use arrow::datatypes::{DataType, Decimal128Type, Float32Type, Float64Type, i256};

use super::arithmetic::divide_rounded;
use super::cast_text::numeric_to_text;
use super::row_functions::Arguments;
use super::time_texts::ordinal_of;
use crate::types::{Error, Result, SqlState};

/// The most digits of a template, on each side of the point.
const DIGITS_MAX: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// `9`.
    Digit,
    /// `0`.
    Zero,
    /// `.` and `D`.
    Point,
    /// `,` and `G`.
    Comma,
    Minus,
    Plus,
    Sign,
    /// `TH` and `th`.
    Ordinal(bool),
    Character(char),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignPlace {
    Nowhere,
    Before,
    Behind,
}

/// A template, read.
#[derive(Debug)]
struct Template {
    pieces: Vec<Piece>,
    /// Digits before the point and behind it.
    before: usize,
    behind: usize,
    point: bool,
    /// Where zeros begin, counted from 0, and behind which place the last one is.
    zeros_from: Option<usize>,
    zeros_to: usize,
    /// `FM`.
    fill: bool,
    minus: bool,
    plus: bool,
    /// `PR`.
    bracket: bool,
    sign: SignPlace,
    /// The digits before an `S`.
    digits_before_sign: usize,
}

fn wrong(message: &str) -> Error {
    Error::new(SqlState::SyntaxError, message).hint("Write a template such as FM9,999.00 or S999.")
}

impl Template {
    /// # Errors
    /// 42601 for patterns that contradict each other; 0A000 for those that are not offered.
    fn read(text: &str) -> Result<Template> {
        let mut template = Template {
            pieces: Vec::new(),
            before: 0,
            behind: 0,
            point: false,
            zeros_from: None,
            zeros_to: 0,
            fill: false,
            minus: false,
            plus: false,
            bracket: false,
            sign: SignPlace::Nowhere,
            digits_before_sign: 0,
        };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let here = rest;
            let after = |length: usize| here.get(length..).unwrap_or_default();
            let two = here.get(..2).unwrap_or_default();
            let one_case = two == two.to_uppercase() || two == two.to_lowercase();
            let word = if one_case { two.to_uppercase() } else { String::new() };
            let length = match (word.as_str(), first) {
                ("FM", _) => {
                    template.fill = true;
                    2
                }
                ("MI", _) => {
                    template.signed("MI", template.sign != SignPlace::Nowhere)?;
                    template.minus = true;
                    template.pieces.push(Piece::Minus);
                    2
                }
                ("PL", _) => {
                    template.signed("PL", template.sign != SignPlace::Nowhere)?;
                    template.plus = true;
                    template.pieces.push(Piece::Plus);
                    2
                }
                ("SG", _) => {
                    template.signed("SG", template.sign != SignPlace::Nowhere)?;
                    (template.minus, template.plus) = (true, true);
                    template.pieces.push(Piece::Sign);
                    2
                }
                ("PR", _) => {
                    let others = template.plus || template.minus || template.sign != SignPlace::Nowhere;
                    template.signed("PR", others)?;
                    template.bracket = true;
                    2
                }
                ("TH", _) => {
                    template.pieces.push(Piece::Ordinal(two == "TH"));
                    2
                }
                ("RN" | "SP", _) | (_, 'V' | 'v' | 'L' | 'l' | 'C' | 'c' | 'B' | 'b') => {
                    let name =
                        if matches!(word.as_str(), "RN" | "SP") { two } else { here.get(..1).unwrap_or_default() };
                    return Err(not_offered(name));
                }
                ("EE", _) => return Err(not_offered("EEEE")),
                (_, 'S' | 's') => {
                    if template.sign != SignPlace::Nowhere {
                        return Err(wrong("cannot use \"S\" twice"));
                    }
                    template.signed("S", template.plus || template.minus || template.bracket)?;
                    template.sign = if template.point { SignPlace::Behind } else { SignPlace::Before };
                    template.digits_before_sign = template.before;
                    1
                }
                (_, '9' | '0') => {
                    template.digit(first == '0')?;
                    1
                }
                (_, '.' | 'D' | 'd') => {
                    if template.point {
                        return Err(wrong("multiple decimal points"));
                    }
                    template.point = true;
                    template.pieces.push(Piece::Point);
                    1
                }
                (_, ',' | 'G' | 'g') => {
                    template.pieces.push(Piece::Comma);
                    1
                }
                (_, '"') => {
                    let quoted = after(1);
                    let end = quoted.find('"').unwrap_or(quoted.len());
                    template.pieces.extend(quoted.get(..end).unwrap_or_default().chars().map(Piece::Character));
                    end + 2
                }
                (_, other) => {
                    template.pieces.push(Piece::Character(other));
                    other.len_utf8()
                }
            };
            rest = after(length);
        }
        Ok(template)
    }

    fn signed(&self, name: &str, other: bool) -> Result<()> {
        if !other {
            return Ok(());
        }
        let message = format!("cannot use \"{name}\" together with other patterns of the sign");
        Err(wrong(&message))
    }

    fn digit(&mut self, zero: bool) -> Result<()> {
        if self.bracket {
            return Err(wrong("digits must be ahead of \"PR\""));
        }
        if zero && self.zeros_from.is_none() && !self.point {
            self.zeros_from = Some(self.before);
        }
        *(if self.point { &mut self.behind } else { &mut self.before }) += 1;
        if self.before.max(self.behind) > DIGITS_MAX {
            return Err(wrong("the template has too many digits"));
        }
        if zero {
            self.zeros_to = self.before + self.behind;
        }
        self.pieces.push(if zero { Piece::Zero } else { Piece::Digit });
        Ok(())
    }

    /// A number as text: its sign, and its digits with as many behind the point as the template has.
    fn text(&self, negative: bool, digits: &str, out: &mut String) {
        let whole = digits.split_once('.').map_or(digits.len(), |(whole, _)| whole.len());
        let overflown;
        let digits = if whole > self.before {
            overflown = format!("{}.{}", "#".repeat(self.before), "#".repeat(self.behind));
            overflown.as_str()
        } else {
            digits
        };
        Writer::new(self, negative, digits.as_bytes(), self.before.saturating_sub(whole)).write(out);
    }
}

fn not_offered(pattern: &str) -> Error {
    Error::unsupported(format!("the template pattern {pattern} is not supported for numbers"))
        .hint("The patterns are 9 0 . D , G S MI PL SG PR FM TH and texts in double quotes.")
}

/// The state of one number on its way out.
struct Writer<'a> {
    template: &'a Template,
    negative: bool,
    number: &'a [u8],
    /// Where in the number the next digit is.
    at: usize,
    /// Places before the first digit.
    blanks: usize,
    /// How many places are written.
    places: usize,
    /// The place of the last one.
    last_place: usize,
    /// The last digit that is shown, where zeros at the end are left out.
    last_shown: Option<usize>,
    sign: SignPlace,
    bracket: bool,
    sign_written: bool,
    in_number: bool,
}

impl<'a> Writer<'a> {
    fn new(template: &'a Template, negative: bool, number: &'a [u8], blanks: usize) -> Writer<'a> {
        let own_sign = template.plus || template.minus;
        let bracket = template.bracket && (own_sign || negative || !template.fill);
        let sign_written = if own_sign {
            !template.plus || template.minus
        } else {
            !negative && template.fill && template.sign == SignPlace::Nowhere
        };
        let behind_all =
            !own_sign && template.sign == SignPlace::Before && template.before == template.digits_before_sign;
        // An S behind all digits; one at the start of a template stays before them.
        let sign = if behind_all { SignPlace::Behind } else { template.sign };
        let mut last_shown = None;
        if template.fill && template.point {
            let point = number.iter().position(|digit| *digit == b'.');
            last_shown = point.map(|point| {
                let digits = number.iter().enumerate().skip(point + 1);
                digits.filter(|(_, digit)| **digit != b'0').map(|(at, _)| at).next_back().unwrap_or(point)
            });
            if template.zeros_to > blanks {
                let last_zero = template.zeros_to - blanks;
                last_shown = last_shown.map(|shown| shown.max(last_zero.min(number.len())));
            }
        }
        let mut count = (template.before + template.behind).saturating_sub(1);
        if !sign_written && blanks == 0 {
            count += 1;
        }
        let last_place = count + usize::from(blanks > 0) + usize::from(template.point);
        Writer {
            template,
            negative,
            number,
            at: 0,
            blanks,
            places: 0,
            last_place,
            last_shown,
            sign,
            bracket,
            sign_written,
            in_number: false,
        }
    }

    fn write(mut self, out: &mut String) {
        let template = self.template;
        for piece in &template.pieces {
            match piece {
                Piece::Digit | Piece::Zero | Piece::Point => self.place(*piece, out),
                Piece::Comma if self.in_number => out.push(','),
                Piece::Comma if template.fill => {}
                Piece::Comma => out.push(' '),
                Piece::Minus if self.negative => out.push('-'),
                Piece::Plus if !self.negative => out.push('+'),
                Piece::Minus | Piece::Plus if template.fill => {}
                Piece::Minus | Piece::Plus => out.push(' '),
                Piece::Sign => out.push(if self.negative { '-' } else { '+' }),
                Piece::Ordinal(upper) => {
                    let number = self.number.first() != Some(&b'#') && !self.negative && !template.point;
                    if let Some(digits) = std::str::from_utf8(self.number).ok().filter(|_| number) {
                        let ending = ordinal_of(digits);
                        out.push_str(&if *upper { ending.to_uppercase() } else { ending.to_owned() });
                    }
                }
                Piece::Character(character) => out.push(*character),
            }
        }
    }

    /// True at a single zero before the point where the template has no zeros: `9.9` gives ` .1`.
    fn is_blank_zero(&self) -> bool {
        self.template.zeros_from.is_none()
            && self.at == 0
            && self.number.first() == Some(&b'0')
            && self.template.behind > 0
    }

    /// True when nothing behind the point is shown.
    fn ends_at_point(&self) -> bool {
        self.last_shown.is_some_and(|shown| self.number.get(shown) == Some(&b'.'))
    }

    fn write_sign(&mut self, out: &mut String) {
        let zeros_here = self.template.zeros_from.is_some_and(|from| from == self.places);
        let begins = self.places >= self.blanks || zeros_here;
        if self.sign_written || !begins || self.is_blank_zero() && !self.ends_at_point() {
            return;
        }
        match self.sign {
            SignPlace::Before => {
                out.push(if self.negative { '-' } else { '+' });
                self.sign_written = true;
            }
            SignPlace::Behind => {}
            SignPlace::Nowhere => {
                match (self.bracket, self.negative) {
                    (true, true) => out.push('<'),
                    (true, false) => out.push(' '),
                    (false, true) => out.push('-'),
                    (false, false) if !self.template.fill => out.push(' '),
                    (false, false) => {}
                }
                self.sign_written = true;
            }
        }
    }

    fn place(&mut self, piece: Piece, out: &mut String) {
        self.in_number = false;
        self.write_sign(out);
        let before_zeros = self.template.zeros_from.is_none_or(|from| from > self.places);
        let fill = self.template.fill;
        if self.places < self.blanks {
            if before_zeros {
                if !fill {
                    out.push(' ');
                }
            } else {
                out.push('0');
                self.in_number = true;
            }
        } else {
            let digit = self.number.get(self.at).copied();
            match digit {
                Some(b'.') if !self.ends_at_point() || fill => out.push('.'),
                Some(b'.') => {}
                _ if self.last_shown.is_some_and(|shown| self.at > shown) && piece != Piece::Zero => {}
                _ if self.is_blank_zero() => {
                    if !fill {
                        out.push(' ');
                    } else if self.ends_at_point() {
                        out.push('0');
                    }
                }
                Some(digit) => {
                    out.push(char::from(digit));
                    self.in_number = true;
                }
                None => {}
            }
            if digit.is_some() {
                self.at += 1;
            }
        }
        let mut last_place = self.last_place;
        if self.last_shown == Some(self.at) {
            last_place = self.places;
        }
        if self.places + 1 == last_place {
            if self.sign_written && self.bracket {
                out.push(if self.negative { '>' } else { ' ' });
            } else if self.sign == SignPlace::Behind {
                out.push(if self.negative { '-' } else { '+' });
            }
        }
        self.places += 1;
    }
}

/// The numbers of the first argument by the templates of the second.
///
/// # Errors
/// Those of templates; 0A000 for NaN and infinities.
pub(crate) fn number_texts(arguments: &Arguments) -> Result<ArrayRef> {
    let numbers = arguments.column(0)?;
    let templates = arguments.texts(1)?;
    let digits: Box<dyn Fn(usize, usize) -> Result<String>> = match numbers.data_type() {
        DataType::Decimal128(_, scale) => {
            let (values, scale) = (numbers.as_primitive::<Decimal128Type>().clone(), *scale);
            Box::new(move |row, behind| Ok(of_numeric(values.value(row), scale, behind)))
        }
        DataType::Float32 => {
            let values = numbers.as_primitive::<Float32Type>().clone();
            Box::new(move |row, behind| of_double(f64::from(values.value(row)), behind, 6))
        }
        DataType::Float64 => {
            let values = numbers.as_primitive::<Float64Type>().clone();
            Box::new(move |row, behind| of_double(values.value(row), behind, 15))
        }
        _ => {
            let values = arguments.integers(0)?;
            Box::new(move |row, behind| Ok(of_numeric(i128::from(values.value(row)), 0, behind)))
        }
    };
    let mut texts = StringBuilder::new();
    let mut read: Option<(&str, Template)> = None;
    let mut text = String::new();
    for row in 0..arguments.rows {
        if numbers.is_null(row) || templates.is_null(row) {
            texts.append_null();
            continue;
        }
        // A template is mostly the same on all rows.
        let written = templates.value(row);
        if read.as_ref().is_none_or(|(same, _)| *same != written) {
            read = Some((written, Template::read(written)?));
        }
        text.clear();
        if let Some((_, template)) = &read {
            let digits = digits(row, template.behind)?;
            match digits.strip_prefix('-') {
                Some(digits) => template.text(true, digits, &mut text),
                None => template.text(false, &digits, &mut text),
            }
        }
        texts.append_value(&text);
    }
    Ok(Arc::new(texts.finish()))
}

fn of_numeric(value: i128, scale: i8, behind: usize) -> String {
    let scale = usize::from(scale.unsigned_abs());
    let (value, scale) = match scale.checked_sub(behind).filter(|more| *more > 0) {
        Some(more) => {
            // A numeric has 38 digits at most.
            let divisor = i256::from_i128(10).wrapping_pow(u32::try_from(more).unwrap_or(38));
            let rounded = divide_rounded(i256::from_i128(value), divisor).and_then(i256::to_i128);
            (rounded.unwrap_or_default(), behind)
        }
        None => (value, scale),
    };
    let digits = i8::try_from(scale).unwrap_or(i8::MAX);
    let mut text = numeric_to_text(value, &DataType::Decimal128(37, digits));
    if behind > scale {
        if scale == 0 {
            text.push('.');
        }
        text.extend(std::iter::repeat_n('0', behind - scale));
    }
    text
}

/// With as many digits as PostgreSQL shows of the type.
fn of_double(value: f64, behind: usize, digits_max: usize) -> Result<String> {
    if !value.is_finite() {
        return Err(Error::unsupported("to_char() of NaN and infinities is not supported")
            .hint("Write value::text, or test it with CASE."));
    }
    let whole = format!("{:.0}", value.abs()).len();
    let shown = behind.min(digits_max.saturating_sub(whole));
    Ok(format!("{value:.shown$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(value: i128, scale: i8, template: &str) -> String {
        let template = Template::read(template).expect("a template");
        let digits = of_numeric(value, scale, template.behind);
        let mut out = String::new();
        match digits.strip_prefix('-') {
            Some(digits) => template.text(true, digits, &mut out),
            None => template.text(false, &digits, &mut out),
        }
        out
    }

    #[test]
    fn numbers_are_written_as_postgresql_writes_them() {
        // The examples of PostgreSQL's manual, table 9.31.
        for (value, scale, template, wanted) in [
            (-1, 1, "99.99", "  -.10"),
            (-1, 1, "FM9.99", "-.1"),
            (-1, 1, "FM90.99", "-0.1"),
            (1, 1, "0.9", " 0.1"),
            (12, 0, "9990999.9", "    0012.0"),
            (12, 0, "FM9990999.9", "0012."),
            (485, 0, "999", " 485"),
            (-485, 0, "999", "-485"),
            (485, 0, "9 9 9", " 4 8 5"),
            (1485, 0, "9,999", " 1,485"),
            (1485, 0, "9G999", " 1,485"),
            (1485, 1, "999.999", " 148.500"),
            (1485, 1, "FM999.999", "148.5"),
            (1485, 1, "FM999.990", "148.500"),
            (31485, 1, "9G999D999", " 3,148.500"),
            (-485, 0, "999S", "485-"),
            (-485, 0, "999MI", "485-"),
            (485, 0, "999MI", "485 "),
            (485, 0, "FM999MI", "485"),
            (485, 0, "PL999", "+ 485"),
            (485, 0, "SG999", "+485"),
            (-485, 0, "SG999", "-485"),
            (-485, 0, "9SG99", "4-85"),
            (-485, 0, "999PR", "<485>"),
            (482, 0, "999th", " 482nd"),
            (485, 0, "\"Good number:\"999", "Good number: 485"),
            (4858, 1, "\"Pre:\"999\" Post:\" .999", "Pre: 485 Post: .800"),
            (1234, 0, "999", " ###"),
        ] {
            assert_eq!(shown(value, scale, template), wanted, "{value} {template}");
        }
    }
}
