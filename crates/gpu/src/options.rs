//! Typed options.

use cortiq_model::{KvDtype, Precision, StateLimits};

/// Graphics interface to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Vulkan.
    Vulkan,
    /// Direct3D 12.
    Dx12,
    /// Metal.
    Metal,
}

impl Backend {
    /// Its name, as adapters give it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vulkan => "vulkan",
            Self::Dx12 => "dx12",
            Self::Metal => "metal",
        }
    }
}

/// Which adapter to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterChoice {
    /// Only this interface; all of them when absent.
    pub backend: Option<Backend>,
    /// Whether an adapter that computes on the CPU (llvmpipe) is accepted. Real ones come first all the same.
    pub allow_software: bool,
    /// Whether matrix units are left alone, as on a device that has none: to measure and to test the other kernels.
    pub without_matrix_units: bool,
}

/// How the executor uses the device.
#[derive(Clone, Copy, Debug)]
pub struct GpuOptions {
    /// How exact.
    pub precision: Precision,
    /// How keys and values are kept: f32 or f16.
    pub kv: KvDtype,
    /// Limits on sequence state.
    pub limits: StateLimits,
    /// Bytes of device memory that weights, state and scratch may take; what the device has when none
    /// ([`crate::Budget::of`]).
    pub budget: Option<u64>,
    /// Rows of the longest submission; longer batches are cut, which also keeps them under driver watchdogs.
    pub max_rows: usize,
}

impl GpuOptions {
    /// The fast mode within `limits`, with an f16 cache.
    pub fn new(limits: StateLimits) -> Self {
        let (precision, kv) = (Precision::Fast, Self::kv_of(Precision::Fast));
        Self { precision, kv, limits, budget: None, max_rows: 512 }
    }

    /// How keys and values are kept with a precision when nobody asks for another way.
    pub fn kv_of(precision: Precision) -> KvDtype {
        match precision {
            Precision::Exact => KvDtype::F32,
            Precision::Fast => KvDtype::F16,
        }
    }

    /// With another precision, and keys and values as they fit to it.
    pub fn with_precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self.kv = Self::kv_of(precision);
        self
    }
}
