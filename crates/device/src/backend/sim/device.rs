//! A simulated device, and the handle that controls it.

use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;

use super::core::SimCore;
use super::fault::{Fault, Rule, When};
use super::image::Image;
use super::media::{Crash, Event};
use super::options::SimOptions;
use super::queue::SimQueue;
use super::record::Record;
use crate::geometry::Geometry;
use crate::interface::backend::{Backend, Reach};
use crate::interface::queue::Queue;
use crate::request::{Op, Request};

/// A simulated device, and the handle by which a test controls it. Clones are the
/// same device.
#[derive(Clone)]
pub struct Sim {
    core: Arc<SimCore>,
}

impl Sim {
    /// A device of zeros.
    pub fn new(options: SimOptions) -> Sim {
        Sim::from_image(Image::default(), options)
    }

    pub(super) fn from_image(image: Image, options: SimOptions) -> Sim {
        Sim { core: Arc::new(SimCore::new(image, options)) }
    }

    /// Its options; they print its seed.
    pub fn options(&self) -> &SimOptions {
        &self.core.options
    }

    /// Puts a rule in force.
    ///
    /// # Panics
    /// When [`MAX_RULES`](super::MAX_RULES) are in force.
    pub fn inject(&self, rule: Rule) {
        self.core.state.lock().faults.add(rule);
    }

    /// The `n`-th request of kind `op` from now (counted from 1) ends with `error`, once.
    pub fn fail_nth(&self, op: Op, n: u64, error: Errno) {
        self.inject(Rule::new(op, When::Nth(n), Fault::Error(error)));
    }

    /// Drops all rules.
    pub fn clear_faults(&self) {
        self.core.state.lock().faults.clear();
    }

    /// The number of faults that have occurred.
    pub fn faults_hit(&self) -> u64 {
        self.core.state.lock().faults.hits
    }

    /// The device goes away: everything in flight and to come ends with `error`
    /// (ENODEV, EIO) until [`Sim::come_back`].
    pub fn go_away(&self, error: Errno) {
        self.core.state.lock().detached = Some(error);
    }

    /// It is there again, with the bytes it had.
    pub fn come_back(&self) {
        self.core.state.lock().detached = None;
    }

    /// Flips bit `bit` (0 to 7) of the byte at `address`, in the cache and on the medium.
    pub fn rot(&self, address: u64, bit: u32) {
        self.core.state.lock().rot(address, bit);
    }

    /// Copies bytes out as a reader would find them, past all faults.
    pub fn peek(&self, address: u64, bytes: &mut [u8]) {
        self.core.state.lock().current.read(address, bytes);
    }

    /// Tells contents apart, as a reader would find them: the same for the same bytes, and hardly ever for
    /// others.
    pub fn digest(&self) -> u64 {
        self.core.state.lock().current.digest()
    }

    /// The recorded events on its content, in order.
    ///
    /// # Panics
    /// When made with [`Recording::Off`](super::Recording::Off).
    pub fn record(&self) -> Vec<Event> {
        self.core.state.lock().recorded().events()
    }

    /// The number of events that the record has forgotten at its beginning.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn forgotten(&self) -> u64 {
        self.core.state.lock().recorded().forgotten()
    }

    /// Lets the record, and so the cut points of [`Sim::crash_images`], begin now.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn restart_record(&self) {
        self.core.state.lock().recorded().restart();
    }

    /// Completed or in-flight writes whose survival a crash would decide now.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn unsettled(&self) -> usize {
        self.core.state.lock().recorded().now.unsettled()
    }

    /// A copy of the record.
    pub(super) fn record_copy(&self) -> Record {
        self.core.state.lock().recorded().clone()
    }

    /// The device as it may be found if the power fails now: a new one, which
    /// this one knows nothing of, without faults.
    ///
    /// # Panics
    /// As [`Sim::record`].
    pub fn crash_image(&self, crash: Crash) -> Sim {
        let image = self.core.state.lock().recorded().now.crash(crash);
        Sim::from_image(image, self.core.options.clone())
    }
}

impl Backend for Sim {
    fn geometry(&self) -> &Geometry {
        &self.core.geometry
    }

    fn description(&self) -> String {
        self.core.options.to_string()
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Call
    }

    /// At once: latency passes only on the device's own queue.
    fn perform(&self, request: &mut Request) -> Result<u32, Errno> {
        let plan = self.core.begin(request, self.core.options.clock.now())?;
        self.core.finish(&plan, request, false)
    }

    fn own_queue(&self, depth: usize) -> Option<Box<dyn Queue>> {
        Some(Box::new(SimQueue::new(self.core.clone(), depth)))
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.core.options)
    }
}
