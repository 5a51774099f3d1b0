use std::collections::BTreeMap;

use super::options::{Mode, StateOptions, Target};
use crate::connectors::options::{OptionValue, Options};
use crate::types::{Error, Result, SqlState};

fn parse(pairs: &[(&str, &str)]) -> Result<StateOptions> {
    let value = |(at, text): (usize, &str)| OptionValue { text: text.to_owned(), position: 10 + at, number: false };
    let values: BTreeMap<String, OptionValue> =
        pairs.iter().enumerate().map(|(at, (name, text))| ((*name).to_owned(), value((at, text)))).collect();
    StateOptions::parse(&Options::new(&values))
}

fn refused(pairs: &[(&str, &str)]) -> Error {
    parse(pairs).expect_err("refused")
}

const URL: (&str, &str) = ("url", "http://127.0.0.1:8081");

#[test]
fn what_is_read_is_named_in_three_ways() {
    let view = parse(&[URL, ("view", "s.v"), ("mode", "changes")]).expect("a view");
    assert_eq!((view.target, view.mode), (Target::View("s.v".to_owned()), Mode::Changes));
    let inside = parse(&[URL, ("job", "v"), ("operator", "root"), ("part", "left")]).expect("an operator");
    let part = Some("left".to_owned());
    assert_eq!(inside.target, Target::Operator { job: "v".to_owned(), operator: "root".to_owned(), part });
    let slot = parse(&[URL, ("job", "7"), ("operator", "v"), ("slot", "agg")]).expect("a slot");
    assert_eq!(slot.target, Target::Slot { job: 7, role: "v".to_owned() });
}

#[test]
fn the_names_of_the_original_are_taken() {
    let options =
        [("coordinator_port", "9"), ("job_id", "7"), ("limit", "5"), ("batch_size", "256"), ("format", "json")];
    let found = parse(&options).expect("as the original has it");
    assert_eq!(found.url.as_str(), "http://127.0.0.1:9/");
    assert_eq!(found.target, Target::Slot { job: 7, role: "__clink_subtask".to_owned() });
    assert_eq!((found.limit, found.batch_size, found.mode), (Some(5), 256, Mode::Snapshot));
    let host = [("coordinator_host", "localhost"), ("coordinator_port", "9"), ("job_id", "7"), ("role", "v")];
    assert_eq!(parse(&host).expect("with a host").url.as_str(), "http://localhost:9/");
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let view = ("view", "v");
    for (pairs, position) in [
        (vec![("url", "127.0.0.1:8081"), view], 10),
        (vec![("url", "http://127.0.0.1:8081/api"), view], 10),
        (vec![("url", "http://me@127.0.0.1:8081"), view], 10),
        (vec![("url", "ftp://127.0.0.1"), view], 10),
        (vec![URL, view, ("coordinator_port", "1")], 12),
        (vec![("coordinator_host", "here"), view], 10),
        (vec![URL, view, ("job", "v")], 12),
        (vec![URL, ("job", "v"), ("job_id", "1")], 12),
        (vec![URL, ("job", "v")], 11),
        (vec![URL, ("job_id", "1"), ("slot", "other")], 12),
        (vec![URL, ("job_id", "1"), ("part", "left")], 12),
        (vec![URL, view, ("mode", "follow")], 12),
        (vec![URL, view, ("mode", "changes"), ("limit", "1")], 13),
        (vec![URL, view, ("format", "csv")], 12),
        (vec![URL, view, ("viev", "v")], 12),
    ] {
        let error = refused(&pairs);
        assert_eq!((error.code(), error.position_at()), (SqlState::InvalidParameterValue, Some(position)), "{pairs:?}");
        assert!(error.hint_text().is_some(), "{pairs:?}");
    }
    for pairs in [
        vec![("url", "https://127.0.0.1:8081"), view],
        vec![URL, ("job", "v"), ("operator", "root"), ("mode", "changes")],
        vec![URL, ("job_id", "1"), ("slot", "rows")],
    ] {
        assert_eq!(refused(&pairs).code(), SqlState::FeatureNotSupported, "{pairs:?}");
    }
    assert_eq!(refused(&[view]).message(), "option \"url\" is missing");
    assert_eq!(refused(&[URL]).message(), "option \"view\" is missing");
}
