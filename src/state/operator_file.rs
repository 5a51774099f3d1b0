//! Operator state as a part of its own, written when it has changed.
//!
//! A restore brings the operator state of all workers together, but reads the keyed state of few: so backends with
//! large snapshots keep it beside them.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::backend::{KeyRange, StateBackend};
use super::deferred::Deferred;
use super::operator_state::OperatorRows;
use super::snapshot::{SnapshotReader, SnapshotWriter, StateVersions};
use super::store::{Part, PartStore};
use crate::types::{KEY_GROUPS, Result};

/// The part with the operator state and the stamps as of the last capture, unless they changed since.
#[derive(Default)]
pub(super) struct OperatorFile {
    written: Option<Arc<Deferred<Part>>>,
}

impl OperatorFile {
    /// Operator state or stamps have changed.
    pub(super) fn touch(&mut self) {
        self.written = None;
    }

    /// Fixes the operator state of `backend`; the part is written when it is forced.
    pub(super) fn capture(
        &mut self,
        backend: &dyn StateBackend,
        store: &Arc<dyn PartStore>,
        name: String,
    ) -> Result<Arc<Deferred<Part>>> {
        if let Some(written) = &self.written {
            return Ok(Arc::clone(written));
        }
        let bytes = bytes::Bytes::from(encode(backend)?);
        let store = Arc::clone(store);
        let part = Deferred::new(move || store.put(&name, bytes.clone()));
        self.written = Some(Arc::clone(&part));
        Ok(part)
    }

    /// The part, when it is there.
    pub(super) fn part(&self) -> Option<Part> {
        self.written.as_ref()?.outcome()?.ok()
    }
}

/// Where operator state begins in the order of keys; but for the empty key, which is part of it.
pub(super) fn operator_range() -> KeyRange {
    KeyRange { from: vec![KEY_GROUPS as u8], to: None }
}

fn encode(backend: &dyn StateBackend) -> Result<Vec<u8>> {
    let mut writer = SnapshotWriter::new(Vec::new(), backend.versions())?;
    for operator in backend.operators()? {
        if let Some(value) = backend.get(operator, &[])? {
            writer.push(operator, &[], &value)?;
        }
        backend.scan_range(operator, &operator_range(), &mut |key, value| {
            writer.push(operator, key, value).map(ControlFlow::Continue)
        })?;
    }
    writer.finish()
}

/// Takes in the operator state of the next worker.
pub(super) fn read(
    store: &dyn PartStore,
    part: &Part,
    rows: &mut OperatorRows,
    versions: &mut StateVersions,
) -> Result<()> {
    let bytes = store.get(part)?;
    let reader = SnapshotReader::new(&bytes)?;
    versions.merge(reader.versions())?;
    reader.visit(&mut |operator, key, value| rows.add(operator, key, value))
}
