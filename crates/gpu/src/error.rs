//! Errors of this crate.

use std::fmt::{self, Display};

use cortiq_model::ModelError;
use thiserror::Error;

use crate::residency::{BudgetOrigin, Need};

/// What can go wrong on a device.
#[derive(Debug, Error)]
pub enum GpuError {
    /// No adapter fits the request.
    #[error("no GPU adapter: {0}")]
    NoAdapter(String),
    /// The driver refused to open the adapter.
    #[error("cannot open the GPU {adapter}: {reason}")]
    Open {
        /// Name of the adapter.
        adapter: String,
        /// The driver's words.
        reason: String,
    },
    /// A shader did not compile. A fault of this crate or of the driver.
    #[error("shader {shader}: {reason}")]
    Shader {
        /// Name of the shader.
        shader: String,
        /// The compiler's words.
        reason: String,
    },
    /// The model does not fit into the memory that it may use.
    #[error(
        "this part of the model needs {} of GPU memory (weights {}, state of a sequence of {} positions {}, scratch {}) and may use \
        {} ({origin}); smaller weights, a shorter context, a larger budget, fewer layers or the cpu executor help",
        Mib::up(need.total()), Mib::up(need.weights), need.positions, Mib::up(need.state), Mib::up(need.scratch),
        Mib::down(*budget)
    )]
    OverBudget {
        /// What it needs.
        need: Need,
        /// Bytes that it may use.
        budget: u64,
        /// Who says so.
        origin: BudgetOrigin,
    },
    /// The device has no memory left.
    #[error("the GPU has no memory left: {0}")]
    OutOfMemory(String),
    /// The driver refused an operation.
    #[error("the GPU refused an operation: {0}")]
    Refused(String),
    /// The device is gone; a new one must be opened.
    #[error("the GPU was lost: {0}")]
    Lost(String),
    /// The device did not answer in time.
    #[error("the GPU did not answer within {0} s")]
    Timeout(u64),
    /// Something that this executor cannot run.
    #[error("the gpu executor cannot run {0}")]
    Unsupported(String),
    /// A fault of the model or of the batch.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl From<GpuError> for ModelError {
    fn from(error: GpuError) -> Self {
        match error {
            GpuError::Model(error) => error,
            lost @ (GpuError::Lost(_) | GpuError::Timeout(_)) => ModelError::DeviceLost(lost.to_string()),
            other => ModelError::Executor(other.to_string()),
        }
    }
}

/// A number of MiB for messages, rounded so that a need never looks as if it fitted.
struct Mib(u64);

impl Mib {
    fn up(bytes: u64) -> Self {
        Self(bytes.div_ceil(1 << 20))
    }

    fn down(bytes: u64) -> Self {
        Self(bytes >> 20)
    }
}

impl Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.0)
    }
}
