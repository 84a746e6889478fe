//! Stores objects in a volume, lists them, and appends to a log by compare-and-swap from several tasks.
//!
//!     cargo run -p uringfs-object-store --example objects

use std::error::Error;

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, PutMode};
use tokio::task::JoinSet;
use uringfs::{AsyncVolume, FormatOptions};
use uringfs_object_store::UringfsStore;

const WRITERS: u32 = 4;
const LINES: u32 = 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let folder = tempfile::tempdir()?;
    let options = FormatOptions::new().size(256 << 20).label("objects");
    let volume = AsyncVolume::create(folder.path().join("image"), &options).await?;
    let store = UringfsStore::new(volume);

    for year in 2024..2027 {
        let path = Path::from(format!("reports/{year}/summary"));
        store.put(&path, format!("the year {year}").into()).await?;
    }
    let mut objects = store.list(Some(&Path::from("reports")));
    while let Some(object) = objects.try_next().await? {
        println!("{} bytes  {}", object.size, object.location);
    }

    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            for line in 0..LINES {
                append(&store, &Path::from("log"), &format!("writer {writer}, line {line}\n"))
                    .await?;
            }
            Ok::<_, StoreError>(())
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    let log = store.get(&Path::from("log")).await?.bytes().await?;
    let lines = log.split(|byte| *byte == b'\n').count() - 1;
    println!("{lines} lines by {WRITERS} writers in {store}");
    assert_eq!(lines, (WRITERS * LINES) as usize);
    drop(objects);
    store.into_volume().close().await?;
    Ok(())
}

/// Appends a line: reads the object, and replaces it if no other writer has meanwhile.
async fn append(store: &UringfsStore, path: &Path, line: &str) -> Result<(), StoreError> {
    loop {
        let (mode, mut text) = match store.get(path).await {
            Ok(object) => {
                let version =
                    object_store::UpdateVersion { e_tag: object.meta.e_tag.clone(), version: None };
                (PutMode::Update(version), object.bytes().await?.to_vec())
            }
            Err(StoreError::NotFound { .. }) => (PutMode::Create, Vec::new()),
            Err(error) => return Err(error),
        };
        text.extend_from_slice(line.as_bytes());
        match store.put_opts(path, text.into(), mode.into()).await {
            Err(StoreError::Precondition { .. } | StoreError::AlreadyExists { .. }) => {}
            put => return put.map(drop),
        }
    }
}
