//! `cortiq logits`.

use std::path::PathBuf;

use anyhow::bail;
use serde::Serialize;

use crate::config::Config;
use crate::model_options::{ContextOption, ExecutorOptions, FileOptions, context_of, open_engine, open_file};
use crate::output::print_json;
use crate::values::TokenIds;

/// Flags of `logits`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  cortiq logits model.cmf --ids 1,2,3 --executor reference")]
pub struct Args {
    /// CMF file, or `demo` for the built-in model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Token ids
    #[arg(long, value_name = "1,2,3")]
    ids: TokenIds,
    /// Print the logits of every position, not of the last one only
    #[arg(long)]
    all: bool,
    /// Print one JSON object (this command always does)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    executor: ExecutorOptions,
    #[command(flatten)]
    file: FileOptions,
    #[command(flatten)]
    context: ContextOption,
}

#[derive(Serialize)]
struct Logits {
    /// Shortest decimals that give the same f32 again.
    logits: Vec<Vec<f32>>,
}

/// Prints the logits.
pub fn run(args: &Args, config: &Config) -> anyhow::Result<()> {
    let file = open_file(&args.model, args.file.owned)?;
    let context = context_of(&file, args.context.ctx, config);
    let mut engine = open_engine(&args.model, file, &args.executor, &args.file, &context, config)?;
    let logits = engine.logits(&args.ids.0, args.all)?;
    // JSON has no spelling for these.
    for (row, values) in logits.iter().enumerate() {
        if let Some(id) = values.iter().position(|v| !v.is_finite()) {
            bail!("row {row}: the logit of token {id} is not a finite number");
        }
    }
    print_json(&Logits { logits })
}
