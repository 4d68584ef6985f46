//! `cortiq skill`.

use std::path::PathBuf;

use clap::Subcommand;
use cortiq_cmf::{CmfFile, SkillRecord, TensorInfo};
use serde::Serialize;
use serde_json::Value;

use crate::model_options::open_file;
use crate::output::{human_bytes, print_json, print_text, table};

/// Flags of `skill`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  cortiq skill list model.cmf")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    action: Action,
}

/// What to do with skills.
#[derive(Subcommand, Debug)]
enum Action {
    /// List the skills of a file and what they replace
    List(ListArgs),
}

/// Flags of `skill list`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  cortiq skill list model.cmf --json\n\n\
    `cortiq run model.cmf --skill ID` uses one.")]
struct ListArgs {
    /// CMF file, or `demo` for the built-in model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    skills: Vec<Skill<'a>>,
}

#[derive(Serialize)]
struct Skill<'a> {
    id: &'a str,
    name: Option<&'a str>,
    layers: &'a [usize],
    /// Task of the mask that its maker used with it; not applied by itself.
    input_mask_task: Option<&'a str>,
    /// Whether the file says how to notice that the skill fits.
    selection: bool,
    quality: Option<&'a Value>,
    tensors: usize,
    bytes: u64,
    /// Bytes of the tensors that it replaces.
    base_bytes: u64,
    replaces: Vec<Replaced<'a>>,
}

#[derive(Serialize)]
struct Replaced<'a> {
    /// Name of the tensor that the skill's one stands for.
    name: &'a str,
    dtype: &'static str,
    bytes: u64,
    /// None when there is no tensor of that name without the skill.
    base_dtype: Option<&'static str>,
    base_bytes: u64,
}

/// Does it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match &args.action {
        Action::List(args) => list(args),
    }
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let file = open_file(&args.model, false)?;
    let report = Report { skills: file.header().skills.iter().map(|record| skill(&file, record)).collect() };
    if args.json {
        return print_json(&report);
    }
    if report.skills.is_empty() {
        return print_text("no skills");
    }
    let head = ["id", "name", "tensors", "size", "instead of", "task"].map(str::to_owned).to_vec();
    let rows = report.skills.iter().map(|skill| {
        vec![
            skill.id.to_owned(),
            skill.name.unwrap_or_default().to_owned(),
            skill.tensors.to_string(),
            human_bytes(skill.bytes),
            human_bytes(skill.base_bytes),
            skill.input_mask_task.unwrap_or_default().to_owned(),
        ]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    print_text(&table(&rows, &[2, 3, 4]))
}

/// The tensors of a skill, each with the name that it stands for (docs/cmf-format.md §12).
pub fn overlays<'a>(file: &'a CmfFile, id: &str) -> Vec<(&'a str, &'a TensorInfo)> {
    let prefix = format!("skill.{id}.");
    file.tensors().iter().filter_map(|tensor| Some((tensor.name.strip_prefix(&prefix)?, tensor))).collect()
}

/// Bytes of some tensors.
pub fn bytes_of<'a>(tensors: impl IntoIterator<Item = &'a TensorInfo>) -> u64 {
    tensors.into_iter().map(|tensor| tensor.nbytes).fold(0, u64::saturating_add)
}

fn skill<'a>(file: &'a CmfFile, record: &'a SkillRecord) -> Skill<'a> {
    let overlays = overlays(file, &record.id);
    let base = |name: &str| file.find(name).and_then(|index| file.tensors().get(index));
    let replaces = overlays.iter().map(|&(name, tensor)| Replaced {
        name,
        dtype: tensor.dtype.name(),
        bytes: tensor.nbytes,
        base_dtype: base(name).map(|base| base.dtype.name()),
        base_bytes: base(name).map_or(0, |base| base.nbytes),
    });
    Skill {
        id: &record.id,
        name: record.name.as_deref(),
        layers: &record.layers,
        input_mask_task: record.input_mask_task.as_deref(),
        selection: record.selection.is_some(),
        quality: record.quality.as_ref(),
        tensors: overlays.len(),
        bytes: bytes_of(overlays.iter().map(|(_, tensor)| *tensor)),
        base_bytes: bytes_of(overlays.iter().filter_map(|(name, _)| base(name))),
        replaces: replaces.collect(),
    }
}
