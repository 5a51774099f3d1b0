use super::super::*;
use crate::types::{OperatorId, Result, SqlState};

const OPERATOR: OperatorId = OperatorId::from_u64(1);

#[test]
fn codecs_write_the_bytes_of_the_contract() {
    assert_eq!(I64Codec.to_bytes(&-2), [0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
    assert_eq!(U32Codec.to_bytes(&258), [2, 1, 0, 0]);
    let pair = PairCodec(TextCodec, U32Codec);
    assert_eq!(pair.to_bytes(&("ab".to_owned(), 1)), [2, 0, 0, 0, b'a', b'b', 1, 0, 0, 0]);
    let map = VecCodec(PairCodec(TextCodec, BytesCodec));
    let value = vec![("k".to_owned(), vec![9]), (String::new(), vec![])];
    let bytes = [2, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 0, b'k', 9, 4, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(map.to_bytes(&value), bytes);
    assert_eq!(map.decode(&bytes).expect("whole"), value);
    for cut in 0..bytes.len() {
        assert_eq!(map.decode(&bytes[..cut]).expect_err("cut").code(), SqlState::DataCorrupted);
    }
    assert!(U64Codec.decode(&[0; 7]).is_err() && TextCodec.decode(&[0xFF]).is_err());
}

#[test]
fn values_reduce_and_aggregate() {
    struct Mean;
    impl Aggregation for Mean {
        type Input = i64;
        type Accumulator = (i64, i64);
        type Output = f64;
        fn empty(&self) -> (i64, i64) {
            (0, 0)
        }
        fn add(&self, accumulator: &mut (i64, i64), input: i64) {
            accumulator.0 += input;
            accumulator.1 += 1;
        }
        fn output(&self, accumulator: &(i64, i64)) -> f64 {
            accumulator.0 as f64 / accumulator.1 as f64
        }
    }
    let mut backend = MemoryBackend::default();
    let key = "ada".to_owned();
    let max = ReducingState::new(OPERATOR, "max", TextCodec, I64Codec, i64::max).expect("valid");
    let mean = AggregatingState::new(OPERATOR, "mean", TextCodec, PairCodec(I64Codec, I64Codec), Mean).expect("valid");
    for value in [3, 9, 6] {
        max.add(&mut backend, &key, value).expect("memory");
        mean.add(&mut backend, &key, value).expect("memory");
    }
    assert_eq!(max.get(&backend, &key).expect("memory"), Some(9));
    assert_eq!(mean.get(&backend, &key).expect("memory"), Some(6.0));
    max.erase(&mut backend, &key).expect("memory");
    assert_eq!(max.get(&backend, &key).expect("memory"), None);

    let values = ValueState::new(OPERATOR, "v", TextCodec, U32Codec).expect("valid");
    for (key, value) in [("a", 1), ("b", 2), ("c", 3)] {
        values.put(&mut backend, &key.to_owned(), &value).expect("memory");
    }
    values.erase(&mut backend, &"b".to_owned()).expect("memory");
    let keys = ["c", "b", "a"].map(str::to_owned);
    assert_eq!(values.get_many(&backend, &keys).expect("memory"), [Some(3), None, Some(1)]);
    let mut sum = 0;
    values
        .scan(&backend, &mut |_, value| {
            sum += value;
            Ok(())
        })
        .expect("memory");
    assert_eq!(sum, 4);
    // The layout of the contract: key group of the user key alone, slot, '|', key.
    let stored = [&[crate::types::KeyGroup::of(b"a").index() as u8][..], b"v|a"].concat();
    assert_eq!(backend.get(OPERATOR, &stored).expect("memory"), Some(vec![1, 0, 0, 0]));
    for slot in ["a|b", "a\nb", "a#b"] {
        let refused = ValueState::new(OPERATOR, slot, TextCodec, U32Codec).expect_err(slot);
        assert_eq!(refused.code(), SqlState::InvalidParameterValue);
    }
}

#[test]
fn an_addition_to_a_collection_is_one_write() {
    let mut backend = MemoryBackend::default();
    let (a, b) = ("a".to_owned(), "ab".to_owned());
    let map = MapState::new(OPERATOR, "m", TextCodec, U32Codec, TextCodec).expect("valid");
    map.put(&mut backend, &a, &1, &"x".to_owned()).expect("memory");
    map.put(&mut backend, &a, &2, &"y".to_owned()).expect("memory");
    // A key that another is a prefix of has its own entries.
    map.put(&mut backend, &b, &3, &"z".to_owned()).expect("memory");
    assert_eq!(backend.entries(OPERATOR), 3, "one stored entry for each");
    map.erase(&mut backend, &a, &1).expect("memory");
    let mut seen = Vec::new();
    map.scan(&backend, &a, &mut |entry, value| {
        seen.push((entry, value));
        Ok(())
    })
    .expect("memory");
    assert_eq!(seen, [(2, "y".to_owned())]);
    assert_eq!(map.get(&backend, &b, &3).expect("memory"), Some("z".to_owned()));
    map.clear(&mut backend, &a).expect("memory");
    assert_eq!(backend.entries(OPERATOR), 1);

    let list = ListState::new(OPERATOR, "l", TextCodec, U32Codec).expect("valid");
    let next = list.add(&mut backend, &a, 0, &[10, 20]).expect("memory");
    let next = list.add(&mut backend, &a, next, &[30]).expect("memory");
    list.add(&mut backend, &b, 0, &(0..3000).collect::<Vec<_>>()).expect("memory");
    list.erase(&mut backend, &a, 1).expect("memory");
    list.add(&mut backend, &a, next, &[40]).expect("memory");
    assert_eq!(list.get(&backend, &a).expect("memory"), [10, 30, 40]);
    list.clear(&mut backend, &b).expect("memory");
    assert_eq!(list.get(&backend, &b).expect("memory"), Vec::<u32>::new());
    assert_eq!(list.get(&backend, &a).expect("memory").len(), 3);
}

#[test]
fn broadcast_state_falls_back_to_the_unprefixed_key() {
    let mut backend = MemoryBackend::default();
    let rules = BroadcastState::new(OPERATOR, "rules", TextCodec).expect("valid");
    backend.put(OPERATOR, b"rules|", b"old").expect("memory");
    assert_eq!(rules.get(&backend).expect("memory"), Some("old".to_owned()));
    rules.put(&mut backend, &"new".to_owned()).expect("memory");
    assert_eq!(rules.get(&backend).expect("memory"), Some("new".to_owned()));
    assert_eq!(backend.get(OPERATOR, b"\xFFrules|").expect("memory"), Some(b"new".to_vec()));
}

fn expiring(refresh: Refresh) -> ExpiringValue<TextCodec, U32Codec> {
    let config = TtlConfig::new(100, refresh).expect("positive");
    ExpiringValue::new(OPERATOR, "t", TextCodec, U32Codec, config).expect("valid")
}

fn swept(
    table: &ExpiringValue<TextCodec, U32Codec>,
    backend: &mut dyn StateBackend,
    now: i64,
    max: usize,
) -> (Vec<String>, bool) {
    let mut expired = Vec::new();
    let is_all = table
        .sweep(backend, Share::WHOLE, now, max, &mut |key, _| {
            expired.push(key);
            Ok(())
        })
        .expect("memory");
    (expired, is_all)
}

#[test]
fn an_expired_value_is_never_reported_and_leaves_in_order() {
    let mut backend = MemoryBackend::default();
    let table = expiring(Refresh::OnWrite);
    let key = |name: &str| name.to_owned();
    table.put(&mut backend, &key("c"), &1, 0).expect("memory");
    table.put(&mut backend, &key("a"), &2, 10).expect("memory");
    table.put(&mut backend, &key("b"), &3, 10).expect("memory");
    table.put(&mut backend, &key("late"), &4, 50).expect("memory");
    let stored = backend.get(OPERATOR, &value_key("t", b"c")).expect("memory").expect("there");
    assert_eq!(
        stored,
        [&100_i64.to_le_bytes()[..], &1_u32.to_le_bytes()].concat(),
        "8 bytes of deadline, then the value"
    );
    assert_eq!(table.get(&mut backend, &key("c"), 99).expect("memory"), Some(1));
    assert_eq!(table.get(&mut backend, &key("c"), 100).expect("memory"), None, "at its deadline");
    // A write begins a new life.
    table.put(&mut backend, &key("b"), &5, 20).expect("memory");
    assert_eq!(swept(&table, &mut backend, 110, 1), (vec![key("c")], false));
    assert_eq!(swept(&table, &mut backend, 110, 10), (vec![key("a")], true));
    assert_eq!(swept(&table, &mut backend, 119, 10), (vec![], true));
    assert_eq!(swept(&table, &mut backend, 1000, 10), (vec![key("b"), key("late")], true));
    assert_eq!(table.stored(&backend).expect("memory"), (0, 0), "nothing is left");
    table.put(&mut backend, &key("x"), &1, i64::MAX).expect("no overflow");
    table.erase(&mut backend, &key("x")).expect("memory");
    assert_eq!(table.stored(&backend).expect("memory"), (0, 0));
    assert!(TtlConfig::new(0, Refresh::OnWrite).is_err());
}

#[test]
fn a_read_begins_a_new_life_when_asked_to() {
    let mut backend = MemoryBackend::default();
    let table = expiring(Refresh::OnReadAndWrite);
    table.put(&mut backend, &"k".to_owned(), &1, 0).expect("memory");
    assert_eq!(table.get(&mut backend, &"k".to_owned(), 90).expect("memory"), Some(1));
    assert_eq!(table.get(&mut backend, &"k".to_owned(), 180).expect("memory"), Some(1));
    assert_eq!(table.get(&mut backend, &"k".to_owned(), 280).expect("memory"), None);
    assert_eq!(table.stored(&backend).expect("memory"), (1, 1), "one index entry, however often it was read");
}

fn stamp(version: u32) -> VersionStamp {
    VersionStamp { state_type: "Total".to_owned(), version }
}

#[test]
fn a_value_is_migrated_by_registered_steps_and_refused_without() {
    let filled = |version: Option<u32>| -> Result<MemoryBackend> {
        let mut backend = MemoryBackend::default();
        backend.put(OPERATOR, &value_key("s", b"k"), &7_u32.to_le_bytes())?;
        backend.put(OPERATOR, &value_key("other", b"k"), b"untouched")?;
        let mut versions = StateVersions::default();
        if let Some(version) = version {
            versions.set(OPERATOR, "s", stamp(version))?;
        }
        backend.set_versions(versions);
        Ok(backend)
    };
    let mut migrations = Migrations::default();
    migrations.register("Total", 1, 2, |bytes| Ok([bytes, &[0; 4]].concat()));
    migrations.register("Total", 2, 3, |bytes| Ok([&[1], bytes].concat()));
    let mut backend = filled(None).expect("memory");
    assert_eq!(migrate(&mut backend, &migrations, OPERATOR, "s", &stamp(3), false).expect("steps"), 1);
    let value = backend.get(OPERATOR, &value_key("s", b"k")).expect("memory");
    assert_eq!(value, Some(vec![1, 7, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(backend.get(OPERATOR, &value_key("other", b"k")).expect("memory"), Some(b"untouched".to_vec()));
    assert_eq!(backend.versions().version(OPERATOR, "s"), 3);
    assert_eq!(migrate(&mut backend, &migrations, OPERATOR, "s", &stamp(3), false).expect("nothing to do"), 0);

    // Back, or without a step: refused with the reason, and nothing is changed.
    let mut backend = filled(Some(3)).expect("memory");
    let refused = migrate(&mut backend, &migrations, OPERATOR, "s", &stamp(2), false).expect_err("no way back");
    assert_eq!(refused.code(), SqlState::ObjectNotReady);
    assert!(refused.message().contains("version 3 of Total"), "{refused}");
    assert_eq!(backend.get(OPERATOR, &value_key("s", b"k")).expect("memory"), Some(7_u32.to_le_bytes().to_vec()));
    let other = VersionStamp { state_type: "Mean".to_owned(), version: 3 };
    assert!(migrate(&mut backend, &migrations, OPERATOR, "s", &other, false).is_err());

    // A deadline in front stays as it is.
    let mut backend = MemoryBackend::default();
    backend.put(OPERATOR, &value_key("s", b"k"), &encode_expiring(99, &[7])).expect("memory");
    assert_eq!(migrate(&mut backend, &migrations, OPERATOR, "s", &stamp(2), true).expect("steps"), 1);
    let value = backend.get(OPERATOR, &value_key("s", b"k")).expect("memory").expect("there");
    assert_eq!(decode_expiring(&value), Some((99, &[7, 0, 0, 0, 0][..])));
}
