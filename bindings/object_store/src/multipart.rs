//! Uploads in parts, [`MultipartUpload`]: the parts are written at a time into one file without a name.
//!
//! An upload that is never completed is gone when it is dropped, or with the process: the next open of the volume frees
//! its blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use uringfs::volume::Link;

use crate::error::generic;
use crate::new_object::NewObject;

/// The most uploads of a store that are neither completed nor aborted.
pub(crate) const MAX_UPLOADS: usize = 10_000;

/// One of the uploads that a store may have.
#[derive(Debug)]
pub(crate) struct UploadPermit(Arc<AtomicUsize>);

impl UploadPermit {
    /// # Errors
    /// `Generic` if there are [`MAX_UPLOADS`].
    pub(crate) fn acquire(count: &Arc<AtomicUsize>) -> Result<UploadPermit> {
        let permit = UploadPermit(count.clone());
        match count.fetch_add(1, Ordering::Relaxed) < MAX_UPLOADS {
            true => Ok(permit),
            false => Err(generic(format!(
                "{MAX_UPLOADS} uploads are neither completed nor aborted; complete or abort some of them first"
            ))),
        }
    }
}

impl Drop for UploadPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An upload whose parts come in order, though they may be written in any.
#[derive(Debug)]
pub(crate) struct Upload {
    /// `None` once it is completed or aborted.
    new: Option<(NewObject, UploadPermit)>,
    /// The offset of the next part.
    end: u64,
    /// The bytes of the parts that are written. Each part that may still be has a clone.
    written: Arc<AtomicU64>,
}

impl Upload {
    pub(crate) fn new(new: NewObject, permit: UploadPermit) -> Upload {
        Upload { new: Some((new, permit)), end: 0, written: Arc::default() }
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let Some((new, _)) = &self.new else { return future::ready(Err(ended())).boxed() };
        let (new, written) = (new.clone(), self.written.clone());
        let (offset, length) = (self.end, data.content_length() as u64);
        self.end += length;
        async move {
            new.write(data, offset).await?;
            written.fetch_add(length, Ordering::Relaxed);
            Ok(())
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let is_in_flight = Arc::get_mut(&mut self.written).is_none();
        let written = self.written.load(Ordering::Relaxed);
        if self.new.is_some() && written != self.end {
            let what = match is_in_flight {
                true => "await every part, and then complete the upload",
                false => {
                    "a part has failed or was given up: abort the upload, and begin another one"
                }
            };
            return Err(generic(format!(
                "{written} of the upload's {} bytes are written; {what}",
                self.end
            )));
        }
        let (new, permit) = self.new.take().ok_or_else(ended)?;
        if let Err(error) = new.link(Link::Replace).await {
            // The caller may remove what was in the way, and complete it again.
            self.new = Some((new, permit));
            return Err(error);
        }
        new.make_durable().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.new = None;
        Ok(())
    }
}

fn ended() -> Error {
    generic("the upload has been completed or aborted; begin another one")
}
