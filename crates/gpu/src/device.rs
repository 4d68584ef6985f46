//! The device: choosing an adapter, what it can do, its errors, buffers and reading back.

mod adapter;
mod memory;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

pub use adapter::{Adapter, AdapterSummary, Caps, CoopShape};
pub use memory::Memory;

use crate::GpuError;
use crate::options::AdapterChoice;

/// Longest time a submission may take before it counts as hung.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Faults that nobody has looked at yet.
#[derive(Default)]
struct Faults {
    /// The first one of each thread. The driver reports a fault to the thread whose call caused it, so that executors
    /// on several threads do not take each other's.
    errors: HashMap<ThreadId, wgpu::Error>,
    /// Why the device cannot be used any more.
    lost: Option<String>,
}

/// An opened device. Several executors may share it.
pub struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    adapter: wgpu::Adapter,
    caps: Caps,
    faults: Arc<Mutex<Faults>>,
}

impl Gpu {
    /// Opens the best adapter of `choice`.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`] when there is none, or only software ones and these were not asked for;
    /// [`GpuError::Open`] when the driver refuses.
    pub fn open(choice: &AdapterChoice) -> Result<Self, GpuError> {
        let mut opened = choice.pick(&Adapter::all(choice.backend))?.open()?;
        if choice.without_matrix_units {
            opened.caps.coop = None;
        }
        Ok(opened)
    }

    #[allow(unsafe_code, reason = "experimental features need wgpu's token")]
    fn open_adapter(adapter: &Adapter) -> Result<Self, GpuError> {
        let caps = adapter.caps().clone();
        // SAFETY: the only experimental feature is the cooperative matrices, whose results the conformance suite
        // checks on every adapter that offers them; no shader indexes a matrix outside its buffer.
        let experimental = unsafe { wgpu::ExperimentalFeatures::enabled() };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("cortiq"),
            required_features: adapter.features,
            required_limits: adapter.inner.limits(),
            experimental_features: if caps.coop.is_some() {
                experimental
            } else {
                wgpu::ExperimentalFeatures::disabled()
            },
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        };
        let opened = pollster::block_on(adapter.inner.request_device(&descriptor));
        let (device, queue) =
            opened.map_err(|error| GpuError::Open { adapter: caps.adapter.name.clone(), reason: error.to_string() })?;
        Ok(Self::watch(device, queue, adapter.inner.clone(), caps))
    }

    /// A device that takes every command, computes nothing and claims `caps`: shaders are assembled and checked as for
    /// a device that has them.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`] and [`GpuError::Open`], neither of which is to be expected.
    #[cfg(feature = "lab")]
    #[doc(hidden)]
    #[allow(unsafe_code, reason = "experimental features need wgpu's token")]
    pub fn pretend(caps: Caps) -> Result<Self, GpuError> {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::NOOP;
        descriptor.backend_options.noop.enable = true;
        let instance = wgpu::Instance::new(descriptor);
        let found = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::NOOP));
        let adapter = found.first().ok_or_else(|| GpuError::NoAdapter("the pretended one is missing".to_owned()))?;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("pretended"),
            required_features: wgpu::Features::SUBGROUP
                | wgpu::Features::SHADER_F16
                | wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX,
            required_limits: adapter.limits(),
            // SAFETY: nothing runs on this device.
            experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            trace: wgpu::Trace::Off,
        };
        let opened = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) =
            opened.map_err(|error| GpuError::Open { adapter: "pretended".to_owned(), reason: error.to_string() })?;
        Ok(Self::watch(device, queue, adapter.clone(), caps))
    }

    /// Keeps the driver's reports instead of letting them abort the process.
    fn watch(device: wgpu::Device, queue: wgpu::Queue, adapter: wgpu::Adapter, caps: Caps) -> Self {
        let faults = Arc::new(Mutex::new(Faults::default()));
        let seen = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let mut faults = seen.lock().unwrap_or_else(PoisonError::into_inner);
            faults.errors.entry(thread::current().id()).or_insert(error);
        }));
        let seen = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, message| {
            let mut faults = seen.lock().unwrap_or_else(PoisonError::into_inner);
            faults.lost.get_or_insert(format!("{reason:?}: {message}"));
        });
        Self { device, queue, adapter, caps, faults }
    }

    /// What the device can do.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// What the driver says about the device's memory at the moment.
    pub fn memory(&self) -> Memory {
        memory::memory_of(&self.adapter)
    }

    /// Bytes of device memory in use through this device, where the interface counts them.
    pub fn allocated_bytes(&self) -> Option<u64> {
        self.device.generate_allocator_report().map(|report| report.total_allocated_bytes)
    }

    /// Makes the device unusable, as a driver does that resets it.
    #[cfg(feature = "lab")]
    #[doc(hidden)]
    pub fn destroy(&self) {
        self.device.destroy();
    }

    fn faults(&self) -> std::sync::MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first fault of this thread's calls since the last check. A lost device stays lost.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        let mut faults = self.faults();
        let error = faults.errors.remove(&thread::current().id());
        if let Some(reason) = &faults.lost {
            return Err(GpuError::Lost(reason.clone()));
        }
        match error {
            None => Ok(()),
            Some(wgpu::Error::OutOfMemory { source }) => Err(GpuError::OutOfMemory(source.to_string())),
            Some(other) => Err(GpuError::Refused(other.to_string())),
        }
    }

    /// Submits and does not wait. What is refused, or goes to a device that is gone, is an error at once.
    pub(crate) fn submit(&self, commands: wgpu::CommandBuffer) -> Result<(), GpuError> {
        self.queue.submit([commands]);
        self.poll()
    }

    /// Sees whether the device is still there, without waiting.
    pub(crate) fn poll(&self) -> Result<(), GpuError> {
        let _ = self.device.poll(wgpu::PollType::Poll);
        self.check()
    }

    /// A zeroed buffer that shaders read and write.
    pub(crate) fn buffer(&self, label: &str, bytes: u64) -> Result<wgpu::Buffer, GpuError> {
        let size = bytes.max(16).next_multiple_of(16);
        if size > self.caps.max_binding || size > self.caps.max_buffer {
            let limit = self.caps.max_binding.min(self.caps.max_buffer);
            return Err(GpuError::Unsupported(format!("{label}: {size} bytes in a buffer, the device allows {limit}")));
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        let descriptor = wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        self.check()?;
        Ok(buffer)
    }

    /// A buffer with the given words.
    pub(crate) fn buffer_with<T: bytemuck::NoUninit>(
        &self,
        label: &str,
        words: &[T],
    ) -> Result<wgpu::Buffer, GpuError> {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        let buffer = self.buffer(label, bytes.len() as u64)?;
        self.write(&buffer, 0, bytes);
        Ok(buffer)
    }

    /// Writes bytes in chunks, so that no staging buffer grows beyond a few MiB. `offset` is a multiple of 4.
    pub(crate) fn write(&self, buffer: &wgpu::Buffer, offset: u64, bytes: &[u8]) {
        const CHUNK: usize = 16 << 20;
        let whole = bytes.len() & !3;
        for (i, chunk) in bytes[..whole].chunks(CHUNK).enumerate() {
            self.queue.write_buffer(buffer, offset + (i * CHUNK) as u64, chunk);
        }
        if whole < bytes.len() {
            let mut last = [0u8; 4];
            last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
            self.queue.write_buffer(buffer, offset + whole as u64, &last);
        }
    }

    /// A buffer that the host can read.
    pub(crate) fn readback(&self, bytes: u64) -> Result<wgpu::Buffer, GpuError> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let size = bytes.max(16).next_multiple_of(16);
        let descriptor = wgpu::BufferDescriptor { label: Some("readback"), size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        self.check()?;
        Ok(buffer)
    }

    /// A recorder of commands.
    pub(crate) fn encoder(&self, label: &str) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some(label) })
    }

    /// Waits for everything submitted.
    pub(crate) fn wait(&self) -> Result<(), GpuError> {
        self.wait_for(None, TIMEOUT)
    }

    /// Waits for one submission and what was before it.
    pub(crate) fn wait_until(&self, submission: wgpu::SubmissionIndex) -> Result<(), GpuError> {
        self.wait_for(Some(submission), TIMEOUT)
    }

    /// Waits until `timeout`. A device that takes longer counts as lost from then on: what it still does to buffers,
    /// and when, is not known.
    fn wait_for(&self, submission_index: Option<wgpu::SubmissionIndex>, timeout: Duration) -> Result<(), GpuError> {
        let waited = self.device.poll(wgpu::PollType::Wait { submission_index, timeout: Some(timeout) });
        self.check()?;
        if waited.is_err() {
            let error = GpuError::Timeout(timeout.as_secs());
            self.faults().lost.get_or_insert(error.to_string());
            return Err(error);
        }
        Ok(())
    }

    /// Copies the start of a readback buffer to `out`, after waiting for the work that fills it.
    pub(crate) fn read<T: bytemuck::Pod>(&self, buffer: &wgpu::Buffer, out: &mut [T]) -> Result<(), GpuError> {
        self.read_with(buffer, size_of_val(out), |bytes| bytemuck::cast_slice_mut(out).copy_from_slice(bytes))
    }

    /// Appends the first `count` floats of a readback buffer to `out`.
    pub(crate) fn read_more(&self, buffer: &wgpu::Buffer, count: usize, out: &mut Vec<f32>) -> Result<(), GpuError> {
        self.read_with(buffer, count * size_of::<f32>(), |bytes| {
            out.extend(bytes.as_chunks::<4>().0.iter().map(|four| f32::from_ne_bytes(*four)));
        })
    }

    /// Gives the first `len` bytes of a readback buffer to `take`.
    fn read_with(&self, buffer: &wgpu::Buffer, len: usize, take: impl FnOnce(&[u8])) -> Result<(), GpuError> {
        let bytes = len as u64;
        if bytes > buffer.size() {
            // Here wgpu would panic.
            return Err(GpuError::Refused(format!("reading {bytes} bytes of a buffer of {}", buffer.size())));
        }
        buffer.map_async(wgpu::MapMode::Read, 0..bytes, |_| ());
        let waited = self.wait();
        let mapped = waited.and_then(|()| {
            let view = buffer.get_mapped_range(0..bytes).map_err(|error| GpuError::Refused(error.to_string()))?;
            take(&view);
            Ok(())
        });
        buffer.unmap();
        mapped
    }
}

#[cfg(test)]
#[path = "device/tests.rs"]
mod tests;
