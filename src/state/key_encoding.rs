//! The one encoding of keys and rows: equal values, equal bytes; greater values, greater bytes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::compute::SortOptions;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, IntervalMonthDayNanoType, IntervalUnit, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};
use arrow::row::{RowConverter, Rows, SortField};

use crate::types::{Error, Result};

const ASCENDING: SortOptions = SortOptions { descending: false, nulls_first: false };

/// Turns columns into bytes, a row at a time, and back: the format of the `arrow-row` crate.
///
/// Serves routing (hash of the bytes), state (the key) and serving (order of the rows). Nulls sort
/// last.
#[derive(Debug)]
pub struct RowCodec {
    converter: RowConverter,
    types: Vec<DataType>,
    equal_floats: bool,
}

impl RowCodec {
    /// A codec for keys: `-0.0` becomes `0.0` and every NaN the same, as SQL compares them.
    ///
    /// # Errors
    /// 0A000 for types that cannot be part of a key, such as maps.
    pub fn for_keys<'a>(types: impl IntoIterator<Item = &'a DataType>) -> Result<RowCodec> {
        RowCodec::new(types, true)
    }

    /// A codec for whole rows, which come back exactly as they were.
    ///
    /// # Errors
    /// 0A000 for types that cannot be stored, such as maps.
    pub fn for_rows<'a>(types: impl IntoIterator<Item = &'a DataType>) -> Result<RowCodec> {
        RowCodec::new(types, false)
    }

    /// A codec for whole rows behind their sort keys, so that the bytes are in the keys' order.
    ///
    /// # Errors
    /// 0A000 for types that cannot be stored or ordered, such as maps.
    pub fn for_ordered_rows<'a>(
        order: impl IntoIterator<Item = (&'a DataType, SortOptions)>,
        types: impl IntoIterator<Item = &'a DataType>,
    ) -> Result<RowCodec> {
        RowCodec::of(order.into_iter().chain(types.into_iter().map(|t| (t, ASCENDING))), false)
    }

    fn new<'a>(types: impl IntoIterator<Item = &'a DataType>, equal_floats: bool) -> Result<RowCodec> {
        RowCodec::of(types.into_iter().map(|t| (t, ASCENDING)), equal_floats)
    }

    fn of<'a>(columns: impl IntoIterator<Item = (&'a DataType, SortOptions)>, equal_floats: bool) -> Result<RowCodec> {
        let columns: Vec<_> = columns.into_iter().collect();
        let fields = columns.iter().map(|(t, options)| SortField::new_with_options((*t).clone(), *options)).collect();
        let types: Vec<DataType> = columns.into_iter().map(|(t, _)| t.clone()).collect();
        let converter = RowConverter::new(fields).map_err(|_| {
            Error::unsupported("a column of this type cannot be kept by a table or view")
                .detail(format!("The types are {types:?}."))
                .hint("Take the parts out that you need, or cast the column to text.")
        })?;
        Ok(RowCodec { converter, types, equal_floats })
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.types.len()
    }

    /// The bytes of each row of some columns, which have the codec's types; `rows` of them, for the
    /// case that there are no columns.
    ///
    /// # Errors
    /// When a column has another type.
    pub fn encode(&self, columns: &[ArrayRef], rows: usize) -> Result<Encoded> {
        if self.types.is_empty() {
            return Ok(Encoded::Empty(rows));
        }
        let normal: Vec<ArrayRef> =
            columns.iter().map(|c| if self.equal_floats { equal_floats(c) } else { Arc::clone(c) }).collect();
        Ok(Encoded::Rows(self.converter.convert_columns(&normal)?))
    }

    /// The columns of encoded rows.
    ///
    /// # Errors
    /// When the bytes are not of this codec, as far as that shows.
    pub fn decode<'a>(&self, rows: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>> {
        if self.types.is_empty() {
            return Ok(Vec::new());
        }
        let parser = self.converter.parser();
        let columns = self.converter.convert_rows(rows.into_iter().map(|row| parser.parse(row)))?;
        Ok(columns.into_iter().map(zero_nulls).collect())
    }
}

/// The rows of a batch as bytes.
#[derive(Debug)]
pub enum Encoded {
    /// Rows without columns.
    Empty(usize),
    /// Rows of at least one column.
    Rows(Rows),
}

impl Encoded {
    /// The bytes of a row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, index: usize) -> &[u8] {
        match self {
            Encoded::Empty(rows) => {
                assert!(index < *rows, "row {index} of {rows}");
                &[]
            }
            Encoded::Rows(rows) => rows.row(index).data(),
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            Encoded::Empty(rows) => *rows,
            Encoded::Rows(rows) => rows.num_rows(),
        }
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The column with zeros in the slots of nulls. They come back as the type's smallest value, and there
/// are kernels that compute under nulls and overflow on it.
fn zero_nulls(column: ArrayRef) -> ArrayRef {
    fn zeroed<T: ArrowPrimitiveType>(column: &ArrayRef) -> ArrayRef {
        let values = column.as_primitive::<T>();
        let slots: Vec<T::Native> = values.iter().map(Option::unwrap_or_default).collect();
        let zeroed = PrimitiveArray::<T>::new(slots.into(), values.nulls().cloned());
        Arc::new(zeroed.with_data_type(values.data_type().clone()))
    }
    if column.null_count() == 0 {
        return column;
    }
    match column.data_type() {
        DataType::Int16 => zeroed::<Int16Type>(&column),
        DataType::Int32 => zeroed::<Int32Type>(&column),
        DataType::Int64 => zeroed::<Int64Type>(&column),
        DataType::Date32 => zeroed::<Date32Type>(&column),
        DataType::Time64(TimeUnit::Microsecond) => zeroed::<Time64MicrosecondType>(&column),
        DataType::Timestamp(TimeUnit::Microsecond, _) => zeroed::<TimestampMicrosecondType>(&column),
        DataType::Interval(IntervalUnit::MonthDayNano) => zeroed::<IntervalMonthDayNanoType>(&column),
        DataType::Decimal128(..) => zeroed::<Decimal128Type>(&column),
        _ => column,
    }
}

/// A column with `-0.0` as `0.0` and one NaN, so that equal values have equal bytes; columns that are not
/// of doubles stay.
pub fn equal_floats(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        // Adding zero turns -0.0 into 0.0 and leaves all other numbers.
        DataType::Float64 => Arc::new(
            column
                .as_primitive::<Float64Type>()
                .unary::<_, Float64Type>(|v| if v.is_nan() { f64::NAN } else { v + 0.0 }),
        ),
        DataType::Float32 => Arc::new(
            column
                .as_primitive::<Float32Type>()
                .unary::<_, Float32Type>(|v| if v.is_nan() { f32::NAN } else { v + 0.0 }),
        ),
        _ => Arc::clone(column),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, Int64Array, StringArray};

    use super::*;

    #[test]
    fn nulls_come_back_over_zeros() {
        let zoned = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let column: ArrayRef = Arc::new(
            PrimitiveArray::<TimestampMicrosecondType>::from_iter([Some(7), None]).with_data_type(zoned.clone()),
        );
        let codec = RowCodec::for_rows([&zoned]).expect("a codec");
        let encoded = codec.encode(&[Arc::clone(&column)], 2).expect("rows");
        let back = codec.decode([encoded.row(0), encoded.row(1)]).expect("columns").remove(0);
        assert_eq!(&back, &column);
        assert_eq!(back.as_primitive::<TimestampMicrosecondType>().values().to_vec(), vec![7, 0]);
    }

    #[test]
    fn equal_values_have_equal_bytes_and_greater_ones_greater() {
        let codec = RowCodec::for_keys([&DataType::Float64, &DataType::Utf8]).expect("types");
        let floats: ArrayRef =
            Arc::new(Float64Array::from(vec![Some(-0.0), Some(0.0), Some(f64::NAN), Some(-f64::NAN), Some(1.5), None]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "a", "b", "b", "c", "c"]));
        let rows = codec.encode(&[floats, texts], 6).expect("encodes");
        assert_eq!(rows.row(0), rows.row(1));
        assert_eq!(rows.row(2), rows.row(3));
        assert!(rows.row(0) < rows.row(4) && rows.row(4) < rows.row(2) && rows.row(2) < rows.row(5));
    }

    #[test]
    fn rows_come_back_as_they_were() {
        let codec = RowCodec::for_rows([&DataType::Int64, &DataType::Float64]).expect("types");
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![Some(3), None, Some(i64::MIN)])),
            Arc::new(Float64Array::from(vec![Some(-0.0), Some(2.5), None])),
        ];
        let rows = codec.encode(&columns, 3).expect("encodes");
        let back = codec.decode((0..3).map(|i| rows.row(i))).expect("decodes");
        assert_eq!(&back[0], &columns[0]);
        assert!(back[1].as_primitive::<Float64Type>().value(0).is_sign_negative());
    }

    #[test]
    fn maps_are_refused() {
        let entries = DataType::Struct(
            vec![
                arrow::datatypes::Field::new("keys", DataType::Utf8, false),
                arrow::datatypes::Field::new("values", DataType::Int64, true),
            ]
            .into(),
        );
        let map = DataType::Map(Arc::new(arrow::datatypes::Field::new("entries", entries, false)), false);
        if let Err(error) = RowCodec::for_rows([&map]) {
            assert_eq!(error.code().code(), "0A000");
        }
    }
}
