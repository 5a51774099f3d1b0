//! The connector `nexmark`: persons, auctions and bids of the Nexmark benchmark, each a function of its number.

use std::ops::Range;
use std::sync::Arc;

use ::nexmark::EventGenerator;
use ::nexmark::config::NexmarkConfig;
use ::nexmark::event::{Event, EventType};
use arrow::array::{
    ArrayBuilder, ArrayRef, Int64Builder, RecordBatch, RecordBatchOptions, StringBuilder, TimestampMicrosecondBuilder,
};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};

use super::generated::{Amount, GeneratedReader, Generator, START_MICROS};
use super::options::{Options, near_miss};
use super::registry::{ConnectorColumn, Opened, schema_of};
use crate::exec::source::{BadRow, Offset, ReadRequest, Source, SourceReader, SplitId, Splits};
use crate::types::{Error, Result, SqlState};

/// Events of all types in one second of event time, when nothing is said.
const EVENT_RATE: u64 = 10_000;
/// By how many events seeds are apart; a multiple of the 50 after which the types repeat.
const EVENTS_PER_SEED: usize = 50 * 20_000_000;
/// The greatest seed.
const SEED_MAX: u64 = 1_000_000;

/// The fields of a type of events and what they are.
type Fields = &'static [(&'static str, Kind)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number,
    Text,
    Time,
}

impl Kind {
    fn takes(self, data_type: &DataType) -> bool {
        match self {
            Kind::Number => *data_type == DataType::Int64,
            Kind::Text => *data_type == DataType::Utf8,
            Kind::Time => matches!(data_type, DataType::Timestamp(TimeUnit::Microsecond, _)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Number => "bigint",
            Kind::Text => "text",
            Kind::Time => "timestamp",
        }
    }
}

const PERSON: Fields = &[
    ("id", Kind::Number),
    ("name", Kind::Text),
    ("email_address", Kind::Text),
    ("credit_card", Kind::Text),
    ("city", Kind::Text),
    ("state", Kind::Text),
    ("date_time", Kind::Time),
    ("extra", Kind::Text),
];
const AUCTION: Fields = &[
    ("id", Kind::Number),
    ("item_name", Kind::Text),
    ("description", Kind::Text),
    ("initial_bid", Kind::Number),
    ("reserve", Kind::Number),
    ("date_time", Kind::Time),
    ("expires", Kind::Time),
    ("seller", Kind::Number),
    ("category", Kind::Number),
    ("extra", Kind::Text),
];
const BID: Fields = &[
    ("auction", Kind::Number),
    ("bidder", Kind::Number),
    ("price", Kind::Number),
    ("channel", Kind::Text),
    ("url", Kind::Text),
    ("date_time", Kind::Time),
    ("extra", Kind::Text),
];

/// Events of one type.
struct Nexmark {
    amount: Amount,
    schema: SchemaRef,
    /// Which field fills each column.
    fields: Vec<usize>,
    event: EventType,
    config: NexmarkConfig,
    event_rate: u64,
}

/// The source that the options describe.
///
/// # Errors
/// See [`super::Connectors::open`]; 42703 and 42804 for a column that the events do not have so.
pub(crate) fn open(options: &Options<'_>, columns: &[ConnectorColumn]) -> Result<Opened> {
    let kinds = [
        ("person", (EventType::Person, PERSON)),
        ("auction", (EventType::Auction, AUCTION)),
        ("bid", (EventType::Bid, BID)),
    ];
    let (event, known) = options.require("event", "bid")?.choose("event", &kinds)?;
    let amount = Amount::parse(options)?;
    let event_rate = options.integer("event_rate", 1..=1_000_000_000)?.unwrap_or(EVENT_RATE);
    let seed = options.integer("seed", 0..=SEED_MAX)?.unwrap_or(0);
    options.finish()?;
    let mut fields = Vec::with_capacity(columns.len());
    for column in columns {
        let Some(field) = known.iter().position(|(name, _)| name.eq_ignore_ascii_case(&column.name)) else {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            let near = near_miss(&column.name, &names).map(|near| format!("Did you mean \"{near}\"? "));
            return Err(Error::new(
                SqlState::UndefinedColumn,
                format!("events of this type have no field for column \"{}\"", column.name),
            )
            .hint(format!("{}They have: {}.", near.unwrap_or_default(), names.join(", "))));
        };
        let kind = known.get(field).map_or(Kind::Text, |(_, kind)| *kind);
        if !kind.takes(&column.data_type) {
            return Err(Error::new(
                SqlState::DatatypeMismatch,
                format!("column \"{}\" is {} in these events", column.name, kind.name()),
            )
            .hint(format!("Declare it as {} {}.", column.name, kind.name())));
        }
        fields.push(field);
    }
    let first = usize::try_from(seed).unwrap_or(0).saturating_mul(EVENTS_PER_SEED);
    let config = NexmarkConfig { base_time: 0, first_event_id: first, ..NexmarkConfig::default() };
    let source = Nexmark { amount, schema: schema_of(columns), fields, event, config, event_rate };
    Ok(Opened { source: Arc::new(source), rate: amount.rate })
}

impl Source for Nexmark {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn splits(&self, _: &[(SplitId, Offset)]) -> Result<Splits> {
        Ok(self.amount.splits())
    }

    fn open(&self, request: &ReadRequest) -> Result<Box<dyn SourceReader>> {
        let schema = Arc::new(self.schema.project(&request.columns)?);
        let columns = request
            .columns
            .iter()
            .zip(schema.fields())
            .filter_map(|(index, field)| Some((*self.fields.get(*index)?, Builder::new(field.data_type()))))
            .collect();
        let events = EventGenerator::new(self.config.clone()).with_type_filter(self.event);
        let rows = Rows { events, columns, schema, event_rate: self.event_rate };
        Ok(Box::new(GeneratedReader::new(rows, self.amount, request)))
    }

    fn ends(&self) -> bool {
        self.amount.rows.is_some()
    }
}

/// Makes the rows of one pass.
struct Rows {
    events: EventGenerator,
    /// For each column asked for: which field fills it, and its values so far.
    columns: Vec<(usize, Builder)>,
    schema: SchemaRef,
    event_rate: u64,
}

enum Builder {
    Number(Int64Builder),
    Text(StringBuilder),
    Time(TimestampMicrosecondBuilder),
}

impl Builder {
    fn new(data_type: &DataType) -> Builder {
        match data_type {
            DataType::Int64 => Builder::Number(Int64Builder::new()),
            DataType::Utf8 => Builder::Text(StringBuilder::new()),
            other => Builder::Time(TimestampMicrosecondBuilder::new().with_data_type(other.clone())),
        }
    }

    fn append(&mut self, value: Value<'_>) {
        match (self, value) {
            (Builder::Number(builder), Value::Number(number)) => {
                builder.append_value(i64::try_from(number).unwrap_or(i64::MAX));
            }
            (Builder::Text(builder), Value::Text(text)) => builder.append_value(text),
            (Builder::Time(builder), Value::Time(micros)) => builder.append_value(micros),
            // Which kind a field is was checked against the column's type.
            (Builder::Number(builder), _) => builder.append_null(),
            (Builder::Text(builder), _) => builder.append_null(),
            (Builder::Time(builder), _) => builder.append_null(),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        let builder: &mut dyn ArrayBuilder = match self {
            Builder::Number(builder) => builder,
            Builder::Text(builder) => builder,
            Builder::Time(builder) => builder,
        };
        builder.finish()
    }
}

enum Value<'a> {
    Number(usize),
    Text(&'a str),
    Time(i64),
}

/// A field of an event. `time` is when it happens: the crate's own times are rounded to single precision.
fn value(event: &Event, field: usize, time: i64) -> Value<'_> {
    use Value::{Number, Text, Time};
    match event {
        Event::Person(person) => match field {
            0 => Number(person.id),
            1 => Text(&person.name),
            2 => Text(&person.email_address),
            3 => Text(&person.credit_card),
            4 => Text(&person.city),
            5 => Text(&person.state),
            6 => Time(time),
            _ => Text(&person.extra),
        },
        Event::Auction(auction) => match field {
            0 => Number(auction.id),
            1 => Text(&auction.item_name),
            2 => Text(&auction.description),
            3 => Number(auction.initial_bid),
            4 => Number(auction.reserve),
            5 => Time(time),
            6 => {
                let open = auction.expires.saturating_sub(auction.date_time);
                Time(time.saturating_add(i64::try_from(open.saturating_mul(1_000)).unwrap_or(i64::MAX)))
            }
            7 => Number(auction.seller),
            8 => Number(auction.category),
            _ => Text(&auction.extra),
        },
        Event::Bid(bid) => match field {
            0 => Number(bid.auction),
            1 => Number(bid.bidder),
            2 => Number(bid.price),
            3 => Text(&bid.channel),
            4 => Text(&bid.url),
            5 => Time(time),
            _ => Text(&bid.extra),
        },
    }
}

impl Generator for Rows {
    fn rows(&mut self, numbers: Range<u64>) -> Result<(RecordBatch, Vec<BadRow>)> {
        let count = (numbers.end - numbers.start) as usize;
        if self.events.offset() != numbers.start {
            self.events = self.events.clone().with_offset(numbers.start);
        }
        for _ in numbers {
            let place = u128::from(self.events.global_offset());
            let Some(event) = self.events.next() else { break };
            let since = place * 1_000_000 / u128::from(self.event_rate);
            let time = START_MICROS.saturating_add(i64::try_from(since).unwrap_or(i64::MAX));
            for (field, builder) in &mut self.columns {
                builder.append(value(&event, *field, time));
            }
        }
        let columns = self.columns.iter_mut().map(|(_, builder)| builder.finish()).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok((RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?, Vec::new()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::array::AsArray;
    use arrow::datatypes::{Int64Type, TimestampMicrosecondType};

    use super::*;
    use crate::connectors::{Connectors, OptionValue, SourceTable};
    use crate::exec::source::Read;

    fn table(options: &[(&str, &str)], columns: &[(&str, DataType)]) -> Result<SourceTable> {
        let values: BTreeMap<String, OptionValue> = [("connector", "nexmark")]
            .iter()
            .chain(options)
            .map(|(k, v)| ((*k).to_owned(), OptionValue { text: (*v).to_owned(), position: 1, number: false }))
            .collect();
        let columns: Vec<ConnectorColumn> = columns
            .iter()
            .map(|(name, data_type)| ConnectorColumn {
                name: (*name).to_owned(),
                data_type: data_type.clone(),
                nullable: true,
                length_max: None,
            })
            .collect();
        Connectors::standard().open(&values, &columns)
    }

    fn read(source: &dyn Source, from: u64, columns: &[usize]) -> RecordBatch {
        let request = ReadRequest {
            split: SplitId::new("rows"),
            from: Offset(from),
            until: None,
            columns: columns.into(),
            offsets: false,
        };
        let mut reader = source.open(&request).expect("opens");
        let Read::Rows { rows, .. } = reader.read(8192).expect("reads") else { panic!("no rows") };
        rows
    }

    #[test]
    fn bids_are_those_of_the_crate_and_can_be_read_again() {
        let time = DataType::Timestamp(TimeUnit::Microsecond, None);
        let columns = [("price", DataType::Int64), ("date_time", time), ("channel", DataType::Utf8)];
        let made = table(&[("event", "bid"), ("number_of_rows", "100")], &columns).expect("a table");
        let all = read(&*made.source, 0, &[0, 1, 2]);
        assert_eq!(all.num_rows(), 100);
        let config = NexmarkConfig { base_time: 0, ..NexmarkConfig::default() };
        let expected: Vec<i64> = EventGenerator::new(config)
            .with_type_filter(EventType::Bid)
            .take(100)
            .map(|event| match event {
                Event::Bid(bid) => i64::try_from(bid.price).expect("small"),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(all.column(0).as_primitive::<Int64Type>().values(), &expected[..]);
        // Four events come before the first bid, and four after each 46 bids.
        let times = all.column(1).as_primitive::<TimestampMicrosecondType>();
        assert_eq!((times.value(0), times.value(46)), (START_MICROS + 400, START_MICROS + 5_400));
        let rest = read(&*made.source, 50, &[2, 0]);
        assert_eq!(rest, all.slice(50, 50).project(&[2, 0]).expect("columns"));
    }

    #[test]
    fn columns_and_options_are_checked() {
        let hint = |options: &[(&str, &str)], columns: &[(&str, DataType)]| {
            let error = table(options, columns).err().expect("refused");
            error.hint_text().unwrap_or_default().to_owned()
        };
        assert!(hint(&[("event", "bit")], &[]).contains("Did you mean \"bid\"?"));
        assert!(hint(&[("event", "bid")], &[("prize", DataType::Int64)]).contains("Did you mean \"price\"?"));
        assert!(hint(&[("event", "bid")], &[("price", DataType::Utf8)]).contains("price bigint"));
    }
}
