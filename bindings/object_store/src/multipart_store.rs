//! Uploads that are known by an id, [`MultipartStore`]: their parts come in any order and of any length.

use std::time::Instant;

use async_trait::async_trait;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartId, PutMultipartOptions, PutPayload, PutResult, Result};
use uringfs::volume::Link;

use crate::attributes::{Xattrs, to_xattrs};
use crate::error::object_error;
use crate::etag::etag;
use crate::get;
use crate::multipart::UploadPermit;
use crate::new_object::NewObject;
use crate::rename::copy_bytes;
use crate::store::UringfsStore;
use crate::tree::Object;
use crate::uploads::{Part, Upload};

#[async_trait]
impl MultipartStore for UringfsStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.create_multipart_opts(path, PutMultipartOptions::default()).await
    }

    async fn create_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<MultipartId> {
        self.uploads.remove_old(Instant::now());
        let permit = UploadPermit::acquire(&self.uploads.count)?;
        let xattrs = to_xattrs(&options.attributes)?;
        let new = NewObject::create(&self.tree, path, &xattrs).await?;
        let metadata = new.inode().metadata().await.map_err(|error| object_error(path, error))?;
        // No other upload has it, also none of another process or of a time before a crash.
        let id = etag(&metadata);
        self.uploads.insert(id.clone(), Upload::new(path.clone(), xattrs, new, permit));
        Ok(id)
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let length = data.content_length() as u64;
        let (place, new) = self.uploads.with(path, id, |upload| {
            Ok((upload.begin_part(part_idx, length)?, upload.new.clone()))
        })?;
        let (new, offset) = match place {
            Some(offset) => (new, offset),
            None => (NewObject::create(&self.tree, path, &Xattrs::new()).await?, 0),
        };
        new.write(data, offset).await?;
        let content_id = format!("{:x}-{offset:x}", new.inode().number().0);
        let part = Part { id: content_id.clone(), new, offset, length };
        self.uploads.with(path, id, |upload| {
            upload.end_part(part_idx, part);
            Ok(PartId { content_id })
        })
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        let (parts, length) = self.uploads.with(path, id, |upload| upload.parts(&parts))?;
        let upload = self.uploads.remove(path, id)?;
        if upload.is_whole(&parts, length) {
            return upload.new.publish(Link::Replace).await;
        }
        let new = NewObject::create(&self.tree, path, &upload.xattrs).await?;
        let mut end = 0;
        for part in parts {
            let inode = part.new.inode().clone();
            let metadata = inode.metadata().await.map_err(|error| object_error(path, error))?;
            let file = get::open(path, &Object { inode, metadata }).await?;
            let range = part.offset..part.offset + part.length;
            copy_bytes(file, path, range, &new, end).await?;
            end += part.length;
        }
        new.publish(Link::Replace).await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.uploads.remove(path, id).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use object_store::Error;
    use uringfs::device::Device;
    use uringfs::device::backend::memory::Memory;
    use uringfs::{FormatOptions, Volume};

    use super::*;
    use crate::uploads::MAX_AGE;

    #[tokio::test]
    async fn an_upload_without_parts_for_a_day_is_removed() {
        let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
        let volume = Volume::create_on(device, &FormatOptions::new()).unwrap();
        let store = UringfsStore::new(volume);
        let path = Path::from("a");
        let id = store.create_multipart(&path).await.unwrap();
        let now = Instant::now();
        store.uploads.remove_old(now + MAX_AGE - Duration::from_secs(60));
        store.put_part(&path, &id, 0, "text".into()).await.unwrap();
        store.uploads.remove_old(now + 2 * MAX_AGE);
        let put = store.put_part(&path, &id, 1, "text".into()).await;
        assert!(matches!(put, Err(Error::NotFound { .. })), "{put:?}");
    }
}
