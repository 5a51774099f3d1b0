//! Newer entries over older ones, read as one.

use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;
use std::ops::{Bound, ControlFlow};

use super::backend::{KeyRange, VisitUntil};
use crate::types::Result;

/// Changes of an operator; `None` erases.
pub(super) type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

type ChangesRange<'a> = btree_map::Range<'a, Vec<u8>, Option<Vec<u8>>>;

/// Visits the entries of a range: those told by [`Merged::older`] in order, with the changes over them.
pub(super) struct Merged<'a, 'b> {
    newer: Option<Peekable<ChangesRange<'a>>>,
    visit: &'a mut VisitUntil<'b>,
}

impl<'a, 'b> Merged<'a, 'b> {
    pub(super) fn new(
        newer: Option<&'a Changes>,
        range: &'a KeyRange,
        visit: &'a mut VisitUntil<'b>,
    ) -> Merged<'a, 'b> {
        let newer = newer.filter(|_| !range.is_empty()).map(|changes| {
            let to = range.to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            changes.range::<[u8], _>((Bound::Included(range.from.as_slice()), to)).peekable()
        });
        Merged { newer, visit }
    }

    /// Tells the next older entry.
    pub(super) fn older(&mut self, key: &[u8], value: &[u8]) -> Result<ControlFlow<()>> {
        while let Some((newer, change)) =
            self.newer.as_mut().and_then(|newer| newer.next_if(|(newer, _)| newer.as_slice() <= key))
        {
            if let Some(change) = change
                && (self.visit)(newer, change)?.is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            if newer == key {
                return Ok(ControlFlow::Continue(()));
            }
        }
        (self.visit)(key, value)
    }

    /// Visits the changes behind the last older entry.
    pub(super) fn finish(self) -> Result<()> {
        for (key, change) in self.newer.into_iter().flatten() {
            if let Some(value) = change
                && (self.visit)(key, value)?.is_break()
            {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_entries_win_and_erase() {
        let newer: Changes = [
            (vec![1], Some(vec![9])),
            (vec![2], None),
            (vec![3], Some(vec![9])),
            (vec![5], None),
            (vec![6], Some(vec![9])),
        ]
        .into();
        let range = KeyRange { from: vec![1], to: Some(vec![7]) };
        let mut seen = Vec::new();
        let visit: &mut VisitUntil<'_> = &mut |key, value| {
            seen.push((key[0], value[0]));
            Ok(ControlFlow::Continue(()))
        };
        let mut merged = Merged::new(Some(&newer), &range, visit);
        for key in [2, 3, 4] {
            assert!(merged.older(&[key], &[1]).expect("visits").is_continue());
        }
        merged.finish().expect("visits");
        assert_eq!(seen, [(1, 9), (3, 9), (4, 1), (6, 9)]);
    }
}
