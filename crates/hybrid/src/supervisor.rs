//! [`Supervisor`]: an executor that outlives the device under it.
//!
//! A device can be lost (a driver that resets, a card that is unplugged). The step that runs then fails, the device is
//! opened and loaded anew, and the CPU takes over after [`MOST_LOSSES`] losses or when there is no device any more. All
//! sequences stay open and are empty: what they held is gone, and their owners compute it again.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use cortiq_gpu::{AdapterChoice, Gpu};
use cortiq_model::{
    Batch, DraftInput, Executor, KernelTime, ModelError, Program, SequenceId, SequenceState, SnapshotId, TopRows,
};

use crate::HybridError;
use crate::open::Placed;

/// Losses after which the CPU takes over.
const MOST_LOSSES: usize = 3;

/// What an executor can be made of again.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) placed: Placed,
    pub(crate) adapter: AdapterChoice,
}

impl Sources {
    /// The executor on a device that is opened now.
    fn rebuild(&self) -> Result<Box<dyn Executor>, HybridError> {
        self.placed.build(Arc::new(Gpu::open(&self.adapter)?))
    }
}

/// Where the device stands.
enum Device {
    /// Loading, while the CPU answers.
    Loading(JoinHandle<Result<Box<dyn Executor>, HybridError>>),
    /// In use, lost so many times before.
    Used(usize),
    /// Given up: the CPU computes.
    GivenUp,
}

/// An executor on a GPU, or on a GPU and the CPU, and what replaces it.
pub struct Supervisor {
    inner: Inner,
    device: Device,
    sources: Sources,
}

/// The executor of the moment and the handles that its owners have.
struct Inner {
    active: Box<dyn Executor>,
    sequences: BTreeSet<usize>,
    snapshots: BTreeSet<usize>,
    /// Snapshots whose content went with a device.
    lost: HashSet<usize>,
}

impl Supervisor {
    /// Guards `active`, which `sources` made.
    pub(crate) fn new(active: Box<dyn Executor>, sources: Sources) -> Self {
        Self { inner: Inner::new(active), device: Device::Used(0), sources }
    }

    /// Answers on the CPU until the executor on `gpu` is there.
    pub(crate) fn loading(gpu: Arc<Gpu>, sources: Sources) -> Result<Self, HybridError> {
        let cpu = sources.placed.on_cpu()?;
        let placed = sources.placed.clone();
        let load = move || placed.build(gpu);
        let loading = thread::Builder::new().name("gpu upload".to_owned()).spawn(load);
        let device = loading.map_or(Device::GivenUp, Device::Loading);
        Ok(Self { inner: Inner::new(cpu), device, sources })
    }

    /// Changes to the executor that was loaded meanwhile, if it is there and no sequence would lose anything.
    fn take_over(&mut self) {
        if !matches!(&self.device, Device::Loading(loading) if loading.is_finished()) || !self.inner.is_empty() {
            return;
        }
        let Device::Loading(loading) = std::mem::replace(&mut self.device, Device::GivenUp) else { return };
        // A device that cannot be loaded leaves the CPU in charge.
        if let Ok(Ok(loaded)) = loading.join()
            && self.inner.adopt(loaded).is_ok()
        {
            self.device = Device::Used(0);
        }
    }

    /// After an error: replaces an executor whose device is gone. The error stays one.
    fn recover(&mut self, error: ModelError) -> ModelError {
        let (ModelError::DeviceLost(_), Device::Used(losses)) = (&error, &self.device) else { return error };
        let losses = losses + 1;
        // What is lost must be gone before its memory is asked for again.
        if let Err(failed) = self.sources.placed.on_cpu().and_then(|cpu| self.inner.adopt(cpu)) {
            return failed;
        }
        let again = if losses < MOST_LOSSES { self.sources.rebuild().ok() } else { None };
        if let Some(again) = again
            && self.inner.adopt(again).is_ok()
        {
            self.device = Device::Used(losses);
            return error;
        }
        self.device = Device::GivenUp;
        error
    }
}

impl Inner {
    fn new(active: Box<dyn Executor>) -> Self {
        Self { active, sequences: BTreeSet::new(), snapshots: BTreeSet::new(), lost: HashSet::new() }
    }

    /// Whether no sequence and no snapshot holds anything.
    fn is_empty(&self) -> bool {
        let held = |&index: &usize| self.active.state().len(SequenceId::from_index(index)).is_ok_and(|len| len > 0);
        self.snapshots.is_empty() && !self.sequences.iter().any(held)
    }

    /// Goes on with `next`. All handles stay valid: executors number sequences and snapshots from the lowest free
    /// number on.
    fn adopt(&mut self, mut next: Box<dyn Executor>) -> Result<(), ModelError> {
        let states = next.states();
        occupy(&self.sequences, || Ok(states.open()?.index()))?;
        (0..end(&self.sequences))
            .filter(|index| !self.sequences.contains(index))
            .try_for_each(|index| states.close(SequenceId::from_index(index)))?;
        if !self.snapshots.is_empty() {
            let empty = states.open()?;
            occupy(&self.snapshots, || Ok(states.snapshot(empty)?.index()))?;
            (0..end(&self.snapshots))
                .filter(|index| !self.snapshots.contains(index))
                .try_for_each(|index| states.release(SnapshotId::from_index(index)))?;
            states.close(empty)?;
        }
        self.lost.extend(&self.snapshots);
        self.active = next;
        Ok(())
    }
}

/// One more than the largest number.
fn end(numbers: &BTreeSet<usize>) -> usize {
    numbers.last().map_or(0, |last| last + 1)
}

/// Makes handles until every one of `numbers` is there.
fn occupy(numbers: &BTreeSet<usize>, mut make: impl FnMut() -> Result<usize, ModelError>) -> Result<(), ModelError> {
    for expected in 0..end(numbers) {
        if make()? != expected {
            return Err(ModelError::Executor("an executor numbers its sequences in another way".to_owned()));
        }
    }
    Ok(())
}

impl SequenceState for Inner {
    fn open(&mut self) -> Result<SequenceId, ModelError> {
        let id = self.active.states().open()?;
        self.sequences.insert(id.index());
        Ok(id)
    }

    fn close(&mut self, id: SequenceId) -> Result<(), ModelError> {
        self.active.states().close(id)?;
        self.sequences.remove(&id.index());
        Ok(())
    }

    fn len(&self, id: SequenceId) -> Result<usize, ModelError> {
        self.active.state().len(id)
    }

    fn append(&mut self, id: SequenceId, count: usize) -> Result<(), ModelError> {
        self.active.states().append(id, count)
    }

    fn reserve(&mut self, id: SequenceId, count: usize) -> Result<(), ModelError> {
        self.active.states().reserve(id, count)
    }

    fn can_truncate(&self, id: SequenceId, len: usize) -> Result<bool, ModelError> {
        self.active.state().can_truncate(id, len)
    }

    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), ModelError> {
        self.active.states().truncate(id, len)
    }

    fn snapshot(&mut self, id: SequenceId) -> Result<SnapshotId, ModelError> {
        let snapshot = self.active.states().snapshot(id)?;
        self.snapshots.insert(snapshot.index());
        Ok(snapshot)
    }

    fn restore(&mut self, id: SequenceId, snapshot: SnapshotId) -> Result<(), ModelError> {
        if self.lost.contains(&snapshot.index()) {
            return Err(ModelError::DeviceLost("the snapshot was lost with the GPU".to_owned()));
        }
        self.active.states().restore(id, snapshot)
    }

    fn release(&mut self, snapshot: SnapshotId) -> Result<(), ModelError> {
        self.active.states().release(snapshot)?;
        self.snapshots.remove(&snapshot.index());
        self.lost.remove(&snapshot.index());
        Ok(())
    }
}

impl Executor for Supervisor {
    fn name(&self) -> &'static str {
        self.inner.active.name()
    }

    fn program(&self) -> &Program {
        self.inner.active.program()
    }

    fn states(&mut self) -> &mut dyn SequenceState {
        self.take_over();
        &mut self.inner
    }

    fn state(&self) -> &dyn SequenceState {
        &self.inner
    }

    fn step(&mut self, batch: &Batch<'_>) -> Result<&[f32], ModelError> {
        if let Err(error) = self.inner.active.step(batch).map(|_| ()) {
            return Err(self.recover(error));
        }
        Ok(self.inner.active.logits())
    }

    fn draft(&mut self, input: &DraftInput<'_>) -> Result<&[f32], ModelError> {
        if let Err(error) = self.inner.active.draft(input).map(|_| ()) {
            return Err(self.recover(error));
        }
        Ok(self.inner.active.logits())
    }

    fn logits(&self) -> &[f32] {
        self.inner.active.logits()
    }

    fn step_top(&mut self, batch: &Batch<'_>, count: usize, out: &mut TopRows) -> Result<(), ModelError> {
        self.inner.active.step_top(batch, count, out).map_err(|error| self.recover(error))
    }

    fn draft_top(&mut self, input: &DraftInput<'_>, count: usize, out: &mut TopRows) -> Result<(), ModelError> {
        self.inner.active.draft_top(input, count, out).map_err(|error| self.recover(error))
    }

    fn prefill_chunk(&self) -> usize {
        self.inner.active.prefill_chunk()
    }

    fn start_profile(&mut self) -> Result<(), ModelError> {
        self.inner.active.start_profile()
    }

    fn end_profile(&mut self) -> Vec<KernelTime> {
        self.inner.active.end_profile()
    }
}
