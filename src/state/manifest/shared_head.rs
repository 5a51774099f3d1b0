//! HEAD in a store that several processes reach: whoever wins the swap is the coordinator, until another does.

use std::sync::Arc;

use rand::Rng;

use super::super::head::Head;
use super::super::store::{PartStore, Swap, Version};
use crate::types::{Error, Result, SqlState};

const NAME: &str = "HEAD";

/// HEAD with what makes a writer's content its own, so that an unclear answer can be settled by reading.
#[derive(serde::Serialize, serde::Deserialize)]
struct Stored {
    #[serde(flatten)]
    head: Head,
    writer: u64,
    change: u64,
}

/// HEAD, held by this process's incarnation.
#[derive(Debug)]
pub struct SharedHead {
    store: Arc<dyn PartStore>,
    head: Head,
    version: Version,
    writer: u64,
    change: u64,
}

impl SharedHead {
    /// Takes over: begins the next incarnation. Who held HEAD before cannot change it any more.
    ///
    /// # Errors
    /// XX001 when HEAD cannot be understood; when the store cannot be reached.
    pub fn take(store: Arc<dyn PartStore>) -> Result<SharedHead> {
        let writer = rand::rng().random();
        loop {
            let version = store.read(NAME)?;
            let mut head = match &version {
                Some(version) => Head::parse(version.content(), &format!("{}/{NAME}", store.location()))?,
                None => Head::new(),
            };
            head.incarnation += 1;
            let content = encode(&head, writer, 0)?;
            if let Swap::Done(version) = store.swap(NAME, version.as_ref(), content)? {
                return Ok(SharedHead { store, head, version, writer, change: 0 });
            }
        }
    }

    /// What it says.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Makes a change durable.
    ///
    /// # Errors
    /// 57P01 when another process has taken over: then this one must stop. Else when it is unknown whether the change
    /// was made: the process takes HEAD again, or stops.
    pub fn update<T>(&mut self, change: impl FnOnce(&mut Head) -> T) -> Result<T> {
        let mut head = self.head.clone();
        let changed = change(&mut head);
        self.change += 1;
        match self.store.swap(NAME, Some(&self.version), encode(&head, self.writer, self.change)?)? {
            Swap::Done(version) => {
                (self.head, self.version) = (head, version);
                Ok(changed)
            }
            Swap::Lost => Err(Error::new(SqlState::AdminShutdown, "another clink server has taken over this state")
                .detail(format!("This one was incarnation {}.", self.head.incarnation))
                .hint("Run one coordinator for each checkpoint folder.")),
        }
    }
}

fn encode(head: &Head, writer: u64, change: u64) -> Result<bytes::Bytes> {
    let stored = Stored { head: head.clone(), writer, change };
    Ok(serde_json::to_vec(&stored).map_err(|error| Error::internal(error.to_string()))?.into())
}
