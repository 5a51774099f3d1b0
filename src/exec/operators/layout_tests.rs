//! docs/state-layout.md names every slot that an operator writes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::tests::{InputRow, aggregate, arrangement, barrier, chunk, close, input, join, open};
use super::*;
use crate::exec::plan::{JoinKind, RankSpec, Show, SortKey};
use crate::state::MemoryBackend;

const PAGE: &str = include_str!("../../../docs/state-layout.md");

/// The slots of the keys that an operator wrote.
fn slots(backend: &MemoryBackend, operator: OperatorId) -> BTreeSet<String> {
    let mut slots = BTreeSet::new();
    backend
        .scan(operator, &[], &mut |key, _| {
            // Behind the key group, or the mark of operator state.
            let name = key.iter().skip(1).take_while(|byte| !matches!(byte, b'|' | b'#'));
            slots.insert(String::from_utf8(name.copied().collect()).expect("a slot's name is text"));
            Ok(())
        })
        .expect("reads");
    slots
}

/// Rows of two keys, one of them twice.
fn rows() -> Vec<(InputRow, i64)> {
    vec![((Some(1), Some(5), Some(2), Some(true)), 2), ((None, Some(1), None, None), 1)]
}

fn check(operator: &mut dyn Operator, id: OperatorId, expected: &[&str]) {
    let mut store = MemoryBackend::default();
    open(operator, &mut store);
    close(operator, &mut store, 1, &rows());
    barrier(operator, &mut store);
    let found = slots(&store, id);
    let expected: BTreeSet<String> = expected.iter().map(|slot| (*slot).to_owned()).collect();
    assert_eq!(found, expected);
    for slot in &found {
        assert!(documented(slot), "{slot} is not in docs/state-layout.md");
    }
}

/// Aggregates have numbered slots, which the page names by the first.
fn documented(slot: &str) -> bool {
    let numbered = slot.strip_prefix('a').is_some_and(|number| number.parse::<usize>().is_ok());
    let name = if numbered { "a0" } else { slot };
    PAGE.lines().any(|line| line.starts_with('|') && line.contains(&format!("`{name}`")))
}

#[test]
fn every_slot_that_an_operator_writes_is_on_the_page() {
    let root = OperatorId::of("public.v", "root");
    // Those of the test's aggregates that have a map.
    check(&mut aggregate(&[0], true), root, &["groups", "a1", "a3", "a5", "a6", "a9"]);
    let mut living = aggregate(&[0], true).living(1_000);
    check(&mut living, root, &["groups", "deadlines", "a1", "a3", "a5", "a6", "a9"]);
    let mut expire = Expire::new(root, input(), vec![0], 1_000, true).expect("takes the types");
    check(&mut expire, root, &["rows", "deadlines"]);

    let mut joined = join(JoinKind::Full, true, true);
    let mut store = MemoryBackend::default();
    open(&mut joined, &mut store);
    for side in [0, 1] {
        let x = 1 + side as i64;
        let row = ((Some(1), Some(x), None, None), 1);
        chunk(&[row]).into_iter().for_each(|chunk| joined.push(side, chunk).expect("takes the type"));
    }
    close(&mut joined, &mut store, 1, &[]);
    barrier(&mut joined, &mut store);
    let found = slots(&store, root);
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["l", "lp", "r", "rp"]);
    assert!(["l", "lp", "r", "rp"].into_iter().all(documented));

    let order = vec![SortKey { column: 1, options: Default::default() }];
    let spec = RankSpec { keys: vec![0], order, show: Show::First { skip: 0, limit: Some(1) } };
    let mut rank = Rank::new(root, &input(), input(), &spec, true).expect("takes the types");
    check(&mut rank, root, &["rows"]);

    let mut sessions = super::session_tests::sessions(None);
    let mut store = MemoryBackend::default();
    open(&mut sessions, &mut store);
    let rows = super::version_tests::chunks(&[((Some(1), Some(5), 0), 1)]);
    rows.into_iter().for_each(|chunk| sessions.push(0, chunk).expect("takes the type"));
    close(&mut sessions, &mut store, 1, &[]);
    barrier(&mut sessions, &mut store);
    assert_eq!(slots(&store, root).into_iter().collect::<Vec<_>>(), ["rows"]);
    assert!(documented("closed") && documented("panes"));

    let kept = OperatorId::of("public.v", "rows");
    check(&mut arrangement(&[], true).retaining(60_000), kept, &["rows", "history"]);
}

/// The names of slots that the sources give a name of their own.
fn named_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the sources") {
        let path: PathBuf = entry.expect("an entry").path();
        if path.is_dir() {
            named_in(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            for line in text.lines().filter(|line| line.starts_with("const ") && line.contains("SLOT_NAME: &str = ")) {
                found.extend(line.split('"').nth(1).map(str::to_owned));
            }
        }
    }
}

#[test]
fn every_slot_that_the_sources_name_is_on_the_page() {
    let mut found = BTreeSet::new();
    named_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/exec"), &mut found);
    assert!(found.contains("groups") && found.contains("history"), "{found:?}");
    for slot in found {
        assert!(documented(&slot), "{slot} is not in docs/state-layout.md");
    }
}
