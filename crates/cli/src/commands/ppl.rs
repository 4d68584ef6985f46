//! `cortiq ppl`.

use std::path::PathBuf;

use anyhow::bail;
use cortiq_engine::PerplexityOptions;
use serde::Serialize;

use crate::config::{Config, Origin, Setting};
use crate::files::read_text;
use crate::model_options::{ExecutorOptions, FileOptions, in_file, open_engine, open_file, positive};
use crate::output::{Usage, print_json, print_text};
use crate::progress::{Meter, Unit};
use crate::values::PrefixId;

/// Flags of `ppl`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  cortiq ppl model.cmf -f text.txt --window 512\n\n\
    The ids of the text (without special tokens) are cut into windows; each position that has a predecessor in its \
    window is scored.")]
pub struct Args {
    /// CMF file, or `demo` for the built-in model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Text file
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Positions per window, the prefix included
    #[arg(long, value_name = "N", default_value = "512", value_parser = window)]
    window: usize,
    /// Score the last N positions of each window only
    #[arg(long, value_name = "N", value_parser = positive)]
    stride: Option<usize>,
    /// Token in front of each window, not scored; or `none`
    #[arg(long, value_name = "ID|none", default_value = "none")]
    prefix_id: PrefixId,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    executor: ExecutorOptions,
    #[command(flatten)]
    model_file: FileOptions,
}

/// A window has a position to score and one before it.
fn window(text: &str) -> Result<usize, String> {
    match positive(text)? {
        1 => Err("a window has at least 2 positions".to_owned()),
        n => Ok(n),
    }
}

#[derive(Serialize)]
struct Score {
    tokens: usize,
    nll_mean: f64,
    perplexity: f64,
}

/// Scores a text.
pub fn run(args: &Args, config: &Config) -> anyhow::Result<()> {
    if let Some(stride) = args.stride.filter(|&stride| stride > args.window) {
        bail!(Usage(format!("--stride {stride} is longer than --window {}", args.window)));
    }
    let file = open_file(&args.model, args.model_file.owned)?;
    let text = read_text(&args.file)?;
    let context = Setting { value: Some(args.window), origin: Origin::Flag("--window") };
    let mut engine = open_engine(&args.model, file, &args.executor, &args.model_file, &context, config)?;
    let ids = engine.tokenizer().and_then(|t| t.encode(&text, false)).map_err(|error| in_file(&args.model, error))?;
    let options = PerplexityOptions { window: args.window, stride: args.stride, prefix: args.prefix_id.0 };
    let mut meter: Option<Meter> = None;
    let result = engine.perplexity(&ids, &options, &mut |done, total| {
        let meter = meter.get_or_insert_with(|| Meter::new(total as u64, Unit::Windows, args.json));
        meter.set(done as u64, &format!("{done}/{total} windows"));
    });
    if let Some(meter) = meter {
        meter.finish();
    }
    let result = result?;
    let score = Score { tokens: result.tokens, nll_mean: result.nll_mean, perplexity: result.perplexity() };
    if args.json {
        return print_json(&score);
    }
    print_text(&format!(
        "perplexity {:.4} (mean negative log-likelihood {:.6} over {} tokens)",
        score.perplexity, score.nll_mean, score.tokens
    ))
}
