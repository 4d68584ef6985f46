//! `cortiq info`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cortiq_cmf::{CmfFile, GenerationDefaults, ModelArch, QuantType, Section, ShardInfo};
use serde::Serialize;
use serde_json::Value;

use crate::commands::skill::{bytes_of, overlays};
use crate::model_options::open_file;
use crate::output::{human_bytes, print_json, print_text, table};

/// Flags of `info`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  cortiq info model.cmf")]
pub struct Args {
    /// CMF file, or `demo` for the built-in model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    format: &'a str,
    version: u32,
    features: u32,
    extensions: &'a [String],
    quant_type: QuantType,
    arch: &'a ModelArch,
    tensors: usize,
    dtypes: BTreeMap<&'static str, DtypeTotal>,
    sizes: Sizes,
    shards: usize,
    shard: Option<ShardInfo>,
    skills: Vec<Skill<'a>>,
    masks: usize,
    /// Names of the masks, for `--task`.
    tasks: Vec<&'a str>,
    default_task: Option<&'a str>,
    tokenizer: bool,
    chat_template: bool,
    bos_token_id: Option<u32>,
    eos_token_ids: &'a [u32],
    generation: Option<&'a GenerationDefaults>,
    digests: bool,
    provenance: Option<&'a Value>,
}

#[derive(Default, Serialize)]
struct DtypeTotal {
    count: usize,
    bytes: u64,
}

/// Bytes, and the number of weights.
#[derive(Serialize)]
struct Sizes {
    file: u64,
    tensors: u64,
    header: u64,
    vocab: u64,
    masks: u64,
    index: u64,
    parameters: u64,
}

#[derive(Serialize)]
struct Skill<'a> {
    id: &'a str,
    name: Option<&'a str>,
    layers: &'a [usize],
    tensors: usize,
    bytes: u64,
}

/// Describes a file.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let file = open_file(&args.model, false)?;
    let report = report(&file);
    if args.json { print_json(&report) } else { print_text(&described(&report)) }
}

fn report(file: &CmfFile) -> Report<'_> {
    let header = file.header();
    let tokens = header.tokenizer_config.as_ref();
    let mut dtypes: BTreeMap<_, DtypeTotal> = BTreeMap::new();
    for tensor in file.tensors() {
        let total = dtypes.entry(tensor.dtype.name()).or_default();
        total.count += 1;
        total.bytes = total.bytes.saturating_add(tensor.nbytes);
    }
    Report {
        format: &header.format,
        version: header.version,
        features: file.features(),
        extensions: &header.extensions,
        quant_type: header.quant_type,
        arch: &header.arch,
        tensors: file.tensors().len(),
        sizes: sizes(file, dtypes.values().map(|d| d.bytes).fold(0, u64::saturating_add)),
        dtypes,
        shards: file.part_count(),
        shard: header.shard,
        skills: skills(file),
        masks: file.masks().map_or(0, |c| c.masks.len()),
        tasks: file.masks().map_or_else(Vec::new, |c| c.masks.iter().map(|mask| mask.name.as_str()).collect()),
        default_task: file.masks().map(|c| c.default_task.as_str()),
        tokenizer: file.vocab().is_some(),
        chat_template: tokens.is_some_and(|t| t.chat_template.is_some()),
        bos_token_id: tokens.and_then(|t| t.bos_token_id),
        eos_token_ids: tokens.map_or(&[], |t| &t.eos_token_ids),
        generation: header.generation.as_ref(),
        digests: header.digests.is_some(),
        provenance: header.provenance.as_ref(),
    }
}

fn sizes(file: &CmfFile, tensors: u64) -> Sizes {
    let section = |s| file.section_bytes(s).map_or(0, |bytes| bytes.len() as u64);
    let own = file.tensors().iter().filter(|t| !t.name.starts_with("skill."));
    Sizes {
        file: file.file_len(),
        tensors,
        header: section(Section::Header),
        vocab: section(Section::Vocab),
        masks: section(Section::Masks),
        index: section(Section::Index),
        parameters: own.map(|t| t.element_count()).fold(0, u64::saturating_add),
    }
}

fn skills(file: &CmfFile) -> Vec<Skill<'_>> {
    let skill = |record: &cortiq_cmf::SkillRecord| {
        let overlays = overlays(file, &record.id);
        (overlays.len(), bytes_of(overlays.into_iter().map(|(_, tensor)| tensor)))
    };
    let records = file.header().skills.iter();
    records
        .map(|record| {
            let (tensors, bytes) = skill(record);
            Skill { id: &record.id, name: record.name.as_deref(), layers: &record.layers, tensors, bytes }
        })
        .collect()
}

fn described(report: &Report<'_>) -> String {
    let arch = report.arch;
    let mut rows = vec![
        ["format", &format!("{} {}", report.format, report.version)].map(str::to_owned).to_vec(),
        vec!["architecture".to_owned(), arch.arch_name.clone()],
        vec!["layers".to_owned(), arch.num_layers.to_string()],
        vec!["hidden size".to_owned(), arch.hidden_size.to_string()],
        vec!["FFN size".to_owned(), arch.intermediate_size.to_string()],
        vec![
            "heads".to_owned(),
            format!("{} queries, {} keys/values, {} wide", arch.num_attention_heads, arch.num_kv_heads, arch.head_dim),
        ],
        vec!["vocabulary".to_owned(), arch.vocab_size.to_string()],
        vec!["context".to_owned(), arch.max_position_embeddings.to_string()],
        vec!["parameters".to_owned(), format!("{:.1} M", report.sizes.parameters as f64 / 1e6)],
        vec!["file size".to_owned(), human_bytes(report.sizes.file)],
        vec!["tokenizer".to_owned(), yes_no(report.tokenizer)],
        vec!["chat template".to_owned(), yes_no(report.chat_template)],
        vec!["digests".to_owned(), yes_no(report.digests)],
    ];
    let mut add = |name: &str, value: String| {
        if !value.is_empty() {
            rows.push(vec![name.to_owned(), value]);
        }
    };
    add("extensions", report.extensions.join(", "));
    add("sampling", report.generation.map_or_else(String::new, sampling));
    add("masks", report.tasks.join(", "));
    add("shards", if report.shards > 1 { report.shards.to_string() } else { String::new() });
    for skill in &report.skills {
        let name = skill.name.map(|n| format!(" ({n})")).unwrap_or_default();
        add("skill", format!("{}{name}: {} tensors, {}", skill.id, skill.tensors, human_bytes(skill.bytes)));
    }
    let head = ["stored as", "tensors", "size"].map(str::to_owned).to_vec();
    let dtypes = report
        .dtypes
        .iter()
        .map(|(name, total)| vec![(*name).to_owned(), total.count.to_string(), human_bytes(total.bytes)]);
    let dtypes: Vec<_> = std::iter::once(head).chain(dtypes).collect();
    format!("{}\n{}", table(&rows, &[]), table(&dtypes, &[1, 2]))
}

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

fn sampling(defaults: &GenerationDefaults) -> String {
    let numbers = [
        ("temperature", defaults.temperature),
        ("top-p", defaults.top_p),
        ("min-p", defaults.min_p),
        ("repetition penalty", defaults.repetition_penalty),
    ];
    let numbers = numbers.into_iter().filter_map(|(name, value)| value.map(|v| format!("{name} {v}")));
    let top_k = defaults.top_k.map(|k| format!("top-k {k}"));
    let greedy = (defaults.do_sample == Some(false)).then(|| "greedy".to_owned());
    greedy.into_iter().chain(numbers).chain(top_k).collect::<Vec<_>>().join(", ")
}
