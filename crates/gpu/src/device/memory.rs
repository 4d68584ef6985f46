//! What a driver says about an adapter's memory.

/// Bytes of an adapter's own memory, as far as the driver says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Of the largest heap that is the device's own.
    pub total: Option<u64>,
    /// What this process may still use of it.
    pub free: Option<u64>,
}

/// Vulkan: heap sizes, and what is free by `VK_EXT_memory_budget`. Other interfaces: nothing.
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
#[allow(unsafe_code, reason = "wgpu does not pass these numbers on")]
pub(super) fn memory_of(adapter: &wgpu::Adapter) -> Memory {
    use ash::{ext, vk};
    // SAFETY: the handles below are only read, and while this guard keeps the adapter alive.
    let Some(raw) = (unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }) else { return Memory::default() };
    let (instance, shared) = (raw.shared_instance().raw_instance(), raw.shared_instance());
    let versions = [shared.instance_api_version(), raw.physical_device_capabilities().properties().api_version];
    let has_query = versions.iter().all(|&version| version >= vk::API_VERSION_1_1);
    if !has_query || !raw.physical_device_capabilities().supports_extension(ext::memory_budget::NAME) {
        // SAFETY: the physical device belongs to this instance.
        let properties = unsafe { instance.get_physical_device_memory_properties(raw.raw_physical_device()) };
        return Memory { total: own_heap(&properties).map(|(_, size)| size), free: None };
    }
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    // SAFETY: the physical device belongs to this instance, both are of version 1.1, and the device knows the
    // extension whose structure is chained.
    unsafe { instance.get_physical_device_memory_properties2(raw.raw_physical_device(), &mut properties) };
    let heap = own_heap(&properties.memory_properties);
    let free = heap.and_then(|(index, _)| {
        let (budget, usage) = (budget.heap_budget.get(index)?, budget.heap_usage.get(index)?);
        // A driver that fills nothing in says zero.
        (*budget > 0).then(|| budget.saturating_sub(*usage))
    });
    Memory { total: heap.map(|(_, size)| size), free }
}

/// Index and size of the largest heap of the device's own memory.
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn own_heap(properties: &ash::vk::PhysicalDeviceMemoryProperties) -> Option<(usize, u64)> {
    let heaps = properties.memory_heaps_as_slice().iter().enumerate();
    let own = heaps.filter(|(_, heap)| heap.flags.contains(ash::vk::MemoryHeapFlags::DEVICE_LOCAL));
    own.map(|(index, heap)| (index, heap.size)).max_by_key(|(_, size)| *size)
}

/// Nothing is known on this system.
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub(super) fn memory_of(_: &wgpu::Adapter) -> Memory {
    Memory::default()
}
