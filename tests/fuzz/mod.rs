//! What the clients of PostgreSQL sent when they were recorded, taken apart and changed at random.

use std::path::Path;

use futures::SinkExt as _;
use rand::rngs::StdRng;
use rand::{Rng as _, RngCore as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The folder of the recorded sessions: what each client sent, byte by byte.
const SESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/sessions");
/// Statements as long as this are catalog queries, which take their time.
const LONG: usize = 400;

/// Messages of clients.
pub(crate) struct Corpus {
    /// The messages with which they logged in.
    pub(crate) startups: Vec<Vec<u8>>,
    /// All others, by how often they are taken: statements, long statements, the rest.
    statements: Vec<Vec<u8>>,
    long: Vec<Vec<u8>>,
    rest: Vec<Vec<u8>>,
    /// Whole sessions.
    pub(crate) sessions: Vec<Vec<u8>>,
}

impl Corpus {
    /// The recorded sessions, and one of tokio-postgres that is recorded now.
    pub(crate) async fn read(address: &str) -> Corpus {
        let mut paths: Vec<_> = std::fs::read_dir(Path::new(SESSIONS))
            .expect("the folder of the sessions")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        paths.sort();
        let mut corpus = Corpus {
            startups: Vec::new(),
            statements: Vec::new(),
            long: Vec::new(),
            rest: Vec::new(),
            sessions: Vec::new(),
        };
        for path in paths {
            corpus.add(std::fs::read(&path).expect("a session"));
        }
        corpus.add(record(address).await);
        assert!(corpus.startups.len() >= 6 && corpus.rest.len() > 100, "too few sessions are recorded");
        corpus
    }

    fn add(&mut self, session: Vec<u8>) {
        let mut bytes = session.as_slice();
        // Requests for encryption stand before the startup message.
        let mut startup = take(&mut bytes, 0);
        while startup.as_ref().is_some_and(|startup| startup.len() == 8) {
            startup = take(&mut bytes, 0);
        }
        let Some(startup) = startup else { return };
        self.startups.push(startup);
        while let Some(frame) = take(&mut bytes, 1) {
            let kind = frame[0];
            let changes = |word: &[u8]| frame.to_ascii_uppercase().windows(word.len()).any(|part| part == word);
            match kind {
                // What makes objects or takes long would measure something else.
                b'Q' | b'P' if [&b"CREATE"[..], b"GENERATE_SERIES", b"ISOLATION"].iter().any(|word| changes(word)) => {}
                b'Q' | b'P' if frame.len() > LONG => self.long.push(frame),
                b'Q' | b'P' => self.statements.push(frame),
                b'X' => {}
                _ => self.rest.push(frame),
            }
        }
        self.sessions.push(session);
    }

    /// A message, mostly a short one.
    pub(crate) fn pick(&self, random: &mut StdRng) -> &[u8] {
        let frames = match random.random_range(0..1_000) {
            0..5 => &self.long,
            5..250 => &self.statements,
            _ => &self.rest,
        };
        &frames[random.random_range(0..frames.len())]
    }
}

/// What tokio-postgres sends to the server at an address.
async fn record(address: &str) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let between = listener.local_addr().expect("an address").to_string();
    let server = address.to_owned();
    let recording = tokio::spawn(async move {
        let (client, _) = listener.accept().await.expect("a client");
        let server = TcpStream::connect(&server).await.expect("the server");
        let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
            (client.into_split(), server.into_split());
        let answers = tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        let (mut sent, mut bytes) = (Vec::new(), vec![0; 16 << 10]);
        while let Ok(length @ 1..) = from_client.read(&mut bytes).await {
            sent.extend_from_slice(&bytes[..length]);
            to_server.write_all(&bytes[..length]).await.expect("the server reads");
        }
        answers.abort();
        sent
    });
    let connection = super::served::connect(&between).await.expect("a connection");
    let client = &connection.client;
    let insert = client.prepare("INSERT INTO t VALUES ($1, $2) ON CONFLICT DO NOTHING").await.expect("prepared");
    client.execute(&insert, &[&7_i32, &"x"]).await.expect("inserted");
    client.query("SELECT id, s FROM t WHERE id = $1", &[&7_i32]).await.expect("rows");
    let sink = client.copy_in("COPY t FROM STDIN").await.expect("a copy");
    let mut sink = std::pin::pin!(sink);
    sink.send(bytes::Bytes::from_static(b"8\ty\n")).await.expect("sent");
    sink.finish().await.expect("copied");
    client.batch_execute("BEGIN; SELECT 1; ROLLBACK; DELETE FROM t WHERE id > 6").await.expect("a block");
    drop(connection);
    recording.await.expect("recorded")
}

/// The next message of a session: its length stands behind so many bytes of kind.
fn take(bytes: &mut &[u8], kind: usize) -> Option<Vec<u8>> {
    let length = u32::from_be_bytes(bytes.get(kind..kind + 4)?.try_into().ok()?) as usize + kind;
    let (frame, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(frame.to_vec())
}

/// The message with something changed. Most changes leave its frame whole, so that the server goes on
/// to read what follows.
pub(crate) fn mutated(random: &mut StdRng, frame: &[u8]) -> Vec<u8> {
    const LENGTHS: [i32; 9] = [0, 3, 4, 5, -1, i32::MIN, i32::MAX, 1 << 20, 64 << 20];
    let kind = frame[0];
    let mut body = frame[5..].to_vec();
    match random.random_range(0..100) {
        // As it is.
        0..10 => {}
        // Cut short, with a length that says so.
        10..35 => body.truncate(random.random_range(0..=body.len())),
        // Other bytes.
        35..65 => {
            for _ in 0..random.random_range(1..5) {
                if !body.is_empty() {
                    let at = random.random_range(0..body.len());
                    body[at] = any_byte(random);
                }
            }
        }
        // Bytes between.
        65..80 => {
            let at = random.random_range(0..=body.len());
            let more: Vec<u8> = (0..random.random_range(1..9)).map(|_| any_byte(random)).collect();
            body.splice(at..at, more);
        }
        // Parts twice.
        80..90 => {
            let (from, to) = (random.random_range(0..=body.len()), random.random_range(0..=body.len()));
            let part = body[from.min(to)..from.max(to)].to_vec();
            body.splice(to..to, part);
        }
        // Another kind.
        90..97 => {
            const KINDS: &[u8] = b"QPBCDEHSdcf";
            return framed(KINDS[random.random_range(0..KINDS.len())], &body);
        }
        // No frame.
        97 => {
            let mut frame = framed(kind, &body);
            frame[1..5].copy_from_slice(&LENGTHS[random.random_range(0..LENGTHS.len())].to_be_bytes());
            return frame;
        }
        98 => return framed(any_byte(random), &body),
        _ => {
            let mut frame = framed(kind, &body);
            frame.truncate(random.random_range(0..=frame.len()));
            return frame;
        }
    }
    framed(kind, &body)
}

fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend_from_slice(&u32::try_from(body.len() + 4).expect("short").to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

/// Any byte, those that mean something more often.
pub(crate) fn any_byte(random: &mut StdRng) -> u8 {
    const FAVOURITES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, b'\'', b';', b'$'];
    if random.random_bool(0.4) {
        FAVOURITES[random.random_range(0..FAVOURITES.len())]
    } else {
        random.next_u32().to_be_bytes()[0]
    }
}

/// The message with which a client logs in, with a bound on every statement.
pub(crate) fn startup() -> Vec<u8> {
    let mut body = 196_608_u32.to_be_bytes().to_vec();
    for text in ["user", "fuzz", "database", "clink", "options", "-c statement_timeout=1s", ""] {
        body.extend_from_slice(text.as_bytes());
        body.push(0);
    }
    let length = u32::try_from(body.len() + 4).expect("short");
    [&length.to_be_bytes()[..], &body].concat()
}
