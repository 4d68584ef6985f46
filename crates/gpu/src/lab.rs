//! Kernels driven by hand: products and attention of any shape with any variant, checked or timed.
//!
//! For the conformance suite and `examples/kernels.rs`; no part of the crate's interface.

mod attention;
mod product;
mod top;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

pub use attention::{AttentionCase, Run};
pub use product::{Kernel, Matrices, ProductCase};
pub use top::TopCase;

use cortiq_model::{KvDtype, OwnedWeights, Program, StateLimits};

use crate::kernel::{Dispatch, Kernels, StepSize};
use crate::plan::{Class, DeviceWeights, Parts, Recorder, Scratch};
use crate::slots::Slots;
use crate::state::DeviceState;
use crate::step::StepLayout;
use crate::{Gpu, GpuError, Precision};

const LIMITS: StateLimits = StateLimits { max_positions: 1 << 16, max_bytes: 8 << 30 };

/// A device and what its recorder needs, without a model.
pub struct Lab {
    gpu: Arc<Gpu>,
    kernels: Kernels,
    scratch: Scratch,
    weights: DeviceWeights,
}

/// A program to record for, its buffers and its state.
struct Bench {
    program: Program,
    slots: Slots,
    state: DeviceState,
    step: wgpu::Buffer,
    step_layout: StepLayout,
}

impl Bench {
    /// Buffers for `program` and `rows` tokens. The step says that there are so many, of no sequence.
    fn new(gpu: &Gpu, program: Program, rows: usize, kv: KvDtype, tokens: usize) -> Result<Self, GpuError> {
        let slots = Slots::new(gpu, &program, rows)?;
        let state = DeviceState::new(gpu, &program.states, LIMITS, kv)?;
        let step_layout = StepLayout::new(&program, &state, rows);
        let step = gpu.buffer("step", step_layout.bytes())?;
        gpu.write(&step, 0, bytemuck::cast_slice(&[tokens as u32; 3]));
        Ok(Self { program, slots, state, step, step_layout })
    }
}

impl Lab {
    /// A lab on a device.
    pub fn new(gpu: Arc<Gpu>) -> Self {
        let weights = DeviceWeights::new(Arc::new(OwnedWeights::new()));
        Self { gpu, kernels: Kernels::default(), scratch: HashMap::new(), weights }
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Texts of all shaders so far.
    pub fn shader_texts(&self) -> Vec<String> {
        self.kernels.texts()
    }

    fn recorder<'a>(&'a mut self, bench: &'a Bench, class: Class, precision: Precision) -> Recorder<'a> {
        let parts = Parts {
            gpu: &self.gpu,
            kernels: &self.kernels,
            program: &bench.program,
            slots: &bench.slots,
            state: &bench.state,
            step: &bench.step,
            step_layout: bench.step_layout,
            weights: &mut self.weights,
            scratch: &mut self.scratch,
            precision,
        };
        Recorder::new(parts, class)
    }

    /// Runs dispatches once.
    fn run(&self, dispatches: &[Dispatch], size: &StepSize) -> Result<(), GpuError> {
        let mut encoder = self.encoder();
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        dispatches.iter().for_each(|dispatch| dispatch.encode(&mut pass, size));
        drop(pass);
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.wait()
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("lab") })
    }

    /// Seconds of one run of `dispatches` in the middle of `repeats` in a row: by timestamps where the device has them,
    /// else by the clock. The best of several rounds.
    fn time(&self, dispatches: &[Dispatch], size: &StepSize, repeats: u32) -> Result<f64, GpuError> {
        const ROUNDS: usize = 4;
        let stamps = if self.gpu.caps().timestamps { Some(Stamps::new(&self.gpu)?) } else { None };
        let mut best = f64::INFINITY;
        // The first round is the warm-up.
        for round in 0..=ROUNDS {
            let mut encoder = self.encoder();
            let timestamp_writes = stamps.as_ref().map(Stamps::writes);
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
            for _ in 0..repeats {
                dispatches.iter().for_each(|dispatch| dispatch.encode(&mut pass, size));
            }
            drop(pass);
            if let Some(stamps) = &stamps {
                stamps.resolve(&mut encoder);
            }
            let commands = encoder.finish();
            let start = Instant::now();
            self.gpu.queue.submit([commands]);
            self.gpu.wait()?;
            let seconds = match &stamps {
                Some(stamps) => stamps.seconds(&self.gpu)?,
                None => start.elapsed().as_secs_f64(),
            };
            if round > 0 {
                best = best.min(seconds / f64::from(repeats.max(1)));
            }
        }
        Ok(best)
    }

    /// The rows of an output, without padding.
    fn read_rows(&self, buffer: &wgpu::Buffer, rows: usize, width: usize, stride: usize) -> Result<Vec<f32>, GpuError> {
        let mut padded = vec![0.0f32; rows * stride];
        let bytes = (padded.len() * 4) as u64;
        let readback = self.gpu.readback(bytes)?;
        let mut encoder = self.encoder();
        encoder.copy_buffer_to_buffer(buffer, 0, &readback, 0, bytes);
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.read(&readback, &mut padded)?;
        Ok(padded.chunks(stride).flat_map(|row| &row[..width]).copied().collect())
    }
}

/// Rows padded with zeros to `stride`.
fn pad_rows(values: &[f32], width: usize, stride: usize) -> Vec<f32> {
    let mut padded = vec![0.0; values.len() / width.max(1) * stride];
    padded.chunks_mut(stride).zip(values.chunks(width)).for_each(|(to, from)| to[..width].copy_from_slice(from));
    padded
}

/// Two timestamps around a pass.
struct Stamps {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    readback: wgpu::Buffer,
}

impl Stamps {
    fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        let ty = wgpu::QueryType::Timestamp;
        let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor { label: Some("lab"), ty, count: 2 });
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let descriptor = wgpu::BufferDescriptor { label: Some("lab"), size: 16, usage, mapped_at_creation: false };
        let resolved = gpu.device.create_buffer(&descriptor);
        Ok(Self { queries, resolved, readback: gpu.readback(16)? })
    }

    fn writes(&self) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        }
    }

    fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        encoder.resolve_query_set(&self.queries, 0..2, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.readback, 0, 16);
    }

    fn seconds(&self, gpu: &Gpu) -> Result<f64, GpuError> {
        let mut ticks = [0u64; 2];
        gpu.read(&self.readback, &mut ticks)?;
        Ok(ticks[1].saturating_sub(ticks[0]) as f64 * f64::from(gpu.queue.get_timestamp_period()) * 1e-9)
    }
}
