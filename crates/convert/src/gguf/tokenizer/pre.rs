//! How byte-level BPE tokenizers split the text, by the name in `tokenizer.ggml.pre`.
//!
//! The patterns are those of the published `tokenizer.json` of each family. A name that is not in
//! the table is refused: with a wrong rule everything would run and every id could be wrong.

use serde_json::{Value, json};

/// The contractions that the GPT-4-like patterns begin with.
macro_rules! contractions {
    () => {
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

/// The tail that the GPT-4-like patterns share: punctuation with line ends, line ends, spaces.
macro_rules! tail {
    () => {
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

/// As [`tail`], where a slash may follow punctuation.
macro_rules! slash_tail {
    () => {
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

/// A word whose capitals come first, ending in small letters.
macro_rules! small_word {
    () => {
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    };
}

/// A word of capitals, with or without small letters.
macro_rules! capital_word {
    () => {
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    };
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|", tail!());
const QWEN2: &str = concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|", tail!());
const QWEN35: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const TEKKEN: &str = concat!(small_word!(), "|", capital_word!(), r"|\p{N}|", slash_tail!());
const GPT4O: &str =
    concat!(small_word!(), contractions!(), "?|", capital_word!(), contractions!(), r"?|\p{N}{1,3}|", slash_tail!());
const DEEPSEEK_CODER: [&str; 4] = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK];
const DEEPSEEK_CJK: &str = "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";
const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
];
/// The rule of GGUF files whose converter did not know the tokenizer.
const DEFAULT: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"];

/// The steps that cut the text before the bytes are mapped.
#[derive(Debug, Clone, Copy)]
enum Split {
    /// Patterns whose matches become pieces of their own, one after the other.
    Patterns(&'static [&'static str]),
    /// The same, then every digit alone.
    PatternsThenDigits(&'static [&'static str]),
    /// The pattern of GPT-2, which the byte-level step has built in.
    Gpt2,
    /// Every digit alone, then the pattern of GPT-2.
    DigitsThenGpt2,
    /// Runs of punctuation, GPT-2, runs of digits, digits in threes.
    Falcon,
}

/// What a `tokenizer.ggml.pre` name says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    split: Split,
    /// The text is brought to normalisation form C first.
    nfc: bool,
    /// A word that is a token is taken whole, even where no merges lead to it.
    pub(super) whole_words_first: bool,
    /// The beginning token is added unless the file says otherwise.
    pub(super) adds_bos: bool,
}

/// The rule with this name.
pub(super) fn find(name: &str) -> Option<Rule> {
    let plain = |split| Rule { split, nfc: false, whole_words_first: false, adds_bos: false };
    let nfc = |split| Rule { nfc: true, ..plain(split) };
    let whole = |split| Rule { whole_words_first: true, adds_bos: true, ..plain(split) };
    Some(match name {
        "default" => plain(Split::Patterns(&DEFAULT)),
        "gpt-2" | "phi-2" => plain(Split::Gpt2),
        "olmo" => nfc(Split::Gpt2),
        "smollm" | "starcoder" | "refact" => plain(Split::DigitsThenGpt2),
        "command-r" => nfc(Split::DigitsThenGpt2),
        "llama-bpe" | "llama3" | "llama-v3" | "lfm2" => whole(Split::Patterns(&[LLAMA3])),
        "dbrx" | "smaug-bpe" => plain(Split::Patterns(&[LLAMA3])),
        "qwen2" | "deepseek-r1-qwen" => nfc(Split::Patterns(&[QWEN2])),
        "qwen35" => nfc(Split::Patterns(&[QWEN35])),
        "tekken" => whole(Split::Patterns(&[TEKKEN])),
        "gpt-4o" | "llama4" => plain(Split::Patterns(&[GPT4O])),
        "deepseek-coder" => plain(Split::PatternsThenDigits(&DEEPSEEK_CODER)),
        "deepseek-v3" => plain(Split::Patterns(&DEEPSEEK_V3)),
        "falcon" => plain(Split::Falcon),
        _ => return None,
    })
}

impl Rule {
    pub(super) fn normalizer(&self) -> Value {
        if self.nfc { json!({"type": "NFC"}) } else { Value::Null }
    }

    pub(super) fn pre_tokenizer(&self) -> Value {
        let mut steps = Vec::new();
        match self.split {
            Split::Patterns(patterns) => steps.extend(patterns.iter().map(|p| pattern(p))),
            Split::PatternsThenDigits(patterns) => {
                steps.extend(patterns.iter().map(|p| pattern(p)));
                steps.push(digits(true));
            }
            Split::Gpt2 => return byte_level(true),
            Split::DigitsThenGpt2 => return sequence(vec![digits(true), byte_level(true)]),
            Split::Falcon => {
                let punctuation = json!({"type": "Punctuation", "behavior": "Contiguous"});
                let threes = pattern("[0-9][0-9][0-9]");
                return sequence(vec![punctuation, byte_level(true), digits(false), threes]);
            }
        }
        steps.push(byte_level(false));
        sequence(steps)
    }
}

fn sequence(steps: Vec<Value>) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn pattern(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

fn digits(individual: bool) -> Value {
    json!({"type": "Digits", "individual_digits": individual})
}

fn byte_level(use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": use_regex,
    })
}
