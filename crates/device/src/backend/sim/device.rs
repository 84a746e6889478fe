//! The handle of a simulated device.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use uringfs_errno::Errno;

use super::fault::{Fault, Rule, When};
use super::image::Image;
use super::inner::SimInner;
use super::media::{Crash, Event};
use super::options::SimOptions;
use super::queue::SimQueue;
use super::record::Record;
use crate::clock::Clock;
use crate::geometry::Geometry;
use crate::interface::backend::{Backend, KernelTarget};
use crate::interface::queue::Queue;
use crate::request::{Op, Request};

/// A simulated device, and the handle by which a test controls it. Clones refer to
/// the same device.
#[derive(Clone)]
pub struct Sim {
    core: Arc<SimInner>,
}

impl Sim {
    /// A device of zeros.
    pub fn new(options: SimOptions) -> Sim {
        Sim::from_image(Image::default(), options)
    }

    pub(super) fn from_image(image: Image, options: SimOptions) -> Sim {
        Sim { core: Arc::new(SimInner::new(image, options)) }
    }

    /// Its options, with the size at its creation. Their display form contains the seed.
    pub fn options(&self) -> &SimOptions {
        &self.core.options
    }

    /// Adds a fault rule.
    ///
    /// # Panics
    /// When there are [`MAX_RULES`](super::MAX_RULES) already.
    pub fn inject(&self, rule: Rule) {
        self.core.state.lock().faults.add(rule);
    }

    /// Fails the `n`-th request of kind `op` from now (counted from 1) with `error`, once.
    pub fn fail_nth(&self, op: Op, n: u64, error: Errno) {
        self.inject(Rule::new(op, When::Nth(n), Fault::Error(error)));
    }

    /// Removes all fault rules.
    pub fn clear_faults(&self) {
        self.core.state.lock().faults.clear();
    }

    /// The number of faults that have occurred.
    pub fn faults_hit(&self) -> u64 {
        self.core.state.lock().faults.hits
    }

    /// Detaches the device: all requests in flight and all later ones fail with `error`
    /// (ENODEV, EIO) until [`Sim::reattach`].
    pub fn detach(&self, error: Errno) {
        self.core.state.lock().detached = Some(error);
    }

    /// Ends a detachment. The device has the same bytes as before.
    pub fn reattach(&self) {
        self.core.state.lock().detached = None;
    }

    /// Changes its size to `bytes`, as others do with a device that is open. It grows by zeros; what is cut off is
    /// lost at once. Rules with [`Fault::Resized`] do the same at a request.
    ///
    /// # Panics
    /// When `bytes` are not whole blocks.
    pub fn set_size(&self, bytes: u64) {
        assert!(bytes.is_multiple_of(self.core.geometry.block_size.into()), "{bytes} bytes");
        self.core.state.lock().set_size(bytes);
    }

    /// Flips bit `bit` (0 to 7) of the byte at `address`, in the cache and on the medium.
    pub fn flip_bit(&self, address: u64, bit: u32) {
        self.core.state.lock().flip_bit(address, bit);
    }

    /// Copies the bytes at `address`, as a read without faults would return them.
    pub fn peek(&self, address: u64, bytes: &mut [u8]) {
        self.core.state.lock().current.read(address, bytes);
    }

    /// A digest of the content that reads see: equal for equal bytes, and almost always different for
    /// others.
    pub fn digest(&self) -> u64 {
        self.core.state.lock().current.digest()
    }

    /// The recorded events, in order; [`Sim::events`] counts them without a copy.
    ///
    /// # Panics
    /// When created with [`Recording::Off`](super::Recording::Off).
    pub fn record(&self) -> Vec<Event> {
        self.core.state.lock().recorded().events()
    }

    /// The number of events so far, those included that the record has dropped: the [`CrashImage::cut`](super::CrashImage::cut)
    /// of a power loss now.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn events(&self) -> u64 {
        self.core.state.lock().recorded().count()
    }

    /// The number of events that the record has dropped: the oldest ones beyond its bound, and
    /// all of them at each [`Sim::restart_record`].
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn forgotten(&self) -> u64 {
        self.core.state.lock().recorded().forgotten()
    }

    /// Restarts the record, so that the cut points of [`Sim::crash_images`] begin now.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn restart_record(&self) {
        self.core.state.lock().recorded().restart();
    }

    /// The number of completed or in-flight writes that a crash now could lose.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn unstable_writes(&self) -> usize {
        self.core.state.lock().recorded().now.unstable_writes()
    }

    /// A copy of the whole record.
    pub(super) fn record_copy(&self) -> Record {
        self.core.state.lock().recorded().clone()
    }

    /// A state of the device after a power loss now, as a new, independent device
    /// without faults.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn crash_image(&self, crash: Crash) -> Sim {
        let image = self.core.state.lock().recorded().now.crash(crash);
        Sim::from_image(image, self.options_now())
    }

    /// Its options, with the size that it has now.
    pub(super) fn options_now(&self) -> SimOptions {
        SimOptions { size: self.core.state.lock().size, ..self.core.options.clone() }
    }
}

impl Backend for Sim {
    fn geometry(&self) -> &Geometry {
        &self.core.geometry
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.core.state.lock().size)
    }

    fn description(&self) -> String {
        self.core.options.to_string()
    }

    fn kernel_target(&self) -> KernelTarget<'_> {
        KernelTarget::InProcess
    }

    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let mut result = Err(Errno::AGAIN);
        self.perform_each(std::slice::from_mut(request), &mut |_, found| result = found);
        result
    }

    /// Takes the device's latency of the machine's clock. A virtual one, which this thread cannot advance, stays as it is.
    fn perform_each(
        &self,
        requests: &mut [Request],
        ended: &mut dyn FnMut(usize, Result<u32, Errno>),
    ) {
        let clock = &self.core.options.clock;
        let plans: Vec<_> =
            requests.iter().map(|request| self.core.begin(request, clock.now())).collect();
        for (index, (request, plan)) in requests.iter_mut().zip(plans).enumerate() {
            let result = plan.and_then(|plan| {
                if let Clock::System = clock {
                    thread::sleep(plan.deadline.saturating_duration_since(Instant::now()));
                }
                self.core.finish(&plan, request, false)
            });
            ended(index, result);
        }
    }

    fn own_queue(&self, depth: usize) -> Option<Box<dyn Queue>> {
        Some(Box::new(SimQueue::new(self.core.clone(), depth)))
    }

    fn shared_memory(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.core).addr())
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.core.options)
    }
}
