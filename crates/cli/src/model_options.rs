//! Flags about the model and its executor that several commands share, and opening a model with them.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use clap::{Args, ValueEnum};
use cortiq_cmf::{CmfError, CmfFile};
use cortiq_engine::{Engine, EngineError, EngineOptions, ExecutorKind};

use crate::config::{Config, MAX_THREADS, Setting};
use crate::demo;

/// Which executor computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ExecutorName {
    /// Plain loops: slow, the measure of the others
    Reference,
    /// Threads and vector kernels
    #[default]
    Cpu,
}

impl From<ExecutorName> for ExecutorKind {
    fn from(name: ExecutorName) -> Self {
        match name {
            ExecutorName::Reference => Self::Reference,
            ExecutorName::Cpu => Self::Cpu,
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
}

impl ExecutorOptions {
    /// Threads that were asked for by flag or environment.
    pub fn threads(&self, config: &Config) -> Option<usize> {
        config.threads.or_flag("--threads", self.threads.map(usize::from)).value
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
        executor: executor.executor.into(),
        threads: executor.threads(config),
        context: context.value,
        skill: options.skill.clone(),
    };
    Engine::from_file(Arc::new(file), &engine_options).map_err(|error| match error {
        EngineError::Context { .. } => anyhow::Error::new(error).context(context.origin.to_string()),
        error => in_file(path, error),
    })
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
