//! Power cuts: an object is there whole or not at all, what was acknowledged is there, and nothing of an unfinished
//! upload is left.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{Attribute, Attributes, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
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

/// The bytes and the attributes of each object.
type Objects = BTreeMap<String, (Bytes, Attributes)>;

async fn objects(store: &UringfsStore) -> Objects {
    let mut objects = Objects::new();
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    for object in listed {
        let got = store.get(&object.location).await.unwrap();
        let attributes = got.attributes.clone();
        let bytes = got.bytes().await.unwrap();
        objects.insert(object.location.to_string(), (bytes, attributes));
    }
    objects
}

/// The objects after each of several calls that follow each other, with the events of the device until then.
struct History {
    store: UringfsStore,
    sim: Sim,
    states: Vec<(u64, Objects)>,
}

impl History {
    async fn new() -> History {
        let (store, sim) = new_store();
        store.put(&Path::from("first"), content(b'0')).await.unwrap();
        let mut history = History { store, sim, states: Vec::new() };
        history.record().await;
        history
    }

    /// After a call.
    async fn record(&mut self) {
        let events = self.sim.events();
        self.states.push((events, objects(&self.store).await));
    }

    /// Checks that a cut at any event, from the first record on, leaves the objects before the call in flight or after
    /// it.
    async fn check(self) {
        let mut cuts = vec![0; self.states.len()];
        let begin = self.states[0].0;
        for image in self.sim.crash_images(CrashPlan { exhaustive_up_to: 2, samples: 2, seed: 29 })
        {
            if image.cut < begin {
                continue;
            }
            let done = self.states.partition_point(|(events, _)| *events <= image.cut) - 1;
            let device = Device::new(image.sim).unwrap();
            let left = objects(&UringfsStore::new(Volume::open_on(device).unwrap())).await;
            let mut allowed = self.states[done..].iter().take(2).map(|(_, objects)| objects);
            let names: Vec<_> = left.keys().collect();
            assert!(allowed.any(|objects| *objects == left), "cut {}: {names:?}", image.cut);
            cuts[done] += 1;
        }
        assert!(cuts[..cuts.len() - 1].iter().all(|cuts| *cuts > 2), "{cuts:?}");
    }
}

/// Opens what a power cut has left. Returns the letter of each object.
async fn recover(sim: Sim) -> (UringfsStore, Vec<(String, u8)>) {
    let volume = Volume::open_on(Device::new(sim).unwrap()).unwrap();
    let store = UringfsStore::new(volume);
    let letter = |(name, (bytes, _)): (String, (Bytes, Attributes))| {
        assert_eq!(bytes.len(), OBJECT_BYTES, "{name}");
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{name} is mixed");
        (name, bytes[0])
    };
    let letters = objects(&store).await.into_iter().map(letter).collect();
    (store, letters)
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

#[tokio::test]
async fn a_cut_in_any_call_leaves_its_work_done_or_not_begun() {
    let mut history = History::new().await;
    let store = history.store.clone();
    let attributes = Attributes::from_iter([
        (Attribute::ContentType, "text/csv"),
        (Attribute::Metadata("owner".into()), "me"),
    ]);
    let (first, moved, copied) =
        (Path::from("first"), Path::from("deep/er/moved"), Path::from("copied"));
    store.put_opts(&first, content(b'1'), attributes.clone().into()).await.unwrap();
    history.record().await;
    store.put(&Path::from("empty"), PutPayload::new()).await.unwrap();
    history.record().await;
    store.rename(&first, &moved).await.unwrap();
    history.record().await;
    store.copy(&moved, &copied).await.unwrap();
    history.record().await;
    let expected = store.head(&copied).await.unwrap().e_tag;
    let update = PutMode::Update(object_store::UpdateVersion { e_tag: expected, version: None });
    store.put_opts(&copied, content(b'2'), update.into()).await.unwrap();
    history.record().await;
    let mut upload = store.put_multipart_opts(&moved, attributes.clone().into()).await.unwrap();
    upload.put_part(content(b'3')).await.unwrap();
    upload.put_part(content(b'4')).await.unwrap();
    upload.complete().await.unwrap();
    history.record().await;
    // In place, and copied, as the last part is longer.
    for last in [OBJECT_BYTES, OBJECT_BYTES + 1] {
        let id = store.create_multipart_opts(&moved, attributes.clone().into()).await.unwrap();
        let mut ids = Vec::new();
        for (index, length) in [OBJECT_BYTES, last].into_iter().enumerate() {
            let part = vec![b'5' + index as u8; length].into();
            let put = MultipartStore::put_part(&store, &moved, &id, index, part);
            ids.push(put.await.unwrap());
        }
        store.complete_multipart(&moved, &id, ids).await.unwrap();
        history.record().await;
    }
    store.delete(&moved).await.unwrap();
    history.record().await;
    drop(store);
    history.check().await;
}

/// Its bytes are several writes.
#[tokio::test]
async fn a_cut_leaves_a_large_object_whole_or_not_at_all() {
    let mut history = History::new().await;
    let bytes: Vec<u8> = (0..(8 << 20) + 5001).map(|at| (at / 4099) as u8).collect();
    history.store.put(&Path::from("large"), bytes.into()).await.unwrap();
    history.record().await;
    history.check().await;
}

/// They share commits.
#[tokio::test]
async fn a_cut_in_concurrent_puts_keeps_each_that_has_answered() {
    let (store, sim) = new_store();
    let path = |number: u8| Path::from(format!("{}/{number}", number % 2));
    store.put(&path(0), content(b'a')).await.unwrap();
    let begin = sim.events();
    let put = |number: u8| {
        let (store, sim) = (&store, &sim);
        async move {
            store.put(&path(number), content(b'0' + number)).await.unwrap();
            sim.events()
        }
    };
    let answered = join_all((0..6).map(put)).await;
    let mut cuts = 0;
    for image in sim.crash_images(CrashPlan { exhaustive_up_to: 2, samples: 3, seed: 31 }) {
        if image.cut < begin {
            continue;
        }
        cuts += 1;
        let (_, objects) = recover(image.sim).await;
        for (number, answered) in (0..6).zip(&answered) {
            let name = path(number).to_string();
            let letter = objects.iter().find(|(it, _)| *it == name).map(|(_, letter)| *letter);
            let new = Some(b'0' + number);
            let old = (number == 0).then_some(b'a');
            let is_allowed = letter == new || (image.cut < *answered && letter == old);
            assert!(is_allowed, "cut {}: {objects:?}, answered {answered:?}", image.cut);
        }
    }
    assert!(cuts > 20, "{cuts} cuts");
}
