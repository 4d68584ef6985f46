//! `cortiq run`: one answer, or an interactive chat.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, bail};
use cortiq_engine::{ChatRequest, Engine, EngineError, GenerateOptions, Generation};
use serde::Serialize;
use serde_json::json;

use crate::commands::chat;
use crate::config::Config;
use crate::files::read_stdin;
use crate::model_options::{
    ContextOption, ExecutorOptions, FileOptions, context_of, in_file, open_engine, open_file, verify_before_use,
};
use crate::output::{Usage, for_stdout, note, print_json, write_stdout};
use crate::sampling_options::SamplingOptions;
use crate::speculative_options::{Guesses, SpeculativeOptions};
use crate::values::{TokenIds, stop_string};

/// Flags of `run`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    cortiq run model.cmf                                   chat: Ctrl-C stops a reply, Ctrl-D leaves\n  \
    cortiq run demo -p 'Tell me a story about a fox.'      the built-in model\n  \
    cortiq run model.cmf -p 'Why is the sky blue?' -n 200\n  \
    cortiq run model.cmf --system 'Answer in French.' < question.txt\n  \
    cortiq run model.cmf --raw -p 'Once upon a time' --greedy --json\n\n\
    Without -p and --ids, a piped standard input is the prompt.")]
pub struct Args {
    /// CMF file, or `demo` for the built-in model
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Prompt
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Prompt as token ids, used as they are
    #[arg(long, value_name = "1,2,3", conflicts_with_all = ["prompt", "system", "raw"])]
    ids: Option<TokenIds>,
    /// Most tokens to produce [default: what fits into the context]
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Continue the prompt as it is, without the chat template
    #[arg(long)]
    raw: bool,
    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw", allow_hyphen_values = true)]
    system: Option<String>,
    /// End the answer before this text; repeatable
    #[arg(long, value_name = "TEXT", value_parser = stop_string, allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Go on after an end token
    #[arg(long)]
    ignore_eos: bool,
    /// Compare all hashes and digests of the file first
    #[arg(long)]
    verify: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    executor: ExecutorOptions,
    #[command(flatten)]
    speculative: SpeculativeOptions,
    #[command(flatten)]
    file: FileOptions,
    #[command(flatten)]
    context: ContextOption,
}

/// Where the prompt comes from.
enum Input {
    Ids(Vec<u32>),
    Text(String),
    Stdin,
    Chat,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Answer<'a> {
    prompt_tokens: &'a [u32],
    tokens: &'a [u32],
    text: &'a str,
    finish_reason: &'static str,
    timings: Timings,
    #[serde(skip_serializing_if = "Option::is_none")]
    speculative: Option<Guesses>,
}

#[derive(Serialize)]
struct Timings {
    prompt_n: usize,
    prompt_ms: f64,
    predicted_n: usize,
    predicted_ms: f64,
}

/// Answers or chats.
pub fn run(mut args: Args, config: &Config) -> anyhow::Result<()> {
    args.sampling.check()?;
    args.speculative.check()?;
    let input = input(&mut args)?;
    let file = open_file(&args.model, args.file.owned)?;
    if args.verify {
        verify_before_use(&args.model, &file)?;
    }
    let context = context_of(&file, args.context.ctx, config);
    let mut engine = open_engine(&args.model, file, &args.executor, &args.file, &context, config)?;
    let options = GenerateOptions {
        max_tokens: args.max_tokens.unwrap_or(usize::MAX),
        sampling: args.sampling.params(engine.default_sampling()),
        stop: std::mem::take(&mut args.stop),
        ignore_eos: args.ignore_eos,
        speculative: args.speculative.choose(&engine).map_err(|error| in_file(&args.model, error))?,
    };
    let prompt = match input {
        Input::Chat => return chat::run(&mut engine, &options, args.system.as_deref(), args.raw, &args.model),
        Input::Ids(ids) => ids,
        Input::Text(text) => text_prompt(&engine, &args, &text)?,
        Input::Stdin => text_prompt(&engine, &args, &read_stdin()?)?,
    };
    answer(&mut engine, &prompt, &options, args.json)
}

fn input(args: &mut Args) -> anyhow::Result<Input> {
    if let Some(TokenIds(ids)) = args.ids.take() {
        return Ok(Input::Ids(ids));
    }
    if let Some(text) = args.prompt.take() {
        return Ok(Input::Text(text));
    }
    if !std::io::stdin().is_terminal() {
        return Ok(Input::Stdin);
    }
    if args.json || !std::io::stdout().is_terminal() {
        bail!(Usage("a chat needs a terminal on both sides; give the prompt with -p, --ids or a pipe".to_owned()));
    }
    Ok(Input::Chat)
}

/// Token ids of a prompt in words.
fn text_prompt(engine: &Engine, args: &Args, text: &str) -> anyhow::Result<Vec<u32>> {
    if text.is_empty() {
        bail!(EngineError::EmptyPrompt);
    }
    let ids = if args.raw {
        engine.tokenizer().and_then(|tokenizer| tokenizer.encode(text, true))
    } else {
        let system = args.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<_> = system.chain([json!({"role": "user", "content": text})]).collect();
        chat_ids(engine, &messages)
    };
    ids.map_err(|error| in_file(&args.model, explained(error)))
}

/// Token ids of a conversation that the model is to continue.
pub fn chat_ids(engine: &Engine, messages: &[serde_json::Value]) -> Result<Vec<u32>, EngineError> {
    engine.chat_prompt(&ChatRequest { messages, add_generation_prompt: true, ..ChatRequest::default() })
}

/// The error with the flag that helps.
pub fn explained(error: EngineError) -> anyhow::Error {
    match error {
        EngineError::NoChatTemplate => {
            anyhow!("this file has no chat template; pass --raw to continue the prompt as it is")
        }
        EngineError::NoTokenizer => anyhow!("this file has no tokenizer; give the prompt as token ids with --ids"),
        error => error.into(),
    }
}

fn answer(engine: &mut Engine, prompt: &[u32], options: &GenerateOptions, json: bool) -> anyhow::Result<()> {
    let mut sequence = engine.sequence()?;
    if json {
        let generation = engine.generate(&mut sequence, prompt, options, &mut |_| ControlFlow::Continue(()))?;
        return print_json(&Answer {
            prompt_tokens: prompt,
            tokens: &generation.tokens,
            text: &generation.text,
            finish_reason: generation.finish_reason.name(),
            timings: timings(&generation),
            speculative: Guesses::of(&generation),
        });
    }
    let mut written = Ok(());
    let generation = engine.generate(&mut sequence, prompt, options, &mut |piece| {
        written = write_stdout(for_stdout(piece).as_bytes());
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    written?;
    write_stdout(b"\n")?;
    note(speed(&generation));
    Ok(())
}

fn timings(generation: &Generation) -> Timings {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Timings {
        prompt_n: generation.prompt_computed,
        prompt_ms: ms(generation.prompt_time),
        predicted_n: generation.tokens.len(),
        predicted_ms: ms(generation.predicted_time),
    }
}

/// One line about how fast it was.
pub fn speed(generation: &Generation) -> String {
    let rate = |n: usize, time: Duration| n as f64 / time.as_secs_f64().max(1e-9);
    let guesses = Guesses::of(generation).map_or_else(String::new, |guesses| {
        format!("; {} of {} guesses by {} right", guesses.accepted, guesses.drafted, guesses.kind)
    });
    format!(
        "[prompt: {} tokens, {:.1}/s; answer: {} tokens, {:.1}/s{guesses}; {}]",
        generation.prompt_computed,
        rate(generation.prompt_computed, generation.prompt_time),
        generation.tokens.len(),
        rate(generation.tokens.len(), generation.predicted_time),
        generation.finish_reason.name(),
    )
}
