//! Clients that send anything: 200,000 changed messages of PostgreSQL's protocol and 50,000 changed HTTP
//! requests. Nothing panics, others are served meanwhile, and memory stays.
//!
//! `CLINK_FUZZ_SEED` names another seed, `CLINK_FUZZ_SHARE` a part of the messages in percent.

mod fuzz;
mod served;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fuzz::{Corpus, any_byte, mutated, startup};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use served::Server;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const MESSAGES: usize = 200_000;
const MESSAGES_PER_CONNECTION: usize = 60;
const REQUESTS: usize = 50_000;
const REQUESTS_PER_CONNECTION: usize = 4;
/// Clients at a time.
const CLIENTS: usize = 8;
/// How much more memory the server may take than before.
const MORE_BYTES_MAX: u64 = 64 << 20;
/// How long a client may have to wait for the end of what it sent.
const PATIENCE: Duration = Duration::from_secs(60);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

fn seed() -> u64 {
    setting("CLINK_FUZZ_SEED", 20_240_229)
}

fn share(of: usize) -> usize {
    of * usize::try_from(setting("CLINK_FUZZ_SHARE", 100)).expect("a percentage") / 100
}

/// Sends bytes and takes whatever comes back, until the server ends the connection.
async fn send(address: &str, bytes: Vec<u8>) {
    let socket = TcpStream::connect(address).await.expect("the server listens");
    let (mut reader, mut writer) = socket.into_split();
    let write = async move {
        // The server may have closed the connection before it was read to its end.
        let _ = writer.write_all(&bytes).await;
        let _ = writer.shutdown().await;
        writer
    };
    let read = async move {
        let mut taken = vec![0; 16 << 10];
        while matches!(reader.read(&mut taken).await, Ok(length) if length > 0) {}
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(write, read) }).await.expect("the connection ends");
}

/// Several clients send what `make` gives until all is sent; meanwhile another one is served.
async fn bombard(server: &Server, address: &str, total: usize, each: usize, make: fn(&Corpus, &mut StdRng) -> Vec<u8>) {
    let corpus = Arc::new(Corpus::read(&server.pg).await);
    let sent = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let (corpus, sent, address) = (Arc::clone(&corpus), Arc::clone(&sent), address.to_owned());
        let mut random = StdRng::seed_from_u64(seed() + client as u64);
        clients.spawn(async move {
            while sent.fetch_add(each, Ordering::Relaxed) < total {
                send(&address, make(&corpus, &mut random)).await;
            }
        });
    }
    let other = server.connect().await.expect("another client");
    let done = Arc::new(AtomicBool::new(false));
    let watched = async {
        let mut slowest = Duration::ZERO;
        while !done.load(Ordering::Relaxed) {
            let asked = Instant::now();
            let row = other.client.query_one("SELECT 1", &[]).await.expect("the other client is served");
            assert_eq!(row.get::<_, i32>(0), 1);
            slowest = slowest.max(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        slowest
    };
    let worked = async {
        while let Some(client) = clients.join_next().await {
            client.expect("a client goes on to its end");
        }
        done.store(true, Ordering::Relaxed);
    };
    let (slowest, ()) = tokio::join!(watched, worked);
    assert!(slowest < Duration::from_secs(10), "the other client waited for {slowest:?}");
    println!("the other client waited for at most {slowest:?}");
}

/// Runs a bombardment on a server of its own, and looks at what it left.
async fn survive(total: usize, each: usize, address: fn(&Server) -> String, make: fn(&Corpus, &mut StdRng) -> Vec<u8>) {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("made");
    let server = Server::start(&data, 2);
    let connection = server.connect().await.expect("a connection");
    connection
        .client
        .batch_execute(
            "CREATE TABLE t (id int PRIMARY KEY, s text); INSERT INTO t VALUES (1, 'a'); \
             CREATE MATERIALIZED VIEW v AS SELECT id, s FROM t",
        )
        .await
        .expect("objects");
    let address = address(&server);
    // What all clients may do, and a part of what follows, is the measure.
    for session in &Corpus::read(&server.pg).await.sessions {
        send(&server.pg, session.clone()).await;
    }
    bombard(&server, &address, total / 20, each, make).await;
    let before = memory_bytes(&server);
    let began = Instant::now();
    bombard(&server, &address, total, each, make).await;
    let (took, after) = (began.elapsed(), memory_bytes(&server));
    println!("seed {}: {total} in {took:?}, memory {} MiB and then {} MiB", seed(), before >> 20, after >> 20);
    assert!(after.saturating_sub(before) <= MORE_BYTES_MAX, "seed {}: {before} and then {after} bytes", seed());
    let log = std::fs::read_to_string(data.with_extension("stderr")).expect("the log");
    assert!(!log.contains("panic"), "seed {}:\n{log}", seed());
    assert!(server.connect().await.is_ok());
}

fn memory_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(server.id().to_string()).join("status"));
    let status = status.expect("the server runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number");
    kib << 10
}

fn messages(corpus: &Corpus, random: &mut StdRng) -> Vec<u8> {
    let mut bytes = match random.random_range(0..20) {
        0 => {
            let mut startup = corpus.startups[random.random_range(0..corpus.startups.len())].clone();
            for _ in 0..random.random_range(0..4) {
                let at = random.random_range(0..startup.len());
                startup[at] = any_byte(random);
            }
            startup
        }
        _ => startup(),
    };
    for number in 0..MESSAGES_PER_CONNECTION {
        // After an error all is skipped up to a Sync.
        if number % 6 == 0 {
            bytes.extend_from_slice(b"S\0\0\0\x04");
        }
        let frame = corpus.pick(random);
        bytes.extend(mutated(random, frame));
    }
    bytes
}

const REQUEST_LINES: &[&str] = &[
    "GET /api/v1/health HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /api/v1/views HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /api/v1/views/v/scan?limit=3&filter=id%20%3E%201 HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /api/v1/views/v?key=1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /api/v1/views/v/scan.arrow?columns=id HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n",
    "POST /api/v1/sql HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nSELECT 1",
    "POST /api/v1/sql HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nSELECT 1\r\n0\r\n\r\n",
    "POST /api/v1/sql HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 35\r\n\r\n{\"sql\": \"SELECT $1\", \"params\": [1]}",
    "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
];

fn requests(_: &Corpus, random: &mut StdRng) -> Vec<u8> {
    const PARTS: [&[u8]; 8] =
        [b"%00", b"%2e%2e/", b"\r\n", b"99999999999999999999", b"\xff", b"'", &[b'a'; 300], b"Content-Length: 5\r\n"];
    let mut bytes = Vec::new();
    for _ in 0..REQUESTS_PER_CONNECTION {
        let mut request = REQUEST_LINES[random.random_range(0..REQUEST_LINES.len())].as_bytes().to_vec();
        for _ in 0..random.random_range(0..4) {
            let at = random.random_range(0..=request.len());
            match random.random_range(0..4) {
                0 if at < request.len() => request[at] = any_byte(random),
                1 => {
                    let end = (at + random.random_range(1..9)).min(request.len());
                    request.drain(at..end);
                }
                2 => {
                    let part = PARTS[random.random_range(0..PARTS.len())];
                    request.splice(at..at, part.iter().copied());
                }
                _ => request.truncate(at),
            }
        }
        bytes.extend(request);
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_may_be_anything() {
    survive(share(MESSAGES), MESSAGES_PER_CONNECTION, |server| server.pg.clone(), messages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_may_be_anything() {
    survive(share(REQUESTS), REQUESTS_PER_CONNECTION, |server| server.http.clone(), requests).await;
}
