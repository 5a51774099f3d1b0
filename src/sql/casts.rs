//! PostgreSQL's casts, where DataFusion's differ: rounding, ranges, texts, and the errors' codes.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeBinaryArray, LargeStringArray, ListArray, PrimitiveArray,
    StringArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, FieldRef, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, IntervalUnit, Time64MicrosecondType, TimestampMicrosecondType, i256,
};
use arrow::error::ArrowError;
use arrow::util::display::FormatOptions;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::arithmetic::{divide_rounded, out_of_range};
use super::cast_text::{
    array_from_text, array_to_text, bytes_from_text, bytes_to_text, double_to_text, interval_from_text,
    interval_to_text, numeric_from_text, numeric_to_text, real_to_text, time_to_text, timestamp_to_text,
    uuid_from_text, uuid_to_text,
};
use super::errors::{from_arrow, from_datafusion, to_arrow, to_datafusion};
use super::types::{UTC, sql_name};
use super::zone::{names_zone, zone_of};
use crate::types::text::parse::parse_timestamp;
use crate::types::{Error, SqlState, TimeZone, json};

/// The function's name in plans.
pub(crate) const NAME: &str = "pg_cast";

/// `expression` cast from a type to another, as PostgreSQL does it.
pub fn cast(expression: Expr, from: &DataType, to: &DataType) -> Expr {
    if from == to {
        return expression;
    }
    // A null array, where DataFusion would make an array of a null.
    if *from == DataType::Null
        && matches!(to, DataType::List(_))
        && let Ok(null) = ScalarValue::try_from(to)
    {
        return Expr::Literal(null, None);
    }
    if let Some(Ok(value)) = literal_value(&expression, to)
        && !matches!(to, DataType::Timestamp(_, Some(_)))
    {
        return Expr::Literal(value, None);
    }
    if is_ours(from, to) {
        let function = PgCast { target: to.clone(), signature: Signature::any(1, Volatility::Immutable) };
        ScalarUDF::new_from_impl(function).call(vec![expression])
    } else {
        datafusion::logical_expr::cast(expression, to.clone())
    }
}

/// What a text without a type is as a value of a type; `None` for other expressions. Times are in UTC.
fn literal_value(expression: &Expr, to: &DataType) -> Option<Result<ScalarValue, Error>> {
    let Expr::Literal(ScalarValue::Utf8(Some(text)), _) = expression else { return None };
    if !is_ours(&DataType::Utf8, to) {
        return None;
    }
    let texts: ArrayRef = Arc::new(StringArray::from(vec![text.as_str()]));
    let value = cast_array(&texts, to);
    Some(value.and_then(|value| ScalarValue::try_from_array(&value, 0).map_err(|error| from_datafusion(&error))))
}

/// Refuses casts of literals that cannot succeed, before anything runs.
///
/// # Errors
/// 22P02 and others of class 22.
pub(crate) fn check_literals(expression: &Expr) -> DataFusionResult<()> {
    expression
        .apply(|part| {
            if let Expr::ScalarFunction(call) = part
                && call.func.name() == NAME
                && let [argument] = call.args.as_slice()
                && let Some(function) = call.func.inner().downcast_ref::<PgCast>()
                && let Some(Err(error)) = literal_value(argument, &function.target)
            {
                return Err(to_datafusion(error));
            }
            Ok(TreeNodeRecursion::Continue)
        })
        .map(|_| ())
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::Utf8View)
}

/// True for pairs that can fail, or whose result DataFusion words or rounds otherwise.
fn is_ours(from: &DataType, to: &DataType) -> bool {
    use DataType::*;
    match (from, to) {
        (from, to) if is_text(from) => !is_text(to) && !matches!(to, Struct(_) | Map(..) | Null),
        (List(_), Utf8) => true,
        (LargeUtf8, Utf8 | Boolean | Int16 | Int32 | Int64 | Float32 | Float64 | Decimal128(..)) => true,
        (
            Float32 | Float64 | Decimal128(..) | Timestamp(..) | Time64(_) | Interval(_) | Binary | FixedSizeBinary(16),
            Utf8,
        ) => true,
        (Float32 | Float64 | Decimal128(..), Int16 | Int32 | Int64 | Decimal128(..)) => true,
        (Float64 | Decimal128(..), Float32) | (Decimal128(..), Float64) => true,
        (Int32 | Int64, Int16) | (Int64, Int32) => true,
        (Int16 | Int32 | Int64, Decimal128(..)) => true,
        (UInt64, Int64) => true,
        _ => false,
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct PgCast {
    target: DataType,
    signature: Signature,
}

impl ScalarUDFImpl for PgCast {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _types: &[DataType]) -> DataFusionResult<DataType> {
        Ok(self.target.clone())
    }

    fn display_name(&self, args: &[Expr]) -> DataFusionResult<String> {
        let inner = args.first().map(ToString::to_string).unwrap_or_default();
        Ok(format!("{inner}::{}", sql_name(&self.target)))
    }

    fn schema_name(&self, args: &[Expr]) -> DataFusionResult<String> {
        let inner = args.first().map(|inner| inner.schema_name().to_string()).unwrap_or_default();
        Ok(format!("{inner}::{}", sql_name(&self.target)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let Some(value) = args.args.first() else {
            return Err(to_datafusion(Error::internal("a cast takes one argument")));
        };
        let constant = matches!(value, ColumnarValue::Scalar(_));
        let values = value.to_array(if constant { 1 } else { args.number_rows })?;
        let zone = zone_of(&args.config_options);
        let values = cast_array_in(&values, &self.target, &zone).map_err(to_datafusion)?;
        if constant {
            Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&values, 0)?))
        } else {
            Ok(ColumnarValue::Array(values))
        }
    }
}

const STRICT: CastOptions<'static> = CastOptions { safe: false, format_options: FormatOptions::new() };
const LENIENT: CastOptions<'static> = CastOptions { safe: true, format_options: FormatOptions::new() };

/// Casts an array as PostgreSQL does in a session with a time zone.
///
/// # Errors
/// As [`cast_array`].
pub fn cast_array_in(values: &ArrayRef, to: &DataType, zone: &TimeZone) -> Result<ArrayRef, Error> {
    if zone.is_utc() {
        return cast_array(values, to);
    }
    let micros = DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, Some(UTC.into()));
    match (values.data_type(), to) {
        (from, to) if is_text(from) && *to == micros => {
            let parsed = cast_array(values, to)?;
            let texts = cast_with_options(values, &DataType::Utf8, &STRICT).map_err(|error| from_arrow(&error))?;
            let moments = texts.as_string::<i32>().iter().zip(parsed.as_primitive::<TimestampMicrosecondType>());
            let moments: PrimitiveArray<TimestampMicrosecondType> = moments
                .map(|(text, moment)| match (text, moment) {
                    (Some(text), Some(moment)) if !names_zone(text) => Some(zone.utc_of_local(moment)),
                    (_, moment) => moment,
                })
                .collect();
            Ok(Arc::new(moments.with_timezone(UTC)))
        }
        (DataType::Timestamp(_, Some(_)), DataType::Utf8) => {
            let values = cast_with_options(values, &micros, &STRICT).map_err(|error| from_arrow(&error))?;
            texts::<TimestampMicrosecondType>(&values, |moment| {
                let mut offset = String::new();
                zone.write_offset_at(moment, &mut offset);
                let text = timestamp_to_text(zone.local(moment), false)?;
                // The era comes last.
                Ok(match text.strip_suffix(" BC") {
                    Some(text) => format!("{text}{offset} BC"),
                    None => format!("{text}{offset}"),
                })
            })
            .map_err(|error| from_arrow(&error))
        }
        _ => cast_array(values, to),
    }
}

/// Casts an array as PostgreSQL does; texts of times without a zone are in UTC.
///
/// # Errors
/// 22P02 for texts that are no value of the type, 22003 for numbers out of its range.
pub fn cast_array(values: &ArrayRef, to: &DataType) -> Result<ArrayRef, Error> {
    let plain = || cast_with_options(values, to, &STRICT).map_err(|error| from_arrow(&error));
    let from = values.data_type();
    if from == to {
        return Ok(Arc::clone(values));
    }
    if is_text(from) && !is_text(to) {
        let texts = cast_with_options(values, &DataType::Utf8, &STRICT).map_err(|error| from_arrow(&error))?;
        return from_text(texts.as_string::<i32>(), to);
    }
    let result = match (from, to) {
        (DataType::Float32, to) => floats(values.as_primitive::<Float32Type>(), to),
        (DataType::Float64, to) => floats(values.as_primitive::<Float64Type>(), to),
        (DataType::Decimal128(_, scale), to) => decimals(values.as_primitive::<Decimal128Type>(), *scale, to),
        (DataType::Int64, DataType::Int32) => narrow::<Int64Type, Int32Type>(values, |value| i32::try_from(value).ok()),
        (DataType::Int64, DataType::Int16) => narrow::<Int64Type, Int16Type>(values, |value| i16::try_from(value).ok()),
        (DataType::Int32, DataType::Int16) => narrow::<Int32Type, Int16Type>(values, |value| i16::try_from(value).ok()),
        (DataType::Int16 | DataType::Int32 | DataType::Int64, DataType::Decimal128(precision, scale)) => {
            let wide = cast_with_options(values, &DataType::Int64, &STRICT).map_err(|error| from_arrow(&error))?;
            let (precision, scale) = (*precision, *scale);
            rescaled(&wide.as_primitive::<Int64Type>().unary(i128::from), 0, precision, scale)
        }
        (DataType::Timestamp(_, zone), DataType::Utf8) => {
            let micros = DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, zone.clone());
            let values = cast_with_options(values, &micros, &STRICT).map_err(|error| from_arrow(&error))?;
            let zoned = zone.is_some();
            texts::<TimestampMicrosecondType>(&values, |value| timestamp_to_text(value, zoned))
        }
        (DataType::Time64(_), DataType::Utf8) => {
            let micros = DataType::Time64(arrow::datatypes::TimeUnit::Microsecond);
            let values = cast_with_options(values, &micros, &STRICT).map_err(|error| from_arrow(&error))?;
            texts::<Time64MicrosecondType>(&values, |value| Ok(time_to_text(value)))
        }
        (DataType::Interval(arrow::datatypes::IntervalUnit::MonthDayNano), DataType::Utf8) => {
            texts::<IntervalMonthDayNanoType>(values, |value| Ok(interval_to_text(value)))
        }
        (DataType::List(_), DataType::Utf8) => return array_texts(values),
        (DataType::LargeUtf8, to) if *to != DataType::Utf8 => return from_documents(values, to),
        (DataType::Binary, DataType::Utf8) => {
            let texts: StringArray = values.as_binary::<i32>().iter().map(|bytes| bytes.map(bytes_to_text)).collect();
            Ok(Arc::new(texts) as ArrayRef)
        }
        (DataType::FixedSizeBinary(16), DataType::Utf8) => {
            let texts: StringArray =
                values.as_fixed_size_binary().iter().map(|bytes| bytes.map(uuid_to_text)).collect();
            Ok(Arc::new(texts) as ArrayRef)
        }
        _ => return plain(),
    };
    result.map_err(|error| from_arrow(&error))
}

fn texts<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    word: impl Fn(T::Native) -> Result<String, Error>,
) -> Result<ArrayRef, ArrowError> {
    let texts = values
        .as_primitive::<T>()
        .iter()
        .map(|value| value.map(&word).transpose())
        .collect::<Result<StringArray, Error>>();
    Ok(Arc::new(texts.map_err(to_arrow)?))
}

fn narrow<From, To>(values: &ArrayRef, fit: impl Fn(From::Native) -> Option<To::Native>) -> Result<ArrayRef, ArrowError>
where
    From: ArrowPrimitiveType,
    To: ArrowPrimitiveType,
{
    let narrowed: PrimitiveArray<To> = values
        .as_primitive::<From>()
        .try_unary(|value| fit(value).ok_or_else(|| to_arrow(out_of_range(&To::DATA_TYPE))))?;
    Ok(Arc::new(narrowed))
}

fn floats<T>(values: &PrimitiveArray<T>, to: &DataType) -> Result<ArrayRef, ArrowError>
where
    T: ArrowPrimitiveType,
    T::Native: Into<f64>,
{
    /// Halves to even, then the range: `2^bits` is exact as a double.
    fn whole(value: f64, bits: i32, to: &DataType) -> Result<f64, ArrowError> {
        let rounded = value.round_ties_even();
        let bound = 2_f64.powi(bits);
        if rounded >= -bound && rounded < bound { Ok(rounded) } else { Err(to_arrow(out_of_range(to))) }
    }
    Ok(match to {
        // The range was checked just before each of these conversions.
        DataType::Int16 => {
            Arc::new(values.try_unary::<_, Int16Type, ArrowError>(|value| Ok(whole(value.into(), 15, to)? as i16))?)
        }
        DataType::Int32 => {
            Arc::new(values.try_unary::<_, Int32Type, ArrowError>(|value| Ok(whole(value.into(), 31, to)? as i32))?)
        }
        DataType::Int64 => {
            Arc::new(values.try_unary::<_, Int64Type, ArrowError>(|value| Ok(whole(value.into(), 63, to)? as i64))?)
        }
        DataType::Float32 => Arc::new(values.try_unary::<_, Float32Type, ArrowError>(|value| {
            let wide: f64 = value.into();
            let value = wide as f32;
            if value.is_infinite() && wide.is_finite() { Err(to_arrow(out_of_range(to))) } else { Ok(value) }
        })?),
        DataType::Decimal128(precision, scale) => {
            let single = T::DATA_TYPE == DataType::Float32;
            let values: PrimitiveArray<Decimal128Type> = values.try_unary(|value| {
                let value: f64 = value.into();
                if !value.is_finite() {
                    return Err(to_arrow(
                        Error::unsupported("numeric has no NaN and no infinity")
                            .hint("Keep the value as double precision."),
                    ));
                }
                // Through the digits that PostgreSQL keeps of it: 6 of a real, 15 of a double.
                let text = if single { format!("{value:.5e}") } else { format!("{value:.14e}") };
                numeric_from_text(&text, *precision, *scale).map_err(to_arrow)
            })?;
            Arc::new(values.with_precision_and_scale(*precision, *scale)?)
        }
        DataType::Utf8 => {
            let single = T::DATA_TYPE == DataType::Float32;
            let texts: StringArray = values
                .iter()
                .map(|value| {
                    value.map(|value| {
                        let value: f64 = value.into();
                        // A real is printed with the digits that tell it from other reals.
                        if single { real_to_text(value as f32) } else { double_to_text(value) }
                    })
                })
                .collect();
            Arc::new(texts)
        }
        _ => return cast_with_options(values, to, &STRICT),
    })
}

fn decimals(values: &PrimitiveArray<Decimal128Type>, scale: i8, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let whole = |value: i128| {
        divide_rounded(i256::from_i128(value), i256::from_i128(10_i128.checked_pow(u32::from(scale.unsigned_abs()))?))?
            .to_i128()
    };
    fn integers<T: ArrowPrimitiveType>(
        values: &PrimitiveArray<Decimal128Type>,
        fit: impl Fn(i128) -> Option<T::Native>,
    ) -> Result<ArrayRef, ArrowError> {
        let values: PrimitiveArray<T> =
            values.try_unary(|value| fit(value).ok_or_else(|| to_arrow(out_of_range(&T::DATA_TYPE))))?;
        Ok(Arc::new(values))
    }
    match to {
        DataType::Int16 => integers::<Int16Type>(values, |value| whole(value)?.try_into().ok()),
        DataType::Int32 => integers::<Int32Type>(values, |value| whole(value)?.try_into().ok()),
        DataType::Int64 => integers::<Int64Type>(values, |value| whole(value)?.try_into().ok()),
        DataType::Decimal128(precision, wanted) => rescaled(values, scale, *precision, *wanted),
        DataType::Utf8 => {
            let data_type = values.data_type().clone();
            let texts: StringArray =
                values.iter().map(|value| value.map(|value| numeric_to_text(value, &data_type))).collect();
            Ok(Arc::new(texts))
        }
        // The nearest double.
        DataType::Float64 | DataType::Float32 => {
            let data_type = values.data_type().clone();
            let parse = |value: i128| {
                // Both parts are exact then, so one division rounds as the text would.
                if value.unsigned_abs() < 1 << 53 && (0..=22).contains(&scale) {
                    return value as f64 / 10_f64.powi(i32::from(scale));
                }
                numeric_to_text(value, &data_type).parse::<f64>().unwrap_or(f64::NAN)
            };
            let doubles: PrimitiveArray<Float64Type> = values.unary(parse);
            if *to == DataType::Float64 { Ok(Arc::new(doubles)) } else { floats(&doubles, to) }
        }
        _ => cast_with_options(values, to, &STRICT),
    }
}

/// Numerics brought from one scale to another, halves away from zero.
fn rescaled(
    values: &PrimitiveArray<Decimal128Type>,
    scale: i8,
    precision: u8,
    wanted: i8,
) -> Result<ArrayRef, ArrowError> {
    let bound = 10_u128.pow(u32::from(precision));
    let steps = i16::from(wanted) - i16::from(scale);
    let factor = 10_i128.checked_pow(u32::from(steps.unsigned_abs()));
    let overflow = || {
        let error = Error::new(SqlState::NumericOutOfRange, "numeric field overflow").detail(format!(
            "A field with precision {precision}, scale {wanted} must round to an absolute value less than 10^{}.",
            i16::from(precision) - i16::from(wanted)
        ));
        to_arrow(error)
    };
    let moved = |value: i128| {
        let factor = factor?;
        let value = if steps >= 0 {
            value.checked_mul(factor)?
        } else {
            divide_rounded(i256::from_i128(value), i256::from_i128(factor))?.to_i128()?
        };
        Some(value).filter(|value| value.unsigned_abs() < bound)
    };
    let values: PrimitiveArray<Decimal128Type> = values.try_unary(|value| moved(value).ok_or_else(overflow))?;
    Ok(Arc::new(values.with_precision_and_scale(precision, wanted)?))
}

/// Arrays as text: their elements' texts between braces.
fn array_texts(values: &ArrayRef) -> Result<ArrayRef, Error> {
    let lists = values.as_list::<i32>();
    let mut texts = Vec::with_capacity(lists.len());
    for list in lists.iter() {
        let Some(elements) = list else {
            texts.push(None);
            continue;
        };
        let nested = matches!(elements.data_type(), DataType::List(_));
        let words = if let Some(booleans) = elements.as_boolean_opt() {
            let words: StringArray =
                booleans.iter().map(|value| value.map(|value| if value { "t" } else { "f" })).collect();
            Arc::new(words) as ArrayRef
        } else {
            cast_array(&elements, &DataType::Utf8)?
        };
        texts.push(Some(array_to_text(words.as_string::<i32>().iter(), nested)));
    }
    Ok(Arc::new(StringArray::from(texts)))
}

fn arrays_from_text(texts: &StringArray, element: &FieldRef, to: &DataType) -> Result<ArrayRef, Error> {
    let nested = matches!(element.data_type(), DataType::List(_));
    let mut words: Vec<Option<String>> = Vec::new();
    let mut lengths = Vec::with_capacity(texts.len());
    for text in texts {
        let before = words.len();
        if let Some(text) = text {
            let malformed = || {
                Error::new(SqlState::InvalidText, format!("malformed array literal: \"{text}\""))
                    .detail(format!("It is to be a value of type {}, such as {{a,b,NULL}}.", sql_name(to)))
            };
            words.extend(array_from_text(text, nested).ok_or_else(malformed)?);
        }
        lengths.push(words.len() - before);
    }
    let words: ArrayRef = Arc::new(StringArray::from(words));
    let elements = cast_array(&words, element.data_type())?;
    let list =
        ListArray::try_new(Arc::clone(element), OffsetBuffer::from_lengths(lengths), elements, texts.nulls().cloned());
    Ok(Arc::new(list.map_err(|error| from_arrow(&error))?))
}

/// Numbers and truth values out of documents.
fn from_documents(values: &ArrayRef, to: &DataType) -> Result<ArrayRef, Error> {
    let wanted = if *to == DataType::Boolean { "boolean" } else { "number" };
    let texts = values
        .as_string::<i64>()
        .iter()
        .map(|document| match document {
            None | Some("null") => Ok(None),
            Some(document) if json::type_of(document) == wanted => Ok(Some(document)),
            Some(document) => {
                let (kind, to) = (json::type_of(document), sql_name(to));
                Err(Error::new(SqlState::InvalidParameterValue, format!("cannot cast jsonb {kind} to type {to}"))
                    .hint("Take the text out with ->> or #>> '{}', and cast that."))
            }
        })
        .collect::<Result<StringArray, Error>>()?;
    // Numbers are rounded to integers, as a numeric would be.
    if to.is_integer() {
        let numerics = from_text(&texts, &DataType::Decimal128(38, 10))?;
        return cast_array(&numerics, to);
    }
    from_text(&texts, to)
}

fn invalid(text: &str, to: &DataType) -> Error {
    // It looks like a date or a time and is none that there is.
    let mut characters = text.trim().chars();
    let timed = matches!(to, DataType::Date32 | DataType::Time64(_) | DataType::Timestamp(..));
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty()).count();
    if timed
        && numbers > 1
        && characters.all(|c| c.is_ascii_digit() || matches!(c, '-' | ':' | '.' | ' ' | 'T' | 'Z' | '+'))
    {
        return Error::new(SqlState::DatetimeOverflow, format!("date/time field value out of range: \"{text}\""));
    }
    Error::new(SqlState::InvalidText, format!("invalid input syntax for type {}: \"{text}\"", sql_name(to)))
}

fn from_text(texts: &StringArray, to: &DataType) -> Result<ArrayRef, Error> {
    fn parsed<T: ArrowPrimitiveType>(
        texts: &StringArray,
        parse: impl Fn(&str) -> Result<T::Native, Error>,
    ) -> Result<PrimitiveArray<T>, Error> {
        texts.iter().map(|text| text.map(&parse).transpose()).collect()
    }
    fn integer<T: TryFrom<i128>>(text: &str, to: &DataType) -> Result<T, Error> {
        let trimmed = text.trim();
        let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid(text, to));
        }
        // More digits than an i128 holds are out of range like any other number too large.
        trimmed.parse::<i128>().ok().and_then(|value| T::try_from(value).ok()).ok_or_else(|| {
            Error::new(
                SqlState::NumericOutOfRange,
                format!("value \"{trimmed}\" is out of range for type {}", sql_name(to)),
            )
        })
    }
    /// True when the text's number is too large or too small for the type.
    fn lost(text: &str, zero: bool, infinite: bool) -> bool {
        let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
        let digits = mantissa.bytes().any(|byte| byte.is_ascii_digit());
        infinite && digits || zero && mantissa.bytes().any(|byte| matches!(byte, b'1'..=b'9'))
    }
    let beyond = |text: &str, to: &DataType| {
        let message = format!("\"{}\" is out of range for type {}", text.trim(), sql_name(to));
        Error::new(SqlState::NumericOutOfRange, message)
    };
    Ok(match to {
        DataType::Int16 => Arc::new(parsed::<Int16Type>(texts, |text| integer(text, to))?),
        DataType::Int32 => Arc::new(parsed::<Int32Type>(texts, |text| integer(text, to))?),
        DataType::Int64 => Arc::new(parsed::<Int64Type>(texts, |text| integer(text, to))?),
        DataType::Float32 => Arc::new(parsed::<Float32Type>(texts, |text| {
            let value: f32 = text.trim().parse().map_err(|_| invalid(text, to))?;
            if lost(text, value == 0.0, value.is_infinite()) { Err(beyond(text, to)) } else { Ok(value) }
        })?),
        DataType::Float64 => Arc::new(parsed::<Float64Type>(texts, |text| {
            let value: f64 = text.trim().parse().map_err(|_| invalid(text, to))?;
            if lost(text, value == 0.0, value.is_infinite()) { Err(beyond(text, to)) } else { Ok(value) }
        })?),
        DataType::List(element) => arrays_from_text(texts, element, to)?,
        DataType::LargeUtf8 => {
            let documents = texts.iter().map(|text| text.map(json::canonical).transpose());
            Arc::new(documents.collect::<Result<LargeStringArray, Error>>()?)
        }
        // The common spellings, seconds left out too; arrow knows the rest.
        DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, zone)
            if texts.iter().flatten().all(|text| parse_timestamp(text, zone.is_some()).is_some()) =>
        {
            let values: PrimitiveArray<TimestampMicrosecondType> =
                texts.iter().map(|text| text.and_then(|text| parse_timestamp(text, zone.is_some()))).collect();
            Arc::new(values.with_timezone_opt(zone.clone()))
        }
        DataType::Interval(IntervalUnit::MonthDayNano) if texts.iter().flatten().any(|text| text.contains(':')) => {
            Arc::new(parsed::<IntervalMonthDayNanoType>(texts, |text| match interval_from_text(text) {
                Some(value) => Ok(value),
                // What is not of that form may be of another.
                None => {
                    let one: ArrayRef = Arc::new(StringArray::from(vec![text.trim()]));
                    let values = cast_with_options(&one, to, &LENIENT).map_err(|error| from_arrow(&error))?;
                    let values = values.as_primitive::<IntervalMonthDayNanoType>();
                    if values.is_null(0) { Err(invalid(text, to)) } else { Ok(values.value(0)) }
                }
            })?)
        }
        DataType::Decimal128(precision, scale) => {
            let values = parsed::<Decimal128Type>(texts, |text| numeric_from_text(text, *precision, *scale))?;
            Arc::new(values.with_precision_and_scale(*precision, *scale).map_err(|error| from_arrow(&error))?)
        }
        DataType::Boolean => {
            let values =
                texts.iter().map(|text| text.map(|text| boolean(text).ok_or_else(|| invalid(text, to))).transpose());
            Arc::new(values.collect::<Result<BooleanArray, Error>>()?)
        }
        DataType::Binary => {
            let values = texts
                .iter()
                .map(|text| text.map(|text| bytes_from_text(text).ok_or_else(|| invalid(text, to))).transpose());
            Arc::new(
                values
                    .collect::<Result<Vec<Option<Vec<u8>>>, Error>>()?
                    .iter()
                    .map(Option::as_deref)
                    .collect::<arrow::array::BinaryArray>(),
            )
        }
        DataType::FixedSizeBinary(16) => {
            let values = texts
                .iter()
                .map(|text| text.map(|text| uuid_from_text(text).ok_or_else(|| invalid(text, to))).transpose());
            let values = values.collect::<Result<Vec<Option<[u8; 16]>>, Error>>()?;
            Arc::new(
                FixedSizeBinaryArray::try_from_sparse_iter_with_size(values.into_iter(), 16)
                    .map_err(|error| from_arrow(&error))?,
            )
        }
        _ => {
            let trimmed: StringArray = texts.iter().map(|text| text.map(str::trim)).collect();
            let values = cast_with_options(&trimmed, to, &LENIENT).map_err(|error| from_arrow(&error))?;
            // A lenient cast gives NULL for what is no value: the first such text is the error's.
            for (row, text) in texts.iter().enumerate() {
                if let Some(text) = text
                    && values.is_null(row)
                {
                    return Err(invalid(text, to));
                }
            }
            values
        }
    })
}

/// Any beginning of `true`, `false`, `yes`, `no`, and of `on` and `off` what tells them apart.
fn boolean(text: &str) -> Option<bool> {
    let text = text.trim().to_lowercase();
    match text.as_str() {
        "" | "o" => None,
        "1" | "on" => Some(true),
        "0" | "of" | "off" => Some(false),
        text if "true".starts_with(text) || "yes".starts_with(text) => Some(true),
        text if "false".starts_with(text) || "no".starts_with(text) => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Decimal128Array, Float64Array, Int64Array};

    fn text(values: &[&str], to: &DataType) -> Result<ArrayRef, Error> {
        cast_array(&(Arc::new(StringArray::from(values.to_vec())) as ArrayRef), to)
    }

    #[test]
    fn doubles_round_to_even_and_numerics_away_from_zero() {
        let doubles: ArrayRef = Arc::new(Float64Array::from(vec![0.5, 1.5, 2.5, -0.5, -1.5]));
        let whole = cast_array(&doubles, &DataType::Int32).expect("integers");
        assert_eq!(whole.as_primitive::<Int32Type>().values().to_vec(), vec![0, 2, 2, 0, -2]);
        let numerics: ArrayRef =
            Arc::new(Decimal128Array::from(vec![5, 15, 25, -5]).with_precision_and_scale(5, 1).expect("numeric(5,1)"));
        let whole = cast_array(&numerics, &DataType::Int32).expect("integers");
        assert_eq!(whole.as_primitive::<Int32Type>().values().to_vec(), vec![1, 2, 3, -1]);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let big: ArrayRef = Arc::new(Float64Array::from(vec![2_147_483_648.0]));
        let error = cast_array(&big, &DataType::Int32).expect_err("too large");
        assert_eq!((error.code(), error.message()), (SqlState::NumericOutOfRange, "integer out of range"));
        let big: ArrayRef = Arc::new(Int64Array::from(vec![40_000]));
        let error = cast_array(&big, &DataType::Int16).expect_err("too large");
        assert_eq!((error.code(), error.message()), (SqlState::NumericOutOfRange, "smallint out of range"));
        let error = text(&["abc"], &DataType::Int32).expect_err("no number");
        assert_eq!(error.message(), "invalid input syntax for type integer: \"abc\"");
        assert_eq!(error.code(), SqlState::InvalidText);
        let error = text(&["99999999999"], &DataType::Int32).expect_err("too large");
        assert_eq!(error.code(), SqlState::NumericOutOfRange);
        let error = text(&["12345.6"], &DataType::Decimal128(5, 1)).expect_err("too large");
        assert_eq!(error.message(), "numeric field overflow");
        assert_eq!(text(&["maybe"], &DataType::Boolean).expect_err("no boolean").code(), SqlState::InvalidText);
    }

    #[test]
    fn arrays_are_read_and_written_as_in_postgresql() {
        let list = |data_type| DataType::List(Arc::new(arrow::datatypes::Field::new_list_field(data_type, true)));
        let numbers = text(&["{1,2,3}", "{}", " { 4 , NULL } "], &list(DataType::Int32)).expect("arrays");
        let back = cast_array(&numbers, &DataType::Utf8).expect("texts");
        assert_eq!(back.as_string::<i32>(), &StringArray::from(vec!["{1,2,3}", "{}", "{4,NULL}"]));
        let words = ["{a,\"b c\",\"\",\"NULL\",\"q\\\"\\\\\"}"];
        let texts = text(&words, &list(DataType::Utf8)).expect("arrays");
        let first = texts.as_list::<i32>().value(0);
        assert_eq!(first.as_string::<i32>(), &StringArray::from(vec!["a", "b c", "", "NULL", "q\"\\"]));
        assert_eq!(cast_array(&texts, &DataType::Utf8).expect("texts").as_string::<i32>().value(0), words[0]);
        let nested = text(&["{{1,2},{3}}"], &list(list(DataType::Int16))).expect("arrays");
        assert_eq!(cast_array(&nested, &DataType::Utf8).expect("texts").as_string::<i32>().value(0), "{{1,2},{3}}");
        for bad in ["1,2", "{1,2", "{1,,2}", "{1}}", "{\"a}", "{a\"b\"}", "{{1}}"] {
            assert_eq!(text(&[bad], &list(DataType::Int32)).expect_err(bad).code(), SqlState::InvalidText, "{bad}");
        }
        let nulls: ArrayRef = Arc::new(StringArray::from(vec![None::<&str>]));
        assert!(cast_array(&nulls, &list(DataType::Int32)).expect("arrays").is_null(0));
    }

    #[test]
    fn a_double_beyond_its_range_is_an_error() {
        for bad in ["1e400", "-1e400", "1e-400"] {
            let error = text(&[bad], &DataType::Float64).expect_err(bad);
            assert_eq!(error.code(), SqlState::NumericOutOfRange);
            assert_eq!(error.message(), format!("\"{bad}\" is out of range for type double precision"));
        }
        let fine = text(&["Infinity", "-inf", "0e999", "NaN"], &DataType::Float64).expect("doubles");
        assert_eq!(fine.as_primitive::<Float64Type>().value(0), f64::INFINITY);
        assert_eq!(text(&["1e40"], &DataType::Float32).expect_err("a real").code(), SqlState::NumericOutOfRange);
    }

    #[test]
    fn texts_are_read_as_postgresql_reads_them() {
        let numbers = text(&[" 42 ", "-7"], &DataType::Int32).expect("numbers");
        assert_eq!(numbers.as_primitive::<Int32Type>().values().to_vec(), vec![42, -7]);
        let numerics = text(&["1.255", "-1.255", "1e2"], &DataType::Decimal128(10, 2)).expect("numerics");
        assert_eq!(numerics.as_primitive::<Decimal128Type>().values().to_vec(), vec![126, -126, 10_000]);
        let booleans = text(&["t", "FALSE", "y", "off"], &DataType::Boolean).expect("booleans");
        assert_eq!(booleans.as_boolean(), &BooleanArray::from(vec![true, false, true, false]));
    }
}
