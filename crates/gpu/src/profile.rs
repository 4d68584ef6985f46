//! Time per kernel, by timestamps around every dispatch.

use std::collections::BTreeMap;

use cortiq_model::KernelTime;

use crate::kernel::{Dispatch, StepSize};
use crate::{Gpu, GpuError};

/// Most dispatches of one profiled submission; a query set holds 4,096 timestamps at most.
const CAPACITY: u32 = 2048;

/// Collects times while profiling is on.
pub(crate) struct Profiler {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    readback: wgpu::Buffer,
    names: Vec<&'static str>,
    totals: BTreeMap<&'static str, KernelTime>,
}

impl Profiler {
    /// A profiler for a device that has timestamps.
    pub(crate) fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        if !gpu.caps().timestamps {
            return Err(GpuError::Unsupported("profiling: the device has no timestamps".to_owned()));
        }
        let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("profile"),
            ty: wgpu::QueryType::Timestamp,
            count: 2 * CAPACITY,
        });
        let bytes = u64::from(2 * CAPACITY) * 8;
        let resolved = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("profile"),
            size: bytes,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let readback = gpu.readback(bytes)?;
        Ok(Self { queries, resolved, readback, names: Vec::new(), totals: BTreeMap::new() })
    }

    /// Encodes dispatches, each in a pass of its own between two timestamps.
    pub(crate) fn encode(&mut self, encoder: &mut wgpu::CommandEncoder, dispatches: &[Dispatch], size: &StepSize) {
        for dispatch in dispatches {
            let index = 2 * self.names.len() as u32;
            let timestamp_writes = (index < 2 * CAPACITY).then_some(wgpu::ComputePassTimestampWrites {
                query_set: &self.queries,
                beginning_of_pass_write_index: Some(index),
                end_of_pass_write_index: Some(index + 1),
            });
            if timestamp_writes.is_some() {
                self.names.push(dispatch.name);
            }
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
            dispatch.encode(&mut pass, size);
        }
    }

    /// Asks for the timestamps of what was encoded.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        let count = 2 * self.names.len() as u32;
        if count > 0 {
            encoder.resolve_query_set(&self.queries, 0..count, &self.resolved, 0);
            encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.readback, 0, u64::from(count) * 8);
        }
    }

    /// Adds the times of a submission that has been made.
    pub(crate) fn collect(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        let mut ticks = vec![0u64; 2 * self.names.len()];
        if ticks.is_empty() {
            return Ok(());
        }
        gpu.read(&self.readback, &mut ticks)?;
        let period = f64::from(gpu.queue.get_timestamp_period()) * 1e-9;
        for (name, pair) in self.names.drain(..).zip(ticks.chunks_exact(2)) {
            let time = self.totals.entry(name).or_insert(KernelTime { name, calls: 0, seconds: 0.0 });
            time.calls += 1;
            time.seconds += pair[1].saturating_sub(pair[0]) as f64 * period;
        }
        Ok(())
    }

    /// The times so far, longest first.
    pub(crate) fn times(&self) -> Vec<KernelTime> {
        let mut times: Vec<KernelTime> = self.totals.values().copied().collect();
        times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        times
    }
}
