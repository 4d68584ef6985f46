//! The gpu executor: runs a [`cortiq_model::Program`] on any adapter that `wgpu` drives (Vulkan, DX12, Metal).
//!
//! Owns: the device, the shaders, the device copies of the weights, the recorded dispatches of a step and the state of
//! sequences in device memory. Entry points: [`Gpu::open`] and [`GpuExecutor::new`]. Must not know: files, tokenizers,
//! model families, the command line or the environment.
//!
//! A step writes one small buffer (ids, positions, block tables, rotary angles), encodes every dispatch of the program,
//! submits them in a few parts and reads back what was asked for: all logits of some rows, or their best tokens.
//! Pipelines, buffers and bind groups are made once per model and class of batch size.

mod bandwidth;
mod device;
mod error;
mod executor;
mod kernel;
#[cfg(feature = "lab")]
#[doc(hidden)]
pub mod lab;
mod ops;
mod options;
mod plan;
mod profile;
mod residency;
mod shader;
mod slots;
mod state;
mod step;
mod variants;
mod weights;

pub use bandwidth::{read_bandwidth, submit_latency};
pub use cortiq_model::Precision;
pub use device::{Adapter, AdapterSummary, Caps, CoopShape, Gpu, Memory};
pub use error::GpuError;
pub use executor::GpuExecutor;
pub use options::{AdapterChoice, Backend, GpuOptions};
pub use residency::{Budget, BudgetOrigin, Need};
pub use variants::{KERNELS_WITHOUT_VARIANTS, KernelVariant, kernel_variants};
