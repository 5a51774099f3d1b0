//! Stamps: which type and version the values of a slot were written with.

use std::collections::BTreeMap;

use crate::types::{Error, OperatorId, Result, SqlState};

/// Type and version of a slot's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionStamp {
    /// Name of the type; no `|` and no line feed.
    pub state_type: String,
    /// Version, from 1.
    pub version: u32,
}

/// Stamps by operator and slot; the slot is empty for a stamp that counts for the whole operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateVersions {
    stamps: BTreeMap<(OperatorId, String), VersionStamp>,
}

impl StateVersions {
    /// True when nothing is stamped.
    pub fn is_empty(&self) -> bool {
        self.stamps.is_empty()
    }

    /// All stamps, in order.
    pub fn iter(&self) -> impl Iterator<Item = (OperatorId, &str, &VersionStamp)> {
        self.stamps.iter().map(|((operator, slot), stamp)| (*operator, slot.as_str(), stamp))
    }

    /// The stamp of a slot, or else the one of its operator.
    pub fn get(&self, operator: OperatorId, slot: &str) -> Option<&VersionStamp> {
        self.stamps.get(&(operator, slot.to_owned())).or_else(|| self.stamps.get(&(operator, String::new())))
    }

    /// The version of a slot: what is not stamped is 1.
    pub fn version(&self, operator: OperatorId, slot: &str) -> u32 {
        self.get(operator, slot).map_or(1, |stamp| stamp.version)
    }

    /// Stamps a slot.
    ///
    /// # Errors
    /// 22023 when a name has a separator in it, or the version is zero.
    pub fn set(&mut self, operator: OperatorId, slot: &str, stamp: VersionStamp) -> Result<()> {
        if slot.contains(['|', '\n']) || stamp.state_type.contains(['|', '\n']) || stamp.version == 0 {
            return Err(Error::new(
                SqlState::InvalidParameterValue,
                format!("{slot:?} of type {:?}, version {}, cannot be stamped", stamp.state_type, stamp.version),
            )
            .hint("Use names without | and line feeds, and versions from 1."));
        }
        self.stamps.insert((operator, slot.to_owned()), stamp);
        Ok(())
    }

    /// Takes in other stamps.
    ///
    /// # Errors
    /// XX001 when both stamp a slot differently.
    pub fn merge(&mut self, other: &StateVersions) -> Result<()> {
        for (key, stamp) in &other.stamps {
            if let Some(ours) = self.stamps.get(key).filter(|ours| *ours != stamp) {
                return Err(Error::new(
                    SqlState::DataCorrupted,
                    format!("state of operator {} is stamped with different versions", key.0),
                )
                .detail(format!("{} {} and {} {}.", ours.state_type, ours.version, stamp.state_type, stamp.version))
                .hint("Use the snapshots of one checkpoint."));
            }
            self.stamps.insert(key.clone(), stamp.clone());
        }
        Ok(())
    }

    /// Lines `operator|type|version` and, with a slot, `|slot`; no line feed at the end.
    pub fn pack(&self) -> String {
        let lines: Vec<String> = self
            .iter()
            .map(|(operator, slot, stamp)| {
                let line = format!("{}|{}|{}", operator.as_u64(), stamp.state_type, stamp.version);
                if slot.is_empty() { line } else { format!("{line}|{slot}") }
            })
            .collect();
        lines.join("\n")
    }

    /// Reads what [`Self::pack`] wrote; blank lines are passed over.
    ///
    /// # Errors
    /// XX001 for lines of another form.
    pub fn unpack(text: &str) -> Result<StateVersions> {
        let mut versions = StateVersions::default();
        for line in text.split('\n').filter(|line| !line.trim().is_empty()) {
            let damaged = || {
                Error::new(SqlState::DataCorrupted, format!("a version stamp is damaged: {line:?}"))
                    .hint("Restore an older checkpoint.")
            };
            let fields: Vec<&str> = line.split('|').collect();
            let (operator, state_type, version, slot) = match fields[..] {
                [operator, state_type, version] => (operator, state_type, version, ""),
                [operator, state_type, version, slot] => (operator, state_type, version, slot),
                _ => return Err(damaged()),
            };
            let operator = OperatorId::from_u64(operator.parse().map_err(|_| damaged())?);
            let version = version.parse().map_err(|_| damaged())?;
            let stamp = VersionStamp { state_type: state_type.to_owned(), version };
            versions.set(operator, slot, stamp).map_err(|_| damaged())?;
        }
        Ok(versions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_as_the_format_says() {
        let mut versions = StateVersions::default();
        assert_eq!(versions.pack(), "");
        let stamp = |state_type: &str, version| VersionStamp { state_type: state_type.to_owned(), version };
        versions.set(OperatorId::from_u64(7), "agg", stamp("Sum", 2)).expect("valid");
        versions.set(OperatorId::from_u64(7), "", stamp("Group", 1)).expect("valid");
        assert_eq!(versions.pack(), "7|Group|1\n7|Sum|2|agg");
        assert_eq!(StateVersions::unpack("7|Sum|2|agg\n\n7|Group|1\n").expect("valid"), versions);
        assert_eq!(versions.version(OperatorId::from_u64(7), "agg"), 2);
        assert_eq!(versions.version(OperatorId::from_u64(7), "other"), 1);
        assert_eq!(versions.version(OperatorId::from_u64(8), "agg"), 1);
        for damaged in ["7|Sum", "7|Sum|2|a|b", "x|Sum|2", "7|Sum|-1", "7|Sum|0"] {
            assert_eq!(StateVersions::unpack(damaged).expect_err(damaged).code(), SqlState::DataCorrupted);
        }
        assert!(versions.set(OperatorId::from_u64(7), "a|b", stamp("Sum", 2)).is_err());
        let mut other = StateVersions::default();
        other.set(OperatorId::from_u64(7), "agg", stamp("Sum", 3)).expect("valid");
        assert_eq!(versions.merge(&other).expect_err("conflict").code(), SqlState::DataCorrupted);
    }
}
