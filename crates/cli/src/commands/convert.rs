//! `cortiq convert` and `cortiq import-gguf`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use cortiq_convert::{ConvertError, ConvertOptions, ConvertReport, HfSource, Policy};
use serde::Serialize;

use crate::config::{Config, Origin};
use crate::model_options::in_file;
use crate::output::{Usage, human_bytes, note, print_json, print_text, table};
use crate::progress::{ConvertProgress, DownloadProgress};
use crate::values::{QUANT_NAMES, QuantName, TensorRule, mean_bits};

/// Exit code of a process that was interrupted from the keyboard.
const INTERRUPTED: i32 = 130;

/// Flags of `convert`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    cortiq convert ./Qwen3-0.6B -o qwen3.cmf\n  \
    cortiq convert Qwen/Qwen3-0.6B -o qwen3-q4.cmf --quant q4 --tensor '*.down_proj.*=q8_2f'\n\n\
    Repositories come from the model hub through the shared cache; HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT and \
    HF_HUB_OFFLINE are honoured.")]
pub struct ConvertArgs {
    /// Checkpoint: a directory, or a repository id like owner/name[@revision]
    #[arg(value_name = "SRC")]
    source: String,
    #[command(flatten)]
    target: TargetArgs,
}

/// Flags of `import-gguf`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  cortiq import-gguf SmolLM2-135M-Instruct-Q4_1.gguf -o smollm2.cmf --quant f16")]
pub struct ImportGgufArgs {
    /// GGUF file
    #[arg(value_name = "SRC")]
    source: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
}

/// What both have in common.
#[derive(Args, Debug)]
struct TargetArgs {
    /// CMF file to write
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    #[arg(long, value_name = "NAME", default_value = "q8", help = format!("How matrices are stored: {QUANT_NAMES}"))]
    quant: QuantName,
    /// Mean width of vbit, 3 to 8 bits
    #[arg(long, value_name = "BITS", default_value = "4.25", value_parser = mean_bits)]
    mean_bits: f64,
    /// Store tensors whose name matches GLOB as DTYPE; repeatable, the last one that matches wins
    #[arg(long = "tensor", value_name = "GLOB=DTYPE")]
    tensors: Vec<TensorRule>,
    /// Rules for everything that is not an ordinary matrix
    #[arg(long, value_enum, default_value_t)]
    policy: PolicyName,
    /// Replace an existing output
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Storage rules by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum PolicyName {
    /// Small sensitive tensors keep their precision; at 4 bits and fewer embedding and head are q8_2f
    #[default]
    Default,
    /// What the public converter v0.4.0 writes
    #[value(name = "v0.4.0")]
    V040,
}

impl TargetArgs {
    fn options(&self) -> anyhow::Result<ConvertOptions> {
        let encoding = |name: &QuantName| name.encoding(self.mean_bits).map_err(|reason| anyhow!(Usage(reason)));
        let policy = match self.policy {
            PolicyName::Default => Policy::Default,
            PolicyName::V040 => Policy::V040,
        };
        let options = ConvertOptions::new(encoding(&self.quant)?).policy(policy).overwrite(self.force);
        self.tensors
            .iter()
            .try_fold(options, |options, rule| Ok(options.with_override(&rule.pattern, encoding(&rule.quant)?)))
    }

    /// Refuses an output that cannot be written, before any long work.
    fn check(&self) -> anyhow::Result<()> {
        let shown = self.output.display();
        match std::fs::symlink_metadata(&self.output) {
            Ok(metadata) if metadata.is_dir() => bail!("{shown} is a directory; name the file to write"),
            Ok(_) if !self.force => Err(exists(&self.output)),
            _ => Ok(()),
        }
    }
}

fn exists(path: &Path) -> anyhow::Error {
    anyhow!("{} exists already; replace it with --force", path.display())
}

/// Converts a checkpoint.
pub fn convert(args: ConvertArgs, config: &Config) -> anyhow::Result<()> {
    let options = args.target.options()?;
    args.target.check()?;
    if Path::new(&args.source).is_file() {
        bail!(
            "{} is a file; a checkpoint is a directory with config.json (GGUF files: `cortiq import-gguf`)",
            args.source
        );
    }
    let hub = config.hub.options()?;
    let progress = DownloadProgress::new(args.target.json);
    let source = HfSource::open(&args.source, &hub, &progress).map_err(|error| match error {
        ConvertError::Offline { .. } if config.hub.offline.origin != Origin::Default => {
            anyhow::Error::new(error).context(format!("{} is set", config.hub.offline.origin))
        }
        error => error.into(),
    })?;
    write(&args.target, source.dir(), |progress| {
        cortiq_convert::convert(&source, &args.target.output, &options, progress)
    })
}

/// Imports a GGUF file.
pub fn import_gguf(args: ImportGgufArgs) -> anyhow::Result<()> {
    let options = args.target.options()?;
    args.target.check()?;
    write(&args.target, &args.source, |progress| {
        cortiq_convert::import_gguf(&args.source, &args.target.output, &options, progress)
    })
}

/// Runs a conversion and reports what it made.
fn write(
    target: &TargetArgs,
    source: &Path,
    work: impl FnOnce(&ConvertProgress) -> Result<ConvertReport, ConvertError>,
) -> anyhow::Result<()> {
    let writing = Arc::new(AtomicBool::new(false));
    remove_when_interrupted(&target.output, Arc::clone(&writing))?;
    let progress = ConvertProgress::new(target.json, writing);
    let report = work(&progress).map_err(|error| match error {
        ConvertError::OutputExists { path } => exists(&path),
        ConvertError::Cmf(cortiq_cmf::CmfError::OutputExists(path)) => exists(&path),
        // These name files already.
        error @ (ConvertError::Io { .. } | ConvertError::Cmf(_) | ConvertError::OutputIsSource { .. }) => error.into(),
        error => in_file(source, error),
    })?;
    if target.json { print_json(&summary(&report)) } else { print_report(&report) }
}

/// Lets an interrupt take the unfinished output away.
fn remove_when_interrupted(output: &Path, writing: Arc<AtomicBool>) -> anyhow::Result<()> {
    // The writer's name for a file that is not complete.
    let mut partial = output.as_os_str().to_owned();
    partial.push(".partial");
    ctrlc::set_handler(move || {
        if writing.load(Ordering::SeqCst) {
            let _ = std::fs::remove_file(&partial);
        }
        std::process::exit(INTERRUPTED);
    })
    .context("cannot handle interrupts")
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary<'a> {
    output: String,
    bytes: u64,
    tensors: BTreeMap<&'a str, usize>,
}

fn summary(report: &ConvertReport) -> Summary<'_> {
    Summary {
        output: report.output.display().to_string(),
        bytes: report.bytes,
        tensors: report.tensors.iter().map(|(dtype, total)| (dtype.as_str(), total.count)).collect(),
    }
}

fn print_report(report: &ConvertReport) -> anyhow::Result<()> {
    let head = ["tensors", "stored as", "number", "size"].map(str::to_owned).to_vec();
    let rows = report.rows.iter().map(|row| {
        vec![row.kind.to_owned(), row.dtype.to_owned(), row.total.count.to_string(), human_bytes(row.total.bytes)]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    for text in &report.notes {
        note(format_args!("note: {text}"));
    }
    print_text(&format!("{}\n{} ({})", table(&rows, &[2, 3]), report.output.display(), human_bytes(report.bytes)))
}
