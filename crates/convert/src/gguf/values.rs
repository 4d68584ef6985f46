//! Values of a canonical tensor: only the rows it takes are expanded.

use std::ops::Range;

use super::plan::{Planned, Rows, Tiles, Values};
use super::{GgmlType, GgufError, GgufFile, dequantize};

/// How the values of one tensor are read; the shapes are checked.
pub(super) struct Recipe {
    name: String,
    rows: Rows,
    values: Values,
    /// Values of a row in the file.
    columns: u64,
    /// Number of values that must come out.
    count: u64,
}

impl Recipe {
    pub(super) fn new(planned: &Planned) -> Self {
        let columns = if planned.stored.len() > 1 { planned.stored.last().copied().unwrap_or(1) } else { 1 };
        Self {
            name: planned.gguf.clone(),
            rows: planned.rows.clone(),
            values: planned.values,
            columns,
            count: planned.shape.iter().fold(1, |n, &d| n.saturating_mul(d)),
        }
    }

    /// Reads tensor `index`, and `also` where the recipe takes two.
    pub(super) fn read(&self, file: &GgufFile, index: usize, also: Option<usize>) -> Result<Vec<f32>, GgufError> {
        let mut values = match self.rows.ranges() {
            None => all(file, index)?,
            Some(ranges) => select(file, index, &ranges, self.columns)?,
        };
        match self.values {
            Values::AsStored => {}
            Values::MinusOne => values.iter_mut().for_each(|v| *v -= 1.0),
            Values::LogOfNegated => {
                for value in &mut values {
                    *value = self.log_of_negated(*value)?;
                }
            }
            Values::TiledColumns(tiles) => values = untile_columns(&values, self.columns, tiles),
            Values::LatentKv { heads, rank, nope, value } => {
                let v = all(file, also.ok_or(GgufError::FileChanged)?)?;
                values = latent_kv(&values, &v, [heads, rank, nope, value].map(|n| n as usize));
            }
        }
        if values.len() as u64 == self.count {
            Ok(values)
        } else {
            let reason = format!("gives {} values instead of {}", values.len(), self.count);
            Err(GgufError::malformed(format!("tensor `{}`", self.name), reason))
        }
    }

    fn log_of_negated(&self, value: f32) -> Result<f32, GgufError> {
        let log = f64::from(-value).ln() as f32;
        if log.is_finite() {
            Ok(log)
        } else {
            let reason = format!("has the value {value}, which is no negative decay rate");
            Err(GgufError::malformed(format!("tensor `{}`", self.name), reason))
        }
    }
}

fn source(file: &GgufFile, index: usize) -> Result<(GgmlType, &[u8]), GgufError> {
    let record = file.tensors().get(index).ok_or(GgufError::FileChanged)?;
    Ok((record.ggml_type()?, file.data(record)?))
}

fn all(file: &GgufFile, index: usize) -> Result<Vec<f32>, GgufError> {
    let (ggml_type, data) = source(file, index)?;
    dequantize(ggml_type, data)
}

/// The rows `ranges` of `columns` values each.
fn select(file: &GgufFile, index: usize, ranges: &[Range<u64>], columns: u64) -> Result<Vec<f32>, GgufError> {
    let (ggml_type, data) = source(file, index)?;
    let block = ggml_type.block_len() as u64;
    if columns.is_multiple_of(block) {
        // Rows are whole blocks, so that the others need not be expanded.
        let row_bytes = columns / block * ggml_type.block_bytes() as u64;
        let mut bytes = Vec::new();
        for range in ranges {
            bytes.extend_from_slice(run(data, range, row_bytes)?);
        }
        dequantize(ggml_type, &bytes)
    } else {
        let values = dequantize(ggml_type, data)?;
        let mut out = Vec::new();
        for range in ranges {
            out.extend_from_slice(run(&values, range, columns)?);
        }
        Ok(out)
    }
}

/// The items of the rows `range`, `row` items each.
fn run<'a, T>(items: &'a [T], range: &Range<u64>, row: u64) -> Result<&'a [T], GgufError> {
    let at = |n: u64| n.checked_mul(row).and_then(|n| usize::try_from(n).ok());
    let found = at(range.start).zip(at(range.end)).and_then(|(start, end)| items.get(start..end));
    found.ok_or(GgufError::FileChanged)
}

fn untile_columns(values: &[f32], columns: u64, tiles: Tiles) -> Vec<f32> {
    let ranges: Vec<Range<usize>> = tiles.ranges().map(|r| r.start as usize..r.end as usize).collect();
    let mut out = Vec::with_capacity(values.len());
    for row in values.chunks_exact((columns as usize).max(1)) {
        out.extend(ranges.iter().filter_map(|range| row.get(range.clone())).flatten());
    }
    out
}

/// See [`Values::LatentKv`]; the key part of a head is transposed.
fn latent_kv(k: &[f32], v: &[f32], [heads, rank, nope, value]: [usize; 4]) -> Vec<f32> {
    let mut out = Vec::with_capacity(k.len() + v.len());
    for head in 0..heads {
        let k = k.get(head * rank * nope..).unwrap_or_default();
        for row in 0..nope {
            out.extend((0..rank).filter_map(|column| k.get(column * nope + row)));
        }
        out.extend(v.iter().skip(head * value * rank).take(value * rank));
    }
    out
}
