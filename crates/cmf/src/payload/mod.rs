//! Checks of payloads that have an inner structure (docs/cmf-format.md §7.6 to §7.10). The
//! other dtypes are fixed by their length alone.

mod q1s;
mod q1t;
mod vbit;

use crate::{CmfError, Dtype};

/// A payload with what is needed to check it.
#[derive(Clone, Copy)]
pub(crate) struct Payload<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [u32],
    pub(crate) bytes: &'a [u8],
}

impl<'a> Payload<'a> {
    /// Checks the inner structure. Dtype, rank, columns and fixed lengths have been checked
    /// by the directory. Reads the whole payload for `q1t`, all entries for `q1s`, widths
    /// and offsets for `vbit` and `vbit_ro`, nothing for other dtypes.
    pub(crate) fn check(self) -> Result<(), CmfError> {
        match self.dtype {
            Dtype::Vbit => vbit::check(self, false),
            Dtype::VbitRo => vbit::check(self, true),
            Dtype::Q1s => q1s::check(self),
            Dtype::Q1t => q1t::check(self),
            _ => Ok(()),
        }
    }

    /// Rows and columns of a matrix (0 where a dimension is missing).
    fn matrix(self) -> (u64, u64) {
        let dim = |i: usize| u64::from(self.shape.get(i).copied().unwrap_or(0));
        (dim(0), dim(1))
    }

    /// Splits off the fixed part of `needed` bytes.
    fn split(self, needed: u64) -> Result<(&'a [u8], &'a [u8]), CmfError> {
        usize::try_from(needed).ok().and_then(|n| self.bytes.split_at_checked(n)).ok_or_else(|| {
            CmfError::PayloadTruncated {
                name: self.name.into(),
                dtype: self.dtype.name(),
                needed,
                found: self.bytes.len() as u64,
            }
        })
    }

    /// Compares the payload's length with the exact one.
    fn check_total(self, expected: u64) -> Result<(), CmfError> {
        let found = self.bytes.len() as u64;
        if found == expected {
            return Ok(());
        }
        Err(CmfError::PayloadLength { name: self.name.into(), dtype: self.dtype.name(), expected, found })
    }
}
