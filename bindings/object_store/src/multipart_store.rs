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
        let linked = self.link_upload(path, &upload, parts, length).await;
        match linked {
            Ok(new) => new.make_durable().await,
            Err(error) => {
                // The caller may remove what was in the way, and complete it again.
                self.uploads.insert(id.clone(), upload);
                Err(error)
            }
        }
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.uploads.remove(path, id).map(drop)
    }
}

impl UringfsStore {
    /// Makes an object of the parts of an upload. No part can write to it any more: if one may still do so, the parts
    /// are copied.
    async fn link_upload(
        &self,
        path: &Path,
        upload: &Upload,
        parts: Vec<Part>,
        length: u64,
    ) -> Result<NewObject> {
        if upload.is_whole(&parts, length) {
            upload.new.link(Link::Replace).await?;
            return Ok(upload.new.clone());
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
        new.link(Link::Replace).await?;
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use object_store::{Error, ObjectStoreExt};
    use uringfs::device::Device;
    use uringfs::device::backend::memory::Memory;
    use uringfs::{FormatOptions, Volume};

    use super::*;
    use crate::uploads::MAX_AGE;

    fn new_store() -> UringfsStore {
        let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
        UringfsStore::new(Volume::create_on(device, &FormatOptions::new()).unwrap())
    }

    #[tokio::test]
    async fn a_part_in_flight_does_not_write_into_the_completed_object() {
        let store = new_store();
        let path = Path::from("a");
        let id = store.create_multipart(&path).await.unwrap();
        let first = store.put_part(&path, &id, 0, "text".into()).await.unwrap();
        // As put_part does before its write.
        let (place, new) = store
            .uploads
            .with(&path, &id, |upload| Ok((upload.begin_part(1, 4)?, upload.new.clone())))
            .unwrap();
        let put = store.complete_multipart(&path, &id, vec![first]).await.unwrap();
        new.write("late".into(), place.unwrap()).await.unwrap();
        let object = store.get(&path).await.unwrap();
        assert_eq!(object.meta.e_tag, put.e_tag);
        assert_eq!(object.bytes().await.unwrap(), "text");
    }

    #[tokio::test]
    async fn an_upload_without_parts_for_a_day_is_removed() {
        let store = new_store();
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
