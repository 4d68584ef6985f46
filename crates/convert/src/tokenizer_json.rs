//! Checking that a `tokenizer.json` loads.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::Tokenizer;

/// The tokenizer in `json`, or why there is none. A panic of the library on a broken file is a reason too.
pub(crate) fn load(json: &[u8]) -> Result<Tokenizer, String> {
    match catch_unwind(AssertUnwindSafe(|| Tokenizer::from_bytes(json))) {
        Ok(Ok(tokenizer)) => Ok(tokenizer),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the tokenizer library panicked on it".to_owned()),
    }
}
