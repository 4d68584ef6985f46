//! The best tokens of given logits.

use cortiq_model::{Program, TopRows};

use super::{Bench, Lab};
use crate::kernel::StepSize;
use crate::ops::{Top, top_size, top_slices};
use crate::plan::{Activation, Class};
use crate::{GpuError, GpuOptions, Precision};

/// A choice of the best tokens.
#[derive(Clone, Copy, Debug)]
pub struct TopCase<'a> {
    /// `[rows, vocab_size]`.
    pub logits: &'a [f32],
    /// Tokens of a row.
    pub vocab_size: usize,
    /// How many are chosen.
    pub count: usize,
    /// Logits that a workgroup looks through, one of [`Lab::top_slices`].
    pub slice: usize,
}

impl Lab {
    /// Sizes of slices that the device can look through, the preferred one first.
    pub fn top_slices(&self) -> Vec<usize> {
        top_slices(self.gpu.caps()).collect()
    }

    /// The best tokens of each row.
    pub fn top(&mut self, case: &TopCase<'_>) -> Result<TopRows, GpuError> {
        let (mut top, size, _bench) = self.record_top(case)?;
        self.run(&top.dispatches, &size)?;
        let (rows, mut encoder) = (size.logit_rows as usize, self.encoder());
        top.copy(&mut encoder, rows);
        self.gpu.queue.submit([encoder.finish()]);
        let mut out = TopRows::default();
        out.reset(case.count, case.vocab_size);
        top.read(&self.gpu, rows, &mut out)?;
        Ok(out)
    }

    /// Seconds that the choice takes on the device.
    pub fn time_top(&mut self, case: &TopCase<'_>, repeats: u32) -> Result<f64, GpuError> {
        let (top, size, _bench) = self.record_top(case)?;
        self.time(&top.dispatches, &size, repeats)
    }

    fn record_top(&mut self, case: &TopCase<'_>) -> Result<(Top, StepSize, Bench), GpuError> {
        let &TopCase { logits, vocab_size, count, slice } = case;
        let rows = logits.len() / vocab_size.max(1);
        let size = top_size(count).ok_or_else(|| GpuError::Unsupported(format!("the {count} best tokens")))?;
        let bench = Bench::new(&self.gpu, Program::empty(0, 0, 0), rows, GpuOptions::kv_of(Precision::Exact), rows)?;
        let buffer = self.gpu.buffer_with("logits", logits)?;
        let logits = Activation { buffer, width: vocab_size, stride: vocab_size };
        // Buffers of an earlier vocabulary have another shape.
        self.scratch.clear();
        let top = Top::record(self.recorder(&bench, Class::of(rows), Precision::Exact), &logits, size, rows, slice)?;
        let count = rows as u32;
        Ok((top, StepSize { rows: count, spans: 0, logit_rows: count, context: 0 }, bench))
    }
}
