//! Pipelines and recorded dispatches.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::shader::{Source, wgsl};
use crate::{Caps, Gpu, GpuError};

/// Threads of a workgroup, in every shader of this crate that does not say otherwise.
pub(crate) const WORKGROUP: u32 = 256;

/// Most workgroups along one dimension.
pub(crate) const MAX_GROUPS: u32 = 65_535;

/// A buffer bound to a shader.
#[derive(Clone, Copy)]
pub(crate) struct Bind<'a> {
    slot: u32,
    buffer: &'a wgpu::Buffer,
    writes: bool,
}

impl<'a> Bind<'a> {
    /// Bound for reading.
    pub(crate) fn read(slot: u32, buffer: &'a wgpu::Buffer) -> Self {
        Self { slot, buffer, writes: false }
    }

    /// Bound for reading and writing.
    pub(crate) fn write(slot: u32, buffer: &'a wgpu::Buffer) -> Self {
        Self { slot, buffer, writes: true }
    }
}

/// Size of a step, from which dispatches derive their grids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepSize {
    /// Tokens.
    pub(crate) rows: u32,
    /// Runs of one sequence.
    pub(crate) spans: u32,
    /// Rows whose logits are wanted.
    pub(crate) logit_rows: u32,
    /// Most positions that a row attends to.
    pub(crate) context: u32,
}

/// Workgroups along x, y and z.
pub(crate) type Grid = Box<dyn Fn(&StepSize) -> [u32; 3] + Send>;

/// `count` workgroups along y, continued along z: shaders use `group_index` of `lib/grid.wgsl`.
pub(crate) fn fold(x: u32, count: u32) -> [u32; 3] {
    if count <= MAX_GROUPS { [x, count, 1] } else { [x, MAX_GROUPS, count.div_ceil(MAX_GROUPS)] }
}

/// One recorded dispatch.
pub(crate) struct Dispatch {
    pub(crate) name: &'static str,
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) bind_group: wgpu::BindGroup,
    pub(crate) grid: Grid,
}

impl Dispatch {
    /// Encodes it for a step of `size`; nothing when its grid is empty.
    pub(crate) fn encode(&self, pass: &mut wgpu::ComputePass<'_>, size: &StepSize) {
        let [x, y, z] = (self.grid)(size);
        if ![x, y, z].contains(&0) {
            pass.set_pipeline(&self.pipeline);
            pass.set_bind_group(0, &self.bind_group, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
    }
}

/// A pipeline and the layout of its bindings.
#[derive(Clone)]
struct Compiled {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// Compiled shaders of one device, by text.
#[derive(Default)]
pub(crate) struct Kernels {
    compiled: Mutex<HashMap<String, Compiled>>,
}

/// Threads that sum together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Team {
    pub(crate) size: u32,
    /// Whether they are a subgroup; else they use workgroup memory.
    pub(crate) subgroup: bool,
}

/// The teams that a device gets in workgroups of `workgroup` threads.
pub(crate) fn team_of(caps: &Caps, workgroup: u32) -> Team {
    match caps.subgroup.filter(|&size| size <= 64 && size <= workgroup) {
        Some(size) => Team { size, subgroup: true },
        None => Team { size: 32.min(workgroup), subgroup: false },
    }
}

/// Adds the snippets for teams of threads that this device allows: a subgroup each, or shared memory.
pub(crate) fn with_teams(source: Source, gpu: &Gpu, workgroup: u32) -> Source {
    let team = team_of(gpu.caps(), workgroup);
    let source = source.with("WORKGROUP", workgroup).with("TEAM", team.size);
    source.part(if team.subgroup { wgsl!("lib/team_subgroup.wgsl") } else { wgsl!("lib/team_plain.wgsl") })
}

/// Threads of a team under [`with_teams`].
pub(crate) fn team_size(gpu: &Gpu, workgroup: u32) -> u32 {
    team_of(gpu.caps(), workgroup).size
}

impl Kernels {
    /// Records a dispatch of `source` over `binds`.
    pub(crate) fn dispatch(
        &self,
        gpu: &Gpu,
        source: &Source,
        binds: &[Bind<'_>],
        grid: impl Fn(&StepSize) -> [u32; 3] + Send + 'static,
    ) -> Result<Dispatch, GpuError> {
        let compiled = self.compile(gpu, source, binds)?;
        let entries: Vec<_> = binds
            .iter()
            .map(|bind| wgpu::BindGroupEntry { binding: bind.slot, resource: bind.buffer.as_entire_binding() })
            .collect();
        let bind_group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(source.name),
            layout: &compiled.layout,
            entries: &entries,
        });
        gpu.check().map_err(|error| shader_error(source, &error))?;
        Ok(Dispatch { name: source.name, pipeline: compiled.pipeline, bind_group, grid: Box::new(grid) })
    }

    /// Texts of all shaders so far.
    #[cfg(feature = "lab")]
    pub(crate) fn texts(&self) -> Vec<String> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    fn compile(&self, gpu: &Gpu, source: &Source, binds: &[Bind<'_>]) -> Result<Compiled, GpuError> {
        let text = source.text();
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = compiled.get(&text) {
            return Ok(found.clone());
        }
        let made = compile(gpu, source, &text, binds)?;
        compiled.insert(text, made.clone());
        Ok(made)
    }
}

fn compile(gpu: &Gpu, source: &Source, text: &str, binds: &[Bind<'_>]) -> Result<Compiled, GpuError> {
    let entries: Vec<_> = binds
        .iter()
        .map(|bind| wgpu::BindGroupLayoutEntry {
            binding: bind.slot,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: !bind.writes },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        })
        .collect();
    let layout = gpu
        .device
        .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(source.name), entries: &entries });
    let pipeline_layout = gpu.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(source.name),
        bind_group_layouts: &[Some(&layout)],
        immediate_size: 0,
    });
    let descriptor =
        wgpu::ShaderModuleDescriptor { label: Some(source.name), source: wgpu::ShaderSource::Wgsl(text.into()) };
    // SAFETY: every index in our shaders is a constant, a builtin within the grid that the constants imply, or a number
    // that the host checked before it was uploaded (token ids, block tables, overlay columns); all loops have bounds
    // that grow with such numbers only, and no divisor is zero. Checks cost up to a third of a kernel's time.
    #[allow(unsafe_code, reason = "shaders without run-time checks")]
    let module = unsafe { gpu.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) };
    gpu.check().map_err(|error| shader_error(source, &error))?;
    let pipeline = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(source.name),
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            // Every shader writes its workgroup memory before it reads it.
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: None,
    });
    gpu.check().map_err(|error| shader_error(source, &error))?;
    Ok(Compiled { pipeline, layout })
}

fn shader_error(source: &Source, error: &GpuError) -> GpuError {
    GpuError::Shader { shader: source.name.to_owned(), reason: error.to_string() }
}
