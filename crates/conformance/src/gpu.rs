//! The gpu executor on whatever adapter the machine has, software ones included.

use std::sync::{Arc, OnceLock};

use cortiq_gpu::{AdapterChoice, Gpu, GpuExecutor, GpuOptions, Precision};
use cortiq_model::StateLimits;

use crate::Model;

/// The device of this process.
///
/// # Panics
/// When the machine has no adapter: a suite without one proves nothing.
#[allow(clippy::expect_used)]
pub fn test_gpu() -> Arc<Gpu> {
    static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();
    let open = || {
        let choice = AdapterChoice { allow_software: true, ..AdapterChoice::default() };
        Arc::new(Gpu::open(&choice).expect("an adapter; on Debian, mesa-vulkan-drivers has a software one"))
    };
    Arc::clone(GPU.get_or_init(open))
}

impl Model {
    /// The gpu executor.
    ///
    /// # Panics
    /// When it refuses the model.
    #[allow(clippy::expect_used)]
    pub fn gpu(&self, precision: Precision, limits: StateLimits) -> GpuExecutor {
        let options = GpuOptions::new(limits).with_precision(precision);
        GpuExecutor::new(test_gpu(), self.program(), Arc::clone(&self.weights), options).expect("a gpu executor")
    }
}
