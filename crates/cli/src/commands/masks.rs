//! `cortiq masks`.

use std::path::PathBuf;

use cortiq_cmf::{Mask, MaskPriority, MaskQuality};
use serde::Serialize;

use crate::model_options::open_file;
use crate::output::{print_json, print_text, table};

/// Flags of `masks`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  cortiq masks model.cmf --json\n\n\
    `cortiq run model.cmf --task NAME` applies one; without --task the whole model runs.")]
pub struct Args {
    /// CMF file, or `demo` for the built-in model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    default_task: Option<&'a str>,
    masks: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    task_id: u32,
    name: &'a str,
    description: Option<&'a str>,
    sparsity: f32,
    quality: Option<&'a MaskQuality>,
    parent: Option<&'a str>,
    priority: MaskPriority,
    neurons: Used,
    heads: Used,
    layers: Used,
}

/// How many of something a mask leaves on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Used {
    active: u64,
    total: u64,
}

/// Lists the masks.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let file = open_file(&args.model, false)?;
    let catalogue = file.masks();
    let report = Report {
        default_task: catalogue.map(|c| c.default_task.as_str()),
        masks: catalogue.map_or_else(Vec::new, |c| c.masks.iter().map(entry).collect()),
    };
    if args.json {
        return print_json(&report);
    }
    if report.masks.is_empty() {
        return print_text("no masks");
    }
    let head = ["task", "name", "priority", "sparsity", "neurons", "heads", "layers"].map(str::to_owned).to_vec();
    let rows = report.masks.iter().map(|m| {
        let used = |u: Used| format!("{}/{}", u.active, u.total);
        vec![
            m.task_id.to_string(),
            m.name.to_owned(),
            format!("{:?}", m.priority).to_lowercase(),
            m.sparsity.to_string(),
            used(m.neurons),
            used(m.heads),
            used(m.layers),
        ]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let default = report.default_task.unwrap_or_default();
    print_text(&format!("{}default task: {default}", table(&rows, &[0, 3, 4, 5, 6])))
}

fn entry(mask: &Mask) -> Entry<'_> {
    let shape = mask.shape();
    let layers = shape.num_layers as u64;
    let over_layers = |row: &dyn Fn(usize) -> u64| (0..shape.num_layers).map(row).sum();
    Entry {
        task_id: mask.task_id,
        name: &mask.name,
        description: mask.description.as_deref(),
        sparsity: mask.sparsity,
        quality: mask.quality.as_ref(),
        parent: mask.parent.as_deref(),
        priority: mask.priority,
        neurons: Used {
            active: over_layers(&|l| ones(mask.neuron_bits(l))),
            total: layers.saturating_mul(shape.intermediate_size as u64),
        },
        heads: Used {
            active: over_layers(&|l| ones(mask.head_bits(l))),
            total: layers.saturating_mul(shape.num_heads as u64),
        },
        layers: Used { active: ones(mask.layer_bits()), total: layers },
    }
}

fn ones(bits: &[u8]) -> u64 {
    bits.iter().map(|byte| u64::from(byte.count_ones())).sum()
}
