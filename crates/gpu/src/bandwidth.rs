//! What the device's memory gives: the measure that decoding is held against.

use std::time::Instant;

use crate::kernel::{Bind, Kernels, StepSize};
use crate::shader::{Source, wgsl};
use crate::{Gpu, GpuError};

/// Bytes read per pass on a device with its own memory; enough to leave every cache behind.
const BYTES: u64 = 1 << 30;
/// The same where the memory is the system's, or the device is software.
const SHARED_BYTES: u64 = 128 << 20;
/// Passes in one submission.
const PASSES: usize = 8;
/// Timed submissions; the best counts.
const ROUNDS: usize = 5;

/// Bytes per second of streaming reads, best of several rounds.
///
/// # Errors
/// When the device has no room for the buffer or fails.
pub fn read_bandwidth(gpu: &Gpu) -> Result<f64, GpuError> {
    let wanted = if gpu.caps().adapter.discrete { BYTES } else { SHARED_BYTES };
    let bytes = wanted.min(gpu.caps().max_binding).min(gpu.caps().max_buffer) & !0xff_ffff;
    let (source, groups) = (Source::new("read", wgsl!("read.wgsl")), 16_384u32);
    let per_thread = bytes / 16 / (u64::from(groups) * 256);
    let source = source.with("PER_THREAD", per_thread as u32).with("THREADS", groups * 256);
    let data = gpu.buffer("bandwidth", bytes)?;
    let sink = gpu.buffer("bandwidth sink", 16)?;
    let kernels = Kernels::default();
    let binds = [Bind::read(0, &data), Bind::write(1, &sink)];
    let dispatch = kernels.dispatch(gpu, &source, &binds, move |_| [groups, 1, 1])?;
    let mut best = f64::INFINITY;
    // The first round is the warm-up.
    for round in 0..=ROUNDS {
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        (0..PASSES).for_each(|_| dispatch.encode(&mut pass, &StepSize::default()));
        drop(pass);
        let commands = encoder.finish();
        let start = Instant::now();
        gpu.queue.submit([commands]);
        gpu.wait()?;
        if round > 0 {
            best = best.min(start.elapsed().as_secs_f64());
        }
    }
    let read = per_thread * 16 * u64::from(groups) * 256 * PASSES as u64;
    Ok(read as f64 / best)
}

/// Seconds from an empty submission to its end, the middle of several.
///
/// # Errors
/// When the device fails.
pub fn submit_latency(gpu: &Gpu) -> Result<f64, GpuError> {
    let mut times = Vec::new();
    for _ in 0..32 {
        let encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let start = Instant::now();
        gpu.queue.submit([encoder.finish()]);
        gpu.wait()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
