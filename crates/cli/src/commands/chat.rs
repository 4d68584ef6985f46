//! The interactive chat of `cortiq run`.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, bail};
use cortiq_engine::{Engine, EngineError, FinishReason, GenerateOptions, Generation, Sequence};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use crate::commands::run::{chat_ids, explained, speed};
use crate::model_options::in_file;
use crate::output::{for_stdout, note, write_stdout};

/// Exit code of a process that was interrupted from the keyboard.
const INTERRUPTED: i32 = 130;
const PROMPT: &str = "> ";
const HELP: &str = "/clear starts anew, /quit or Ctrl-D leaves, Ctrl-C stops a reply";

/// A conversation and the state that the engine has of it.
struct Chat<'a> {
    engine: &'a mut Engine,
    options: &'a GenerateOptions,
    sequence: Sequence,
    system: Option<&'a str>,
    messages: Vec<Value>,
    raw: bool,
    state: Arc<AtomicU8>,
}

/// Chats until the user leaves.
pub fn run(
    engine: &mut Engine,
    options: &GenerateOptions,
    system: Option<&str>,
    raw: bool,
    model: &Path,
) -> anyhow::Result<()> {
    if let Err(error) = engine.tokenizer() {
        bail!(in_file(model, explained(error)));
    }
    if !raw && !engine.has_chat_template() {
        bail!(in_file(model, explained(EngineError::NoChatTemplate)));
    }
    let sequence = engine.sequence()?;
    let mut chat = Chat { engine, options, sequence, system, messages: Vec::new(), raw, state: interrupts()? };
    chat.clear();
    let mut editor = DefaultEditor::new().context("cannot use this terminal")?;
    note(HELP);
    loop {
        match editor.readline(PROMPT) {
            Ok(line) => {
                if line.trim().is_empty() {
                    continue;
                }
                // The history is a convenience; a full one is no reason to end.
                let _ = editor.add_history_entry(&line);
                match line.trim() {
                    "/quit" | "/exit" => return Ok(()),
                    "/clear" => chat.clear(),
                    "/help" => note(HELP),
                    _ => chat.turn(line).map_err(|error| in_file(model, error))?,
                }
            }
            Err(ReadlineError::Interrupted) => note("(Ctrl-D leaves)"),
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error).context("cannot read from the terminal"),
        }
    }
}

/// No reply is being computed: a signal ends the program. (At the prompt, Ctrl-C is a key and no signal.)
const IDLE: u8 = 0;
/// A reply is being computed.
const REPLYING: u8 = 1;
/// A signal asked to stop the reply; another one before that had an effect ends the program.
const STOPPING: u8 = 2;

/// Lets signals change a state, which is returned.
fn interrupts() -> anyhow::Result<Arc<AtomicU8>> {
    let state = Arc::new(AtomicU8::new(IDLE));
    let seen = Arc::clone(&state);
    ctrlc::set_handler(move || {
        if seen.compare_exchange(REPLYING, STOPPING, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            std::process::exit(INTERRUPTED);
        }
    })
    .context("cannot handle interrupts")?;
    Ok(state)
}

impl Chat<'_> {
    /// Forgets the conversation, but not the system message.
    fn clear(&mut self) {
        self.messages = self.system.iter().map(|text| json!({"role": "system", "content": text})).collect();
    }

    /// One message and its reply. With `raw` each line is a prompt of its own.
    fn turn(&mut self, line: String) -> anyhow::Result<()> {
        let ids = if self.raw {
            self.engine.tokenizer().and_then(|tokenizer| tokenizer.encode(&line, true)).map_err(explained)?
        } else {
            self.messages.push(json!({"role": "user", "content": line}));
            chat_ids(self.engine, &self.messages).map_err(explained)?
        };
        match self.reply(&ids)? {
            Some(generation) => {
                if generation.finish_reason == FinishReason::Cancelled {
                    note("(stopped)");
                }
                note(speed(&generation));
                if !self.raw {
                    self.messages.push(json!({"role": "assistant", "content": generation.text}));
                }
            }
            None => {
                self.messages.pop();
            }
        }
        Ok(())
    }

    /// Computes and shows a reply; none when the conversation has become too long for the context.
    fn reply(&mut self, ids: &[u32]) -> anyhow::Result<Option<Generation>> {
        self.state.store(REPLYING, Ordering::SeqCst);
        let mut written = Ok(());
        let state = &self.state;
        let outcome = self.engine.generate(&mut self.sequence, ids, self.options, &mut |piece| {
            if !piece.is_empty() {
                written = write_stdout(for_stdout(piece).as_bytes());
            }
            if written.is_err() || state.load(Ordering::SeqCst) == STOPPING {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        self.state.store(IDLE, Ordering::SeqCst);
        written?;
        match outcome {
            Ok(generation) => {
                write_stdout(b"\n")?;
                Ok(Some(generation))
            }
            Err(error @ EngineError::PromptTooLong { .. }) => {
                note(format_args!("{error}; /clear starts anew, --ctx may allow more"));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}
