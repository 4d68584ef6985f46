//! Rows of keys and values in their storage type, as readers see them.

use std::borrow::Cow;

use half::f16;

/// Stored numbers of one head in one block, `[count, width]` row by row.
#[derive(Clone, Copy, Debug)]
pub enum KvValues<'a> {
    /// The numbers.
    F32(&'a [f32]),
    /// Bit patterns of half precision.
    F16(&'a [u16]),
    /// A number is its code times the scale of its column.
    Q8Channel {
        /// `[count, width]`.
        codes: &'a [i8],
        /// `[width]`.
        scales: &'a [f32],
    },
    /// A number is its code times the scale of its row.
    Q8Row {
        /// `[count, width]`.
        codes: &'a [i8],
        /// `[count]`.
        scales: &'a [f32],
    },
}

/// Keys or values of one head in one block.
#[derive(Clone, Copy, Debug)]
pub struct KvRows<'a> {
    values: KvValues<'a>,
    width: usize,
}

impl<'a> KvRows<'a> {
    pub(super) fn new(values: KvValues<'a>, width: usize) -> Self {
        Self { values, width }
    }

    /// The numbers as they are stored.
    pub fn values(&self) -> KvValues<'a> {
        self.values
    }

    /// Numbers per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn count(&self) -> usize {
        let numbers = match self.values {
            KvValues::F32(rows) => rows.len(),
            KvValues::F16(rows) => rows.len(),
            KvValues::Q8Channel { codes, .. } | KvValues::Q8Row { codes, .. } => codes.len(),
        };
        numbers.checked_div(self.width).unwrap_or(0)
    }

    /// All but the first `rows` rows, of which there are as many.
    pub fn skip(&self, rows: usize) -> Self {
        let from = rows * self.width;
        let values = match self.values {
            KvValues::F32(all) => KvValues::F32(&all[from..]),
            KvValues::F16(all) => KvValues::F16(&all[from..]),
            KvValues::Q8Channel { codes, scales } => KvValues::Q8Channel { codes: &codes[from..], scales },
            KvValues::Q8Row { codes, scales } => KvValues::Q8Row { codes: &codes[from..], scales: &scales[rows..] },
        };
        Self { values, ..*self }
    }

    /// The numbers in f32, `[count, width]`; copied only where they are stored in another type.
    pub fn to_f32(&self) -> Cow<'a, [f32]> {
        if let KvValues::F32(rows) = self.values {
            return Cow::Borrowed(rows);
        }
        let mut out = vec![0.0; self.count() * self.width];
        self.decode(&mut out);
        Cow::Owned(out)
    }

    /// Writes the numbers to `out`, `[count, width]`.
    pub fn decode(&self, out: &mut [f32]) {
        if self.width == 0 {
            return;
        }
        match self.values {
            KvValues::F32(rows) => out.copy_from_slice(rows),
            KvValues::F16(rows) => out.iter_mut().zip(rows).for_each(|(y, x)| *y = f16::from_bits(*x).to_f32()),
            KvValues::Q8Channel { codes, scales } => {
                for (out, codes) in out.chunks_exact_mut(self.width).zip(codes.chunks_exact(self.width)) {
                    out.iter_mut().zip(codes).zip(scales).for_each(|((y, code), s)| *y = f32::from(*code) * s);
                }
            }
            KvValues::Q8Row { codes, scales } => {
                let rows = out.chunks_exact_mut(self.width).zip(codes.chunks_exact(self.width));
                for ((out, codes), scale) in rows.zip(scales) {
                    out.iter_mut().zip(codes).for_each(|(y, code)| *y = f32::from(*code) * scale);
                }
            }
        }
    }
}

/// Half precision, nearest even. A finite number does not become infinite.
pub(super) fn to_half(value: f32) -> u16 {
    let largest = f16::MAX.to_f32();
    let value = if value.is_finite() { value.clamp(-largest, largest) } else { value };
    f16::from_f32(value).to_bits()
}

/// Scale with which the largest of `values` gets the code 127; NaN where a value is not finite, so that this shows.
pub(super) fn scale_of(values: impl Iterator<Item = f32>) -> f32 {
    // `max` would hide a NaN.
    let largest = values.fold(0.0f32, |largest, value| {
        let value = value.abs();
        if value > largest || value.is_nan() { value } else { largest }
    });
    if largest.is_finite() { largest / 127.0 } else { f32::NAN }
}

/// The code of a value, -127 to 127: at most half a scale off.
pub(super) fn code_of(value: f32, scale: f32) -> i8 {
    // 0 / 0 where all values are 0: its code is 0.
    (value / scale).round_ties_even().clamp(-127.0, 127.0) as i8
}
