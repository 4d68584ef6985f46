//! Parts of a step, for compositions of executors: rows cross between a slot and the host.

use cortiq_model::{Batch, ModelError, Part, PartExecutor, Slot, TopRows};

use super::{GpuExecutor, MAX_ROWS, Stage, submit};
use crate::GpuError;

impl GpuExecutor {
    /// Copies `rows` rows of the outputs to the host's buffer, one slot after the other, and submits.
    pub(super) fn hand_over(
        &mut self,
        mut encoder: wgpu::CommandEncoder,
        outputs: &[Slot],
        rows: usize,
    ) -> Result<(), GpuError> {
        let bytes_of = |slot: &Slot| (rows * self.buffers.slots.stride(*slot) * 4) as u64;
        let bytes: u64 = outputs.iter().map(bytes_of).sum();
        if self.buffers.crossing.as_ref().is_none_or(|buffer| buffer.size() < bytes) {
            self.buffers.crossing = Some(self.gpu.readback(bytes.next_power_of_two())?);
        }
        if let Some(crossing) = &self.buffers.crossing {
            let mut at = 0;
            for slot in outputs {
                let bytes = bytes_of(slot);
                encoder.copy_buffer_to_buffer(self.buffers.slots.buffer(*slot), 0, crossing, at, bytes);
                at += bytes;
            }
        }
        submit(&self.gpu, self.profiler.as_mut(), encoder)?;
        self.state.finish_pending();
        self.gpu.poll()
    }

    /// Reads what [`GpuExecutor::hand_over`] copied, without the padding of the rows.
    fn read_outputs(&mut self, outputs: &[Slot], rows: usize, slots: &mut [Vec<f32>]) -> Result<(), GpuError> {
        let Some(crossing) = self.buffers.crossing.as_ref().filter(|_| !outputs.is_empty()) else { return Ok(()) };
        let strides: usize = outputs.iter().map(|slot| self.buffers.slots.stride(*slot)).sum();
        self.crossed.clear();
        self.gpu.read_more(crossing, rows * strides, &mut self.crossed)?;
        let mut rest = self.crossed.as_slice();
        for &slot in outputs {
            let (width, stride) = (self.buffers.slots.width(slot), self.buffers.slots.stride(slot));
            let (own, others) = rest.split_at(rows * stride);
            let values = &mut slots[slot.0];
            values.clear();
            own.chunks_exact(stride.max(1)).for_each(|row| values.extend_from_slice(&row[..width]));
            rest = others;
        }
        Ok(())
    }

    /// Writes rows of the inputs; the padding of a slot's rows stays zero.
    fn write_inputs(&mut self, inputs: &[Slot], rows: usize, slots: &[Vec<f32>]) -> Result<(), GpuError> {
        for &slot in inputs {
            let (width, stride) = (self.buffers.slots.width(slot), self.buffers.slots.stride(slot));
            let values = slots
                .get(slot.0)
                .filter(|values| values.len() == rows * width)
                .ok_or_else(|| ModelError::Batch(format!("the rows of slot {} are not those of the batch", slot.0)))?;
            let buffer = self.buffers.slots.buffer(slot);
            if width == stride {
                self.gpu.write(buffer, 0, bytemuck::cast_slice(values));
                continue;
            }
            for (row, values) in values.chunks_exact(width.max(1)).enumerate() {
                self.gpu.write(buffer, (row * stride * 4) as u64, bytemuck::cast_slice(values));
            }
        }
        self.gpu.check()
    }

    fn try_part(&mut self, batch: &Batch<'_>, part: &Part<'_>, slots: &mut [Vec<f32>]) -> Result<(), GpuError> {
        let rows = batch.tokens.len();
        if rows > MAX_ROWS || part.first > part.end || part.end > self.program.ops.len() {
            return Err(GpuError::Unsupported(format!("{rows} rows of the operations {:?}", part.range())));
        }
        self.own(batch)?;
        self.fit_rows(rows)?;
        self.write_inputs(part.inputs, rows, slots)?;
        let stage = Stage::Trunk(part.range());
        self.run(&stage, batch, None, part.outputs)?;
        if !self.has_head(&stage) {
            return self.read_outputs(part.outputs, rows, slots);
        }
        self.prepare_trunk(batch)?;
        self.keep_trunk(0, rows)
    }
}

impl PartExecutor for GpuExecutor {
    /// Buffers grow to the batch, which is at most 32,768 rows.
    fn run_part(&mut self, batch: &Batch<'_>, part: &Part<'_>, slots: &mut [Vec<f32>]) -> Result<(), ModelError> {
        self.logits.clear();
        self.try_part(batch, part, slots).map_err(|error| {
            self.forget_results();
            error.into()
        })
    }

    fn run_part_top(
        &mut self,
        batch: &Batch<'_>,
        part: &Part<'_>,
        slots: &mut [Vec<f32>],
        count: usize,
        out: &mut TopRows,
    ) -> Result<(), ModelError> {
        self.top(count, out, |executor| executor.run_part(batch, part, slots))
    }
}
