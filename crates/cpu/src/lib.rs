//! The CPU executor: works on the mapped, quantised bytes, on several threads, without a copy of the weights.
//!
//! Owns: the thread pool, the kernels and their choice per instruction set, and one file per operation.
//! Entry point: [`CpuExecutor`]. Must not know: files, tokenizers, model families.
//!
//! A result does not depend on the number of threads or on what other sequences are in the batch: every output value
//! is summed in one fixed order. How a sequence is cut into spans does not matter either, except for gated delta
//! layers, which compute longer spans in a form of their own that is equal to rounding.

#![deny(unsafe_code)]

mod executor;
mod kernels;
#[cfg(feature = "lab")]
pub mod lab;
mod ops;
mod part;
mod pool;

pub use executor::{CpuExecutor, CpuOptions};
pub use kernels::{BANDWIDTH_BYTES, InputBits, Isa, read_bandwidth};
