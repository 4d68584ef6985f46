//! Adapters: which ones there are, what they can do, and which one a choice means.

use super::memory::{Memory, memory_of};
use crate::options::{AdapterChoice, Backend};
use crate::{Gpu, GpuError};

/// Shape of the matrix units: `size × size × size`, f16 inputs and f32 sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoopShape {
    /// 8 or 16.
    pub size: u32,
}

/// What a device can do. Kernel variants are chosen by these values and nothing else.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Name, interface and driver.
    pub adapter: AdapterSummary,
    /// Lanes of a subgroup, when subgroup operations exist and all subgroups have one size.
    pub subgroup: Option<u32>,
    /// f16 arithmetic and storage in shaders.
    pub f16: bool,
    /// Matrix units.
    pub coop: Option<CoopShape>,
    /// Timestamps inside a pass.
    pub timestamps: bool,
    /// Bytes of the largest binding.
    pub max_binding: u64,
    /// Bytes of the largest buffer.
    pub max_buffer: u64,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// Threads of the largest workgroup.
    pub max_threads: u32,
}

impl Caps {
    /// Threads of a workgroup that should have `most`: a power of two, because sums halve the threads.
    pub(crate) fn threads(&self, most: u32) -> u32 {
        let fewer = most.min(self.max_threads).max(1);
        if fewer.is_power_of_two() { fewer } else { fewer.next_power_of_two() / 2 }
    }
}

/// One line about an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterSummary {
    /// As the driver calls it.
    pub name: String,
    /// `vulkan`, `dx12` or `metal`.
    pub backend: String,
    /// Driver and version.
    pub driver: String,
    /// Computes on the CPU.
    pub software: bool,
    /// Has its own memory.
    pub discrete: bool,
}

impl AdapterSummary {
    fn of(info: &wgpu::AdapterInfo) -> Self {
        Self {
            name: info.name.clone(),
            backend: info.backend.to_str().to_owned(),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            software: info.device_type == wgpu::DeviceType::Cpu,
            discrete: info.device_type == wgpu::DeviceType::DiscreteGpu,
        }
    }
}

/// Smaller is better.
fn rank(info: &wgpu::AdapterInfo) -> u32 {
    match info.device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => 2,
        wgpu::DeviceType::Cpu => 3,
    }
}

/// Matrix units whose shaders the driver and the shader compiler both take.
fn coop_shape(adapter: &wgpu::Adapter) -> Option<CoopShape> {
    use wgpu::CooperativeScalarType::{F16, F32};
    let wanted: &[u32] = match adapter.get_info().backend {
        wgpu::Backend::Vulkan => &[16, 8],
        // Larger sizes translate, but Metal's compiler has no such types.
        wgpu::Backend::Metal => &[8],
        _ => &[],
    };
    let offered = adapter.cooperative_matrix_properties();
    let has = |size: u32| {
        offered
            .iter()
            .any(|p| (p.m_size, p.n_size, p.k_size) == (size, size, size) && p.ab_type == F16 && p.cr_type == F32)
    };
    wanted.iter().copied().find(|&size| has(size)).map(|size| CoopShape { size })
}

/// An adapter that can be opened.
pub struct Adapter {
    pub(super) inner: wgpu::Adapter,
    /// Of those that this crate uses.
    pub(super) features: wgpu::Features,
    caps: Caps,
}

impl Adapter {
    /// All adapters of an interface, or of every one, best first, software ones included.
    pub fn all(backend: Option<Backend>) -> Vec<Self> {
        let backends = match backend {
            Some(Backend::Vulkan) => wgpu::Backends::VULKAN,
            Some(Backend::Dx12) => wgpu::Backends::DX12,
            Some(Backend::Metal) => wgpu::Backends::METAL,
            None => wgpu::Backends::VULKAN | wgpu::Backends::DX12 | wgpu::Backends::METAL,
        };
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = backends;
        let instance = wgpu::Instance::new(descriptor);
        let mut found = pollster::block_on(instance.enumerate_adapters(backends));
        found.sort_by_key(|adapter| rank(&adapter.get_info()));
        found.into_iter().map(Self::new).collect()
    }

    fn new(inner: wgpu::Adapter) -> Self {
        let (info, limits) = (inner.get_info(), inner.limits());
        let mut features = inner.features()
            & (wgpu::Features::SUBGROUP
                | wgpu::Features::SHADER_F16
                | wgpu::Features::TIMESTAMP_QUERY
                | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES
                | wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
        let needed = wgpu::Features::SHADER_F16 | wgpu::Features::SUBGROUP;
        let coop = coop_shape(&inner).filter(|_| features.contains(needed));
        if coop.is_none() {
            features.remove(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
        }
        let one_size = info.subgroup_min_size == info.subgroup_max_size && info.subgroup_min_size >= 8;
        let caps = Caps {
            adapter: AdapterSummary::of(&info),
            subgroup: (features.contains(wgpu::Features::SUBGROUP) && one_size).then_some(info.subgroup_min_size),
            f16: features.contains(wgpu::Features::SHADER_F16),
            coop,
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES),
            max_binding: limits.max_storage_buffer_binding_size,
            max_buffer: limits.max_buffer_size,
            workgroup_memory: limits.max_compute_workgroup_storage_size,
            max_threads: limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x),
        };
        Self { inner, features, caps }
    }

    /// What a device opened here can do.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// What the driver says about its memory at the moment.
    pub fn memory(&self) -> Memory {
        memory_of(&self.inner)
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`GpuError::Open`] when the driver refuses.
    pub fn open(&self) -> Result<Gpu, GpuError> {
        Gpu::open_adapter(self)
    }
}

impl AdapterChoice {
    /// Whether there may be an adapter that fits. On Linux every GPU has a device node: without one no driver need be
    /// loaded to find out, which takes time and makes some of them write to the standard error.
    pub fn may_exist(&self) -> bool {
        const NODES: [&str; 6] =
            ["/dev/dri", "/dev/nvidiactl", "/dev/dxg", "/dev/mali0", "/dev/kgsl-3d0", "/dev/nvhost-gpu"];
        let node = || NODES.iter().any(|node| std::path::Path::new(node).exists());
        self.allow_software || !cfg!(target_os = "linux") || node()
    }

    /// The best of `adapters`, which come best first.
    ///
    /// # Errors
    /// [`GpuError::NoAdapter`] when there is none, or only software ones and these were not asked for.
    pub fn pick<'a>(&self, adapters: &'a [Adapter]) -> Result<&'a Adapter, GpuError> {
        let usable = |adapter: &&Adapter| self.allow_software || !adapter.caps.adapter.software;
        adapters.iter().find(usable).ok_or_else(|| {
            GpuError::NoAdapter(match adapters.first() {
                Some(adapter) => {
                    let name = &adapter.caps.adapter.name;
                    format!("only {name} was found, which computes on the CPU and must be asked for")
                }
                None => "no driver offers one".to_owned(),
            })
        })
    }
}
