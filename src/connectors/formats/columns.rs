//! The columns of a batch while its rows are read.

use std::sync::Arc;

use arrow::array::{
    ArrayBuilder, ArrayRef, BinaryBuilder, BooleanArray, BooleanBuilder, Date32Builder, Decimal128Builder,
    FixedSizeBinaryBuilder, Float32Builder, Float64Builder, Int16Builder, Int32Builder, Int64Builder,
    LargeStringBuilder, RecordBatch, RecordBatchOptions, StringBuilder, Time64MicrosecondBuilder,
    TimestampMicrosecondBuilder,
};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};

use super::json::JsonValue;
use super::values::{self, TimestampUnit, ValueError};
use crate::connectors::ConnectorColumn;
use crate::types::json::{self, JSONB};
use crate::types::text::parse as datetime;
use crate::types::{Error, Result, SqlState};

/// Why a row is a bad one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowError {
    /// The SQLSTATE.
    pub(crate) code: SqlState,
    /// The column, when the fault lies in one.
    pub(crate) column: Option<String>,
    /// The reason.
    pub(crate) reason: String,
}

impl RowError {
    /// The record is not of its format.
    pub(crate) fn record(reason: impl Into<String>) -> RowError {
        RowError { code: SqlState::BadCopyFormat, column: None, reason: reason.into() }
    }
}

/// The columns of one batch. Each row puts one value into every column; a row that fails on the way is filled up and
/// left out at the end, so that it costs its neighbours nothing.
pub(crate) struct Columns {
    /// Of the kept columns.
    schema: SchemaRef,
    columns: Vec<Column>,
    /// Indexes of the kept columns, in the order asked for.
    kept: Vec<usize>,
    /// Whole rows.
    good: usize,
    /// For each row put in whether it is whole; empty while all are.
    whole: Vec<bool>,
}

impl Columns {
    /// Empty columns. All are checked, those in `kept` are kept.
    ///
    /// # Errors
    /// 0A000 for a type that no format can fill.
    pub(crate) fn new(
        schema: &SchemaRef,
        columns: &[ConnectorColumn],
        unit: Option<TimestampUnit>,
        kept: &[usize],
    ) -> Result<Columns> {
        let columns = columns
            .iter()
            .enumerate()
            .map(|(index, column)| Column::new(column, unit, kept.contains(&index)))
            .collect::<Result<_>>()?;
        let schema = Arc::new(schema.project(kept)?);
        Ok(Columns { schema, columns, kept: kept.to_vec(), good: 0, whole: Vec::new() })
    }

    /// Whole rows so far.
    pub(crate) fn rows(&self) -> usize {
        self.good
    }

    /// Appends a row; `append` is called for each column with its index.
    pub(crate) fn append_row(
        &mut self,
        mut append: impl FnMut(usize, &mut Column) -> Result<(), ValueError>,
    ) -> Result<(), RowError> {
        let mut failed = None;
        for (index, column) in self.columns.iter_mut().enumerate() {
            if failed.is_some() {
                column.fill();
                continue;
            }
            if let Err(error) = append(index, column) {
                column.fill();
                failed = Some(RowError { code: error.code, column: Some(column.name.clone()), reason: error.reason });
            }
        }
        if failed.is_some() && self.whole.is_empty() {
            self.whole.resize(self.good, true);
        }
        if failed.is_some() || !self.whole.is_empty() {
            self.whole.push(failed.is_none());
        }
        match failed {
            Some(error) => Err(error),
            None => {
                self.good += 1;
                Ok(())
            }
        }
    }

    /// The whole rows as a batch; the columns are empty afterwards.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch> {
        let rows = std::mem::take(&mut self.good);
        let whole = std::mem::take(&mut self.whole);
        let whole = (!whole.is_empty()).then(|| BooleanArray::from(whole));
        let mut arrays: Vec<Option<ArrayRef>> =
            self.columns.iter_mut().map(|column| column.keep.then(|| column.builder().finish())).collect();
        let mut chosen = Vec::with_capacity(self.kept.len());
        for index in &self.kept {
            let array = arrays.get_mut(*index).and_then(Option::take);
            let array = array.ok_or_else(|| Error::internal("a column was asked for twice"))?;
            chosen.push(match &whole {
                Some(whole) => arrow::compute::filter(&array, whole)?,
                None => array,
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), chosen, &options)?)
    }
}

/// One column.
pub(crate) struct Column {
    name: String,
    nullable: bool,
    length_max: Option<usize>,
    unit: Option<TimestampUnit>,
    /// False: values are checked and forgotten.
    keep: bool,
    scratch: Vec<u8>,
    values: Values,
}

enum Values {
    Boolean(BooleanBuilder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    Numeric(Decimal128Builder, u8, i8),
    Text(StringBuilder),
    Bytes(BinaryBuilder),
    Date(Date32Builder),
    Time(Time64MicrosecondBuilder),
    Timestamp(TimestampMicrosecondBuilder, bool),
    Uuid(FixedSizeBinaryBuilder),
    Json(LargeStringBuilder),
}

/// Does the same with the builder of any variant.
macro_rules! each_builder {
    ($values:expr, $builder:ident => $do:expr) => {
        match $values {
            Values::Boolean($builder) => $do,
            Values::Int16($builder) => $do,
            Values::Int32($builder) => $do,
            Values::Int64($builder) => $do,
            Values::Float32($builder) => $do,
            Values::Float64($builder) => $do,
            Values::Numeric($builder, _, _) => $do,
            Values::Text($builder) => $do,
            Values::Bytes($builder) => $do,
            Values::Date($builder) => $do,
            Values::Time($builder) => $do,
            Values::Timestamp($builder, _) => $do,
            Values::Uuid($builder) => $do,
            Values::Json($builder) => $do,
        }
    };
}

/// Appends a value if it is to be kept; it was checked by now.
macro_rules! put {
    ($keep:expr, $builder:ident, $value:expr) => {{
        let value = $value;
        if $keep {
            $builder.append_value(value);
        }
    }};
}

impl Column {
    fn new(column: &ConnectorColumn, unit: Option<TimestampUnit>, keep: bool) -> Result<Column> {
        let values = match &column.data_type {
            DataType::Boolean => Values::Boolean(BooleanBuilder::new()),
            DataType::Int16 => Values::Int16(Int16Builder::new()),
            DataType::Int32 => Values::Int32(Int32Builder::new()),
            DataType::Int64 => Values::Int64(Int64Builder::new()),
            DataType::Float32 => Values::Float32(Float32Builder::new()),
            DataType::Float64 => Values::Float64(Float64Builder::new()),
            DataType::Decimal128(precision, scale) => Values::Numeric(
                Decimal128Builder::new().with_precision_and_scale(*precision, *scale)?,
                *precision,
                *scale,
            ),
            DataType::Utf8 => Values::Text(StringBuilder::new()),
            DataType::Binary => Values::Bytes(BinaryBuilder::new()),
            DataType::Date32 => Values::Date(Date32Builder::new()),
            DataType::Time64(TimeUnit::Microsecond) => Values::Time(Time64MicrosecondBuilder::new()),
            DataType::Timestamp(TimeUnit::Microsecond, zone) => Values::Timestamp(
                TimestampMicrosecondBuilder::new().with_data_type(column.data_type.clone()),
                zone.is_some(),
            ),
            DataType::FixedSizeBinary(16) => Values::Uuid(FixedSizeBinaryBuilder::new(16)),
            data_type if *data_type == JSONB => Values::Json(LargeStringBuilder::new()),
            other => {
                return Err(Error::unsupported(format!(
                    "column \"{}\" of type {other} cannot be read by a connector",
                    column.name
                ))
                .hint("Declare it as text, which keeps the field as it is written."));
            }
        };
        Ok(Column {
            name: column.name.clone(),
            nullable: column.nullable,
            length_max: column.length_max,
            unit,
            keep,
            scratch: Vec::new(),
            values,
        })
    }

    fn builder(&mut self) -> &mut dyn ArrayBuilder {
        each_builder!(&mut self.values, builder => builder)
    }

    /// Appends NULL.
    pub(crate) fn append_null(&mut self) -> Result<(), ValueError> {
        if !self.nullable {
            return Err(ValueError::new(SqlState::NotNullViolation, "null value violates not-null constraint"));
        }
        self.fill();
        Ok(())
    }

    /// Puts a NULL into the place of a value that is left out later.
    fn fill(&mut self) {
        if self.keep {
            each_builder!(&mut self.values, builder => builder.append_null());
        }
    }

    /// Appends a value from its text form.
    pub(crate) fn append_text(&mut self, text: &str) -> Result<(), ValueError> {
        let keep = self.keep;
        match &mut self.values {
            Values::Boolean(builder) => put!(keep, builder, values::boolean(text)?),
            Values::Int16(builder) => {
                let value = values::integer(text, "smallint")?;
                put!(keep, builder, i16::try_from(value).map_err(|_| ValueError::range("smallint", text))?);
            }
            Values::Int32(builder) => {
                let value = values::integer(text, "integer")?;
                put!(keep, builder, i32::try_from(value).map_err(|_| ValueError::range("integer", text))?);
            }
            Values::Int64(builder) => put!(keep, builder, values::integer(text, "bigint")?),
            Values::Float32(builder) => put!(keep, builder, values::real(text)?),
            Values::Float64(builder) => put!(keep, builder, values::double(text)?),
            Values::Numeric(builder, precision, scale) => {
                put!(keep, builder, values::numeric(text, *precision, *scale)?);
            }
            Values::Text(builder) => {
                if memchr::memchr(0, text.as_bytes()).is_some() {
                    return Err(ValueError::new(
                        SqlState::CharacterNotInRepertoire,
                        "invalid byte sequence for encoding \"UTF8\": 0x00",
                    ));
                }
                if let Some(most) = self.length_max
                    && text.len() > most
                    && text.chars().count() > most
                {
                    return Err(ValueError::new(
                        SqlState::StringTooLong,
                        format!("value too long for type character varying({most})"),
                    ));
                }
                put!(keep, builder, text);
            }
            Values::Bytes(builder) => {
                values::bytes(text, &mut self.scratch)?;
                put!(keep, builder, &self.scratch);
            }
            Values::Date(builder) => {
                put!(keep, builder, datetime::parse_date(text).ok_or_else(|| ValueError::syntax("date", text))?);
            }
            Values::Time(builder) => {
                put!(keep, builder, datetime::parse_time(text).ok_or_else(|| ValueError::syntax("time", text))?);
            }
            Values::Timestamp(builder, zoned) => {
                let name = if *zoned { "timestamp with time zone" } else { "timestamp" };
                let value = datetime::parse_timestamp(text, *zoned)
                    .or_else(|| self.unit.and_then(|unit| unit.micros(text.trim())))
                    .ok_or_else(|| ValueError::syntax(name, text))?;
                put!(keep, builder, value);
            }
            Values::Uuid(builder) => {
                let value = values::uuid(text)?;
                if keep {
                    builder
                        .append_value(value)
                        .map_err(|error| ValueError::new(SqlState::InternalError, error.to_string()))?;
                }
            }
            Values::Json(builder) => put!(keep, builder, document(text)?),
        }
        Ok(())
    }

    /// Appends a JSON value, by the table "JSON → column".
    pub(crate) fn append_json(&mut self, value: JsonValue<'_>) -> Result<(), ValueError> {
        let keep = self.keep;
        match (value, &mut self.values) {
            (JsonValue::Null, _) => self.append_null(),
            // Text keeps whatever is there.
            (JsonValue::String(text) | JsonValue::Number(text) | JsonValue::Nested(text), Values::Text(_)) => {
                self.append_text(text)
            }
            (JsonValue::Number(text) | JsonValue::Nested(text), Values::Json(_)) => self.append_text(text),
            (JsonValue::Boolean(value), Values::Json(_)) => self.append_text(if value { "true" } else { "false" }),
            (JsonValue::String(text), Values::Json(builder)) => {
                let mut document = String::with_capacity(text.len() + 2);
                json::write_string(text, &mut document).map_err(no_document)?;
                put!(keep, builder, document);
                Ok(())
            }
            (JsonValue::Boolean(value), Values::Text(_)) => self.append_text(if value { "true" } else { "false" }),
            (JsonValue::Boolean(value), Values::Boolean(builder)) => {
                put!(keep, builder, value);
                Ok(())
            }
            (JsonValue::Number(number), Values::Int16(builder)) => {
                let value = values::integral_number(number, "smallint")?;
                put!(keep, builder, i16::try_from(value).map_err(|_| ValueError::range("smallint", number))?);
                Ok(())
            }
            (JsonValue::Number(number), Values::Int32(builder)) => {
                let value = values::integral_number(number, "integer")?;
                put!(keep, builder, i32::try_from(value).map_err(|_| ValueError::range("integer", number))?);
                Ok(())
            }
            (JsonValue::Number(number), Values::Int64(builder)) => {
                put!(keep, builder, values::integral_number(number, "bigint")?);
                Ok(())
            }
            (JsonValue::Number(number), Values::Float32(_) | Values::Float64(_) | Values::Numeric(..)) => {
                self.append_text(number)
            }
            (JsonValue::Number(number), Values::Timestamp(builder, zoned)) => {
                let name = if *zoned { "timestamp with time zone" } else { "timestamp" };
                let Some(unit) = self.unit else {
                    return Err(ValueError::new(
                        SqlState::InvalidText,
                        format!(
                            "a number is no {name} unless the option timestamp_unit names its unit: {}",
                            values::excerpt(number)
                        ),
                    ));
                };
                let value = unit.micros(number).ok_or_else(|| ValueError::syntax(name, number))?;
                put!(keep, builder, value);
                Ok(())
            }
            (
                JsonValue::String(text),
                Values::Date(_) | Values::Time(_) | Values::Timestamp(..) | Values::Uuid(_) | Values::Bytes(_),
            ) => self.append_text(text),
            (other, _) => Err(self.mismatch(other)),
        }
    }

    fn mismatch(&self, value: JsonValue<'_>) -> ValueError {
        let (kind, text) = match value {
            JsonValue::Null => ("null", "null"),
            JsonValue::Boolean(true) => ("boolean", "true"),
            JsonValue::Boolean(false) => ("boolean", "false"),
            JsonValue::Number(text) => ("number", text),
            JsonValue::String(text) => ("string", text),
            JsonValue::Nested(text) => ("object or array", text),
        };
        ValueError::new(
            SqlState::InvalidText,
            format!("a JSON {kind} is no value of type {}: \"{}\"", self.type_name(), values::excerpt(text)),
        )
    }

    fn type_name(&self) -> &'static str {
        match &self.values {
            Values::Boolean(_) => "boolean",
            Values::Int16(_) => "smallint",
            Values::Int32(_) => "integer",
            Values::Int64(_) => "bigint",
            Values::Float32(_) => "real",
            Values::Float64(_) => "double precision",
            Values::Numeric(..) => "numeric",
            Values::Text(_) => "text",
            Values::Bytes(_) => "bytea",
            Values::Date(_) => "date",
            Values::Time(_) => "time",
            Values::Timestamp(_, true) => "timestamp with time zone",
            Values::Timestamp(_, false) => "timestamp",
            Values::Uuid(_) => "uuid",
            Values::Json(_) => "jsonb",
        }
    }
}

/// A text as a document, in the form that documents are kept in.
fn document(text: &str) -> Result<String, ValueError> {
    json::canonical(text).map_err(no_document)
}

fn no_document(error: Error) -> ValueError {
    ValueError::new(error.code(), error.message())
}
