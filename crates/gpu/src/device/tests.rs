//! Faults on a real device: each is an error of the call that caused it, and the device stays usable where it can.

use std::sync::Arc;

use cortiq_model::{KvDtype, KvLayer, SequenceState, StateDecl, StateLimits};

use super::*;
use crate::kernel::{Bind, Dispatch, Kernels, StepSize};
use crate::shader::Source;
use crate::state::DeviceState;

fn gpu() -> Gpu {
    let choice = AdapterChoice { allow_software: true, ..AdapterChoice::default() };
    Gpu::open(&choice).expect("an adapter; on Debian, mesa-vulkan-drivers has a software one")
}

const DOUBLE: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1) fn main() { x[0] = 2u * x[0]; }";

fn doubling(gpu: &Gpu, buffer: &wgpu::Buffer) -> Dispatch {
    let binds = [Bind::write(0, buffer)];
    Kernels::default().dispatch(gpu, &Source::new("double", DOUBLE), &binds, |_| [1, 1, 1]).unwrap()
}

/// Doubles the number in `buffer` and reads it.
fn double(gpu: &Gpu, buffer: &wgpu::Buffer, readback: &wgpu::Buffer) -> Result<u32, GpuError> {
    let dispatch = doubling(gpu, buffer);
    run(gpu, &dispatch, buffer, readback)
}

fn run(gpu: &Gpu, dispatch: &Dispatch, from: &wgpu::Buffer, readback: &wgpu::Buffer) -> Result<u32, GpuError> {
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    dispatch.encode(&mut pass, &StepSize::default());
    drop(pass);
    encoder.copy_buffer_to_buffer(from, 0, readback, 0, 4);
    gpu.submit(encoder.finish())?;
    let mut number = [0u32];
    gpu.read(readback, &mut number)?;
    Ok(number[0])
}

#[test]
fn a_broken_shader_is_named() {
    let gpu = gpu();
    let buffer = gpu.buffer_with("x", &[21u32]).unwrap();
    for text in ["fn main( {", "@compute @workgroup_size(1) fn main() { x[0] = 1u; }", "fn other() {}"] {
        let binds = [Bind::write(0, &buffer)];
        let made = Kernels::default().dispatch(&gpu, &Source::new("broken", text), &binds, |_| [1, 1, 1]);
        let error = made.err().expect("an error");
        assert!(matches!(&error, GpuError::Shader { shader, .. } if shader == "broken"), "{text}: {error}");
    }
    let readback = gpu.readback(4).unwrap();
    assert_eq!(double(&gpu, &buffer, &readback).unwrap(), 42, "the device goes on");
}

#[test]
fn buffers_beyond_the_limits_are_refused() {
    let gpu = gpu();
    let limit = gpu.caps().max_binding.min(gpu.caps().max_buffer);
    let error = gpu.buffer("everything", limit + 1).unwrap_err().to_string();
    assert!(error.contains("everything") && error.contains(&limit.to_string()), "{error}");
    // Past this crate's own check, the driver's refusal must come back just the same.
    let size = gpu.device.limits().max_buffer_size + 4;
    let usage = wgpu::BufferUsages::STORAGE;
    let _ =
        gpu.device.create_buffer(&wgpu::BufferDescriptor { label: Some("x"), size, usage, mapped_at_creation: false });
    assert!(matches!(gpu.check(), Err(GpuError::Refused(_))));
    assert!(gpu.check().is_ok(), "told once");
}

#[test]
fn a_wrong_copy_fails_and_leaves_the_readback_usable() {
    let gpu = gpu();
    let (buffer, readback) = (gpu.buffer_with("x", &[5u32]).unwrap(), gpu.readback(16).unwrap());
    let dispatch = doubling(&gpu, &buffer);
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(&buffer, 0, &readback, 0, 1 << 20);
    assert!(matches!(gpu.submit(encoder.finish()), Err(GpuError::Refused(_))));
    let mut too_many = [0u32; 64];
    assert!(gpu.read(&readback, &mut too_many).is_err());
    assert_eq!(run(&gpu, &dispatch, &buffer, &readback).unwrap(), 10);
}

#[test]
fn threads_do_not_take_each_others_faults() {
    let gpu = Arc::new(gpu());
    let buffer = gpu.buffer_with("x", &[1u32]).unwrap();
    let wrong = || {
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&buffer, 0, &buffer, 0, 1 << 20);
        encoder.finish()
    };
    let commands = wrong();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(gpu.check().is_ok())).join().unwrap();
        scope.spawn(|| assert!(gpu.submit(wrong()).is_err())).join().unwrap();
    });
    assert!(gpu.submit(commands).is_err(), "its own is still there");
    assert!(gpu.check().is_ok());
}

#[test]
fn a_destroyed_device_is_an_error_everywhere() {
    let gpu = gpu();
    let (buffer, readback) = (gpu.buffer_with("x", &[5u32]).unwrap(), gpu.readback(16).unwrap());
    let dispatch = doubling(&gpu, &buffer);
    assert_eq!(run(&gpu, &dispatch, &buffer, &readback).unwrap(), 10);
    gpu.device.destroy();
    let encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let lost = |result: Result<(), GpuError>| assert!(matches!(result, Err(GpuError::Lost(_))), "{result:?}");
    lost(gpu.submit(encoder.finish()));
    lost(run(&gpu, &dispatch, &buffer, &readback).map(|_| ()));
    lost(gpu.buffer("late", 16).map(|_| ()));
    lost(gpu.wait());
    lost(gpu.read(&readback, &mut [0u32]));
}

/// Counts long enough that the wait ends first.
const SLOW: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1) fn main() {
    var sum = x[0];
    for (var i = 0u; i < 60000000u; i += 1u) { sum = sum * 1664525u + x[i & 1u]; }
    x[0] = sum;
}";

#[test]
fn a_device_that_does_not_answer_counts_as_lost() {
    let gpu = gpu();
    let buffer = gpu.buffer_with("x", &[5u32, 7]).unwrap();
    let binds = [Bind::write(0, &buffer)];
    let slow = Kernels::default().dispatch(&gpu, &Source::new("slow", SLOW), &binds, |_| [64, 1, 1]).unwrap();
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    slow.encode(&mut pass, &StepSize::default());
    drop(pass);
    gpu.submit(encoder.finish()).unwrap();
    assert!(matches!(gpu.wait_for(None, Duration::from_millis(1)), Err(GpuError::Timeout(_))));
    assert!(matches!(gpu.check(), Err(GpuError::Lost(_))));
    assert!(matches!(gpu.buffer("late", 16), Err(GpuError::Lost(_))));
}

#[test]
fn state_that_cannot_grow_keeps_what_it_has() {
    let mut gpu = gpu();
    let kv = StateDecl::Kv(KvLayer { kv_heads: 1, key_dim: 32, value_dim: 32, window: None });
    let layers = [kv, StateDecl::Recurrent { floats: 1024 }];
    // A block and a slot have 4,096 bytes; six of them fit in a buffer.
    gpu.caps.max_binding = 6 * 4096;
    let limits = StateLimits { max_positions: 6 * 32, max_bytes: 1 << 30 };
    let mut state = DeviceState::new(&gpu, &layers, limits, KvDtype::F32).unwrap();
    let first = state.open().unwrap();
    state.append(first, 6 * 32).unwrap();
    assert!(state.fit(&gpu).unwrap());
    state.finish_pending();
    let before = state.cache(cortiq_model::StateId(0)).unwrap().1.clone();

    let mut others: Vec<_> = (0..6).map(|_| state.open().unwrap()).collect();
    state.append(others[0], 64).unwrap();
    for _ in 0..2 {
        let error = state.fit(&gpu).unwrap_err();
        assert!(matches!(error, GpuError::Unsupported(_)), "{error}");
    }
    state.truncate(others[0], 0).unwrap();
    state.close(others.pop().unwrap()).unwrap();
    assert!(state.fit(&gpu).is_ok(), "six slots fit again");
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    state.encode_pending(&mut encoder);
    gpu.submit(encoder.finish()).expect("nothing is asked for beyond the buffers");
    assert_eq!(state.cache(cortiq_model::StateId(0)).unwrap().1, &before);
    assert_eq!(state.len(first).unwrap(), 6 * 32);
}
