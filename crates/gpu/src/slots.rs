//! Activation buffers.

use cortiq_model::{Program, Slot};

use crate::{Gpu, GpuError};

/// Widths are padded to whole groups of 32 columns; the padding stays zero, so that kernels may read it.
pub(crate) fn padded(width: usize) -> usize {
    width.next_multiple_of(32)
}

/// One f32 buffer `[rows, padded(width)]` per slot of the program.
pub(crate) struct Slots {
    buffers: Vec<wgpu::Buffer>,
    widths: Vec<usize>,
    rows: usize,
}

impl Slots {
    /// Buffers for steps of up to `rows` tokens.
    pub(crate) fn new(gpu: &Gpu, program: &Program, rows: usize) -> Result<Self, GpuError> {
        let widths: Vec<usize> = program.slots.iter().map(|slot| slot.width).collect();
        let make = |slot: &cortiq_model::SlotDecl| gpu.buffer(slot.name, (rows * padded(slot.width) * 4) as u64);
        let buffers = program.slots.iter().map(make).collect::<Result<_, _>>()?;
        Ok(Self { buffers, widths, rows })
    }

    /// The buffer of a slot.
    pub(crate) fn buffer(&self, slot: Slot) -> &wgpu::Buffer {
        &self.buffers[slot.0]
    }

    /// Floats of a row in use.
    pub(crate) fn width(&self, slot: Slot) -> usize {
        self.widths[slot.0]
    }

    /// Floats from one row to the next.
    pub(crate) fn stride(&self, slot: Slot) -> usize {
        padded(self.widths[slot.0])
    }

    /// Rows that fit.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }
}
