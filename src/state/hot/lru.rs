//! The order in which slots were used: a doubly linked list in two columns.

use super::super::key_index::Slot;

const NONE: Slot = Slot::MAX;

#[derive(Debug)]
pub(super) struct Lru {
    /// The neighbour that was used later.
    newer: Vec<Slot>,
    /// The neighbour that was used earlier.
    older: Vec<Slot>,
    newest: Slot,
    oldest: Slot,
}

impl Default for Lru {
    fn default() -> Lru {
        Lru { newer: Vec::new(), older: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl Lru {
    pub(super) fn resize(&mut self, slots: usize) {
        self.newer.resize(slots, NONE);
        self.older.resize(slots, NONE);
    }

    fn contains(&self, slot: Slot) -> bool {
        self.newest == slot || self.newer[slot as usize] != NONE
    }

    /// The slot was used now.
    pub(super) fn touch(&mut self, slot: Slot) {
        self.remove(slot);
        let at = slot as usize;
        self.older[at] = self.newest;
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.newer[newest as usize] = slot,
        }
        self.newest = slot;
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        if !self.contains(slot) {
            return;
        }
        let (newer, older) = (self.newer[slot as usize], self.older[slot as usize]);
        match newer {
            NONE => self.newest = older,
            newer => self.older[newer as usize] = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.newer[older as usize] = newer,
        }
        (self.newer[slot as usize], self.older[slot as usize]) = (NONE, NONE);
    }

    /// The slots, the longest unused first.
    pub(super) fn oldest(&self) -> Option<Slot> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// The slot that was used after this one.
    pub(super) fn after(&self, slot: Slot) -> Option<Slot> {
        Some(self.newer[slot as usize]).filter(|newer| *newer != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order_of_use() {
        let mut lru = Lru::default();
        lru.resize(4);
        [0, 1, 2, 3, 1, 0].into_iter().for_each(|slot| lru.touch(slot));
        lru.remove(3);
        lru.remove(3);
        let mut order = Vec::new();
        let mut next = lru.oldest();
        while let Some(slot) = next {
            order.push(slot);
            next = lru.after(slot);
        }
        assert_eq!(order, [2, 1, 0]);
        [0, 1, 2].into_iter().for_each(|slot| lru.remove(slot));
        assert_eq!(lru.oldest(), None);
    }
}
