use std::sync::Arc;

use object_store::memory::InMemory;

use super::*;
use crate::env::Failpoints;

fn with_stores(test: impl Fn(&dyn PartStore)) {
    let folder = tempfile::tempdir().expect("a folder");
    test(&LocalStore::open(&folder.path().join("a/b"), true, Failpoints::default()).expect("opens"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("starts");
    let memory = Arc::new(InMemory::new());
    test(&ObjectPartStore::new(memory, "some/prefix", "memory".to_owned(), runtime.handle().clone()));
}

#[test]
fn the_checksum_is_castagnolis() {
    // The check value of RFC 3720, appendix B.4: 32 zero bytes give aa 36 91 8a.
    assert_eq!(Part::of("p", &[0; 32]).crc32c, 0x8a91_36aa);
}

#[test]
fn parts_are_kept_listed_and_removed() {
    with_stores(|store| {
        let part = store.put("x/1.arrow", Bytes::from_static(b"hello parts")).expect("writes");
        assert_eq!(store.get(&part).expect("whole"), "hello parts");
        assert_eq!(store.get_range(&part, 6..11).expect("whole"), "parts");
        assert!(store.get_range(&part, 6..12).is_err());
        store.put("x/2.arrow", Bytes::new()).expect("writes");
        store.put("y/1.arrow", Bytes::new()).expect("writes");
        let names = |prefix| store.list(prefix).expect("lists").into_iter().map(|l| l.name).collect::<Vec<_>>();
        assert_eq!(names(""), ["x/1.arrow", "x/2.arrow", "y/1.arrow"]);
        assert_eq!(names("x/"), ["x/1.arrow", "x/2.arrow"]);
        assert_eq!(names("x/2"), ["x/2.arrow"]);
        let folder = tempfile::tempdir().expect("a folder");
        let copy = folder.path().join("copy");
        store.fetch(&part, &copy).expect("whole");
        assert_eq!(std::fs::read(&copy).expect("there"), b"hello parts");
        let again = store.put_file("z/copy", &copy, None).expect("writes");
        assert_eq!((again.bytes, again.crc32c), (part.bytes, part.crc32c));
        store.delete("x/1.arrow").expect("removes");
        store.delete("x/1.arrow").expect("is gone already");
        let missing = store.get(&part).expect_err("gone");
        assert_eq!(missing.code(), SqlState::DataCorrupted);
        assert!(missing.message().contains("missing"), "{missing}");
        for name in ["../x", "a//b", "/etc/passwd", "", "a/..", "a\\b"] {
            assert!(store.put(name, Bytes::new()).is_err(), "{name}");
        }
    });
}

#[test]
fn damage_is_told_apart_from_content() {
    with_stores(|store| {
        let part = store.put("p", Bytes::from_static(b"abcdef")).expect("writes");
        for damage in [&b"abcde"[..], b"abcdeF", b"abcdefg", b""] {
            store.put("p", Bytes::from_static(damage)).expect("writes");
            assert_eq!(store.get(&part).expect_err("damaged").code(), SqlState::DataCorrupted);
            let folder = tempfile::tempdir().expect("a folder");
            assert_eq!(
                store.fetch(&part, &folder.path().join("f")).expect_err("damaged").code(),
                SqlState::DataCorrupted
            );
        }
    });
}

#[test]
fn one_swap_wins() {
    with_stores(|store| {
        assert!(store.read("HEAD").expect("reads").is_none());
        let Swap::Done(first) = store.swap("HEAD", None, Bytes::from_static(b"1")).expect("decided") else {
            panic!("lost")
        };
        assert!(matches!(store.swap("HEAD", None, Bytes::from_static(b"2")).expect("decided"), Swap::Lost));
        let Swap::Done(second) = store.swap("HEAD", Some(&first), Bytes::from_static(b"3")).expect("decided") else {
            panic!("lost")
        };
        // A writer that wakes up late.
        assert!(matches!(store.swap("HEAD", Some(&first), Bytes::from_static(b"4")).expect("decided"), Swap::Lost));
        assert_eq!(store.read("HEAD").expect("reads").expect("there").content(), "3");
        assert!(matches!(store.swap("HEAD", Some(&second), Bytes::from_static(b"5")).expect("decided"), Swap::Done(_)));
    });
}

#[test]
fn a_crash_shows_the_whole_part_or_none() {
    let folder = tempfile::tempdir().expect("a folder");
    for (point, shown) in [
        ("part.write", false),
        ("part.sync", false),
        ("part.rename", false),
        ("part.sync_folder", true),
        ("part.written", true),
    ] {
        let failpoints = Failpoints::default();
        let store = LocalStore::open(&folder.path().join(point), true, failpoints.clone()).expect("opens");
        failpoints.arm(point, 0);
        assert!(store.put("p", Bytes::from_static(b"whole")).is_err());
        let part = Part::of("p", b"whole");
        assert_eq!(store.get(&part).is_ok(), shown, "{point}");
        // The next start writes it again.
        store.put("p", Bytes::from_static(b"whole")).expect("writes");
        assert_eq!(store.get(&part).expect("whole"), "whole");
    }
}

#[test]
fn a_folder_that_empties_meanwhile_is_made_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Arc::new(LocalStore::open(folder.path(), false, Failpoints::default()).expect("opens"));
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let store = Arc::clone(&store);
            std::thread::spawn(move || {
                for round in 0..300 {
                    let name = format!("log/{thread}-{round}");
                    let part = store.put(&name, Bytes::from_static(b"x")).expect("writes");
                    store.list("log/").expect("lists");
                    assert_eq!(store.get(&part).expect("whole"), "x");
                    store.delete(&name).expect("removes");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no failure"));
}

#[test]
fn what_a_crash_left_is_not_written_through() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = LocalStore::open(folder.path(), false, Failpoints::default()).expect("opens");
    let shared = store.put("shared", Bytes::from_static(b"of another checkpoint")).expect("writes");
    // The next unfinished file's name, as a process of the same number left it: a link to a part in use.
    let left = folder.path().join(format!("p.{}-1.part", std::process::id()));
    std::fs::hard_link(folder.path().join("shared"), &left).expect("links");
    store.put("p", Bytes::from_static(b"new")).expect("writes");
    assert_eq!(store.get(&shared).expect("whole"), "of another checkpoint");
    let again = folder.path().join(format!("q.{}-2.part", std::process::id()));
    std::fs::hard_link(folder.path().join("shared"), &again).expect("links");
    let source = folder.path().join("p");
    store.put_file("q", &source, None).expect("writes");
    assert_eq!(store.get(&shared).expect("whole"), "of another checkpoint");
}
