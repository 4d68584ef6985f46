//! q1s, docs/cmf-format.md §7.9.

use super::Payload;
use crate::CmfError;
use crate::dtype::{GROUP, element_count};

/// Base of 6 bytes per group, `u32` count, then entries `(u32 index, f16 value)`.
pub(super) fn check(payload: Payload<'_>) -> Result<(), CmfError> {
    let elements = element_count(payload.shape).unwrap_or(u64::MAX);
    let base = elements.div_ceil(GROUP).saturating_mul(6);
    let fixed = base.saturating_add(4);
    let (head, entries) = payload.split(fixed)?;
    let count = head.last_chunk::<4>().map_or(0, |raw| u32::from_le_bytes(*raw));
    payload.check_total(fixed.saturating_add(6 * u64::from(count)))?;

    let mut before = None;
    for (entry, raw) in entries.as_chunks::<6>().0.iter().enumerate() {
        let [a, b, c, d, _, _] = *raw;
        let index = u32::from_le_bytes([a, b, c, d]);
        if u64::from(index) >= elements {
            return Err(CmfError::Q1sIndexRange { name: payload.name.into(), entry: entry as u64, index, elements });
        }
        if before.is_some_and(|before| before >= index) {
            return Err(CmfError::Q1sIndexOrder { name: payload.name.into(), entry: entry as u64 });
        }
        before = Some(index);
    }
    Ok(())
}
