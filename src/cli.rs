//! The command line: flags, signals and exit codes.
//!
//! Exit 0 after a clean stop, 1 when the server cannot run or a statement fails, 2 when the command line is wrong.

mod demo;
mod interval;
mod memory;
mod progress;
mod run;
mod state;

use std::io::Write as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clink::engine::{CheckpointConfig, Engine, EngineConfig, savepoint_folder};
use clink::env::Env;
use clink::server::{BoundSockets, Listen, ServerAddresses};
use clink::types::{Error, Limits};

/// Planning walks queries by recursion, as deep as the parser lets them be. Of a stack only what was used takes memory.
const IO_STACK_BYTES: usize = 64 << 20;

/// How long tasks on the blocking pool may go on after everything else has ended.
const RUNTIME_STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A SQL-first streaming database in one binary.
#[derive(Debug, Parser)]
#[command(name = "clink", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the database.
    Serve(ServeFlags),
    /// Load real flights into views while you look.
    Demo(demo::DemoFlags),
    /// Run SQL to its end in a database of its own, and print its rows.
    Run(run::RunFlags),
    /// Print the entries of a checkpoint, a savepoint or a snapshot file.
    StateCat(state::CatFlags),
    /// Print what differs between two states; exit 0: nothing, 1: something, 2: an error.
    StateDiff(state::DiffFlags),
    /// Write entries as one Arrow stream or as Parquet.
    StateExport(state::ExportFlags),
    /// Ask entries by SQL.
    StateQuery(state::QueryFlags),
    /// Remove files that no checkpoint names.
    StateSweep(state::SweepFlags),
    /// Check every part of each checkpoint; exit 1 when one is damaged.
    CheckpointVerify(state::VerifyFlags),
    /// Check a savepoint; exit 1 when it is damaged.
    CheckSavepoint(state::VerifyFlags),
}

#[derive(Debug, Args)]
struct ServeFlags {
    /// Directory of everything durable; made when absent.
    #[arg(long, env = "CLINK_DATA_DIR", default_value = "./clink-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Where to serve PostgreSQL's protocol; port 0 picks a free one.
    #[arg(long, env = "CLINK_PG", default_value = "127.0.0.1:7432", value_name = "HOST:PORT|off")]
    pg: String,
    /// A folder in which to serve PostgreSQL's protocol over a Unix socket, for this user alone.
    #[arg(long, env = "CLINK_PG_SOCKET", value_name = "DIR")]
    pg_socket: Option<PathBuf>,
    /// Where to serve HTTP; port 0 picks a free one.
    #[arg(long, env = "CLINK_HTTP", default_value = "127.0.0.1:8081", value_name = "HOST:PORT|off")]
    http: String,
    /// Worker threads, 1 to 128 [default: the number of cores].
    #[arg(long, env = "CLINK_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    workers: Option<u16>,
    /// The budget of memory, such as 4GiB or 512MB [default: 70 % of the machine or its cgroup].
    #[arg(long, env = "CLINK_MEMORY", value_name = "SIZE", value_parser = memory::parse_size)]
    memory: Option<u64>,
    /// How much to log on stderr.
    #[arg(long, env = "CLINK_LOG", value_enum, default_value_t = LogLevel::Info, value_name = "LEVEL")]
    log: LogLevel,
    /// A limit on what clients may take, such as sessions=500; docs/postgres.md lists them.
    #[arg(long, env = "CLINK_LIMIT", value_name = "NAME=VALUE", value_delimiter = ',')]
    limit: Vec<String>,
    /// Where jobs that name no backend keep their state, such as memory+sharded://, changelog:// or file:///folder.
    #[arg(long, env = "CLINK_STATE_BACKEND", default_value = CheckpointConfig::STATE_BACKEND, value_name = "URI")]
    state_backend: String,
    /// The folder of checkpoints [default: checkpoints in the data directory].
    #[arg(long, env = "CLINK_CHECKPOINT_DIR", value_name = "DIR")]
    checkpoint_dir: Option<String>,
    /// How often a checkpoint is taken while something changes, such as 10s or 500ms.
    #[arg(long, env = "CLINK_CHECKPOINT_INTERVAL", default_value = "10s", value_name = "DURATION|off", value_parser = interval::parse)]
    checkpoint_interval: interval::Interval,
    /// A folder that CREATE SAVEPOINT wrote: an empty data directory begins from it.
    #[arg(long, env = "CLINK_RESTORE_FROM", value_name = "URI")]
    restore_from: Option<String>,
    /// Complete checkpoints that are kept.
    #[arg(long, env = "CLINK_RETAINED_CHECKPOINTS", default_value_t = CheckpointConfig::RETAINED as u16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    retained_checkpoints: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// What the flags come to.
#[derive(Debug)]
struct ServeConfig {
    engine: EngineConfig,
    listen: Listen,
}

/// Runs the command line of the process.
pub(crate) fn run() -> ExitCode {
    let flags = match Cli::parse().command {
        Command::Serve(flags) => flags,
        Command::Demo(flags) => return to_the_end(demo::run(flags)),
        Command::Run(flags) => return to_the_end(run::run(flags)),
        Command::StateCat(flags) => return offline(move || state::cat(&flags)),
        Command::StateDiff(flags) => return offline(move || state::compare(&flags)),
        Command::StateExport(flags) => return offline(move || state::export(&flags)),
        Command::StateQuery(flags) => return offline(move || state::query(&flags)),
        Command::StateSweep(flags) => return offline(move || state::sweep(&flags)),
        Command::CheckpointVerify(flags) => return offline(move || state::verify(&flags)),
        Command::CheckSavepoint(flags) => return offline(move || state::savepoint(&flags)),
    };
    let log = flags.log;
    match check(flags) {
        Ok(config) => serve(config, log),
        Err(message) => {
            let mut command = Cli::command();
            let mut serve = command.find_subcommand_mut("serve").cloned().unwrap_or(command);
            // Prints the message and the usage on stderr and exits with 2.
            serve.error(ErrorKind::ValueValidation, message).exit()
        }
    }
}

/// Checks what clap cannot.
fn check(flags: ServeFlags) -> Result<ServeConfig, String> {
    let checkpoints = checkpoints(&flags)?;
    let listen =
        Listen { pg: address("--pg", &flags.pg)?, http: address("--http", &flags.http)?, pg_socket: flags.pg_socket };
    if listen == Listen::default() {
        return Err("--pg and --http are both off: nobody could reach the server".to_owned());
    }
    let workers = default_workers(flags.workers);
    let memory_bytes = match flags.memory {
        Some(bytes) => bytes,
        None => memory::default_budget(),
    };
    let mut limits = Limits::default();
    for assignment in &flags.limit {
        limits.set(assignment).map_err(|error| format!("--limit {error}"))?;
    }
    let checkpoints = Some(checkpoints);
    Ok(ServeConfig {
        engine: EngineConfig { data_dir: flags.data_dir, workers, memory_bytes, limits, checkpoints },
        listen,
    })
}

/// How state is kept.
fn checkpoints(flags: &ServeFlags) -> Result<CheckpointConfig, String> {
    CheckpointConfig::check_state_backend(&flags.state_backend)
        .map_err(|error| format!("--state-backend: {}", one_line(&error)))?;
    let mut checkpoints = CheckpointConfig::below(&flags.data_dir);
    if let Some(directory) = &flags.checkpoint_dir {
        let path = directory.strip_prefix("file://").unwrap_or(directory);
        if path.is_empty() || path.contains("://") {
            return Err(format!("--checkpoint-dir {directory} is no folder: only local ones are supported yet"));
        }
        checkpoints.directory = path.into();
    }
    if let Some(uri) = &flags.restore_from {
        let folder = savepoint_folder(uri).map_err(|error| format!("--restore-from: {}", one_line(&error)))?;
        checkpoints.restore_from = Some(folder);
    }
    checkpoints.interval = flags.checkpoint_interval.0;
    checkpoints.retained = usize::from(flags.retained_checkpoints);
    checkpoints.state_backend.clone_from(&flags.state_backend);
    Ok(checkpoints)
}

/// What the flag says, or the number of cores.
fn default_workers(flag: Option<u16>) -> usize {
    match flag {
        Some(workers) => usize::from(workers),
        None => std::thread::available_parallelism().map_or(1, |cores| cores.get().min(128)),
    }
}

/// The address of a flag; `None` for `off`.
fn address(flag: &str, text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "off" {
        return Ok(None);
    }
    let addresses: Vec<SocketAddr> = text
        .to_socket_addrs()
        .map_err(|error| format!("invalid value '{text}' for {flag}: {error}; use HOST:PORT or off"))?
        .collect();
    if let Some(open) = addresses.iter().find(|address| !address.ip().is_loopback()) {
        return Err(format!(
            "{flag} {open} would be reachable from other machines, and there is no authentication yet: \
             use a loopback address such as 127.0.0.1"
        ));
    }
    match addresses.first() {
        Some(address) => Ok(Some(*address)),
        None => Err(format!("{flag} {text} has no address")),
    }
}

fn serve(config: ServeConfig, log: LogLevel) -> ExitCode {
    init_logs(log);
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("could not start the runtime: {error}")),
    };
    let ended = runtime.block_on(run_server(config));
    runtime.shutdown_timeout(RUNTIME_STOP_TIMEOUT);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&one_line(&error)),
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .thread_name("clink-io")
        .thread_stack_size(IO_STACK_BYTES)
        .enable_all()
        .build()
}

fn to_the_end(work: impl Future<Output = Result<(), Error>>) -> ExitCode {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("could not start the runtime: {error}")),
    };
    let ended = runtime.block_on(work);
    runtime.shutdown_timeout(RUNTIME_STOP_TIMEOUT);
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            run::report(&error);
            ExitCode::from(1)
        }
    }
}

/// Runs a verb on files, on a thread that may block; an error is exit 2.
fn offline(work: impl FnOnce() -> Result<ExitCode, Error> + Send + 'static) -> ExitCode {
    init_logs(LogLevel::Warn);
    let ended = match runtime() {
        Ok(runtime) => runtime
            .block_on(runtime.spawn_blocking(work))
            .unwrap_or_else(|error| Err(Error::internal(format!("the work ended: {error}")))),
        Err(error) => Err(error.into()),
    };
    ended.unwrap_or_else(|error| {
        run::report(&error);
        ExitCode::from(2)
    })
}

fn init_logs(level: LogLevel) {
    // Other crates only speak up when something is wrong.
    let filter = tracing_subscriber::EnvFilter::new(format!("warn,clink={}", level.name()));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

fn failed(message: &str) -> ExitCode {
    eprintln!("clink: {message}");
    ExitCode::from(1)
}

fn one_line(error: &Error) -> String {
    let mut line = error.message().to_owned();
    for part in [error.detail_text(), error.hint_text()].into_iter().flatten() {
        line.truncate(line.trim_end_matches('.').len());
        line.push_str(": ");
        line.push_str(part);
    }
    line.replace('\n', " ")
}

async fn run_server(config: ServeConfig) -> Result<(), Error> {
    // Before anything is there to be stopped, so that no signal finds the process unprepared.
    let mut stop = StopSignals::new()?;
    let sockets = BoundSockets::bind(config.listen).await?;
    let env = Env::system();
    tracing::info!(
        data_dir = %config.engine.data_dir.display(),
        workers = config.engine.workers,
        memory_bytes = config.engine.memory_bytes,
        "starting"
    );
    let engine = tokio::select! {
        engine = progress::shown(Engine::open(config.engine, env.clone()), || env.long_work().now()) => engine?,
        () = stop.wait() => return Ok(()),
    };
    let server = sockets.serve(std::sync::Arc::clone(&engine), env)?;
    announce(server.addresses());
    stop.wait().await;
    tracing::info!("stopping");
    server.stop().await;
    engine.close().await;
    tracing::info!("stopped");
    Ok(())
}

/// The one line on stdout.
fn announce(addresses: &ServerAddresses) {
    let show = |address: Option<SocketAddr>| address.map_or_else(|| "off".to_owned(), |a| a.to_string());
    let line = format!("clink ready pg={} http={}\n", show(addresses.pg), show(addresses.http));
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()) {
        tracing::warn!(%error, "could not print the ready line");
    }
}

/// SIGTERM and Ctrl-C.
struct StopSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl StopSignals {
    fn new() -> Result<StopSignals, Error> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(StopSignals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for either. Cancel safe.
    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(args: &[&str]) -> Result<ServeConfig, String> {
        let cli = Cli::try_parse_from(["clink", "serve"].iter().chain(args)).map_err(|error| error.to_string())?;
        match cli.command {
            Command::Serve(flags) => check(flags),
            _ => Err("another command".to_owned()),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_come_to_a_configuration() {
        let config =
            flags(&["--pg", "127.0.0.1:0", "--http", "off", "--workers", "3", "--memory", "512MB"]).expect("valid");
        assert_eq!(config.listen.pg, Some(SocketAddr::from(([127, 0, 0, 1], 0))));
        assert_eq!(config.listen.http, None);
        assert_eq!((config.engine.workers, config.engine.memory_bytes), (3, 512_000_000));
        let checkpoints = config.engine.checkpoints.expect("on by default");
        assert_eq!((checkpoints.interval, checkpoints.retained), (Some(Duration::from_secs(10)), 3));
        assert_eq!(checkpoints.directory, PathBuf::from("./clink-data/checkpoints"));
        let config =
            flags(&["--checkpoint-interval", "250ms", "--checkpoint-dir", "file:///x", "--retained-checkpoints", "1"]);
        let checkpoints = config.expect("valid").engine.checkpoints.expect("on");
        assert_eq!((checkpoints.interval, checkpoints.retained), (Some(Duration::from_millis(250)), 1));
        assert_eq!(checkpoints.directory, PathBuf::from("/x"));
        let config = flags(&["--checkpoint-interval", "off", "--state-backend", "changelog://"]).expect("valid");
        assert_eq!(config.engine.checkpoints.expect("on").interval, None);
    }

    #[test]
    fn what_is_refused_says_why() {
        let cases: [(&[&str], &str); 10] = [
            (&["--limit", "sessions=none"], "--limit sessions"),
            (&["--limit", "session=1"], "the limits are sessions, "),
            (&["--pg", "0.0.0.0:7432"], "authentication"),
            (&["--pg", "off", "--http", "off"], "both off"),
            (&["--state-backend", "nosuch:///x"], "changelog+file"),
            (&["--checkpoint-dir", "s3://b/p"], "only local ones"),
            (&["--checkpoint-interval", "soon"], "10s"),
            (&["--retained-checkpoints", "0"], "0"),
            (&["--workers", "129"], "129"),
            (&["--pg", "nonsense"], "HOST:PORT"),
        ];
        for (args, expected) in cases {
            let message = flags(args).expect_err("refused");
            assert!(message.contains(expected), "{message}");
        }
    }
}
