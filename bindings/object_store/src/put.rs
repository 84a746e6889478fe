//! Puts and their conditions.

use object_store::path::Path;
use object_store::{Error, PutMode, PutOptions, PutPayload, PutResult, Result, UpdateVersion};
use uringfs::volume::Link;

use crate::attributes::to_xattrs;
use crate::error::{generic, precondition};
use crate::etag::etag;
use crate::new_object::NewObject;
use crate::tree::Tree;

impl Tree {
    pub(crate) async fn put(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let link = self.condition(location, options.mode).await?;
        let new = NewObject::create(self, location, &to_xattrs(&options.attributes)?).await?;
        new.write(payload, 0).await?;
        new.publish(link).await
    }

    /// The link that fails when the condition of a put does not hold. Checks it for the first time, before anything is
    /// written; the link decides.
    pub(crate) async fn condition(&self, location: &Path, mode: PutMode) -> Result<Link> {
        match mode {
            PutMode::Overwrite => Ok(Link::Replace),
            PutMode::Create => match self.object(location).await {
                Ok(_) => Err(Error::AlreadyExists {
                    path: location.to_string(),
                    source: "the object exists".into(),
                }),
                Err(Error::NotFound { .. }) => Ok(Link::NoReplace),
                Err(error) => Err(error),
            },
            PutMode::Update(expected) => {
                let metadata = match self.object(location).await {
                    Ok(object) => object.metadata,
                    Err(Error::NotFound { .. }) => {
                        return Err(precondition(location, "the object does not exist".to_owned()));
                    }
                    Err(error) => return Err(error),
                };
                let expected = expected_etag(location, expected)?;
                match etag(&metadata) {
                    current if current == expected => Ok(Link::ReplaceUnchanged {
                        number: metadata.ino().into(),
                        change_cookie: metadata.change_cookie(),
                    }),
                    current => {
                        let what = format!("the ETag is {current}, not {expected}");
                        Err(precondition(location, what))
                    }
                }
            }
        }
    }
}

fn expected_etag(location: &Path, expected: UpdateVersion) -> Result<String> {
    expected.e_tag.ok_or_else(|| {
        generic(format!(
            "object {:?}: an update needs the ETag of the object that it replaces; pass that of a get, a head or a put",
            location.as_ref()
        ))
    })
}
