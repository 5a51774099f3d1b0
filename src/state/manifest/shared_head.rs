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
    /// It is not known what became of the last change.
    unsettled: bool,
}

impl SharedHead {
    /// Takes over for a database: begins the next incarnation, `incarnation_min` or a later one. Who held HEAD before
    /// cannot change it any more.
    ///
    /// # Errors
    /// 55000 when HEAD is that of another database; XX001 when it cannot be understood; when the store cannot be reached.
    pub fn take(store: Arc<dyn PartStore>, database: u64, incarnation_min: u64) -> Result<SharedHead> {
        let writer = rand::rng().random();
        loop {
            let version = store.read(NAME)?;
            let mut head = match &version {
                Some(version) => Head::parse(version.content(), &place(&*store))?,
                None => Head { database, ..Head::new() },
            };
            if head.database != database {
                return Err(Error::new(
                    SqlState::ObjectNotReady,
                    format!("{} is that of another database", place(&*store)),
                )
                .hint("Give each database a prefix of its own in the bucket."));
            }
            head.incarnation = (head.incarnation + 1).max(incarnation_min);
            let content = encode(&head, writer, 0)?;
            if let Swap::Done(version) = store.swap(NAME, version.as_ref(), content)? {
                return Ok(SharedHead { store, head, version, writer, change: 0, unsettled: false });
            }
        }
    }

    /// Where it lies.
    pub fn store(&self) -> &Arc<dyn PartStore> {
        &self.store
    }

    /// What it says.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Makes a change durable.
    ///
    /// # Errors
    /// 57P01 when another process has taken over: then this one must stop. Else when it is unknown whether the change
    /// was made; the next one settles that.
    pub fn update<T>(&mut self, change: impl FnOnce(&mut Head) -> T) -> Result<T> {
        if self.unsettled {
            self.settle()?;
        }
        let mut head = self.head.clone();
        let changed = change(&mut head);
        self.change += 1;
        self.unsettled = true;
        match self.store.swap(NAME, Some(&self.version), encode(&head, self.writer, self.change)?)? {
            Swap::Done(version) => {
                (self.head, self.version, self.unsettled) = (head, version, false);
                Ok(changed)
            }
            Swap::Lost => {
                // The change before may have arrived only now, when its answer was lost: then it is still ours.
                self.settle()?;
                Err(Error::new(SqlState::ObjectNotReady, format!("{} changed meanwhile", place(&*self.store)))
                    .hint("The next checkpoint tries again."))
            }
        }
    }

    /// Takes in what became of the last change.
    fn settle(&mut self) -> Result<()> {
        let version = self.store.read(NAME)?.ok_or_else(|| self.superseded())?;
        let stored: Stored = serde_json::from_slice(version.content()).map_err(|_| self.superseded())?;
        if stored.writer != self.writer {
            return Err(self.superseded());
        }
        (self.head, self.version) = (stored.head, version);
        Ok(())
    }

    fn superseded(&self) -> Error {
        Error::new(SqlState::AdminShutdown, "another clink server has taken over this state")
            .detail(format!("This one was incarnation {} of {}.", self.head.incarnation, place(&*self.store)))
            .hint("Run one server for each database.")
    }
}

fn place(store: &dyn PartStore) -> String {
    format!("{}/{NAME}", store.location())
}

fn encode(head: &Head, writer: u64, change: u64) -> Result<bytes::Bytes> {
    let stored = Stored { head: head.clone(), writer, change };
    Ok(serde_json::to_vec(&stored).map_err(|error| Error::internal(error.to_string()))?.into())
}
