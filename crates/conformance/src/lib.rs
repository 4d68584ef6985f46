//! The shared test suite: fixture loading, comparisons, and random models, used by `tests/`.
//!
//! Owns: nothing that runs in production. Each executor and dtype goes through the same cases; the reference
//! executor is compared with the golden fixtures, the others with the reference (docs/design.md §7).

mod compare;
mod executors;
mod fixtures;
mod gpu;
mod random;
mod router;

pub use compare::{Divergence, divergence, max_abs_diff};
pub use executors::{Model, Piece, alone, open_model, step};
pub use fixtures::{
    Golden, GoldenRope, GoldenSequence, Greedy, LayerTrace, MODELS, MTP_MODELS, MtpGolden, Trace, convert_fixture,
    fixtures_dir, golden, model_dir,
};
pub use gpu::{test_gpu, test_gpus};
pub use random::{RandomModel, WIDE, random_model};
pub use router::unsure_rows;
