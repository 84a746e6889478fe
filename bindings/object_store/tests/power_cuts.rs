//! Power cuts: an object is there whole or not at all, what was acknowledged is there, and nothing of an unfinished upload
//! is left.

use futures_util::TryStreamExt;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use uringfs::device::Device;
use uringfs::device::backend::sim::{Crash, CrashPlan, Sim, SimOptions};
use uringfs::volume::CheckOptions;
use uringfs::{FormatOptions, Volume};
use uringfs_object_store::UringfsStore;

const BYTES: u64 = 32 << 20;
/// Longer than a block, and no multiple of one.
const OBJECT_BYTES: usize = 10_000;

fn new_store() -> (UringfsStore, Sim) {
    let sim = Sim::new(SimOptions::new(BYTES));
    let device = Device::new(sim.clone()).unwrap();
    let volume = Volume::create_on(device, &FormatOptions::new()).unwrap();
    (UringfsStore::new(volume), sim)
}

fn content(letter: u8) -> PutPayload {
    vec![letter; OBJECT_BYTES].into()
}

/// Opens what a power cut has left. Returns the letter of each object.
async fn recover(sim: Sim) -> (UringfsStore, Vec<(String, u8)>) {
    let volume = Volume::open_on(Device::new(sim).unwrap()).unwrap();
    let store = UringfsStore::new(volume);
    let mut objects = Vec::new();
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    for object in listed {
        let bytes = store.get(&object.location).await.unwrap().bytes().await.unwrap();
        assert_eq!(bytes.len(), OBJECT_BYTES, "{object:?}");
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{object:?} is mixed");
        objects.push((object.location.to_string(), bytes[0]));
    }
    (store, objects)
}

#[tokio::test]
async fn a_cut_at_any_event_leaves_each_object_old_or_new() {
    let (store, sim) = new_store();
    let (old, other) = (Path::from("a/replaced"), Path::from("b/new"));
    store.put(&old, content(b'1')).await.unwrap();
    let begin = sim.events();
    store.put(&old, content(b'2')).await.unwrap();
    let replaced = sim.events();
    store.put(&other, content(b'3')).await.unwrap();
    let created = sim.events();
    store.delete(&old).await.unwrap();
    let deleted = sim.events();
    let mut cuts = 0;
    for image in sim.crash_images(CrashPlan { exhaustive_up_to: 3, samples: 4, seed: 23 }) {
        if image.cut < begin {
            continue;
        }
        cuts += 1;
        let (_, objects) = recover(image.sim).await;
        let letter = |path: &Path| {
            objects.iter().find(|(name, _)| name == path.as_ref()).map(|(_, letter)| *letter)
        };
        let allowed: &[Option<u8>] = match image.cut {
            cut if cut < replaced => &[Some(b'1'), Some(b'2')],
            cut if cut < created => &[Some(b'2')],
            cut if cut < deleted => &[Some(b'2'), None],
            _ => &[None],
        };
        assert!(allowed.contains(&letter(&old)), "cut {}: {objects:?}", image.cut);
        let allowed: &[Option<u8>] = match image.cut {
            cut if cut < replaced => &[None],
            cut if cut < created => &[None, Some(b'3')],
            _ => &[Some(b'3')],
        };
        assert!(allowed.contains(&letter(&other)), "cut {}: {objects:?}", image.cut);
    }
    assert!(cuts > 20, "{cuts} cuts");
}

#[tokio::test]
async fn nothing_is_left_of_uploads_that_were_not_completed() {
    let (store, sim) = new_store();
    store.put(&Path::from("kept"), content(b'1')).await.unwrap();
    store.volume().sync().await.unwrap();
    let free = store.volume().volume().statistics().free_blocks;
    let path = Path::from("tables/part");
    let mut upload = store.put_multipart(&path).await.unwrap();
    upload.put_part(vec![7; 1 << 20].into()).await.unwrap();
    upload.put_part(vec![8; 1 << 20].into()).await.unwrap();
    let id = store.create_multipart(&path).await.unwrap();
    MultipartStore::put_part(&store, &path, &id, 1, vec![9; 1 << 20].into()).await.unwrap();
    // With this commit the files are in the catalog, and have no name.
    store.volume().sync().await.unwrap();
    assert!(store.volume().volume().statistics().free_blocks < free - 3 * 256 + 10);
    let (recovered, objects) = recover(sim.crash_image(Crash::LoseAll)).await;
    assert_eq!(objects, [("kept".to_owned(), b'1')]);
    let volume = recovered.into_volume();
    let mut names = Vec::new();
    let mut entries = volume.read_dir("/").await.unwrap();
    while let Some(entry) = entries.next_entry().await.unwrap() {
        names.push(entry.file_name());
    }
    assert_eq!(names, ["kept"]);
    // Commits free the blocks.
    volume.sync().await.unwrap();
    volume.sync().await.unwrap();
    assert_eq!(volume.volume().statistics().free_blocks, free);
    drop(volume);
    // Without a crash, too.
    drop(upload);
    store.abort_multipart(&path, &id).await.unwrap();
    store.volume().sync().await.unwrap();
    store.volume().sync().await.unwrap();
    assert_eq!(store.volume().volume().statistics().free_blocks, free);
    assert!(store.get(&path).await.is_err());
}

#[tokio::test]
async fn a_completed_upload_survives_a_cut() {
    let (store, sim) = new_store();
    let path = Path::from("deep/er/part");
    let mut upload = store.put_multipart(&path).await.unwrap();
    upload.put_part(vec![b'5'; OBJECT_BYTES / 2].into()).await.unwrap();
    let last = upload.put_part(vec![b'5'; OBJECT_BYTES / 2].into());
    let early = upload.complete().await.unwrap_err().to_string();
    assert!(early.contains("5000 of the upload's 10000 bytes are written"), "{early}");
    last.await.unwrap();
    upload.complete().await.unwrap();
    let again = upload.complete().await.unwrap_err().to_string();
    assert!(again.contains("has been completed"), "{again}");
    let image = sim.crash_image(Crash::LoseAll);
    let (recovered, objects) = recover(image.clone()).await;
    assert_eq!(objects, [("deep/er/part".to_owned(), b'5')]);
    recovered.into_volume().close().await.unwrap();
    let device = Device::new(image).unwrap();
    let report = Volume::check(&device, CheckOptions::new(), &mut |_, _| {}).unwrap();
    assert!(report.is_sound(), "{report:?}");
}
