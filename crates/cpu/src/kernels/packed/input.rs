//! Rows of activations, quantised in groups of 32 columns with an f32 scale each.

use cortiq_quant::{GROUP, MatrixView, f16_to_f32};
use smallvec::SmallVec;

use super::super::Isa;
use super::super::tile::LANES;
use crate::pool::{Pool, WorkerPanicked};

/// Elements below which one thread quantises alone: about as long as waking another takes.
const ALONE: usize = 1 << 14;

/// Bits of an input code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputBits {
    /// -127 to 127.
    Eight,
    /// -32767 to 32767.
    #[default]
    Sixteen,
}

impl InputBits {
    fn largest(self) -> f32 {
        match self {
            Self::Eight => 127.0,
            Self::Sixteen => 32767.0,
        }
    }

    /// f32 words that a group's codes take.
    fn words(self) -> usize {
        match self {
            Self::Eight => GROUP / 4,
            Self::Sixteen => GROUP / 2,
        }
    }
}

/// Where the parts of a row's record are, in f32 words: scales, then per group scale times sum of the codes, both
/// padded with zeros to whole vectors, then the codes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    padded: usize,
    words: usize,
}

impl Layout {
    fn of(cols: usize, width: InputBits) -> Self {
        let groups = cols / GROUP;
        let padded = groups.next_multiple_of(LANES);
        Self { padded, words: 2 * padded + groups * width.words() }
    }
}

/// Quantised rows of one step, kept so that steps do not allocate.
#[derive(Default)]
pub(crate) struct Inputs {
    /// Grows only.
    words: Vec<f32>,
    used: usize,
    entries: SmallVec<[Entry; 8]>,
}

/// Rows that are quantised for the same matrices.
struct Entry {
    /// What they were made from.
    source: (*const f32, usize),
    /// Column scales that are in them.
    columns: *const [u8; 2],
    split: bool,
    width: InputBits,
    start: usize,
    layout: Layout,
    rows: usize,
    cols: usize,
}

// SAFETY: the pointers are only compared, never read.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

/// Whether codes of a group are kept as even columns, then odd ones: weights of four bits come out in that order.
fn splits(view: &MatrixView<'_>) -> bool {
    matches!(view, MatrixView::Q4Block(_) | MatrixView::Q4Tiled(_))
}

/// Column scales of a matrix, which belong to its input.
fn column_scales<'a>(view: &MatrixView<'a>) -> Option<&'a [[u8; 2]]> {
    match view {
        MatrixView::Q8_2f(view) => Some(view.col_scales()),
        _ => None,
    }
}

impl Inputs {
    /// Forgets all rows.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.entries.clear();
    }

    /// Index of the rows of `x` as `view` wants them, quantised now unless that was done since the last
    /// [`Inputs::clear`]. The caller must not change `x` in between.
    pub(crate) fn prepare(
        &mut self,
        pool: &mut Pool,
        isa: Isa,
        view: &MatrixView<'_>,
        x: &[f32],
        width: InputBits,
    ) -> Result<usize, WorkerPanicked> {
        let (cols, columns, split) = (view.cols(), column_scales(view), splits(view));
        let columns_at = columns.map_or(std::ptr::null(), <[_]>::as_ptr);
        let source = (x.as_ptr(), x.len());
        let known = |e: &Entry| {
            e.source == source && e.columns == columns_at && e.split == split && e.width == width && e.cols == cols
        };
        if let Some(index) = self.entries.iter().position(known) {
            return Ok(index);
        }
        let (layout, rows, start) = (Layout::of(cols, width), x.len() / cols, self.used);
        self.used += rows * layout.words;
        if self.words.len() < self.used {
            self.words.resize(self.used, 0.0);
        }
        let quantise = |row: usize, record: &mut [f32]| {
            isa.quantise(&x[row * cols..(row + 1) * cols], columns, (width, split), record);
        };
        let records = &mut self.words[start..self.used];
        if x.len() <= ALONE {
            records.chunks_exact_mut(layout.words).enumerate().for_each(|(row, record)| quantise(row, record));
        } else {
            pool.run_parts(records, layout.words, 1, |_, row, record| quantise(row, record))?;
        }
        self.entries.push(Entry { source, columns: columns_at, split, width, start, layout, rows, cols });
        Ok(self.entries.len() - 1)
    }

    /// All rows of an entry.
    pub(crate) fn rows(&self, index: usize) -> InputRows<'_> {
        let entry = &self.entries[index];
        let words = &self.words[entry.start..entry.start + entry.rows * entry.layout.words];
        InputRows { words, layout: entry.layout, split: entry.split, width: entry.width, cols: entry.cols }
    }
}

/// Quantised rows.
#[derive(Clone, Copy)]
pub(crate) struct InputRows<'a> {
    words: &'a [f32],
    layout: Layout,
    split: bool,
    width: InputBits,
    cols: usize,
}

impl<'a> InputRows<'a> {
    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.words.len() / self.layout.words
    }

    /// Their width in columns.
    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Bits of the codes.
    pub(crate) fn width(&self) -> InputBits {
        self.width
    }

    /// Some of the rows.
    pub(crate) fn range(self, first: usize, count: usize) -> Self {
        Self { words: &self.words[first * self.layout.words..][..count * self.layout.words], ..self }
    }

    /// One row.
    #[inline(always)]
    pub(crate) fn row(&self, index: usize) -> InputRow<'a> {
        let record = &self.words[index * self.layout.words..][..self.layout.words];
        let (scales, rest) = record.split_at(self.layout.padded);
        let (sums, codes) = rest.split_at(self.layout.padded);
        InputRow { scales, sums, codes: bytemuck::cast_slice(codes), split: self.split }
    }
}

/// One quantised row.
#[derive(Clone, Copy)]
pub(crate) struct InputRow<'a> {
    /// Per group, padded with zeros to whole vectors.
    pub(crate) scales: &'a [f32],
    /// Per group: scale times sum of the codes; padded likewise.
    pub(crate) sums: &'a [f32],
    /// Codes, one or two bytes each.
    pub(crate) codes: &'a [u8],
    /// Whether even columns of a group come first.
    split: bool,
}

impl InputRow<'_> {
    /// The value that a column stands for.
    #[inline(always)]
    pub(crate) fn value(&self, width: InputBits, col: usize) -> f32 {
        let k = col % GROUP;
        let at = if self.split { col - k + k % 2 * (GROUP / 2) + k / 2 } else { col };
        let code = match width {
            InputBits::Eight => f32::from(self.codes[at] as i8),
            InputBits::Sixteen => f32::from(i16::from_ne_bytes([self.codes[2 * at], self.codes[2 * at + 1]])),
        };
        code * self.scales[col / GROUP]
    }
}

/// Below it a group counts as zero: the inverse of its scale would not be finite.
const SMALLEST: f32 = 1e-30;

/// 1.5 · 2²³: a sum with it has the nearest integer, half to even, in its low bits.
const ROUNDER: f32 = 12_582_912.0;

/// See [`Isa::quantise`]. A value that is not finite makes the scale of its group so, and with it the products.
#[inline(always)]
pub(super) fn quantise(x: &[f32], columns: Option<&[[u8; 2]]>, (width, split): (InputBits, bool), record: &mut [f32]) {
    let layout = Layout::of(x.len(), width);
    let (scales, rest) = record.split_at_mut(layout.padded);
    let (sums, codes) = rest.split_at_mut(layout.padded);
    let groups = x.len() / GROUP;
    scales[groups..].fill(0.0);
    sums[groups..].fill(0.0);
    let parts = scales.iter_mut().zip(sums.iter_mut()).zip(codes.chunks_exact_mut(width.words()));
    for (g, (((scale, sum), codes), x)) in parts.zip(x.as_chunks::<GROUP>().0).enumerate() {
        let scaled;
        let x = match columns {
            None => x,
            Some(columns) => {
                scaled = times_columns(x, &columns[g * GROUP..]);
                &scaled
            }
        };
        let (step, mut integers) = integers(x, width.largest());
        *scale = step;
        *sum = step * integers.iter().sum::<i32>() as f32;
        if split {
            let pairs = integers;
            for (k, pair) in pairs.as_chunks::<2>().0.iter().enumerate() {
                (integers[k], integers[GROUP / 2 + k]) = (pair[0], pair[1]);
            }
        }
        match width {
            InputBits::Eight => {
                let codes: &mut [i8] = bytemuck::cast_slice_mut(codes);
                codes.iter_mut().zip(&integers).for_each(|(code, i)| *code = *i as i8);
            }
            InputBits::Sixteen => {
                let codes: &mut [i16] = bytemuck::cast_slice_mut(codes);
                codes.iter_mut().zip(&integers).for_each(|(code, i)| *code = *i as i16);
            }
        }
    }
}

#[inline(always)]
fn times_columns(x: &[f32; GROUP], columns: &[[u8; 2]]) -> [f32; GROUP] {
    let mut out = *x;
    for (out, column) in out.iter_mut().zip(columns) {
        *out *= f16_to_f32(u16::from_le_bytes(*column));
    }
    out
}

/// Scale of a group and its codes.
#[inline(always)]
fn integers(x: &[f32; GROUP], largest: f32) -> (f32, [i32; GROUP]) {
    // As integers, magnitudes order like their values, and what is no number comes out on top.
    let peak = x.iter().fold(0i32, |peak, x| peak.max((x.to_bits() & 0x7FFF_FFFF) as i32));
    let peak = f32::from_bits(peak as u32);
    let mut codes = [0; GROUP];
    if peak < SMALLEST {
        return (0.0, codes);
    }
    let step = peak / largest;
    let inverse = largest / peak;
    if inverse > 0.0 {
        for (code, x) in codes.iter_mut().zip(x) {
            // At most `largest` by construction, and a code that is no number is as good as any: the scale is none.
            *code = ((x * inverse + ROUNDER).to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
        }
    }
    (step, codes)
}
