//! One program on a CPU and a GPU together.
//!
//! Owns: the placement (which operations run where), the cut of a program into parts, the probe that measures both
//! sides, and what happens when a device is lost. Entry point: [`open`]. Must not know: shaders, kernels, files,
//! tokenizers, model families.

mod arms;
mod cut;
mod error;
mod executor;
mod open;
mod placement;
mod probe;
mod supervisor;

pub use error::HybridError;
pub use executor::{ArmOptions, HybridExecutor};
pub use open::{GpuPlan, Loading, PlacementReport, open, open_on};
use placement::Placement;
pub use placement::{CpuExperts, GpuLayers, Side};
pub use probe::{Probe, ProbeReport, Timing};
pub use supervisor::Supervisor;
