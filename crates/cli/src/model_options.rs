//! Flags about the model and its executor that several commands share, and opening a model with them.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use clap::{Args, ValueEnum};
use cortiq_cmf::{CmfError, CmfFile};
use cortiq_engine::{Engine, EngineError, EngineOptions, ExecutorKind};
use cortiq_gpu::{Adapter, AdapterChoice, Backend, GpuError};
use cortiq_hybrid::{CpuExperts, GpuLayers, GpuPlan, Loading, PlacementReport, Probe, Side};
use cortiq_model::{KvDtype, Precision};

use crate::config::{Config, MAX_THREADS, MAX_VRAM_MIB, Origin, Setting};
use crate::demo;
use crate::output::{Usage, note};

/// Which executor computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ExecutorName {
    /// A GPU for what it measures to be faster at, where there is one (CMF_GPU=0: never); else cpu
    #[default]
    Auto,
    /// Threads and vector kernels
    Cpu,
    /// A GPU through Vulkan, DX12 or Metal, for as many layers as fit, without measuring; the CPU for the rest
    Gpu,
    /// Plain loops: slow, the measure of the others
    Reference,
}

impl ExecutorName {
    /// The executor, and who chose it.
    pub fn choose(self, config: &Config) -> Setting<ExecutorKind> {
        let asked = |value| Setting { value, origin: Origin::Flag("--executor") };
        match self {
            Self::Auto => config.gpu.enabled.map(|enabled| match enabled {
                Some(true) => ExecutorKind::Gpu,
                Some(false) => ExecutorKind::Cpu,
                None => ExecutorKind::Auto,
            }),
            Self::Cpu => asked(ExecutorKind::Cpu),
            Self::Gpu => asked(ExecutorKind::Gpu),
            Self::Reference => asked(ExecutorKind::Reference),
        }
    }
}

/// Interface to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// Vulkan
    #[value(alias = "vk")]
    Vulkan,
    /// Direct3D 12
    #[value(alias = "d3d12")]
    Dx12,
    /// Metal
    #[value(alias = "mtl")]
    Metal,
}

impl From<BackendName> for Backend {
    fn from(name: BackendName) -> Self {
        match name {
            BackendName::Vulkan => Self::Vulkan,
            BackendName::Dx12 => Self::Dx12,
            BackendName::Metal => Self::Metal,
        }
    }
}

/// How exact the arithmetic is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PrecisionName {
    /// f32 activations
    Exact,
    /// Activations quantised for quantised weights: 16 bits on the CPU, 8 bits or f16 on a GPU
    #[default]
    Fast,
}

impl From<PrecisionName> for Precision {
    fn from(name: PrecisionName) -> Self {
        match name {
            PrecisionName::Exact => Self::Exact,
            PrecisionName::Fast => Self::Fast,
        }
    }
}

/// Flags about which GPU is used.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "GPU")]
pub struct GpuFlags {
    /// Interface [default: WGPU_BACKEND, else every one that the system has]
    #[arg(long, value_enum, value_name = "NAME")]
    pub gpu_backend: Option<BackendName>,
    /// Accept a GPU that is software, such as llvmpipe
    #[arg(long)]
    pub software_gpu: bool,
    /// Leave its matrix units alone, to measure the other kernels
    #[arg(long, hide = true)]
    pub without_matrix_units: bool,
    /// Arithmetic of the cpu and the gpu executor
    #[arg(long, value_enum, default_value_t, value_name = "NAME", help_heading = "Execution")]
    pub precision: PrecisionName,
    /// MiB of its memory that a model may use [default: CMF_GPU_VRAM_MB, else what the driver says is free]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=MAX_VRAM_MIB as u64))]
    pub vram: Option<u64>,
    /// Layers that a GPU gets, such as 0-19,30 [default: CMF_GPU_LAYERS, else as many as fit]
    #[arg(long, value_name = "LIST")]
    pub gpu_layers: Option<GpuLayers>,
    /// Keep the experts of all layers on the CPU
    #[arg(long, conflicts_with = "cpu_experts")]
    pub cpu_moe: bool,
    /// Keep the experts of the first N layers that have some on the CPU
    #[arg(long, value_name = "N")]
    pub cpu_experts: Option<usize>,
}

impl GpuFlags {
    /// The interface that was asked for.
    pub fn backend(&self, config: &Config) -> Setting<Option<Backend>> {
        config.gpu.backend.or_flag("--gpu-backend", self.gpu_backend.map(Backend::from))
    }

    /// The adapter that a gpu executor opens.
    pub fn adapter(&self, config: &Config) -> AdapterChoice {
        AdapterChoice {
            backend: self.backend(config).value,
            allow_software: self.software_gpu,
            without_matrix_units: self.without_matrix_units,
        }
    }

    /// A flag that only makes sense with a GPU, if there is one.
    fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--gpu-backend", self.gpu_backend.is_some()),
            ("--software-gpu", self.software_gpu),
            ("--vram", self.vram.is_some()),
            ("--gpu-layers", self.gpu_layers.is_some()),
            ("--cpu-moe", self.cpu_moe),
            ("--cpu-experts", self.cpu_experts.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    /// The layers that a GPU gets, by flag or environment.
    pub fn layers(&self, config: &Config) -> Setting<Option<GpuLayers>> {
        config.gpu.layers.or_flag("--gpu-layers", self.gpu_layers.clone())
    }

    /// The experts that stay on the CPU.
    fn experts(&self) -> CpuExperts {
        match (self.cpu_moe, self.cpu_experts) {
            (true, _) => CpuExperts::All,
            (false, Some(count)) => CpuExperts::First(count),
            (false, None) => CpuExperts::None,
        }
    }

    /// Bytes that a gpu executor may use, by flag or environment.
    pub fn budget(&self, config: &Config) -> Setting<Option<u64>> {
        let mib = config.gpu.vram_mib.or_flag("--vram", self.vram);
        mib.map(|mib| mib.map(|mib| mib.saturating_mul(1 << 20)))
    }
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvName {
    /// As they were computed
    F32,
    /// Half precision: half the memory
    F16,
    /// 8 bits and scales: about 0.27 of the memory
    Q8,
}

impl From<KvName> for KvDtype {
    fn from(name: KvName) -> Self {
        match name {
            KvName::F32 => Self::F32,
            KvName::F16 => Self::F16,
            KvName::Q8 => Self::Q8,
        }
    }
}

/// Flags about how the model is computed.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Execution")]
pub struct ExecutorOptions {
    /// Executor
    #[arg(long, value_enum, default_value_t, value_name = "NAME")]
    pub executor: ExecutorName,
    /// Threads [default: CMF_THREADS, else all processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_THREADS as i64))]
    pub threads: Option<u16>,
    /// How the attention cache is kept [default: CMF_KV, else f32; f16 on a GPU]
    #[arg(long, value_enum, value_name = "NAME")]
    pub kv: Option<KvName>,
    #[command(flatten)]
    pub gpu: GpuFlags,
}

impl ExecutorOptions {
    /// The executor that was asked for by flag or environment.
    pub fn kind(&self, config: &Config) -> ExecutorKind {
        self.executor.choose(config).value
    }

    /// What the flags and the environment say about the executor; file and context are for the caller.
    ///
    /// # Errors
    /// A flag about a GPU beside an executor that uses none.
    pub fn engine_options(&self, config: &Config) -> anyhow::Result<EngineOptions> {
        if let (ExecutorName::Cpu | ExecutorName::Reference, Some(flag)) = (self.executor, self.gpu.first_given()) {
            bail!(Usage(format!("{flag} is about a GPU, which the executor that --executor names does not use")));
        }
        Ok(EngineOptions {
            executor: self.kind(config),
            threads: self.threads(config),
            kv: self.kv(config),
            gpu: self.gpu_plan(config),
            precision: self.gpu.precision.into(),
            gpu_budget: self.gpu.budget(config).value,
            ..EngineOptions::default()
        })
    }

    /// What a GPU is to do. It is trusted where a flag asks for it, and where the environment says so.
    fn gpu_plan(&self, config: &Config) -> GpuPlan {
        let trusted = self.executor == ExecutorName::Gpu || !config.gpu.probe.value;
        GpuPlan {
            adapter: self.gpu.adapter(config),
            layers: self.gpu.layers(config).value.unwrap_or_default(),
            experts: self.gpu.experts(),
            probe: if trusted { Probe::Trust } else { Probe::Measure },
            loading: Loading::Wait,
        }
    }

    /// Whether a GPU may take part.
    pub fn may_use_gpu(&self, config: &Config) -> bool {
        uses_gpu(self.kind(config), || {
            let choice = self.gpu.adapter(config);
            choice.may_exist() && choice.pick(&Adapter::all(choice.backend)).is_ok()
        })
    }

    /// Threads that were asked for by flag or environment.
    pub fn threads(&self, config: &Config) -> Option<usize> {
        config.threads.or_flag("--threads", self.threads.map(usize::from)).value
    }

    /// Storage of keys and values that was asked for by flag or environment.
    pub fn kv(&self, config: &Config) -> Option<KvDtype> {
        config.kv.or_flag("--kv", self.kv.map(KvDtype::from)).value
    }
}

/// Whether a kind of executor may use a GPU, `found` telling whether there is one that may be used.
pub fn uses_gpu(kind: ExecutorKind, found: impl FnOnce() -> bool) -> bool {
    match kind {
        ExecutorKind::Gpu => true,
        ExecutorKind::Auto => found(),
        ExecutorKind::Cpu | ExecutorKind::Reference => false,
    }
}

/// Flags about how the file is used.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Execution")]
pub struct FileOptions {
    /// Read the file into memory instead of mapping it: safe whatever happens to the file meanwhile
    #[arg(long)]
    pub owned: bool,
    /// Use this skill of the file
    #[arg(long, value_name = "ID")]
    pub skill: Option<String>,
    /// Apply this task mask of the file [default: none; the whole model runs]
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
}

/// The flag for the context.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Execution")]
pub struct ContextOption {
    /// Longest sequence in tokens [default: CMF_MAX_SEQ, else 8192; at most what the model allows]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub ctx: Option<usize>,
}

/// A whole number of at least 1.
pub fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("`{text}` is not a whole number of at least 1")),
        Ok(number) => Ok(number),
    }
}

/// Opens a container: any shard of it, a single file, or the built-in `demo`.
pub fn open_container(path: &Path, owned: bool) -> Result<CmfFile, CmfError> {
    match owned {
        _ if demo::is_meant(path) => demo::open(),
        true => CmfFile::open_sharded_owned(path),
        false => CmfFile::open_sharded(path),
    }
}

/// Opens a container for use; the error says what to do with a model in another form.
pub fn open_file(path: &Path, owned: bool) -> anyhow::Result<CmfFile> {
    open_container(path, owned).map_err(|error| in_file(path, hint(path).unwrap_or_else(|| error.into())))
}

/// What to do with something that is a model but no container.
fn hint(path: &Path) -> Option<anyhow::Error> {
    let metadata = std::fs::metadata(path).ok()?;
    if metadata.is_dir() && path.join("config.json").exists() {
        return Some(anyhow!("this is a checkpoint directory; make a file of it with `cortiq convert` first"));
    }
    let mut magic = [0; 4];
    if metadata.is_file() && std::fs::File::open(path).ok()?.read_exact(&mut magic).is_ok() && magic == *b"GGUF" {
        return Some(anyhow!("this is a GGUF file; import it with `cortiq import-gguf` first"));
    }
    None
}

/// The error with the file's name in front, unless it names the file itself.
pub fn in_file(path: &Path, error: impl Into<anyhow::Error>) -> anyhow::Error {
    let error = error.into();
    let shown = path.display().to_string();
    if error.to_string().contains(&shown) { error } else { error.context(shown) }
}

/// The context that a command asks for: exactly what a flag says; what the environment says only as far as the model
/// allows it, because it is meant for all models.
pub fn context_of(file: &CmfFile, flag: Option<usize>, config: &Config) -> Setting<Option<usize>> {
    let mut setting = config.context.or_flag("--ctx", flag);
    if flag.is_none() {
        let limit = file.header().arch.max_position_embeddings;
        setting.value = setting.value.map(|n| n.min(limit));
    }
    setting
}

/// Prepares the engine for an open file.
pub fn open_engine(
    path: &Path,
    file: CmfFile,
    executor: &ExecutorOptions,
    options: &FileOptions,
    context: &Setting<Option<usize>>,
    config: &Config,
) -> anyhow::Result<Engine> {
    let engine_options = EngineOptions {
        context: context.value,
        skill: options.skill.clone(),
        task: options.task.clone(),
        ..executor.engine_options(config)?
    };
    let opened = Engine::from_file(Arc::new(file), &engine_options).map_err(|error| match error {
        EngineError::Context { .. } => anyhow::Error::new(error).context(context.origin.to_string()),
        EngineError::Placement(error) => {
            anyhow::Error::new(error).context(executor.gpu.layers(config).origin.to_string())
        }
        EngineError::Gpu(error) => in_file(path, gpu_error(error, executor, config)),
        error => in_file(path, error),
    });
    let engine = opened?;
    if let Some(placement) = engine.placement().filter(|placement| !placement.whole) {
        note(format_args!("{}", placed(placement)));
    }
    Ok(engine)
}

/// Where a model is, in words.
pub fn placed(placement: &PlacementReport) -> String {
    let head = match placement.head {
        Side::Cpu => "the CPU",
        Side::Gpu => "the GPU",
    };
    format!("{} of {} layers on the GPU, the head on {head}", placement.gpu_layers, placement.layers)
}

/// The error with who asked for a GPU, where that was not a flag, and the flags that help.
pub fn gpu_error(error: GpuError, executor: &ExecutorOptions, config: &Config) -> anyhow::Error {
    let flags = match &error {
        GpuError::NoAdapter(_) if !executor.gpu.software_gpu => {
            "--executor cpu computes without one, --software-gpu accepts one that is software, `cortiq doctor` shows all"
        }
        GpuError::NoAdapter(_) => "--executor cpu computes without one",
        GpuError::OverBudget { .. } => "--ctx, --vram, --gpu-layers, --cpu-moe and --executor cpu are the flags",
        _ => "",
    };
    let error = if flags.is_empty() { anyhow::Error::new(error) } else { anyhow!("{error}; {flags}") };
    match executor.executor.choose(config).origin {
        Origin::Environment(name) => error.context(format!("{name} asks for a GPU")),
        Origin::Flag(_) | Origin::Default => error,
    }
}

/// Compares all hashes and digests of a file before it is used.
pub fn verify_before_use(path: &Path, file: &CmfFile) -> anyhow::Result<()> {
    let report = file.verify();
    if let Some(first) = report.problems.first() {
        let more = match report.problems.len() {
            1 => String::new(),
            n => format!(" (and {} more problems)", n - 1),
        };
        bail!("{} is damaged: {first}{more}", path.display());
    }
    if report.digests_checked == 0 {
        crate::output::note(format_args!(
            "{} has no digests: only hashes that find accidents, not deliberate changes, were compared",
            path.display()
        ));
    }
    Ok(())
}
