//! Parquet: columns by name, cast to those of the table. Offsets are rows.
//!
//! Only the columns that are asked for are read, and those whose values may not fit their columns: which rows are bad
//! must not depend on who reads.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, cast_with_options, filter, unary};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Schema, SchemaRef, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use super::paths::open_error;
use super::source::in_file;
use crate::connectors::formats::json::FieldNames;
use crate::connectors::generated::good_offsets;
use crate::connectors::registry::{ConnectorColumn, schema_of};
use crate::exec::source::{BadRow, Offset, Read, ReadRequest, SourceReader};
use crate::types::{CHUNK_ROWS_MAX, Error, Result, SqlState};

/// A Parquet file whose columns fit those of a table.
pub(crate) struct ParquetFile {
    path: PathBuf,
    file: File,
    metadata: ArrowReaderMetadata,
    columns: Vec<ConnectorColumn>,
    /// For each column of the table: which of the file fills it, if any.
    fields: Vec<Option<usize>>,
}

impl ParquetFile {
    /// Opens a file and matches its columns by name.
    ///
    /// # Errors
    /// 22P04 when it is no Parquet file, 42804 when a type does not fit, 42702 when a name is not clear.
    pub(crate) fn open(path: &Path, columns: &[ConnectorColumn]) -> Result<ParquetFile> {
        let file = File::open(path).map_err(|error| open_error(path, &error))?;
        let metadata = ArrowReaderMetadata::load(&file, Default::default()).map_err(|error| broken(path, &error))?;
        let names = FieldNames::new(columns);
        let mut found: Vec<Option<(usize, bool)>> = vec![None; columns.len()];
        for (index, field) in metadata.schema().fields().iter().enumerate() {
            let (exact, matching) = names.resolve(field.name());
            for column in matching {
                match found.get_mut(column) {
                    Some(Some((_, true))) if !exact => {}
                    Some(Some((_, before))) if *before == exact => {
                        return Err(in_file(
                            path,
                            Error::new(
                                SqlState::AmbiguousColumn,
                                format!("the file has several columns for column \"{}\"", field.name()),
                            ),
                        ));
                    }
                    Some(slot) => *slot = Some((index, exact)),
                    None => {}
                }
            }
        }
        let fields: Vec<Option<usize>> = found.into_iter().map(|found| found.map(|(index, _)| index)).collect();
        for (column, field) in columns.iter().zip(&fields) {
            let Some(field) = field.and_then(|index| metadata.schema().fields().get(index)) else { continue };
            if fit(field.data_type(), &column.data_type).is_none() {
                return Err(in_file(
                    path,
                    Error::new(
                        SqlState::DatatypeMismatch,
                        format!(
                            "column \"{}\" is of type {} there, which cannot be read as {}",
                            column.name,
                            field.data_type(),
                            column.data_type
                        ),
                    )
                    .hint("Declare the column with the type that the file has."),
                ));
            }
        }
        Ok(ParquetFile { path: path.to_path_buf(), file, metadata, columns: columns.to_vec(), fields })
    }

    /// Reads what is asked for.
    ///
    /// # Errors
    /// 58030 when the file has fewer rows than were read before.
    pub(crate) fn read(self, request: &ReadRequest) -> Result<ParquetReader> {
        let rows = u64::try_from(self.metadata.metadata().file_metadata().num_rows()).unwrap_or(0);
        let needed = request.until.unwrap_or(request.from).max(request.from).0;
        if rows < needed {
            return Err(in_file(
                &self.path,
                Error::new(SqlState::IoError, format!("it has {rows} rows, but {needed} were read before")),
            )
            .hint("A file must not be replaced while a table stands on it."));
        }
        let schema = self.metadata.schema();
        // With each column whether it is read in every pass.
        let wanted: Vec<(usize, bool)> = (0..self.columns.len())
            .map(|index| (index, self.may_be_bad(index, schema)))
            .filter(|(index, checked)| *checked || request.columns.contains(index))
            .collect();
        let mut roots: Vec<usize> =
            wanted.iter().filter_map(|(index, _)| self.fields.get(*index).copied().flatten()).collect();
        roots.sort_unstable();
        roots.dedup();
        let narrow = |error: std::num::TryFromIntError| Error::internal(error.to_string());
        let from = usize::try_from(request.from.0).map_err(narrow)?;
        let count = request.until.map_or(rows, |until| until.0).saturating_sub(request.from.0);
        let mask = ProjectionMask::roots(self.metadata.parquet_schema(), roots.iter().copied());
        let parts = wanted
            .into_iter()
            .filter_map(|(index, checked)| {
                let column = self.columns.get(index)?.clone();
                let place = self.fields.get(index).copied().flatten();
                Some(Part {
                    index,
                    column,
                    checked,
                    place: place.and_then(|root| roots.iter().position(|r| *r == root)),
                })
            })
            .collect();
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(self.file, self.metadata.clone())
            .with_projection(mask)
            .with_batch_size(CHUNK_ROWS_MAX)
            .with_offset(from)
            .with_limit(usize::try_from(count).map_err(narrow)?)
            .build()
            .map_err(|error| broken(&self.path, &error))?;
        Ok(ParquetReader {
            path: self.path,
            reader,
            parts,
            schema: Arc::new(schema_of(&self.columns).project(&request.columns)?),
            columns: Arc::clone(&request.columns),
            offsets: request.offsets,
            pending: None,
            offset: request.from.0,
        })
    }

    /// True when the column's type or constraint lets some rows be bad.
    fn may_be_bad(&self, index: usize, schema: &Schema) -> bool {
        let Some(column) = self.columns.get(index) else { return false };
        match self.fields.get(index).copied().flatten().map(|field| schema.field(field)) {
            None => !column.nullable,
            Some(field) => {
                let narrow = fit(field.data_type(), &column.data_type) == Some(Fit::Narrow);
                narrow || column.length_max.is_some() || (!column.nullable && field.is_nullable())
            }
        }
    }
}

fn broken(path: &Path, error: &dyn std::error::Error) -> Error {
    in_file(path, Error::new(SqlState::BadCopyFormat, format!("it cannot be read as Parquet: {error}")))
}

/// How a file's type goes into a column's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// Every value has a place.
    Wide,
    /// Some values may have none.
    Narrow,
}

/// Whether values of one type can be read as another.
fn fit(from: &DataType, to: &DataType) -> Option<Fit> {
    use DataType::*;
    if from == to {
        return Some(Fit::Wide);
    }
    let integer_digits = |data_type: &DataType| match data_type {
        Int8 | UInt8 => Some(3),
        Int16 | UInt16 => Some(5),
        Int32 | UInt32 => Some(10),
        Int64 | UInt64 => Some(20),
        _ => None,
    };
    let bytes = |data_type: &DataType| data_type.primitive_width().unwrap_or(0);
    Some(match (from, to) {
        (Dictionary(_, value), to) => return fit(value, to),
        (Null, _) => Fit::Wide,
        (Int8 | Int16 | Int32 | Int64, Int16 | Int32 | Int64) if bytes(from) <= bytes(to) => Fit::Wide,
        (UInt8 | UInt16 | UInt32, Int16 | Int32 | Int64) if bytes(from) < bytes(to) => Fit::Wide,
        (Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64, Int16 | Int32 | Int64) => Fit::Narrow,
        (Int8 | Int16 | Int32 | UInt8 | UInt16 | UInt32, Float64) | (Float16 | Float32, Float64) => Fit::Wide,
        (Int8 | Int16 | UInt8 | UInt16 | Float16, Float32) => Fit::Wide,
        (integer, Decimal128(precision, scale)) if integer_digits(integer).is_some() => {
            let whole = i32::from(*precision) - i32::from(*scale);
            if integer_digits(integer).is_some_and(|digits| digits <= whole) { Fit::Wide } else { Fit::Narrow }
        }
        (
            Decimal32(p, s) | Decimal64(p, s) | Decimal128(p, s) | Decimal256(p, s),
            Decimal128(to_precision, to_scale),
        ) => {
            let whole = |precision: &u8, scale: &i8| i32::from(*precision) - i32::from(*scale);
            if s <= to_scale && whole(p, s) <= whole(to_precision, to_scale) { Fit::Wide } else { Fit::Narrow }
        }
        (Utf8View | LargeUtf8, Utf8) | (BinaryView | LargeBinary | FixedSizeBinary(_), Binary) => Fit::Wide,
        (Timestamp(TimeUnit::Second | TimeUnit::Millisecond, _), Timestamp(..)) => Fit::Narrow,
        (Timestamp(..), Timestamp(..)) => Fit::Wide,
        (Date32, Timestamp(..)) | (Date64, Date32) => Fit::Narrow,
        (Time32(_) | Time64(_), Time64(_)) => Fit::Wide,
        _ => return None,
    })
}

/// A column on its way from the file to the table.
struct Part {
    /// In the table.
    index: usize,
    column: ConnectorColumn,
    /// It is read in every pass.
    checked: bool,
    /// In what is read of the file.
    place: Option<usize>,
}

/// One pass over a Parquet file.
pub(crate) struct ParquetReader {
    path: PathBuf,
    reader: ParquetRecordBatchReader,
    parts: Vec<Part>,
    /// Of the rows given.
    schema: SchemaRef,
    columns: Arc<[usize]>,
    offsets: bool,
    /// Read and not given yet.
    pending: Option<RecordBatch>,
    offset: u64,
}

impl ParquetReader {
    /// A row as text: the columns that are read in every pass, so that it is the same in each.
    fn text_of(&self, batch: &RecordBatch, row: usize) -> Result<String> {
        let options = FormatOptions::default().with_null("null").with_display_error(true);
        let mut text = String::from("{");
        for part in self.parts.iter().filter(|part| part.checked) {
            let Some(array) = part.place.and_then(|place| batch.columns().get(place)) else { continue };
            let value = ArrayFormatter::try_new(array, &options)?;
            let comma = if text.len() > 1 { ", " } else { "" };
            text.push_str(&format!("{comma}{}: {}", part.column.name, value.value(row)));
        }
        text.push('}');
        Ok(text)
    }

    fn convert(&self, batch: &RecordBatch) -> Result<(RecordBatch, Vec<BadRow>)> {
        let rows = batch.num_rows();
        let mut faults: Vec<Option<(SqlState, String, usize)>> = Vec::new();
        let mut arrays: Vec<Option<ArrayRef>> = Vec::new();
        for (place, part) in self.parts.iter().enumerate() {
            let column = &part.column;
            let from = part.place.and_then(|place| batch.columns().get(place));
            let to = match from {
                None => arrow::array::new_null_array(&column.data_type, rows),
                Some(array) => converted(array, &column.data_type)?,
            };
            let mut fault = |row: usize, code: SqlState, reason: String| {
                faults.resize(rows, None);
                if let Some(slot @ None) = faults.get_mut(row) {
                    *slot = Some((code, reason, place));
                }
            };
            if let Some(from) = from
                && to.null_count() > from.logical_null_count()
            {
                let nulls = from.logical_nulls();
                let was_null = |row: usize| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                for row in (0..rows).filter(|row| to.is_null(*row) && !was_null(*row)) {
                    fault(
                        row,
                        SqlState::NumericOutOfRange,
                        "the value is out of range for the column's type".to_owned(),
                    );
                }
            }
            if !column.nullable && to.null_count() > 0 {
                for row in (0..rows).filter(|row| to.is_null(*row)) {
                    let reason = "null value violates not-null constraint".to_owned();
                    fault(row, SqlState::NotNullViolation, reason);
                }
            }
            if let Some(most) = column.length_max {
                for (row, text) in to.as_string::<i32>().iter().enumerate() {
                    if text.is_some_and(|text| text.len() > most && text.chars().count() > most) {
                        let reason = format!("value too long for type character varying({most})");
                        fault(row, SqlState::StringTooLong, reason);
                    }
                }
            }
            arrays.push(Some(to));
        }
        let mut bad = Vec::new();
        for (row, fault) in faults.iter().enumerate() {
            if let Some((code, reason, part)) = fault {
                let name = self.parts.get(*part).map(|part| part.column.name.clone());
                let raw = self.text_of(batch, row)?;
                let offset = Offset(self.offset + row as u64);
                bad.push(BadRow::new(*code, raw.as_bytes(), reason.clone(), name, offset));
            }
        }
        let good =
            (!bad.is_empty()).then(|| faults.iter().map(|fault| Some(fault.is_none())).collect::<BooleanArray>());
        let mut chosen = Vec::with_capacity(self.columns.len());
        for index in self.columns.iter() {
            let place = self.parts.iter().position(|part| part.index == *index);
            let array = place.and_then(|place| arrays.get_mut(place)).and_then(Option::take);
            let array = array.ok_or_else(|| Error::internal("a column was asked for and not read"))?;
            chosen.push(match &good {
                Some(good) => filter(&array, good)?,
                None => array,
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows - bad.len()));
        Ok((RecordBatch::try_new_with_options(Arc::clone(&self.schema), chosen, &options)?, bad))
    }
}

/// A column's values as another type; those that do not fit become NULL.
fn converted(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let array = if array.data_type() == to {
        Arc::clone(array)
    } else {
        cast_with_options(array, to, &CastOptions { safe: true, ..CastOptions::default() })?
    };
    // A zero has no sign: what is equal has to be one group and one key.
    Ok(match to {
        DataType::Float64 => Arc::new(unary::<_, _, Float64Type>(array.as_primitive::<Float64Type>(), |x| x + 0.0)),
        DataType::Float32 => Arc::new(unary::<_, _, Float32Type>(array.as_primitive::<Float32Type>(), |x| x + 0.0)),
        _ => array,
    })
}

impl SourceReader for ParquetReader {
    fn read(&mut self, rows_max: usize) -> Result<Read> {
        let batch = match self.pending.take() {
            Some(batch) => batch,
            None => match self.reader.next() {
                None => return Ok(Read::End),
                Some(batch) => batch.map_err(|error| broken(&self.path, &error))?,
            },
        };
        let rows = batch.num_rows().min(rows_max);
        if rows < batch.num_rows() {
            self.pending = Some(batch.slice(rows, batch.num_rows() - rows));
        }
        let (good, bad) = self.convert(&batch.slice(0, rows))?;
        let numbers = self.offset..self.offset + rows as u64;
        self.offset = numbers.end;
        let offsets = if self.offsets { good_offsets(numbers, &bad) } else { Vec::new() };
        Ok(Read::Rows { rows: good, diffs: None, offsets, bad, end: Offset(self.offset) })
    }
}
