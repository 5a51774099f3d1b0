//! `state_ttl`: what a standing query keeps for a key is forgotten when the key has not changed for so long.
//!
//! What is forgotten is retracted from what stands above, so the result is at each time that of the query over what is
//! kept:
//!
//! | operator | forgets |
//! | --- | --- |
//! | GROUP BY, DISTINCT | a group to which nothing happened |
//! | a join | a row of either side that did not come again |
//! | ORDER BY … LIMIT, DISTINCT ON, window functions, SESSION | a partition to which nothing happened |
//!
//! What event time closes is forgotten by that, and an aggregate without GROUP BY keeps its one row.

use std::sync::Arc;

use crate::exec::plan::{OperatorSpec, PlanNode, RankSpec, SessionSpec};
use crate::types::{Error, Result, SqlState};

/// Bounds the state of a plan whose root is the last node.
///
/// # Errors
/// 22023 when no operator keeps state that grows.
pub(crate) fn expire(nodes: Vec<PlanNode>, ttl_millis: u64) -> Result<Vec<PlanNode>> {
    let mut expiring = Expiring { ttl_millis, nodes: Vec::with_capacity(nodes.len()) };
    let mut bounded = false;
    // Where each of the former nodes is.
    let mut places: Vec<usize> = Vec::with_capacity(nodes.len());
    for mut node in nodes {
        node.inputs = node.inputs.iter().filter_map(|input| places.get(*input)).copied().collect();
        bounded |= !node.closing.is_empty();
        if node.closing.is_empty() {
            bounded |= expiring.bound(&mut node);
        }
        expiring.check_added(&node)?;
        node.append_only &= node.inputs.iter().all(|input| expiring.append_only(*input)) && node.ttl_millis.is_none();
        places.push(expiring.nodes.len());
        expiring.nodes.push(node);
    }
    if !bounded {
        return Err(Error::new(SqlState::InvalidParameterValue, "state_ttl has nothing to bound")
            .detail("No operator of the query keeps groups, partitions or the rows of a join that could be forgotten.")
            .hint("Leave state_ttl out."));
    }
    Ok(expiring.nodes)
}

struct Expiring {
    ttl_millis: u64,
    nodes: Vec<PlanNode>,
}

impl Expiring {
    fn append_only(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.append_only)
    }

    /// Joins with the rows of a time and patterns take rows that are only added; what expires is taken away.
    fn check_added(&self, node: &PlanNode) -> Result<()> {
        let added = match &node.operator {
            OperatorSpec::LookupJoin(_) | OperatorSpec::Match(_) => node.inputs.first(),
            OperatorSpec::TemporalJoin(_) => node.inputs.get(1),
            _ => None,
        };
        if added.is_none_or(|input| self.append_only(*input)) {
            return Ok(());
        }
        let reader = match &node.operator {
            OperatorSpec::Match(_) => "MATCH_RECOGNIZE",
            _ => "a join FOR SYSTEM_TIME AS OF",
        };
        let refused = Error::unsupported(format!("state_ttl of what {reader} reads is not supported"));
        Err(refused.hint("Make that part a materialized view of its own, or leave state_ttl out."))
    }

    /// Bounds what an operator keeps; false when there is nothing.
    fn bound(&mut self, node: &mut PlanNode) -> bool {
        match &node.operator {
            // Its row is there for ever.
            OperatorSpec::Aggregate { keys, .. } if keys.is_empty() => false,
            OperatorSpec::Aggregate { keys, .. } => {
                let keys = keys.clone();
                if node.inputs.iter().all(|input| self.append_only(*input)) {
                    node.ttl_millis = Some(self.ttl_millis);
                } else {
                    // A row that is retracted after its group was forgotten must not count against a new one.
                    self.below(node, 0, "expire", keys);
                }
                true
            }
            OperatorSpec::Rank(RankSpec { keys, .. }) | OperatorSpec::SessionWindow(SessionSpec { keys, .. }) => {
                let keys = keys.clone();
                self.below(node, 0, "expire", keys);
                true
            }
            OperatorSpec::Join(_) => {
                for (input, name) in [(0, "expire.left"), (1, "expire.right")] {
                    let below = node.inputs.get(input).and_then(|below| self.nodes.get(*below));
                    let width = below.map_or(0, |below| below.schema.fields().len());
                    self.below(node, input, name, (0..width).collect());
                }
                true
            }
            _ => false,
        }
    }

    /// Lets the rows of an input expire by some of their columns.
    fn below(&mut self, node: &mut PlanNode, input: usize, name: &str, keys: Vec<usize>) {
        let Some(at) = node.inputs.get_mut(input) else { return };
        let Some(below) = self.nodes.get(*at) else { return };
        let expire = PlanNode {
            path: format!("{}/{name}", node.path),
            operator: OperatorSpec::Expire { keys, ttl_millis: self.ttl_millis },
            inputs: vec![*at],
            schema: Arc::clone(&below.schema),
            closing: Vec::new(),
            append_only: false,
            ttl_millis: None,
        };
        *at = self.nodes.len();
        self.nodes.push(expire);
    }
}
