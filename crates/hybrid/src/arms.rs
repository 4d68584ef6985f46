//! The two executors and the state that is spread over them.

use cortiq_cpu::CpuExecutor;
use cortiq_gpu::GpuExecutor;
use cortiq_model::{Executor, ModelError, PartExecutor, SequenceId, SequenceState, SnapshotId};

use crate::Side;

/// Both executors. As [`SequenceState`] it does everything on both; they number sequences alike.
pub(crate) struct Arms {
    pub(crate) cpu: CpuExecutor,
    pub(crate) gpu: GpuExecutor,
}

impl Arms {
    /// The executor of a side.
    pub(crate) fn get(&self, side: Side) -> &dyn PartExecutor {
        match side {
            Side::Cpu => &self.cpu,
            Side::Gpu => &self.gpu,
        }
    }

    /// The executor of a side.
    pub(crate) fn get_mut(&mut self, side: Side) -> &mut dyn PartExecutor {
        match side {
            Side::Cpu => &mut self.cpu,
            Side::Gpu => &mut self.gpu,
        }
    }

    /// The same on both sides.
    fn both(
        &mut self,
        mut act: impl FnMut(&mut dyn SequenceState) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        act(self.cpu.states())?;
        act(self.gpu.states())
    }

    /// A handle that both sides give, taken back where only one does.
    fn same<T: Copy + PartialEq>(
        &mut self,
        make: impl Fn(&mut dyn SequenceState) -> Result<T, ModelError>,
        drop: impl Fn(&mut dyn SequenceState, T) -> Result<(), ModelError>,
    ) -> Result<T, ModelError> {
        let on_cpu = make(self.cpu.states())?;
        let failed = match make(self.gpu.states()) {
            Ok(on_gpu) if on_gpu == on_cpu => return Ok(on_cpu),
            Ok(on_gpu) => {
                drop(self.gpu.states(), on_gpu)?;
                ModelError::Executor("the states on the CPU and on the GPU are numbered differently".to_owned())
            }
            Err(error) => error,
        };
        drop(self.cpu.states(), on_cpu)?;
        Err(failed)
    }
}

impl SequenceState for Arms {
    fn open(&mut self) -> Result<SequenceId, ModelError> {
        self.same(|state| state.open(), |state, id| state.close(id))
    }

    fn close(&mut self, id: SequenceId) -> Result<(), ModelError> {
        self.both(|state| state.close(id))
    }

    fn len(&self, id: SequenceId) -> Result<usize, ModelError> {
        self.cpu.state().len(id)
    }

    fn append(&mut self, id: SequenceId, count: usize) -> Result<(), ModelError> {
        // What can fail comes first: one side alone must not grow.
        self.reserve(id, count)?;
        self.both(|state| state.append(id, count))
    }

    fn reserve(&mut self, id: SequenceId, count: usize) -> Result<(), ModelError> {
        self.both(|state| state.reserve(id, count))
    }

    fn can_truncate(&self, id: SequenceId, len: usize) -> Result<bool, ModelError> {
        Ok(self.cpu.state().can_truncate(id, len)? && self.gpu.state().can_truncate(id, len)?)
    }

    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), ModelError> {
        if !self.can_truncate(id, len)? {
            return Err(ModelError::CannotRewind { from: self.len(id)?, to: len });
        }
        self.both(|state| state.truncate(id, len))
    }

    fn snapshot(&mut self, id: SequenceId) -> Result<SnapshotId, ModelError> {
        self.same(|state| state.snapshot(id), |state, snapshot| state.release(snapshot))
    }

    fn restore(&mut self, id: SequenceId, snapshot: SnapshotId) -> Result<(), ModelError> {
        self.both(|state| state.restore(id, snapshot))
    }

    fn release(&mut self, snapshot: SnapshotId) -> Result<(), ModelError> {
        self.both(|state| state.release(snapshot))
    }
}
