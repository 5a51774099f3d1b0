//! `clink demo`: real flights, loaded while you look, and three ways to read the views.

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::ipc::reader::StreamReader;
use clap::Args;
use clink::engine::{Answer, Engine, EngineConfig, Session};
use clink::env::Env;
use clink::server::{BoundSockets, Listen};
use clink::types::text::{Column, JsonObjects};
use clink::types::{Error, Limits, SqlState};
use futures::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::run::{Output, print};
use super::{LogLevel, StopSignals, default_workers, init_logs, memory};

/// All departures from New York's airports in 2013 (nycflights13, CC0).
const FLIGHTS: &[u8] = include_bytes!("../../examples/flights/flights.csv.gz");
const FLIGHTS_COUNT: i64 = 336_776;
const SQL: &str = include_str!("../../examples/flights/views.sql");
/// Lines of the kind that a file has in real life.
const BAD_LINES: &str = "2013-12-31T23:00:00Z,UA,seven,N12345,EWR,SFO,5,3,2565\n\
     2013-02-30T23:00:00Z,AA,12,N54321,JFK,LAX,0,0,2475\n\
     2013-12-31T23:00:00Z,DL,99,N99999,LGA\n";
const BAD_ROWS: &str = "SELECT \"offset\", \"column\", error, raw FROM flights_errors ORDER BY \"offset\"";
/// A view some of whose rows fail, and those rows.
const PER_MINUTE: &str = "CREATE MATERIALIZED VIEW per_minute AS \
     SELECT carrier, max(distance / arr_delay) AS miles_per_minute_late FROM flights GROUP BY carrier";
const ROW_ERRORS: &str =
    "SELECT error, count(*) AS rows, min(\"row\") AS one_of_them FROM per_minute_errors GROUP BY error";
/// One statement, so one time: the biggest carriers beside the count of all flights.
const STATE: &str = "SELECT t.flights AS loaded, b.carrier, b.flights, round(b.avg_delay::numeric, 2) AS avg_delay, \
     b.destinations FROM by_carrier b CROSS JOIN total t ORDER BY b.flights DESC, b.carrier LIMIT 8";
/// Between two looks at the views.
const REDRAW: Duration = Duration::from_millis(250);

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct DemoFlags {
    /// End after so many seconds; without it the server goes on until Ctrl-C.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Worker threads, 1 to 128 [default: the number of cores].
    #[arg(long, env = "CLINK_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    workers: Option<u16>,
}

/// Shows clink at work, in a database that is gone afterwards.
///
/// # Errors
/// When a port cannot be opened or the disk is full.
pub(super) async fn run(flags: DemoFlags) -> Result<(), Error> {
    init_logs(LogLevel::Warn);
    let mut stop = StopSignals::new()?;
    let directory = tempfile::tempdir()?;
    let started = Instant::now();
    let env = Env::system();
    let local = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let sockets = BoundSockets::bind(Listen { pg: local, http: local, pg_socket: None }).await?;
    let config = EngineConfig {
        data_dir: directory.path().join("data"),
        workers: default_workers(flags.workers),
        memory_bytes: memory::default_budget(),
        limits: Limits::default(),
        checkpoints: None,
    };
    let engine = Engine::open(config, env.clone()).await?;
    let server = sockets.serve(Arc::clone(&engine), env)?;
    let addresses = server.addresses();
    let shown = tokio::select! {
        shown = show(&engine, directory.path(), addresses.pg, addresses.http, flags.seconds, started) => shown,
        () = stop.wait() => Ok(false),
    };
    if matches!(shown, Ok(true)) {
        match flags.seconds {
            Some(seconds) => {
                let left = Duration::from_secs(seconds).saturating_sub(started.elapsed());
                tokio::select! { () = tokio::time::sleep(left) => {}, () = stop.wait() => {} }
            }
            None => {
                println!("\nThe server goes on; Ctrl-C ends it, and its data.");
                stop.wait().await;
            }
        }
    }
    server.stop().await;
    engine.close().await;
    shown.map(|_| ())
}

/// The whole show; true when the server should go on behind it.
async fn show(
    engine: &Arc<Engine>,
    directory: &std::path::Path,
    pg: Option<SocketAddr>,
    http: Option<SocketAddr>,
    seconds: Option<u64>,
    started: Instant,
) -> Result<bool, Error> {
    let (Some(pg), Some(http)) = (pg, http) else { return Err(Error::internal("a port is off")) };
    let path = directory.join("flights.csv");
    let written = path.clone();
    tokio::task::spawn_blocking(move || {
        let mut file = std::fs::File::create(written)?;
        std::io::copy(&mut flate2::read::GzDecoder::new(FLIGHTS), &mut file)?;
        file.write_all(BAD_LINES.as_bytes())
    })
    .await
    .map_err(|error| Error::internal(format!("a task ended: {error}")))??;
    println!("clink: PostgreSQL's protocol on {pg}, HTTP on {http}. A file of {FLIGHTS_COUNT} flights, and its SQL:\n");
    let sql = SQL.replace("{path}", &path.display().to_string());
    println!("{}", sql.trim_end());
    let mut session = engine.session();
    let cancel = CancellationToken::new();
    for statement in session.parse(&sql)? {
        let _ = session.execute(&statement, &cancel).await?;
    }
    println!();
    let complete = watch(&mut session, &cancel, seconds, started).await?;

    println!("\nThe view on a view, by PostgreSQL's protocol:");
    println!("  {}", by_postgres(pg).await?);
    println!("by JSON over HTTP:");
    println!("  {}", String::from_utf8_lossy(&get(http, "/api/v1/views/total/scan").await?).trim_end());
    println!("and by Arrow over HTTP, with exact types:");
    for line in by_arrow(http).await? {
        println!("  {line}");
    }
    // The end of the file has lines that cannot be read; whoever has only part of the flights by now has not come to them.
    if complete {
        engine.drained().await?;
        println!("\nNo row is lost in silence. Lines that could not be read are rows of a table:\n\n  {BAD_ROWS};\n");
        table(&mut session, &cancel, BAD_ROWS).await?;
        println!("and so are rows for which an expression of a view fails:\n\n  {PER_MINUTE};\n  {ROW_ERRORS};\n");
        for statement in session.parse(PER_MINUTE)? {
            let _ = session.execute(&statement, &cancel).await?;
        }
        engine.drained().await?;
        table(&mut session, &cancel, ROW_ERRORS).await?;
    }
    println!("\nTo try:");
    println!(
        "  psql -h {} -p {} -d clink -c \"SELECT * FROM by_route ORDER BY flights DESC LIMIT 5\"",
        pg.ip(),
        pg.port()
    );
    println!("  curl 'http://{http}/api/v1/views/by_carrier?key=UA'");
    println!(
        "  python3 -c \"import pyarrow.ipc, urllib.request as u; \
         print(pyarrow.ipc.open_stream(u.urlopen('http://{http}/api/v1/views/by_route/scan.arrow')).read_all())\""
    );
    Ok(true)
}

/// Runs a query and prints its rows.
async fn table(session: &mut Session, cancel: &CancellationToken, query: &str) -> Result<(), Error> {
    for statement in session.parse(query)? {
        print(session.execute(&statement, cancel).await?, Output::Table).await?;
    }
    Ok(())
}

/// Draws the views until all flights are in, or the time is over; true when they are.
async fn watch(
    session: &mut Session,
    cancel: &CancellationToken,
    seconds: Option<u64>,
    started: Instant,
) -> Result<bool, Error> {
    let terminal = std::io::stdout().is_terminal();
    let statements = session.parse(STATE)?;
    let statement = statements.first().ok_or_else(|| Error::internal("no statement"))?;
    let mut drawn = 0;
    loop {
        let Answer::Rows { mut rows, .. } = session.execute(statement, cancel).await? else {
            return Err(Error::internal("the state has no rows"));
        };
        let mut fields: Vec<Vec<String>> = Vec::new();
        while let Some(batch) = rows.next().await {
            fields.extend(texts(&batch.map_err(clink::engine::error_of)?)?);
        }
        let loaded = fields.first().and_then(|row| row.first()).cloned().unwrap_or_else(|| "0".to_owned());
        let after = started.elapsed().as_secs_f64();
        if terminal {
            if drawn > 0 {
                print!("\x1b[{drawn}A\x1b[J");
            }
            println!("after {after:.1} s: {loaded} flights");
            println!("  {:<7} {:>8} {:>10} {:>12}", "carrier", "flights", "avg_delay", "destinations");
            for row in &fields {
                if let [_, carrier, flights, delay, destinations] = row.as_slice() {
                    println!("  {carrier:<7} {flights:>8} {delay:>10} {destinations:>12}");
                }
            }
            drawn = fields.len() + 2;
        } else {
            let rows: Vec<String> =
                fields.iter().take(4).map(|row| row.get(1..).unwrap_or_default().join(" ")).collect();
            println!("after {after:5.1} s: {loaded:>6} flights; {}", rows.join("; "));
        }
        std::io::stdout().flush()?;
        let over = seconds.is_some_and(|seconds| started.elapsed() >= Duration::from_secs(seconds));
        let complete = loaded.parse::<i64>().is_ok_and(|loaded| loaded >= FLIGHTS_COUNT);
        if over || complete {
            return Ok(complete);
        }
        tokio::time::sleep(REDRAW).await;
    }
}

fn texts(batch: &RecordBatch) -> Result<Vec<Vec<String>>, Error> {
    let columns = JsonObjects::columns(batch)?;
    let text = |column: &Column, row: usize| {
        let mut out = Vec::new();
        if !column.is_null(row) {
            column.write_text(row, &mut out);
        }
        String::from_utf8_lossy(&out).into_owned()
    };
    Ok((0..batch.num_rows()).map(|row| columns.iter().map(|column| text(column, row)).collect()).collect())
}

fn outside(error: impl std::fmt::Display) -> Error {
    Error::new(SqlState::IoError, format!("the server did not answer: {error}"))
}

async fn by_postgres(address: SocketAddr) -> Result<String, Error> {
    let config = format!("host={} port={} user=demo dbname=clink", address.ip(), address.port());
    let (client, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls).await.map_err(outside)?;
    let connection = tokio::spawn(connection);
    let messages = client.simple_query("SELECT * FROM total").await.map_err(outside)?;
    let row = messages.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => {
            let fields: Vec<String> = (0..row.len())
                .map(|index| {
                    let name = row.columns().get(index).map(|column| column.name()).unwrap_or_default();
                    format!("{name} = {}", row.get(index).unwrap_or("NULL"))
                })
                .collect();
            Some(fields.join(", "))
        }
        _ => None,
    });
    drop(client);
    connection.abort();
    row.ok_or_else(|| outside("no row"))
}

/// The body of a GET; HTTP/1.0, so that the end of the connection ends it.
async fn get(address: SocketAddr, path: &str) -> Result<Vec<u8>, Error> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").ok_or_else(|| outside("no HTTP answer"))?;
    if !answer.starts_with(b"HTTP/1.0 200") && !answer.starts_with(b"HTTP/1.1 200") {
        return Err(outside(String::from_utf8_lossy(answer.get(..end).unwrap_or_default())));
    }
    Ok(answer.split_off(end + 4))
}

async fn by_arrow(address: SocketAddr) -> Result<Vec<String>, Error> {
    let body = get(address, "/api/v1/views/total/scan.arrow").await?;
    let mut reader = StreamReader::try_new(body.as_slice(), None)?;
    let schema = reader.schema();
    let mut lines = Vec::new();
    while let Some(batch) = reader.next().transpose()? {
        for row in texts(&batch)? {
            let fields: Vec<String> = schema
                .fields()
                .iter()
                .zip(&row)
                .map(|(field, value)| format!("{}: {} = {value}", field.name(), field.data_type()))
                .collect();
            lines.push(fields.join(", "));
        }
    }
    Ok(lines)
}
