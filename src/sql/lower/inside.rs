//! The state of another job's operator as an input: the view computes the same rows by the same operators, which are copied
//! into its plan. So it has them at every time, whatever becomes of the job.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::logical_expr::TableScan;

use super::super::event_time::Input;
use super::super::planner::{InsideInfo, RelationInfo};
use super::super::view_checks::{ENDING_HINT, MOMENT_HINT, refuse};
use super::{Lowered, Lowering, columns};
use crate::exec::plan::{JobPlan, OperatorSpec, PlanNode};
use crate::types::{Error, Result};

impl Lowering<'_> {
    /// Copies what a part of an operator's state is made by.
    pub(super) fn inside(&mut self, scan: &TableScan, info: &InsideInfo, path: &str) -> Result<Lowered> {
        let name = scan.table_name.table();
        let source =
            info.source.ok_or_else(|| refuse(&format!("operator \"{name}\", whose rows end,"), ENDING_HINT))?;
        let missing = || Error::internal(format!("operator \"{name}\" has no place in its job"));
        let root = info.plan.nodes.get(source).ok_or_else(missing)?;
        let wanted: Vec<usize> = scan.projection.clone().unwrap_or_else(|| (0..info.schema.fields().len()).collect());
        let is_whole = wanted.iter().copied().eq(0..root.schema.fields().len());
        let top = if is_whole { path.to_owned() } else { format!("{path}/input") };

        // Where each of the job's operators is now.
        let mut places: BTreeMap<usize, usize> = BTreeMap::new();
        for at in below(&info.plan, source) {
            let node = info.plan.nodes.get(at).ok_or_else(missing)?;
            let ends = !node.closing.is_empty() || node.ttl_millis.is_some();
            if ends || matches!(node.operator, OperatorSpec::Expire { .. } | OperatorSpec::Hold) {
                return Err(refuse(&format!("operator \"{name}\", over rows that end,"), ENDING_HINT));
            }
            if matches!(node.operator, OperatorSpec::LookupJoin(_)) {
                return Err(refuse(&format!("operator \"{name}\", over rows joined once,"), MOMENT_HINT));
            }
            let inputs = node.inputs.iter().filter_map(|input| places.get(input)).copied().collect();
            let place = node.path.strip_prefix(root.path.as_str()).unwrap_or(&node.path);
            self.nodes.push(PlanNode { path: format!("{top}{place}"), inputs, ..node.clone() });
            places.insert(at, self.nodes.len() - 1);
        }
        self.inputs.extend(info.imports.iter().map(|relation| (relation.id, Input::from(relation))));
        let mut lowered = Lowered {
            index: places.get(&source).copied().ok_or_else(missing)?,
            key: info.key.clone(),
            append_only: root.append_only,
            bounded: info.imports.iter().all(|relation| relation.bounded),
        };
        if !is_whole {
            let fields: Vec<Field> = wanted
                .iter()
                .filter_map(|at| info.schema.fields().get(*at))
                .map(|field| field.as_ref().clone())
                .collect();
            let expressions = columns(&root.schema, wanted.iter().copied());
            let schema = Arc::new(Schema::new(fields));
            lowered.index = self.push(path, OperatorSpec::Project { expressions }, vec![lowered.index], schema);
            lowered.key = lowered
                .key
                .and_then(|key| key.iter().map(|column| wanted.iter().position(|wanted| wanted == column)).collect());
        }
        Ok(lowered)
    }
}

impl From<&RelationInfo> for Input {
    fn from(info: &RelationInfo) -> Input {
        Input { event_times: info.event_times.clone(), append_only: info.append_only, keeps_times: info.keeps_times }
    }
}

/// An operator and all below it, inputs before their users.
fn below(plan: &JobPlan, root: usize) -> Vec<usize> {
    let mut reached = vec![false; plan.nodes.len()];
    if let Some(root) = reached.get_mut(root) {
        *root = true;
    }
    for at in (0..=root).rev() {
        if reached.get(at) == Some(&true) {
            for input in plan.nodes.get(at).into_iter().flat_map(|node| &node.inputs) {
                if let Some(input) = reached.get_mut(*input) {
                    *input = true;
                }
            }
        }
    }
    (0..=root).filter(|at| reached.get(*at) == Some(&true)).collect()
}
