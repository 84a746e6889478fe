//! A new client instance for a device whose requests have timed out.
//!
//! Whether such a request was executed, or will be, is unknown. So it must not be executed again beside the old one: the old
//! instance is put on the cluster's blocklist first, and a new one executes the request again, the same bytes at the same
//! place. Until then the request has not ended, and others wait.

use std::io::{self, ErrorKind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use uringfs_errno::Errno;
use uringfs_rbd::{BlocklistEntry, Cluster, Library, OpenMode};

use super::instance::Instance;
use super::open::watch_size;
use super::opened::OpenedImage;
use super::owner::Owner;
use super::target::{DEFAULT_LIFE, RbdTarget};

/// The longest time between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// What is to become of a request that has failed.
pub(super) enum Fate {
    /// It has ended with this error.
    Ended(Errno),
    /// The next instance executes it again.
    Again,
}

/// What is to become of a request that the instance of this generation has ended with this error.
#[cold]
pub(super) fn fate(opened: &Arc<OpenedImage>, generation: u64, errno: Errno) -> Fate {
    if opened.geometry.read_only {
        return Fate::Ended(errno);
    }
    let times_out = opened.target.request_timeout.is_some();
    match errno {
        // The blocklist has it: by a renewal, or by a client that has taken the image.
        Errno::SHUTDOWN if opened.generation() != Some(generation) => Fate::Again,
        // An instance that does not reach its daemons can lose its lock, too.
        Errno::TIMEDOUT | Errno::ROFS if times_out => {
            begin(opened, generation);
            Fate::Again
        }
        // From now on all requests fail: the library itself would go on when its entry on the blocklist has ended.
        Errno::SHUTDOWN | Errno::ROFS => {
            opened.lose();
            Fate::Ended(Errno::SHUTDOWN)
        }
        errno => Fate::Ended(errno),
    }
}

/// Begins to renew the instance of this generation, unless that has begun.
fn begin(opened: &Arc<OpenedImage>, generation: u64) {
    if !opened.begin_renewal(generation) {
        return;
    }
    let weak = Arc::downgrade(opened);
    let renew = move || renew(&weak);
    if thread::Builder::new().name("uringfs-rbd-renew".into()).spawn(renew).is_err() {
        opened.lose();
    }
}

/// Renews the instance as soon as the cluster answers, unless the device is dropped before.
fn renew(opened: &Weak<OpenedImage>) {
    let mut pause = Duration::from_millis(100);
    let mut renewal: Option<Renewal> = None;
    while let Some(opened) = opened.upgrade() {
        let renewal = renewal.get_or_insert_with(|| Renewal::of(&opened));
        let error = match renewal.attempt() {
            Ok(instance) => {
                tracing::warn!(target: "uringfs", event = "rbd_renewed", "{}: goes on as {:?}", opened.target, instance.cluster);
                return opened.renew(instance);
            }
            Err(Failure::Lost) => {
                tracing::error!(target: "uringfs", event = "rbd_lost", "{}: another client has taken the image", opened.target);
                return opened.lose();
            }
            Err(Failure::Later(error)) => error,
        };
        tracing::warn!(target: "uringfs", event = "rbd_renewal", "{error}; trying again");
        drop(opened);
        thread::sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Why an attempt has failed.
enum Failure {
    /// Another client has had the image meanwhile.
    Lost,
    /// The cluster does not answer.
    Later(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Later(error)
    }
}

/// The attempts to renew an instance.
struct Renewal {
    target: RbdTarget,
    size: Arc<AtomicU64>,
    generation: u64,
    /// The addresses of this device's clients so far.
    own: Vec<String>,
    /// Those of them that are on the blocklist by this renewal.
    listed: Vec<String>,
}

impl Renewal {
    fn of(opened: &OpenedImage) -> Renewal {
        let old = opened.instance();
        Renewal {
            target: opened.target.clone(),
            size: opened.size.clone(),
            generation: old.generation,
            own: old.address.clone().into_iter().collect(),
            listed: Vec::new(),
        }
    }

    fn attempt(&mut self) -> Result<Instance, Failure> {
        let target = self.target.clone();
        let failed = |what, errno| Failure::Later(target.failed(what, errno));
        let library = Library::load()
            .map_err(|error| target.refuse(ErrorKind::NotFound, error.to_string()))?;
        let cluster = target.connect(library)?;
        self.shut_out(&cluster)?;
        let mut image = target.open_image(&cluster, OpenMode::ReadWrite)?;
        let asking = |errno| failed("asking for the owner of its lock", errno);
        if let Some(owner) = image.lock_owner().map_err(asking)? {
            if !self.own.contains(&owner) {
                return Err(Failure::Lost);
            }
            match image.break_lock(&owner) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed("taking its lock from the client before", errno)),
            }
            // What was read before may have changed until then.
            drop(image);
            image = target.open_image(&cluster, OpenMode::ReadWrite)?;
        }
        image.acquire_lock().map_err(|errno| failed("taking its lock", errno))?;
        let address = image.lock_owner().map_err(asking)?;
        self.own.extend(address);
        let announced = Owner::announced(&image).map_err(asking)?;
        if !self.own.contains(&announced) {
            return Err(Failure::Lost);
        }
        let address = Owner::announce(&image, target.lease)
            .map_err(|errno| failed("noting the owner", errno))?;
        watch_size(&mut image, &self.size).map_err(|errno| failed("watching its size", errno))?;
        Ok(Instance::new(cluster, image, Some(address), self.generation + 2))
    }

    /// Puts the clients before on the blocklist. If others have done so, they have taken the image.
    fn shut_out(&mut self, cluster: &Cluster) -> Result<(), Failure> {
        let failed = |errno| self.target.failed("shutting out the client before", errno);
        // A client that may not see the list may add to it nevertheless.
        let all = match cluster.blocklisted() {
            Err(Errno::ACCESS | Errno::PERM) => Vec::new(),
            all => all.map_err(failed)?,
        };
        let is_listed =
            |address: &String| all.iter().any(|entry: &BlocklistEntry| entry.address == *address);
        for address in &self.own {
            match (self.listed.contains(address), is_listed(address)) {
                (false, true) => return Err(Failure::Lost),
                (true, true) => continue,
                (_, false) => {}
            }
            // A failure leaves it unknown whether the entry is there.
            self.listed.push(address.clone());
            cluster.blocklist(address, DEFAULT_LIFE).map_err(failed)?;
        }
        Ok(())
    }
}
