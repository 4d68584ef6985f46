//! The one buffer that tells the shaders what a step is: rows, sequences, block tables and rotary angles.
//!
//! Words: `[rows, spans, logit rows, 0]`, then a record per row, then the block tables `[span][group][block]` at a
//! fixed place. Record `i` holds row `i` (`token, position, span`), logit row `i`, span `i` (`first row, length,
//! start, recurrent slot`) and the angles of row `i`: cosine and sine of every pair of every rope.

use cortiq_model::{Batch, ModelError, Program};

use crate::kernel::StepSize;
use crate::shader::Source;
use crate::state::{BLOCK, DeviceState, NO_BLOCK};
use crate::{Gpu, GpuError};

/// Words before the records.
const HEADER: usize = 4;
/// Words of a record before its angles.
const RECORD: usize = 8;

/// Places in the buffer. They are constants of the shaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepLayout {
    /// Records that fit.
    rows: usize,
    /// Words of a record.
    stride: usize,
    /// Words of a block table.
    table_stride: usize,
    /// Groups of layers with tables of their own.
    groups: usize,
}

impl StepLayout {
    /// The layout for steps of up to `rows` rows.
    pub(crate) fn new(program: &Program, state: &DeviceState, rows: usize) -> Self {
        let pairs: usize = program.ropes.iter().map(|rope| rope.pairs()).sum();
        let (table_stride, groups) = (state.max_blocks(), state.group_count());
        Self { rows, stride: RECORD + 2 * pairs, table_stride, groups }
    }

    fn tables(&self) -> usize {
        HEADER + self.rows * self.stride
    }

    /// Bytes of the whole buffer: every row may be a sequence of its own.
    pub(crate) fn bytes(&self) -> u64 {
        ((self.tables() + self.rows * self.groups * self.table_stride) * 4) as u64
    }

    /// Constants for `lib/step.wgsl`.
    pub(crate) fn constants(&self, source: Source) -> Source {
        source
            .with("STEP_STRIDE", self.stride)
            .with("STEP_TABLES", self.tables())
            .with("TABLE_STRIDE", self.table_stride)
            .with("CACHE_GROUPS", self.groups)
    }
}

/// Builds the words of steps, reusing its memory.
#[derive(Default)]
pub(crate) struct StepWriter {
    records: Vec<u32>,
    tables: Vec<u32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl StepWriter {
    /// Writes a step to `buffer` and returns its size.
    pub(crate) fn write(
        &mut self,
        gpu: &Gpu,
        buffer: &wgpu::Buffer,
        layout: &StepLayout,
        program: &Program,
        state: &DeviceState,
        batch: &Batch<'_>,
    ) -> Result<StepSize, GpuError> {
        let context = batch.spans.iter().map(|span| span.start + span.len).max().unwrap_or(0);
        let size = StepSize {
            rows: batch.tokens.len() as u32,
            spans: batch.spans.len() as u32,
            logit_rows: batch.logit_rows.len() as u32,
            context: context as u32,
        };
        self.records.clear();
        self.records.resize(HEADER + batch.tokens.len() * layout.stride, 0);
        self.records[..3].copy_from_slice(&[size.rows, size.spans, size.logit_rows]);
        self.write_rows(layout, program, batch);
        self.write_spans(layout, state, batch)?;
        gpu.write(buffer, 0, bytemuck::cast_slice(&self.records));
        if !self.tables.is_empty() {
            gpu.write(buffer, (layout.tables() * 4) as u64, bytemuck::cast_slice(&self.tables));
        }
        // A step must not run on the tables of the one before.
        gpu.check()?;
        Ok(size)
    }

    fn write_rows(&mut self, layout: &StepLayout, program: &Program, batch: &Batch<'_>) {
        let spans = batch.spans.iter().enumerate();
        let span_of_rows = spans.flat_map(|(i, span)| std::iter::repeat_n(i as u32, span.len));
        let records = self.records[HEADER..].chunks_exact_mut(layout.stride);
        for (((record, row), token), span) in records.zip(batch.rows()).zip(batch.tokens).zip(span_of_rows) {
            record[..3].copy_from_slice(&[*token, row.position as u32, span]);
            let mut angles = &mut record[RECORD..];
            for rope in &program.ropes {
                let pairs = rope.pairs();
                self.cos.resize(pairs, 0.0);
                self.sin.resize(pairs, 0.0);
                rope.fill(row.position, row.known_len, &mut self.cos, &mut self.sin);
                let (own, others) = angles.split_at_mut(2 * pairs);
                for (two, (cos, sin)) in own.chunks_exact_mut(2).zip(self.cos.iter().zip(&self.sin)) {
                    two.copy_from_slice(&[cos.to_bits(), sin.to_bits()]);
                }
                angles = others;
            }
        }
        for (record, &row) in self.records[HEADER..].chunks_exact_mut(layout.stride).zip(batch.logit_rows) {
            record[3] = row as u32;
        }
    }

    fn write_spans(&mut self, layout: &StepLayout, state: &DeviceState, batch: &Batch<'_>) -> Result<(), ModelError> {
        self.tables.clear();
        let records = self.records[HEADER..].chunks_exact_mut(layout.stride);
        for (record, (first, span)) in records.zip(batch.first_rows()) {
            let slot = state.slot(span.sequence)?;
            record[4..RECORD].copy_from_slice(&[first as u32, span.len as u32, span.start as u32, slot]);
            let used = (span.start + span.len).div_ceil(BLOCK);
            for group in 0..layout.groups {
                let end = self.tables.len() + layout.table_stride;
                let blocks = state.blocks(span.sequence, group)?;
                let blocks = &blocks[..used.min(blocks.len()).min(layout.table_stride)];
                let visible = state.first_visible(group, span.start) / BLOCK;
                if blocks.len() < used || blocks.iter().skip(visible).any(|&block| block == NO_BLOCK) {
                    return Err(ModelError::Batch(format!("no state for position {} on", span.start)));
                }
                // What a window has passed is never looked up; it must still be a block.
                self.tables.extend(blocks.iter().map(|&block| if block == NO_BLOCK { 0 } else { block }));
                self.tables.resize(end, 0);
            }
        }
        Ok(())
    }
}
