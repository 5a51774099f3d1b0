//! An object store that fails: before it has done what it was asked, or after, so that the answer is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Objects in memory, with faults by a seeded sequence.
#[derive(Debug)]
pub(in crate::state) struct FaultyStore {
    objects: InMemory,
    percent: u64,
    state: AtomicU64,
    lose_next: AtomicBool,
    faults: AtomicU64,
}

impl FaultyStore {
    /// One in which so many percent of the requests fail, half of them after they were done.
    pub(in crate::state) fn new(percent: u64) -> FaultyStore {
        FaultyStore {
            objects: InMemory::new(),
            percent,
            state: AtomicU64::new(7),
            lose_next: AtomicBool::new(false),
            faults: AtomicU64::new(0),
        }
    }

    /// The next write is done, and its answer lost.
    pub(in crate::state) fn lose_next_answer(&self) {
        self.lose_next.store(true, Ordering::Relaxed);
    }

    /// How many requests failed.
    pub(in crate::state) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    fn fails(&self) -> bool {
        // A linear congruential sequence (Knuth, MMIX); its upper bits are good.
        let next =
            |state: u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        let state = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
        (state >> 33) % 200 < self.percent
    }

    fn fault(&self) -> Error {
        self.faults.fetch_add(1, Ordering::Relaxed);
        Error::Generic { store: "faulty", source: "503 Slow Down".into() }
    }
}

impl std::fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("faulty store")
    }
}

#[async_trait::async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if self.fails() {
            return Err(self.fault());
        }
        let done = self.objects.put_opts(location, payload, options).await?;
        if self.lose_next.swap(false, Ordering::Relaxed) || self.fails() { Err(self.fault()) } else { Ok(done) }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let done = self.objects.get_opts(location, options).await?;
        if self.fails() { Err(self.fault()) } else { Ok(done) }
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
