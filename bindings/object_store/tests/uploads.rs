//! Uploads, with an id and without: parts of any lengths and in any order, and what is left of an upload when a call
//! fails.

use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};
use uringfs::device::Device;
use uringfs::device::backend::memory::Memory;
use uringfs::{FormatOptions, Volume};
use uringfs_object_store::{NameConflict, UringfsStore};

fn new_store() -> UringfsStore {
    let device = Device::new(Memory::new(64 << 20).unwrap()).unwrap();
    UringfsStore::new(Volume::create_on(device, &FormatOptions::new()).unwrap())
}

fn path(text: &str) -> Path {
    Path::from(text)
}

async fn content(store: &UringfsStore, location: &Path) -> Vec<u8> {
    store.get(location).await.unwrap().bytes().await.unwrap().to_vec()
}

fn is_conflict<T>(result: object_store::Result<T>) -> bool {
    matches!(result, Err(Error::Generic { source, .. }) if source.is::<NameConflict>())
}

#[tokio::test]
async fn parts_of_any_lengths_make_one_object() {
    let store = new_store();
    let location = path("parts");
    let parts: [&[u8]; 4] = [&[1; 5000], &[2; 7000], &[3; 1], &[4; 9000]];
    let id = store.create_multipart(&location).await.unwrap();
    let mut ids = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        ids.push(store.put_part(&location, &id, index, part.to_vec().into()).await.unwrap());
    }
    // A part that comes again replaces the first one, whose id is refused then.
    let stale = ids.clone();
    ids[1] = store.put_part(&location, &id, 1, vec![5; 3000].into()).await.unwrap();
    let refused = store.complete_multipart(&location, &id, stale).await.unwrap_err();
    assert!(refused.to_string().contains("is not the one that was put last"), "{refused}");
    store.complete_multipart(&location, &id, ids).await.unwrap();
    let expected = [parts[0], &[5; 3000], parts[2], parts[3]].concat();
    assert_eq!(store.get(&location).await.unwrap().bytes().await.unwrap(), expected);
    let again = store.complete_multipart(&location, &id, Vec::new()).await;
    assert!(matches!(again, Err(Error::NotFound { .. })), "{again:?}");
    let many = store.create_multipart(&location).await.unwrap();
    let part = store.put_part(&location, &many, 10_000, "x".into()).await.unwrap_err();
    assert!(part.to_string().contains("at most 10000 parts"), "{part}");
}

#[tokio::test]
async fn a_completion_that_fails_can_be_repeated() {
    let store = new_store();
    let (in_its_way, location) = (path("a"), path("a/b"));
    store.put(&in_its_way, "1".into()).await.unwrap();
    let mut upload = store.put_multipart(&location).await.unwrap();
    upload.put_part("first".into()).await.unwrap();
    assert!(is_conflict(upload.complete().await));
    upload.put_part(" second".into()).await.unwrap();
    store.delete(&in_its_way).await.unwrap();
    upload.complete().await.unwrap();
    assert_eq!(content(&store, &location).await, b"first second");

    // Both ways: the parts are in the object, and they are copied.
    for parts in [["12", "34"], ["12", "345"]] {
        store.delete(&location).await.unwrap();
        store.put(&in_its_way, "1".into()).await.unwrap();
        let id = store.create_multipart(&location).await.unwrap();
        let mut ids = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            ids.push(store.put_part(&location, &id, index, (*part).into()).await.unwrap());
        }
        assert!(is_conflict(store.complete_multipart(&location, &id, ids.clone()).await));
        ids.push(store.put_part(&location, &id, 2, "6".into()).await.unwrap());
        store.delete(&in_its_way).await.unwrap();
        store.complete_multipart(&location, &id, ids).await.unwrap();
        assert_eq!(content(&store, &location).await, (parts.concat() + "6").into_bytes());
    }
}

#[tokio::test]
async fn a_completion_says_whether_parts_can_still_be_awaited() {
    let store = new_store();
    let location = path("a");
    let mut upload = store.put_multipart(&location).await.unwrap();
    let part = upload.put_part("1".into());
    let early = upload.complete().await.unwrap_err().to_string();
    assert!(early.contains("await every part"), "{early}");
    part.await.unwrap();
    upload.complete().await.unwrap();

    let given_up = "a part has failed or was given up: abort the upload, and begin another one";
    let mut upload = store.put_multipart(&location).await.unwrap();
    let mut failed = upload.put_part(vec![1; 80 << 20].into());
    (&mut failed).await.unwrap_err();
    let late = upload.complete().await.unwrap_err().to_string();
    assert!(late.contains(given_up), "{late}");
    let mut upload = store.put_multipart(&location).await.unwrap();
    drop(upload.put_part("2".into()));
    upload.put_part("3".into()).await.unwrap();
    let late = upload.complete().await.unwrap_err().to_string();
    assert!(late.contains(given_up), "{late}");
    assert_eq!(content(&store, &location).await, b"1");
}

#[tokio::test]
async fn a_part_that_fails_when_it_comes_again_leaves_the_first_one() {
    let store = new_store();
    let location = path("a");
    let id = store.create_multipart(&location).await.unwrap();
    let part = store.put_part(&location, &id, 0, "good".into()).await.unwrap();
    let again = store.put_part(&location, &id, 0, vec![1; 80 << 20].into()).await.unwrap_err();
    assert!(again.to_string().contains("full"), "{again}");
    store.complete_multipart(&location, &id, vec![part]).await.unwrap();
    assert_eq!(content(&store, &location).await, b"good");
}
