//! Opens arbitrary bytes as a model and, when they are accepted, asks for everything.
#![no_main]

use cortiq_cmf::CmfFile;
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/common/exercise.rs"]
mod exercise;

fuzz_target!(|data: &[u8]| {
    if let Ok(file) = CmfFile::from_bytes(data.to_vec()) {
        exercise::exercise(&file);
    }
});
