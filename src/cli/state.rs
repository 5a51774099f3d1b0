//! `clink state-cat` and its kin: state and checkpoints without a server, and the state of a running job.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use clink::engine::offline::{
    OfflineSelection, OfflineState, as_one, check_savepoint, query_state, read_running, read_state, sweep_checkpoints,
    verify_checkpoints,
};
use clink::state::{diff, export_parquet, rows};
use clink::types::{Error, SqlState};

use super::run::{self, Output};

/// Where state lies.
#[derive(Debug, Args)]
pub(super) struct Target {
    /// A data directory, a checkpoint folder, a savepoint, a snapshot file, or a checkpoint directory of the C++ engine.
    #[arg(value_name = "PLACE", required_unless_present = "coordinator", conflicts_with = "coordinator")]
    place: Option<String>,
    #[command(flatten)]
    selection: Selection,
}

#[derive(Debug, Args)]
pub(super) struct Selection {
    /// Of this table or view alone; of a running job, its name or number.
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// The running job of the server with this address of HTTP, such as http://127.0.0.1:8081, in place of files.
    #[arg(long, value_name = "URL", requires = "job")]
    coordinator: Option<String>,
    /// Of this checkpoint [default: the newest].
    #[arg(long, value_name = "ID")]
    checkpoint: Option<u64>,
    /// The folder with the bases of changelog snapshots of the C++ engine.
    #[arg(long, value_name = "DIR")]
    materialisation_store: Option<PathBuf>,
}

impl Target {
    fn read(&self) -> Result<Vec<OfflineState>, Error> {
        match (&self.place, &self.selection.coordinator) {
            (Some(place), _) => read_state(place, &self.selection.get()),
            (None, Some(_))
                if self.selection.checkpoint.is_some() || self.selection.materialisation_store.is_some() =>
            {
                Err(Error::new(
                    SqlState::InvalidParameterValue,
                    "a running job has the state of now, and no checkpoints",
                )
                .hint("Leave out --checkpoint and --materialisation-store, or name a place in place of --coordinator."))
            }
            (None, _) => Ok(vec![self.selection.running()?]),
        }
    }
}

impl Selection {
    /// The state of the running job.
    fn running(&self) -> Result<OfflineState, Error> {
        read_running(self.coordinator.as_deref().unwrap_or_default(), self.job.as_deref().unwrap_or_default())
    }

    fn get(&self) -> OfflineSelection {
        OfflineSelection {
            job: self.job.clone(),
            checkpoint: self.checkpoint,
            bases: self.materialisation_store.clone(),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct CatFlags {
    #[command(flatten)]
    target: Target,
    /// The most entries to print of each table or view.
    #[arg(long, default_value_t = 1000, value_name = "N")]
    limit: usize,
}

#[derive(Debug, Args)]
pub(super) struct DiffFlags {
    /// The first place.
    #[arg(value_name = "BEFORE")]
    before: String,
    /// The second place; with --coordinator it is the running job.
    #[arg(value_name = "AFTER", required_unless_present = "coordinator", conflicts_with = "coordinator")]
    after: Option<String>,
    #[command(flatten)]
    selection: Selection,
    /// The checkpoint of the second place, when it is another [default: as --checkpoint].
    #[arg(long, value_name = "ID", conflicts_with = "coordinator")]
    after_checkpoint: Option<u64>,
}

#[derive(Debug, Args)]
pub(super) struct ExportFlags {
    #[command(flatten)]
    target: Target,
    /// The form.
    #[arg(long, value_enum, default_value_t = Form::Arrow, value_name = "FORMAT")]
    format: Form,
    /// The file to write.
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    /// One Arrow IPC stream: the snapshot format.
    Arrow,
    /// Keys taken apart.
    Parquet,
}

#[derive(Debug, Args)]
pub(super) struct QueryFlags {
    #[command(flatten)]
    target: Target,
    /// A query over the table state(op_id, key_group, slot, user_key, key_int, value, value_int).
    #[arg(long, value_name = "SQL")]
    sql: String,
    /// How rows are printed.
    #[arg(long, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    output: Output,
}

#[derive(Debug, Args)]
pub(super) struct SweepFlags {
    /// A data directory that no server runs on.
    #[arg(value_name = "DATA_DIR")]
    place: String,
    /// Only tell what would be removed.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct VerifyFlags {
    /// A data directory, a checkpoint folder or a savepoint.
    #[arg(value_name = "PLACE")]
    place: String,
}

fn printed(text: String) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    Ok(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())?)
}

/// Prints entries.
pub(super) fn cat(flags: &CatFlags) -> Result<ExitCode, Error> {
    for state in flags.target.read()? {
        let (entries, count) = rows(&state.stream, flags.limit)?;
        let mut text = format!("{}: {count} entries\n", state.name);
        for entry in &entries {
            let (key, value) = (entry.key_text(), entry.value_text());
            text.push_str(&format!("{} {:>3} {} {key} = {value}\n", entry.operator, entry.key_group, entry.slot));
        }
        if entries.len() < count {
            text.push_str(&format!("… and {} more\n", count - entries.len()));
        }
        printed(text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints what differs: exit 0 when nothing does, 1 when something does.
pub(super) fn compare(flags: &DiffFlags) -> Result<ExitCode, Error> {
    let mut selection = flags.selection.get();
    let after = match &flags.after {
        Some(after) => {
            let checkpoint = flags.after_checkpoint.or(selection.checkpoint);
            read_state(after, &OfflineSelection { checkpoint, ..selection.clone() })?
        }
        None => {
            let running = flags.selection.running()?;
            // A place knows a job by its name alone.
            selection.job = Some(running.name.clone());
            vec![running]
        }
    };
    let before = as_one(&read_state(&flags.before, &selection)?)?;
    let after = as_one(&after)?;
    let differences = diff(&before, &after)?;
    let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let mut text = String::new();
    for difference in &differences {
        let key = format!("{} {}", difference.operator, hex(&difference.key));
        match (&difference.before, &difference.after) {
            (Some(before), Some(after)) => text.push_str(&format!("~ {key}: {} -> {}\n", hex(before), hex(after))),
            (Some(before), None) => text.push_str(&format!("- {key}: {}\n", hex(before))),
            (None, Some(after)) => text.push_str(&format!("+ {key}: {}\n", hex(after))),
            (None, None) => {}
        }
    }
    text.push_str(&format!("{} differ\n", differences.len()));
    printed(text)?;
    Ok(ExitCode::from(u8::from(!differences.is_empty())))
}

/// Writes entries to a file.
pub(super) fn export(flags: &ExportFlags) -> Result<ExitCode, Error> {
    let stream = as_one(&flags.target.read()?)?;
    let entries = match flags.format {
        Form::Arrow => {
            std::fs::write(&flags.out, &stream)?;
            rows(&stream, 0)?.1
        }
        Form::Parquet => export_parquet(&stream, std::fs::File::create(&flags.out)?)?,
    };
    printed(format!("{entries} entries in {}\n", flags.out.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the rows of a query over entries.
pub(super) fn query(flags: &QueryFlags) -> Result<ExitCode, Error> {
    let stream = as_one(&flags.target.read()?)?;
    let found = tokio::runtime::Handle::current().block_on(query_state(&stream, &flags.sql))?;
    run::print_batches(&found, flags.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes what no checkpoint names.
pub(super) fn sweep(flags: &SweepFlags) -> Result<ExitCode, Error> {
    let removed = sweep_checkpoints(&flags.place, flags.dry_run)?;
    let mut text: String = removed.iter().map(|name| format!("{name}\n")).collect();
    let verb = if flags.dry_run { "would be removed" } else { "removed" };
    text.push_str(&format!("{} files {verb}\n", removed.len()));
    printed(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Checks all checkpoints: exit 0 when all are whole, 1 when one is not.
pub(super) fn verify(flags: &VerifyFlags) -> Result<ExitCode, Error> {
    let verified = verify_checkpoints(&flags.place)?;
    let damaged = verified.iter().any(|one| one.damage.is_some());
    printed(verified.iter().map(line).collect())?;
    Ok(ExitCode::from(u8::from(damaged)))
}

/// Checks a savepoint: exit 0 when it is whole, 1 when it is not.
pub(super) fn savepoint(flags: &VerifyFlags) -> Result<ExitCode, Error> {
    let (verified, jobs) = check_savepoint(&flags.place)?;
    let mut text = line(&verified);
    text.extend(jobs.iter().map(|job| format!("  {job}\n")));
    printed(text)?;
    Ok(ExitCode::from(u8::from(verified.damage.is_some())))
}

fn line(verified: &clink::engine::offline::Verified) -> String {
    match &verified.damage {
        None => format!(
            "checkpoint {}: whole, {} tables and views, {} parts, {} bytes\n",
            verified.checkpoint, verified.jobs, verified.parts, verified.bytes
        ),
        Some(error) => format!("checkpoint {}: damaged: {}\n", verified.checkpoint, super::one_line(error)),
    }
}
