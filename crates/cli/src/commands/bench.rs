//! `cortiq bench`: prefill and decode speed, beside this machine's own read bandwidth.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{anyhow, bail};
use clap::ArgGroup;
use cortiq_cmf::CmfFile;
use cortiq_cpu::{BANDWIDTH_BYTES, CpuOptions, read_bandwidth};
use cortiq_engine::{
    Engine, EngineError, EngineOptions, ExecutorKind, LogitRows, Predictions, Sampler, SamplingParams, Sequence,
};
use cortiq_model::{HostState, KvLayer, NAMED_SHAPES, NamedShape, StateDecl, Weights, named_shape};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::Serialize;

use crate::commands::bench_profile::Profile;
use crate::commands::bench_speculative::{Comparison, compare};
use crate::config::{Config, Origin, Setting};
use crate::model_options::{ExecutorOptions, FileOptions, gpu_error, open_engine, open_file, positive};
use crate::output::{Usage, human_bytes, note, print_json, print_text, table};
use crate::speculative_options::SpeculativeOptions;
use crate::synthetic::{check_memory, random_weights};
use crate::values::QuantName;

/// Tokens decoded before the clock runs.
const WARM_UP: usize = 8;
/// Passes over memory when its bandwidth is measured; the best counts.
const BANDWIDTH_PASSES: usize = 5;

/// Flags of `bench`.
#[derive(clap::Args, Debug)]
#[command(
    group = ArgGroup::new("subject").required(true).args(["model", "shape"]),
    after_help = format!("Examples:\n  \
        cortiq bench model.cmf\n  \
        cortiq bench model.cmf --speculative auto   compares answers with and without guesses too\n  \
        cortiq bench --shape qwen3-0.6b --quant q4t -p 512 -n 64\n\n\
        Shapes: {}. GB/s are bytes of weights read.", shape_names())
)]
pub struct Args {
    /// CMF file, or `demo` for the built-in model
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Random weights of a well-known shape instead of a file
    #[arg(long, value_name = "NAME", requires = "quant")]
    shape: Option<String>,
    /// How the matrices of --shape are stored
    #[arg(long, value_name = "NAME", requires = "shape")]
    quant: Option<QuantName>,
    /// Tokens of the prefill test; 0 leaves it out
    #[arg(short = 'p', long, value_name = "N", default_value_t = 512)]
    prompt_tokens: usize,
    /// Tokens of the decode test; 0 leaves it out
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    predict_tokens: usize,
    /// Tokens that the sequence of the decode test holds before the clock runs
    #[arg(short = 'd', long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Timed repetitions
    #[arg(short = 'r', long, value_name = "N", default_value = "5", value_parser = positive)]
    repetitions: usize,
    /// Time every kernel too (gpu executor)
    #[arg(long)]
    profile: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    executor: ExecutorOptions,
    #[command(flatten)]
    speculative: SpeculativeOptions,
    #[command(flatten)]
    file: FileOptions,
}

fn shape_names() -> String {
    NAMED_SHAPES.map(|shape| shape.name).join(", ")
}

/// What is measured.
struct Subject {
    engine: Engine,
    label: String,
    /// Bytes of all weights.
    bytes: u64,
    /// Bytes of the matrix that makes the logits, which prefill reads in the last step only.
    head: u64,
}

#[derive(Serialize)]
struct Report {
    rows: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profiles: Vec<Profile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculative: Option<Comparison>,
}

#[derive(Serialize)]
struct Row {
    test: String,
    tok_s: Spread,
    gb_s: f64,
    bandwidth_gb_s: f64,
    bandwidth_fraction: f64,
}

/// Tokens per second of several repetitions.
#[derive(Serialize)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// Of repetitions that computed `tokens` in each of `times`, which are seconds.
    pub fn of(tokens: usize, times: &[f64]) -> Self {
        let mut sorted: Vec<f64> = times.iter().map(|seconds| seconds.max(1e-9)).collect();
        sorted.sort_by(f64::total_cmp);
        let rate = |seconds: f64| tokens as f64 / seconds;
        Self {
            median: rate(median(&sorted)),
            min: sorted.last().copied().map_or(0.0, rate),
            max: sorted.first().copied().map_or(0.0, rate),
        }
    }
}

/// Measures.
pub fn run(args: &Args, config: &Config) -> anyhow::Result<()> {
    if args.prompt_tokens == 0 && args.predict_tokens == 0 {
        bail!(Usage("-p 0 and -n 0 together leave nothing to measure".to_owned()));
    }
    args.speculative.check()?;
    if args.speculative.on() && args.predict_tokens == 0 {
        bail!(Usage("--speculative needs tokens to predict: -n above 0".to_owned()));
    }
    let shape = args.shape.as_deref().map(find_shape).transpose()?;
    if shape.is_none() && args.quant.is_some() {
        bail!(Usage("--quant says how --shape is stored; a file is measured as it is".to_owned()));
    }
    let on_gpu = args.executor.may_use_gpu(config);
    if args.profile && !on_gpu {
        bail!(Usage("--profile needs --executor gpu: no other executor times its kernels".to_owned()));
    }
    if shape.is_some() && (args.file.owned || args.file.skill.is_some() || args.file.task.is_some()) {
        bail!(Usage("--owned, --skill and --task need a file, which --shape is not".to_owned()));
    }
    let threads = match args.executor.kind(config) {
        ExecutorKind::Reference => 1,
        ExecutorKind::Cpu | ExecutorKind::Gpu | ExecutorKind::Auto => {
            args.executor.threads(config).unwrap_or_else(|| CpuOptions::default().threads)
        }
    };
    let file = args.model.as_ref().map(|path| open_file(path, args.file.owned).map(|file| (path, file))).transpose()?;
    let bandwidth = bandwidth(args, threads, on_gpu, config)?;
    let mut subject = match (file, shape, &args.quant) {
        (Some((path, file)), _, _) => from_file(path, file, args, config)?,
        (None, Some(shape), Some(quant)) => from_shape(&shape, quant, args, threads, config)?,
        _ => bail!(Usage("give a model, or --shape and --quant".to_owned())),
    };
    // Before the long part, so that a wish that cannot be fulfilled is refused at once.
    let speculative = args.speculative.choose(&subject.engine)?;
    let rows = measure(&mut subject, args, bandwidth / 1e9)?;
    let profiles = if args.profile { profiles(&mut subject, args)? } else { Vec::new() };
    let comparison = if args.speculative.on() {
        let prompt = random_ids(args.prompt_tokens.max(1), subject.engine.vocab_size());
        Some(compare(&mut subject.engine, &prompt, args.predict_tokens, speculative, args.repetitions)?)
    } else {
        None
    };
    if args.json {
        return print_json(&Report { rows, profiles, speculative: comparison });
    }
    print_rows(&rows, &subject, threads)?;
    profiles.iter().try_for_each(Profile::print)?;
    comparison.map_or(Ok(()), |comparison| print_text(&comparison.line()))
}

/// Bytes per second that the memory of the executor gives.
fn bandwidth(args: &Args, threads: usize, on_gpu: bool, config: &Config) -> anyhow::Result<f64> {
    if on_gpu {
        let gpu = cortiq_gpu::Gpu::open(&args.executor.gpu.adapter(config));
        let measured = gpu.and_then(|gpu| cortiq_gpu::read_bandwidth(&gpu));
        return measured.map_err(|error| gpu_error(error, &args.executor, config));
    }
    // Before the weights are there, so that memory has to hold one of the two only.
    check_memory(BANDWIDTH_BYTES as u64, "measuring the read bandwidth")?;
    Ok(read_bandwidth(threads, BANDWIDTH_PASSES))
}

/// Times of the kernels in one prefill and one decode test.
fn profiles(subject: &mut Subject, args: &Args) -> anyhow::Result<Vec<Profile>> {
    let (p, n) = (args.prompt_tokens, args.predict_tokens);
    let vocab_size = subject.engine.vocab_size();
    let ids = random_ids(p.max(n), vocab_size);
    let mut profiles = Vec::new();
    if let Some(prompt) = ids.get(..p).filter(|prompt| !prompt.is_empty()) {
        subject.engine.start_profile()?;
        prefill(&mut subject.engine, prompt)?;
        profiles.push(Profile::new(format!("pp{p}"), p, &subject.engine.end_profile()));
    }
    if let Some(tokens) = ids.get(..n).filter(|tokens| !tokens.is_empty()) {
        decode(&mut subject.engine, &random_ids(args.depth, vocab_size), tokens, Engine::start_profile)?;
        profiles.push(Profile::new(decode_name(args), n, &subject.engine.end_profile()));
    }
    Ok(profiles)
}

/// `tg128`, or `tg128@8192` with tokens before.
fn decode_name(args: &Args) -> String {
    match args.depth {
        0 => format!("tg{}", args.predict_tokens),
        depth => format!("tg{}@{depth}", args.predict_tokens),
    }
}

fn find_shape(name: &str) -> anyhow::Result<NamedShape> {
    named_shape(name).ok_or_else(|| anyhow!(Usage(format!("`{name}` is not one of the shapes {}", shape_names()))))
}

/// Positions that the longest test needs.
fn context(args: &Args) -> usize {
    if args.speculative.on() {
        // An answer after a prompt.
        return args.prompt_tokens.max(1).saturating_add(args.predict_tokens);
    }
    args.prompt_tokens.max(args.predict_tokens.saturating_add(args.depth))
}

fn from_file(path: &Path, file: CmfFile, args: &Args, config: &Config) -> anyhow::Result<Subject> {
    let bytes = file.tensors().iter().map(|t| t.nbytes).sum();
    let head = ["lm_head.weight", "model.embed_tokens.weight"]
        .iter()
        .find_map(|name| file.find_with_skill(name, args.file.skill.as_deref()));
    let head = head.and_then(|i| file.tensors().get(i)).map_or(0, |t| t.nbytes);
    let longest = if args.prompt_tokens >= context(args) { "-p" } else { "-n and -d" };
    let context = Setting { value: Some(context(args)), origin: Origin::Flag(longest) };
    let engine = open_engine(path, file, &args.executor, &args.file, &context, config)?;
    let label = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Subject { engine, label, bytes, head })
}

fn from_shape(
    shape: &NamedShape,
    quant: &QuantName,
    args: &Args,
    threads: usize,
    config: &Config,
) -> anyhow::Result<Subject> {
    let encoding =
        quant.encoding(cortiq_quant::Encoding::VBIT_DEFAULT_MEAN_BITS).map_err(|reason| anyhow!(Usage(reason)))?;
    let context = context(args);
    if !args.json {
        note(format_args!("making random weights of {} …", shape.name));
    }
    // Keys and values of one sequence, and a generous share for activations.
    let kv = args.executor.kv(config);
    let dim = shape.head_dim;
    let layer = KvLayer { kv_heads: shape.kv_heads, key_dim: dim, value_dim: dim, window: None };
    let cache =
        HostState::bytes_of_sequence(&vec![StateDecl::Kv(layer); shape.num_layers], context, kv.unwrap_or_default());
    let extra = (cache as u64).saturating_add(256 << 20);
    let (weights, bytes) = random_weights(shape, &encoding, extra)?;
    let head = if shape.tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
    let head = weights.find(head).map_or(Ok(0), |id| weights.bytes(id).map(|b| b.len() as u64))?;
    let options =
        EngineOptions { threads: Some(threads), context: Some(context), ..args.executor.engine_options(config)? };
    let engine = Engine::from_weights(&shape.header(), Arc::new(weights), &options);
    let engine = engine.map_err(|error| match error {
        EngineError::Gpu(error) => gpu_error(error, &args.executor, config),
        error => error.into(),
    })?;
    Ok(Subject { engine, label: format!("{} {}", shape.name, quant.as_str()), bytes, head })
}

fn measure(subject: &mut Subject, args: &Args, bandwidth: f64) -> anyhow::Result<Vec<Row>> {
    let (p, n) = (args.prompt_tokens, args.predict_tokens);
    let per_token = subject.engine.bytes_per_token();
    let ids = random_ids(p.max(n), subject.engine.vocab_size());
    let mut rows = Vec::new();
    if let Some(prompt) = ids.get(..p).filter(|prompt| !prompt.is_empty()) {
        let steps = p.div_ceil(subject.engine.prefill_chunk()) as u64;
        let bytes = steps * per_token - (steps - 1) * subject.head.min(per_token);
        prefill(&mut subject.engine, prompt)?;
        let times = repeat(args.repetitions, || prefill(&mut subject.engine, prompt))?;
        rows.push(row(format!("pp{p}"), p, bytes, &times, bandwidth));
    }
    if let Some(tokens) = ids.get(..n).filter(|tokens| !tokens.is_empty()) {
        let before = random_ids(args.depth, subject.engine.vocab_size());
        let ready = |_: &mut Engine| Ok(());
        decode(&mut subject.engine, &before, tokens.get(..WARM_UP).unwrap_or(tokens), ready)?;
        let times = repeat(args.repetitions, || decode(&mut subject.engine, &before, tokens, ready))?;
        rows.push(row(decode_name(args), n, per_token * n as u64, &times, bandwidth));
    }
    Ok(rows)
}

fn random_ids(count: usize, vocab_size: usize) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let vocab_size = vocab_size.max(1) as u64;
    (0..count).map(|_| (rng.next_u64() % vocab_size) as u32).collect()
}

fn repeat(times: usize, mut work: impl FnMut() -> anyhow::Result<f64>) -> anyhow::Result<Vec<f64>> {
    (0..times).map(|_| work()).collect()
}

/// Chooses the best token after a row, as greedy decoding does.
struct Greedy {
    sampler: Sampler,
    predictions: Predictions,
}

impl Greedy {
    fn new(engine: &Engine) -> Result<Self, EngineError> {
        let sampler = Sampler::new(SamplingParams::greedy(), engine.vocab_size())?;
        let predictions = Predictions::new(sampler.wants(), engine.vocab_size());
        Ok(Self { sampler, predictions })
    }

    /// Computes `ids` in one step and the token after them.
    fn next(&mut self, engine: &mut Engine, sequence: &mut Sequence, ids: &[u32]) -> Result<u32, EngineError> {
        engine.predict(sequence, ids, LogitRows::Last, &mut self.predictions)?;
        self.sampler.choose(self.predictions.row(0))
    }
}

/// Seconds to compute `ids` and the token after them.
fn prefill(engine: &mut Engine, ids: &[u32]) -> anyhow::Result<f64> {
    let mut greedy = Greedy::new(engine)?;
    in_sequence(engine, |engine, sequence| {
        let start = Instant::now();
        feed(engine, sequence, ids, &mut greedy)?;
        Ok(start.elapsed().as_secs_f64())
    })
}

/// Seconds to compute `ids` one by one, each with the token after it, in a sequence that holds `before`; `ready` is
/// called between the two. The tokens chosen are not those fed next: random weights may repeat one for ever, which reads
/// the same few experts every time.
fn decode(
    engine: &mut Engine,
    before: &[u32],
    ids: &[u32],
    ready: impl Fn(&mut Engine) -> Result<(), EngineError>,
) -> anyhow::Result<f64> {
    let mut greedy = Greedy::new(engine)?;
    in_sequence(engine, |engine, sequence| {
        if !before.is_empty() {
            feed(engine, sequence, before, &mut greedy)?;
        }
        ready(engine)?;
        let start = Instant::now();
        ids.iter().try_for_each(|id| greedy.next(engine, sequence, &[*id]).map(|_| ()))?;
        Ok(start.elapsed().as_secs_f64())
    })
}

/// Computes `ids` in chunks, and the token after them.
fn feed(engine: &mut Engine, sequence: &mut Sequence, ids: &[u32], greedy: &mut Greedy) -> Result<(), EngineError> {
    let (mut rest, size) = (ids, engine.prefill_chunk());
    while let Some((chunk, more)) = rest.split_at_checked(size).filter(|(_, more)| !more.is_empty()) {
        engine.extend(sequence, chunk, LogitRows::None)?;
        rest = more;
    }
    greedy.next(engine, sequence, rest)?;
    Ok(())
}

/// Runs `work` in a fresh sequence.
fn in_sequence(
    engine: &mut Engine,
    work: impl FnOnce(&mut Engine, &mut Sequence) -> anyhow::Result<f64>,
) -> anyhow::Result<f64> {
    let mut sequence = engine.sequence()?;
    let outcome = work(engine, &mut sequence);
    engine.close(sequence)?;
    outcome
}

/// A row of a test that computed `tokens` and read `bytes` of weights in each of `times`.
fn row(test: String, tokens: usize, bytes: u64, times: &[f64], bandwidth: f64) -> Row {
    let tok_s = Spread::of(tokens, times);
    let gb_s = bytes as f64 * tok_s.median / tokens as f64 / 1e9;
    Row { test, tok_s, gb_s, bandwidth_gb_s: bandwidth, bandwidth_fraction: gb_s / bandwidth.max(1e-9) }
}

fn median(sorted: &[f64]) -> f64 {
    let at = |i: usize| sorted.get(i).copied().unwrap_or(f64::NAN);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (at(middle.wrapping_sub(1)) + at(middle)) / 2.0 } else { at(middle) }
}

fn print_rows(rows: &[Row], subject: &Subject, threads: usize) -> anyhow::Result<()> {
    let head = ["model", "weights", "executor", "threads", "test", "tok/s", "min", "max", "GB/s", "bandwidth"];
    let lines = rows.iter().map(|row| {
        vec![
            subject.label.clone(),
            human_bytes(subject.bytes),
            subject.engine.executor_name().to_owned(),
            threads.to_string(),
            row.test.clone(),
            format!("{:.2}", row.tok_s.median),
            format!("{:.2}", row.tok_s.min),
            format!("{:.2}", row.tok_s.max),
            format!("{:.2}", row.gb_s),
            format!("{:.1} % of {:.1}", 100.0 * row.bandwidth_fraction, row.bandwidth_gb_s),
        ]
    });
    let lines: Vec<_> = std::iter::once(head.map(str::to_owned).to_vec()).chain(lines).collect();
    print_text(&table(&lines, &[1, 3, 5, 6, 7, 8, 9]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        for (values, want) in [(vec![3.0], 3.0), (vec![1.0, 2.0], 1.5), (vec![1.0, 2.0, 9.0], 2.0)] {
            assert_eq!(median(&values), want);
        }
    }

    #[test]
    fn rows_count_tokens_and_bytes_per_second() {
        let row = row("tg4".to_owned(), 4, 8_000_000_000, &[4.0, 1.0, 2.0], 8.0);
        assert_eq!((row.tok_s.median, row.tok_s.min, row.tok_s.max), (2.0, 1.0, 4.0));
        assert_eq!((row.gb_s, row.bandwidth_fraction), (4.0, 0.5));
    }

    #[test]
    fn prompts_are_the_same_every_time() {
        let ids = random_ids(100, 50);
        assert_eq!(ids, random_ids(100, 50));
        assert!(ids.iter().all(|&id| id < 50) && ids.iter().any(|&id| id != ids[0]));
    }
}
