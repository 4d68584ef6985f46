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

/// The device of this process, and the same without its matrix units where it has some: both kinds of kernels.
///
/// # Panics
/// When the machine has no adapter.
#[allow(clippy::expect_used)]
pub fn test_gpus() -> Vec<Arc<Gpu>> {
    let mut gpus = vec![test_gpu()];
    if gpus[0].caps().coop.is_some() {
        let choice = AdapterChoice { allow_software: true, without_matrix_units: true, ..AdapterChoice::default() };
        gpus.push(Arc::new(Gpu::open(&choice).expect("the adapter once more")));
    }
    gpus
}

impl Model {
    /// The gpu executor.
    ///
    /// # Panics
    /// When it refuses the model.
    #[allow(clippy::expect_used)]
    pub fn gpu(&self, precision: Precision, limits: StateLimits) -> GpuExecutor {
        self.gpu_on(test_gpu(), precision, limits)
    }

    /// The gpu executor on a device.
    ///
    /// # Panics
    /// When it refuses the model.
    #[allow(clippy::expect_used)]
    pub fn gpu_on(&self, gpu: Arc<Gpu>, precision: Precision, limits: StateLimits) -> GpuExecutor {
        let options = GpuOptions::new(limits).with_precision(precision);
        GpuExecutor::new(gpu, self.program(), Arc::clone(&self.weights), options).expect("a gpu executor")
    }
}
