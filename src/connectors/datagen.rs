//! The connector `datagen`: rows made up by rules, each a function of its number and the seed.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int16Array, Int32Array,
    Int64Array, RecordBatch, RecordBatchOptions, StringBuilder, TimestampMicrosecondArray, UInt64Array,
};
use arrow::compute::{filter, take};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};

use super::formats::Columns;
use super::formats::values::ValueError;
use super::generated::{Amount, GeneratedReader, Generator, START_MICROS, mixed, mixed_share};
use super::options::{OptionValue, Options};
use super::registry::{ConnectorColumn, Opened, schema_of};
use crate::exec::source::{BadRow, Offset, ReadRequest, Source, SourceReader, SplitId, Splits};
use crate::types::text::parse as datetime;
use crate::types::{Error, Result, SqlState};

/// Letters of a random text when nothing is said.
const LENGTH: usize = 8;
/// The longest random text.
const LENGTH_MAX: usize = 10_000;
/// How much later than `disorder` allows late rows are, at most, when nothing is said.
const LATE_BY: Duration = Duration::from_secs(60);
/// Places of [`mixed`] that are no columns.
const BAD: u64 = u64::MAX;
const LATE: u64 = u64::MAX - 1;
const LATE_BY_PLACE: u64 = u64::MAX - 2;
const DISORDER: u64 = u64::MAX - 3;

/// How a column's values are made.
#[derive(Clone, Debug)]
enum Rule {
    /// `start`, `start + 1`, …, from the start again behind `end`.
    Sequence { start: i64, end: Option<i64> },
    /// Any number from `min` to `max`, in units of the column's type.
    Integer { min: i128, max: i128 },
    /// Any number from `min` to below `max`.
    Float { min: f64, max: f64 },
    /// Letters and digits.
    Text { length: usize },
    /// True or false.
    Boolean,
    /// One of these.
    Choice(ArrayRef),
    /// `start`, then `step` later each; in microseconds.
    Timestamp { start: i64, step: f64 },
}

/// Rows made up by rules.
struct Datagen {
    amount: Amount,
    columns: Vec<ConnectorColumn>,
    schema: SchemaRef,
    rules: Vec<Rule>,
    seed: u64,
    disorder: Duration,
    late_share: f64,
    late_by: Duration,
    bad_share: f64,
}

/// The source that the options describe.
///
/// # Errors
/// See [`super::Connectors::open`].
pub(crate) fn open(options: &Options<'_>, columns: &[ConnectorColumn]) -> Result<Opened> {
    let amount = Amount::parse(options)?;
    let seed = options.integer("seed", 0..=u64::MAX)?.unwrap_or(0);
    let disorder = options.duration("disorder")?.unwrap_or_default();
    let late_share = options.share("late_share")?;
    let late_by = options.duration("late_by")?.unwrap_or(LATE_BY);
    let bad_share = options.share("bad_share")?;
    let fields = options.take_all("fields.");
    options.finish()?;
    let mut rules = Vec::with_capacity(columns.len());
    for column in columns {
        // A column's name may have points, a part's name has none.
        let of_column = |(key, value): &(&str, &'_ OptionValue)| -> Option<(String, OptionValue)> {
            let (name, part) = key.rsplit_once('.')?;
            (name.eq_ignore_ascii_case(&column.name)).then(|| (part.to_owned(), (*value).clone()))
        };
        let parts: Vec<(String, OptionValue)> = fields.iter().filter_map(of_column).collect();
        rules.push(rule(column, &parts, amount)?);
    }
    for (key, value) in &fields {
        let known =
            key.rsplit_once('.').is_some_and(|(name, _)| columns.iter().any(|c| c.name.eq_ignore_ascii_case(name)));
        if !known {
            let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
            return Err(Error::new(SqlState::UndefinedColumn, format!("option \"fields.{key}\" names no column"))
                .hint(format!("Write fields.<column>.<part>. The columns are: {}.", names.join(", ")))
                .position(value.position));
        }
    }
    let schema = schema_of(columns);
    let source =
        Datagen { amount, columns: columns.to_vec(), schema, rules, seed, disorder, late_share, late_by, bad_share };
    Ok(Opened { source: Arc::new(source), rate: amount.rate })
}

#[derive(Clone, Copy)]
enum Kind {
    Sequence,
    Random,
    Choice,
    Timestamp,
}

/// The rule of a column from its options.
fn rule(column: &ConnectorColumn, parts: &[(String, OptionValue)], amount: Amount) -> Result<Rule> {
    let find = |part: &str| parts.iter().find(|(name, _)| name == part).map(|(_, value)| value);
    let option = |part: &str| format!("fields.{}.{part}", column.name);
    let timestamp = matches!(column.data_type, DataType::Timestamp(..));
    let kinds = [
        ("sequence", Kind::Sequence),
        ("random", Kind::Random),
        ("choice", Kind::Choice),
        ("timestamp", Kind::Timestamp),
    ];
    let kind = match find("kind") {
        Some(value) => value.choose(&option("kind"), &kinds)?,
        None if timestamp => Kind::Timestamp,
        None => Kind::Random,
    };
    let integer = matches!(column.data_type, DataType::Int16 | DataType::Int32 | DataType::Int64);
    let (rule, known): (Rule, &[&str]) = match kind {
        Kind::Sequence if integer => {
            let bound = |part: &str| find(part).map(|value| whole(value, &option(part), &column.data_type)).transpose();
            let (start, end) = (bound("start")?.unwrap_or(0), bound("end")?);
            if let Some(end) = end.filter(|end| *end < start)
                && let Some(value) = find("end")
            {
                return Err(value.invalid(&option("end"), &format!("Use a number from {start} on, not {end}")));
            }
            // Beyond its type a sequence begins again.
            let end = end.or(match column.data_type {
                DataType::Int16 => Some(i64::from(i16::MAX)),
                DataType::Int32 => Some(i64::from(i32::MAX)),
                _ => None,
            });
            (Rule::Sequence { start, end }, &["start", "end"])
        }
        Kind::Choice => {
            let Some(values) = find("values") else {
                return Err(Error::new(
                    SqlState::InvalidParameterValue,
                    format!("option \"{}\" is missing", option("values")),
                )
                .hint("Add it, such as 'red, green, blue'."));
            };
            (Rule::Choice(choices(column, values, &option("values"))?), &["values"])
        }
        Kind::Timestamp if timestamp => {
            let zoned = matches!(&column.data_type, DataType::Timestamp(_, Some(_)));
            let start = match find("start") {
                None => START_MICROS,
                Some(value) => datetime::parse_timestamp(&value.text, zoned)
                    .ok_or_else(|| value.invalid(&option("start"), "Use a time, such as '2026-01-01 00:00:00'"))?,
            };
            let step = match find("step") {
                Some(value) => value.duration(&option("step"))?.as_secs_f64() * 1e6,
                None => 1e6 / amount.rate.unwrap_or(1_000) as f64,
            };
            (Rule::Timestamp { start, step }, &["start", "step"])
        }
        Kind::Random => random(column, &find, &option)?,
        Kind::Sequence | Kind::Timestamp => {
            let value = find("kind");
            let error = Error::new(
                SqlState::DatatypeMismatch,
                format!("column \"{}\" is of a type that this kind of values cannot fill", column.name),
            );
            return Err(error
                .hint("A sequence is of integers, a timestamp of timestamp or timestamptz; otherwise use random or choice.")
                .position_or(value.map(|value| value.position)));
        }
    };
    for (part, value) in parts {
        if part != "kind" && !known.contains(&part.as_str()) {
            let mut all = vec!["kind"];
            all.extend(known);
            return Err(Error::new(SqlState::InvalidParameterValue, format!("unknown option \"{}\"", option(part)))
                .hint(format!("Here are known: {}.", all.join(", ")))
                .position(value.position));
        }
    }
    Ok(rule)
}

/// The rule for random values of a type.
fn random<'a>(
    column: &ConnectorColumn,
    find: &dyn Fn(&str) -> Option<&'a OptionValue>,
    option: &dyn Fn(&str) -> String,
) -> Result<(Rule, &'static [&'static str])> {
    let bounds: &'static [&'static str] = &["min", "max"];
    let ordered = |min: i128, max: i128| {
        let wrong = find("max").or(find("min")).filter(|_| min > max);
        wrong.map_or(Ok(Rule::Integer { min, max }), |value| {
            Err(value.invalid(&option("max"), "Use a number that is not below min"))
        })
    };
    Ok(match &column.data_type {
        DataType::Int16 | DataType::Int32 | DataType::Int64 => {
            let bound = |part: &str, default: i64| {
                find(part).map_or(Ok(default), |value| whole(value, &option(part), &column.data_type))
            };
            let most = if column.data_type == DataType::Int16 { 9_999 } else { 999_999 };
            (ordered(i128::from(bound("min", 0)?), i128::from(bound("max", most)?))?, bounds)
        }
        DataType::Decimal128(precision, scale) => {
            let bound = |part: &str, default: i128| {
                find(part).map_or(Ok(default), |value| {
                    super::formats::values::numeric(&value.text, *precision, *scale)
                        .map_err(|_| value.invalid(&option(part), "Use a number that the column's type takes"))
                })
            };
            let most = super::formats::decimal::limit((*precision).min(6)) - 1;
            (ordered(bound("min", 0)?, bound("max", most)?)?, bounds)
        }
        DataType::Date32 => {
            let bound = |part: &str, default: i32| {
                find(part).map_or(Ok(default), |value| {
                    datetime::parse_date(&value.text)
                        .ok_or_else(|| value.invalid(&option(part), "Use a date, such as '2026-01-01'"))
                })
            };
            // The year 2026.
            (ordered(i128::from(bound("min", 20_454)?), i128::from(bound("max", 20_818)?))?, bounds)
        }
        DataType::Float32 | DataType::Float64 => {
            let bound = |part: &str, default: f64| {
                find(part).map_or(Ok(default), |value| {
                    let number = value.text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
                    number.ok_or_else(|| value.invalid(&option(part), "Use a number"))
                })
            };
            (Rule::Float { min: bound("min", 0.0)?, max: bound("max", 1.0)? }, bounds)
        }
        DataType::Utf8 => {
            let most = column.length_max.unwrap_or(LENGTH_MAX).min(LENGTH_MAX);
            let length =
                match find("length") {
                    None => LENGTH.min(most),
                    Some(value) => {
                        value.text.trim().parse().ok().filter(|length| *length <= most).ok_or_else(|| {
                            value.invalid(&option("length"), &format!("Use a whole number up to {most}"))
                        })?
                    }
                };
            (Rule::Text { length }, &["length"])
        }
        DataType::Boolean => (Rule::Boolean, &[]),
        _ => {
            return Err(Error::unsupported(format!(
                "random values for column \"{}\" of its type are not supported",
                column.name
            ))
            .hint(format!("Say {} = 'choice' and {} = '…'.", option("kind"), option("values"))));
        }
    })
}

fn whole(value: &OptionValue, option: &str, data_type: &DataType) -> Result<i64> {
    let number = value.text.trim().parse::<i64>().ok();
    let fits = |number: &i64| match data_type {
        DataType::Int16 => i16::try_from(*number).is_ok(),
        DataType::Int32 => i32::try_from(*number).is_ok(),
        _ => true,
    };
    number.filter(fits).ok_or_else(|| value.invalid(option, "Use a whole number that the column's type takes"))
}

/// The values of a list in the column's type.
fn choices(column: &ConnectorColumn, values: &OptionValue, option: &str) -> Result<ArrayRef> {
    let one = [ConnectorColumn { nullable: true, ..column.clone() }];
    let mut columns = Columns::new(&schema_of(&one), &one, None, &[0])?;
    for text in values.text.split(',') {
        let appended = columns.append_row(|_, column| match text.trim() {
            "" => Err(ValueError::new(SqlState::InvalidParameterValue, "a value is empty")),
            text => column.append_text(text),
        });
        appended.map_err(|error| values.invalid(option, &format!("Separate values by commas ({})", error.reason)))?;
    }
    Ok(Arc::clone(columns.finish()?.column(0)))
}

impl Source for Datagen {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn splits(&self, _: &[(SplitId, Offset)]) -> Result<Splits> {
        Ok(self.amount.splits())
    }

    fn open(&self, request: &ReadRequest) -> Result<Box<dyn SourceReader>> {
        let rows = Rows {
            schema: Arc::new(self.schema.project(&request.columns)?),
            columns: request
                .columns
                .iter()
                .filter_map(|index| {
                    let (column, rule) = (self.columns.get(*index)?, self.rules.get(*index)?);
                    Some((*index as u64, column.data_type.clone(), rule.clone()))
                })
                .collect(),
            seed: self.seed,
            disorder: self.disorder.as_micros() as f64,
            late_share: self.late_share,
            late_by: self.late_by.as_micros() as f64,
            bad_share: self.bad_share,
        };
        Ok(Box::new(GeneratedReader::new(rows, self.amount, request)))
    }

    fn ends(&self) -> bool {
        self.amount.rows.is_some()
    }
}

/// Makes the rows of one pass.
struct Rows {
    schema: SchemaRef,
    /// Place in the table, type and rule of the columns asked for.
    columns: Vec<(u64, DataType, Rule)>,
    seed: u64,
    /// In microseconds, as is `late_by`.
    disorder: f64,
    late_share: f64,
    late_by: f64,
    bad_share: f64,
}

impl Rows {
    /// How many microseconds a row's time lies behind its place.
    fn behind(&self, number: u64) -> i64 {
        let mut behind = mixed_share(self.seed, DISORDER, number) * self.disorder;
        if mixed_share(self.seed, LATE, number) < self.late_share {
            // Later than any row that is not late.
            behind = self.disorder + 1.0 + mixed_share(self.seed, LATE_BY_PLACE, number) * self.late_by;
        }
        behind as i64
    }

    fn column(&self, place: u64, data_type: &DataType, rule: &Rule, numbers: Range<u64>) -> Result<ArrayRef> {
        let seed = self.seed;
        let within = |min: i128, max: i128, number: u64| {
            let span = u128::try_from(max - min).unwrap_or(0).saturating_add(1);
            min + i128::try_from(u128::from(mixed(seed, place, number)) % span).unwrap_or(0)
        };
        Ok(match rule {
            Rule::Sequence { start, end } => {
                let value = |number: u64| match end {
                    Some(end) => {
                        let span = u64::try_from(i128::from(*end) - i128::from(*start) + 1).unwrap_or(u64::MAX);
                        start.wrapping_add((number % span) as i64)
                    }
                    None => start.wrapping_add(number as i64),
                };
                match data_type {
                    DataType::Int16 => {
                        Arc::new(numbers.map(|number| Some(value(number) as i16)).collect::<Int16Array>())
                    }
                    DataType::Int32 => {
                        Arc::new(numbers.map(|number| Some(value(number) as i32)).collect::<Int32Array>())
                    }
                    _ => Arc::new(Int64Array::from_iter_values(numbers.map(value))),
                }
            }
            Rule::Integer { min, max } => {
                let values = numbers.map(|number| within(*min, *max, number));
                // The bounds are of the type, so what lies between fits.
                match data_type {
                    DataType::Int16 => Arc::new(Int16Array::from_iter_values(values.map(|value| value as i16))),
                    DataType::Int32 => Arc::new(Int32Array::from_iter_values(values.map(|value| value as i32))),
                    DataType::Date32 => Arc::new(Date32Array::from_iter_values(values.map(|value| value as i32))),
                    DataType::Int64 => Arc::new(Int64Array::from_iter_values(values.map(|value| value as i64))),
                    _ => Arc::new(Decimal128Array::from_iter_values(values).with_data_type(data_type.clone())),
                }
            }
            Rule::Float { min, max } => {
                let values = numbers.map(|number| min + mixed_share(seed, place, number) * (max - min));
                match data_type {
                    DataType::Float32 => Arc::new(Float32Array::from_iter_values(values.map(|value| value as f32))),
                    _ => Arc::new(Float64Array::from_iter_values(values)),
                }
            }
            Rule::Text { length } => {
                const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
                let mut builder = StringBuilder::new();
                let mut text = String::with_capacity(*length);
                for number in numbers {
                    text.clear();
                    for at in 0..*length {
                        // Twelve letters of five bits from each random number.
                        let bits = mixed(seed ^ (at as u64 / 12), place, number) >> (at % 12 * 5);
                        text.push(char::from(LETTERS[(bits & 31) as usize]));
                    }
                    builder.append_value(&text);
                }
                Arc::new(builder.finish())
            }
            Rule::Boolean => {
                Arc::new(numbers.map(|number| Some(mixed(seed, place, number) & 1 == 1)).collect::<BooleanArray>())
            }
            Rule::Choice(values) => {
                let most = values.len() as i128 - 1;
                take(
                    values,
                    &UInt64Array::from_iter_values(numbers.map(|number| within(0, most, number) as u64)),
                    None,
                )?
            }
            Rule::Timestamp { start, step } => {
                let time = |number: u64| {
                    start.saturating_add((number as f64 * step) as i64).saturating_sub(self.behind(number))
                };
                let times = TimestampMicrosecondArray::from_iter_values(numbers.map(time));
                match data_type {
                    DataType::Timestamp(TimeUnit::Microsecond, zone) => Arc::new(times.with_timezone_opt(zone.clone())),
                    _ => Arc::new(times),
                }
            }
        })
    }
}

impl Generator for Rows {
    fn rows(&mut self, numbers: Range<u64>) -> Result<(RecordBatch, Vec<BadRow>)> {
        let is_bad = |number: u64| mixed_share(self.seed, BAD, number) < self.bad_share;
        let bad: Vec<BadRow> = numbers
            .clone()
            .filter(|number| is_bad(*number))
            .map(|number| {
                let raw = format!("{{\"row\":{number}");
                let reason = "made by bad_share: the object is not closed".to_owned();
                BadRow::new(SqlState::BadCopyFormat, raw.as_bytes(), reason, None, Offset(number))
            })
            .collect();
        let good =
            (!bad.is_empty()).then(|| numbers.clone().map(|number| Some(!is_bad(number))).collect::<BooleanArray>());
        let count = (numbers.end - numbers.start) as usize - bad.len();
        let columns = self
            .columns
            .iter()
            .map(|(place, data_type, rule)| {
                let column = self.column(*place, data_type, rule, numbers.clone())?;
                match &good {
                    Some(good) => Ok(filter(&column, good)?),
                    None => Ok(column),
                }
            })
            .collect::<Result<Vec<ArrayRef>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok((RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?, bad))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::array::AsArray;
    use arrow::datatypes::{Int64Type, TimestampMicrosecondType};

    use super::*;
    use crate::connectors::Connectors;
    use crate::exec::source::Read;

    fn column(name: &str, data_type: DataType) -> ConnectorColumn {
        ConnectorColumn { name: name.to_owned(), data_type, nullable: true, length_max: None }
    }

    fn table(options: &[(&str, &str)], columns: &[ConnectorColumn]) -> Result<crate::connectors::SourceTable> {
        let values: BTreeMap<String, OptionValue> = [("connector", "datagen")]
            .iter()
            .chain(options)
            .map(|(k, v)| ((*k).to_owned(), OptionValue { text: (*v).to_owned(), position: 1, number: false }))
            .collect();
        Connectors::standard().open(&values, columns)
    }

    fn read(source: &dyn Source, from: u64, rows_max: usize) -> (Vec<RecordBatch>, Vec<u64>) {
        let columns = (0..source.schema().fields().len()).collect();
        let request =
            ReadRequest { split: SplitId::new("rows"), from: Offset(from), until: None, columns, offsets: false };
        let mut reader = source.open(&request).expect("opens");
        let (mut batches, mut faults) = (Vec::new(), Vec::new());
        while let Read::Rows { rows, bad, .. } = reader.read(rows_max).expect("reads") {
            batches.push(rows);
            faults.extend(bad.into_iter().map(|bad| bad.offset.0));
        }
        (batches, faults)
    }

    #[test]
    fn a_row_is_made_of_its_number_alone() {
        let columns = [
            column("id", DataType::Int64),
            column("x", DataType::Float64),
            column("n", DataType::Decimal128(6, 2)),
            column("kind", DataType::Utf8),
            column("note", DataType::Utf8),
            column("ok", DataType::Boolean),
            column("at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        ];
        let options = [
            ("number_of_rows", "1000"),
            ("rows_per_second", "100"),
            ("fields.id.kind", "sequence"),
            ("fields.id.start", "5"),
            ("fields.kind.kind", "choice"),
            ("fields.kind.values", "red, green"),
            ("disorder", "5 seconds"),
            ("late_share", "0.1"),
            ("bad_share", "0.1"),
            ("seed", "7"),
        ];
        let made = table(&options, &columns).expect("a table");
        assert_eq!(made.rate_limit, Some(100));
        let (whole, bad) = read(&*made.source, 0, 8192);
        let whole = &whole[0];
        assert_eq!(whole.num_rows() + bad.len(), 1000);
        assert!((60..140).contains(&bad.len()), "{} bad rows of 1000 at 0.1", bad.len());
        // However it is cut, and wherever it begins.
        let (cut, same_bad) = read(&*made.source, 0, 7);
        assert_eq!(
            (&arrow::compute::concat_batches(&whole.schema(), &cut).expect("one schema"), &same_bad),
            (whole, &bad)
        );
        let (rest, _) = read(&*made.source, 500, 8192);
        assert_eq!(rest[0], whole.slice(whole.num_rows() - rest[0].num_rows(), rest[0].num_rows()));
        let ids = whole.column(0).as_primitive::<Int64Type>().values();
        assert!(ids.iter().all(|id| !bad.contains(&(*id as u64 - 5))));
        // Event time runs with the rate; late rows are behind what disorder allows.
        let late =
            ids.iter().zip(whole.column(6).as_primitive::<TimestampMicrosecondType>().values()).filter(|(id, at)| {
                let behind = START_MICROS + (**id - 5) * 10_000 - **at;
                assert!((0..=65_000_001).contains(&behind), "{behind}");
                behind > 5_000_000
            });
        assert!((50..140).contains(&late.count()));
    }

    #[test]
    fn options_are_checked() {
        let columns = [column("id", DataType::Int32), column("t", DataType::Utf8)];
        let hint = |options: &[(&str, &str)]| {
            let error = table(options, &columns).err().expect("refused");
            format!("{} {}", error.message(), error.hint_text().unwrap_or_default())
        };
        assert!(hint(&[("fields.idd.kind", "random")]).contains("fields.idd.kind\" names no column"));
        assert!(hint(&[("fields.id.kind", "sequenc")]).contains("Did you mean \"sequence\"?"));
        assert!(hint(&[("fields.id.step", "1")]).contains("Here are known: kind, min, max"));
        assert!(hint(&[("fields.t.kind", "sequence")]).contains("A sequence is of integers"));
        assert!(hint(&[("fields.id.max", "3000000000")]).contains("whole number that the column's type takes"));
        assert!(hint(&[("fields.id.kind", "choice"), ("fields.id.values", "1, x")]).contains("invalid input syntax"));
        assert!(hint(&[("row_per_second", "5")]).contains("Did you mean \"rows_per_second\"?"));
        assert!(hint(&[("late_share", "2")]).contains("0 to 1"));
    }
}
