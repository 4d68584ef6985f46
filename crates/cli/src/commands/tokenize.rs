//! `cortiq tokenize`.

use std::path::{Path, PathBuf};

use anyhow::bail;
use cortiq_cmf::CmfFile;
use cortiq_engine::{EngineError, Tokenizer};
use serde::Serialize;

use crate::files::{read_file, read_stdin};
use crate::model_options::{in_file, open_file};
use crate::output::{for_stdout, print_json, print_text, write_stdout};
use crate::values::TokenIds;

/// First bytes of a container.
const CMF_MAGIC: &[u8] = b"CMF";

/// Flags of `tokenize`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    printf 'Hello world' | cortiq tokenize model.cmf --json\n  \
    echo '1,2,3' | cortiq tokenize tokenizer.json --decode\n\n\
    The standard input is taken as it is, a line end at its end included.")]
pub struct Args {
    /// CMF file, `demo`, or tokenizer.json
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Do not add special tokens; with --decode, leave them out of the text
    #[arg(long)]
    no_special: bool,
    /// Turn ids, separated by commas or white space, into text
    #[arg(long)]
    decode: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Ids {
    ids: Vec<u32>,
}

#[derive(Serialize)]
struct Text {
    text: String,
}

/// Encodes or decodes the standard input.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let tokenizer = open(&args.model)?;
    let input = read_stdin()?;
    if args.decode {
        let ids: TokenIds = match input.parse() {
            Ok(ids) => ids,
            Err(reason) => bail!("the standard input is no list of token ids: {reason}"),
        };
        if let Some(id) = ids.0.iter().find(|&&id| tokenizer.token_of(id).is_none()) {
            bail!("token id {id} is not in the vocabulary");
        }
        let text = tokenizer.decode(&ids.0, args.no_special)?;
        return if args.json { print_json(&Text { text }) } else { write_stdout(for_stdout(&text).as_bytes()) };
    }
    let ids = tokenizer.encode(&input, !args.no_special)?;
    if args.json {
        return print_json(&Ids { ids });
    }
    print_text(&ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "))
}

/// The tokenizer of a container, or of a `tokenizer.json`.
fn open(path: &Path) -> anyhow::Result<Tokenizer> {
    let is_json = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
    let tokenizer = if is_json || looks_like_json(path) {
        Tokenizer::from_json(&read_file(path)?)
    } else {
        from_container(&open_file(path, false)?)
    };
    tokenizer.map_err(|error| in_file(path, error))
}

fn from_container(file: &CmfFile) -> Result<Tokenizer, EngineError> {
    file.vocab().map_or(Err(EngineError::NoTokenizer), Tokenizer::from_json)
}

/// Whether a regular file starts like JSON.
fn looks_like_json(path: &Path) -> bool {
    use std::io::Read;
    let mut head = [0; 64];
    let read = std::fs::metadata(path)
        .ok()
        .filter(std::fs::Metadata::is_file)
        .and_then(|_| std::fs::File::open(path).ok()?.read(&mut head).ok());
    let head = head.get(..read.unwrap_or(0)).unwrap_or_default();
    !head.starts_with(CMF_MAGIC) && head.trim_ascii_start().starts_with(b"{")
}
