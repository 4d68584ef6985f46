//! The loops: register tiles of a few rows by a few inputs, and unpacking a tile of rows for many inputs.
//!
//! One input: four rows at a time, so that there are four chains and four streams; codes are unpacked in registers.
//! Several inputs: rows are unpacked once to bytes in the worker's cache, then tiles of two rows by up to four inputs.

use cortiq_quant::GROUP;

use super::super::tile::LANES;
use super::groups::{Bits8, Bits16, Groups, Input, Loops};
use super::input::{InputBits, InputRow};
use super::job::Job;

/// Rows of one dtype, as groups of 32 codes of a byte.
///
/// A row's value is `row_scale * Σ_g scale_g * (code - offset)`.
pub(crate) trait Rows<V: Groups> {
    /// Where a row is.
    type Row: Copy;
    /// Where a group is.
    type At: Copy;
    /// Whether codes are signed bytes; others are 0 to 127.
    const SIGNED: bool;
    /// Whether codes have an offset.
    const SHIFTED: bool;
    /// Whether groups have scales.
    const GROUPED: bool;
    /// Whether codes need more than a load.
    const PACKED: bool;
    /// Rows that are read side by side for one input: 1, 2 or 4.
    const TOGETHER: usize;

    /// Groups of a row.
    fn groups(&self) -> usize;
    /// Row `index`, which is below the matrix's rows.
    fn row(&self, index: usize) -> Self::Row;
    /// Where group `group` of a row is.
    ///
    /// # Safety
    /// `group` is below [`Rows::groups`].
    unsafe fn at(&self, row: Self::Row, group: usize) -> Self::At;
    /// Codes of the group that is `k` groups further on.
    ///
    /// # Safety
    /// That is below [`Rows::groups`].
    unsafe fn codes(at: Self::At, k: usize) -> V::Codes;
    /// Products of those codes with an input, the same lanes as by way of [`Rows::codes`].
    ///
    /// # Safety
    /// As [`Rows::codes`].
    #[inline(always)]
    unsafe fn dot<I: Input<V>>(at: Self::At, k: usize, x: &I::Group) -> V {
        // SAFETY: by the caller's promise.
        let codes = unsafe { Self::codes(at, k) };
        if Self::SIGNED { I::dot_signed(codes, x) } else { I::dot_unsigned(codes, x) }
    }
    /// Scales of eight groups from `group` on, 0 after the last group.
    ///
    /// # Safety
    /// `group` is below [`Rows::groups`].
    unsafe fn scales(&self, row: Self::Row, group: usize) -> V;
    /// Scale of the row; 1 where groups have scales.
    fn row_scale(&self, row: Self::Row) -> f32;
    /// Offset of the row's codes.
    fn offset(&self, row: Self::Row) -> f32;
}

/// `R` rows times `T` inputs.
#[inline(always)]
fn tile<V: Groups, I: Input<V>, M: Rows<V>, const R: usize, const T: usize>(
    matrix: &M,
    rows: [M::Row; R],
    x: [InputRow<'_>; T],
) -> [[f32; T]; R] {
    let groups = matrix.groups();
    let mut sums = [[V::zero(); T]; R];
    let mut corrections = [[V::zero(); T]; R];
    let whole = groups / LANES * LANES;
    let mut first = 0;
    while first < whole {
        // The number is a constant here, so that the loop is unrolled.
        vector::<V, I, M, R, T>(matrix, rows, &x, (first, LANES), &mut sums, &mut corrections);
        first += LANES;
    }
    if whole < groups {
        vector::<V, I, M, R, T>(matrix, rows, &x, (whole, groups - whole), &mut sums, &mut corrections);
    }
    let mut out = [[0.0; T]; R];
    for r in 0..R {
        for t in 0..T {
            out[r][t] = total(sums[r][t]) * matrix.row_scale(rows[r]);
            if M::SHIFTED {
                out[r][t] -= matrix.offset(rows[r]) * total(corrections[r][t]);
            }
        }
    }
    out
}

/// Up to eight groups from `first` on.
#[inline(always)]
fn vector<V: Groups, I: Input<V>, M: Rows<V>, const R: usize, const T: usize>(
    matrix: &M,
    rows: [M::Row; R],
    x: &[InputRow<'_>; T],
    (first, count): (usize, usize),
    sums: &mut [[V; T]; R],
    corrections: &mut [[V; T]; R],
) {
    let mut factors = [[[0.0f32; LANES]; T]; R];
    if M::GROUPED {
        for r in 0..R {
            // SAFETY: `first` is below the number of groups.
            let scales = unsafe { matrix.scales(rows[r], first) };
            for t in 0..T {
                lanes::<V>(x[t].scales, first).times(scales).store(&mut factors[r][t]);
                if M::SHIFTED {
                    corrections[r][t] = corrections[r][t].add_product(scales, lanes::<V>(x[t].sums, first));
                }
            }
        }
    }
    // SAFETY: `first` is below the number of groups, which an input row has as well, by `Job::check`.
    let (mut at, mut inputs) =
        unsafe { ([matrix.at(rows[0], first); R], [(I::group(x[0].codes.as_ptr(), first), x[0].scales.as_ptr()); T]) };
    // SAFETY: as above.
    unsafe {
        for r in 1..R {
            at[r] = matrix.at(rows[r], first);
        }
        for t in 0..T {
            inputs[t] = (I::group(x[t].codes.as_ptr(), first), x[t].scales.as_ptr().add(first));
        }
    }
    for k in 0..count {
        for r in 0..R {
            // SAFETY: `first + k` is below the number of groups.
            let codes = unsafe { M::codes(at[r], k) };
            for t in 0..T {
                // SAFETY: as above.
                let x_codes = unsafe { &*inputs[t].0.add(k) };
                let dots = match (T, M::SIGNED) {
                    // SAFETY: as above.
                    (1, _) => unsafe { M::dot::<I>(at[r], k, x_codes) },
                    (_, true) => I::dot_signed(codes, x_codes),
                    (_, false) => I::dot_unsigned(codes, x_codes),
                };
                // SAFETY: as above; `k` is below LANES.
                let factor = unsafe { if M::GROUPED { *factors[r][t].get_unchecked(k) } else { *inputs[t].1.add(k) } };
                sums[r][t] = sums[r][t].add_product(dots, V::splat(factor));
            }
        }
    }
}

/// Eight values of a padded row of floats.
#[inline(always)]
fn lanes<V: Groups>(values: &[f32], first: usize) -> V {
    let padded = values.as_chunks::<LANES>().0;
    // SAFETY: rows of scales and sums are padded to whole vectors, and `first` is a multiple of LANES below the groups.
    V::load(unsafe { padded.get_unchecked(first / LANES) })
}

#[inline(always)]
fn total<V: Groups>(sum: V) -> f32 {
    let s = sum.to_array();
    ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

/// A tile's products, written to their places.
#[inline(always)]
fn tile_into<V: Groups, I: Input<V>, M: Rows<V>, const R: usize, const T: usize>(
    matrix: &M,
    job: &mut Job<'_>,
    (row, token): (usize, usize),
) {
    let mut rows = [matrix.row(job.first_row + row); R];
    for (r, place) in rows.iter_mut().enumerate() {
        *place = matrix.row(job.first_row + row + r);
    }
    let mut x = [job.x.row(token); T];
    for (t, place) in x.iter_mut().enumerate() {
        *place = job.x.row(token + t);
    }
    let sums = tile::<V, I, M, R, T>(matrix, rows, x);
    for (r, sums) in sums.iter().enumerate() {
        for (t, sum) in sums.iter().enumerate() {
            job.out[(token + t) * job.rows + row + r] = *sum;
        }
    }
}

/// All rows of a job times its only input.
#[inline(always)]
pub(crate) fn one<V: Groups, I: Input<V>, M: Rows<V>>(matrix: &M, job: &mut Job<'_>) {
    let mut row = 0;
    while M::TOGETHER >= 4 && row + 4 <= job.rows {
        tile_into::<V, I, M, 4, 1>(matrix, job, (row, 0));
        row += 4;
    }
    while M::TOGETHER >= 2 && row + 2 <= job.rows {
        tile_into::<V, I, M, 2, 1>(matrix, job, (row, 0));
        row += 2;
    }
    while row < job.rows {
        tile_into::<V, I, M, 1, 1>(matrix, job, (row, 0));
        row += 1;
    }
}

/// All rows of a job times all inputs.
#[inline(always)]
pub(crate) fn many<V: Groups, I: Input<V>, M: Rows<V>>(matrix: &M, job: &mut Job<'_>) {
    let mut token = 0;
    while token + 4 <= job.x.len() {
        column::<V, I, M, 4>(matrix, job, token);
        token += 4;
    }
    match job.x.len() - token {
        3 => column::<V, I, M, 3>(matrix, job, token),
        2 => column::<V, I, M, 2>(matrix, job, token),
        1 => column::<V, I, M, 1>(matrix, job, token),
        _ => {}
    }
}

/// All rows of a job times `T` inputs.
#[inline(always)]
fn column<V: Groups, I: Input<V>, M: Rows<V>, const T: usize>(matrix: &M, job: &mut Job<'_>, token: usize) {
    let mut row = 0;
    while row + 2 <= job.rows {
        tile_into::<V, I, M, 2, T>(matrix, job, (row, token));
        row += 2;
    }
    if row < job.rows {
        tile_into::<V, I, M, 1, T>(matrix, job, (row, token));
    }
}

/// Products of the rows of a matrix of one form.
pub(crate) fn products<V: Loops, M: Rows<V>>(matrix: &M, mut job: Job<'_>) {
    if job.x.len() == 1 {
        one_of(matrix, &mut job);
    } else if M::PACKED {
        products_of_many::<V>(&mut job, M::SIGNED, |job, target| V::unpack(matrix, job.first_row, target.all()));
    } else {
        many_of(matrix, &mut job);
    }
}

/// Products of one input with rows as they are.
pub(crate) fn one_of<V: Loops, M: Rows<V>>(matrix: &M, job: &mut Job<'_>) {
    match job.x.width() {
        InputBits::Eight => V::one::<Bits8, M>(matrix, job),
        InputBits::Sixteen => V::one::<Bits16, M>(matrix, job),
    }
}

fn many_of<V: Loops, M: Rows<V>>(matrix: &M, job: &mut Job<'_>) {
    match job.x.width() {
        InputBits::Eight => V::many::<Bits8, M>(matrix, job),
        InputBits::Sixteen => V::many::<Bits16, M>(matrix, job),
    }
}

/// Products of several inputs with rows that `fill` unpacks to signed or unsigned bytes.
pub(crate) fn products_of_many<V: Loops>(
    job: &mut Job<'_>,
    signed: bool,
    fill: impl FnOnce(&Job<'_>, &mut Unpacked<'_>),
) {
    let scratch = std::mem::take(&mut job.scratch);
    let mut rows = Unpacked::new(scratch, job.rows, job.x.cols());
    fill(job, &mut rows);
    // Unpacked rows are counted from the first of the job.
    job.first_row = 0;
    if signed { many_of::<V, _>(&Bytes::<true>(&rows), job) } else { many_of::<V, _>(&Bytes::<false>(&rows), job) }
}

/// Rows unpacked to bytes.
pub(crate) struct Unpacked<'a> {
    groups: usize,
    codes: &'a mut [[u8; GROUP]],
    /// Padded with zeros to whole vectors.
    scales: &'a mut [[f32; LANES]],
    offsets: &'a mut [f32],
}

impl<'a> Unpacked<'a> {
    fn new(scratch: &'a mut [f32], rows: usize, cols: usize) -> Self {
        let groups = cols / GROUP;
        let (codes, rest) = scratch.split_at_mut(rows * cols / 4);
        let (scales, rest) = rest.split_at_mut(rows * groups.next_multiple_of(LANES));
        Self {
            groups,
            codes: bytemuck::cast_slice_mut::<f32, u8>(codes).as_chunks_mut().0,
            scales: scales.as_chunks_mut().0,
            offsets: &mut rest[..rows],
        }
    }
}

impl Unpacked<'_> {
    /// The same rows, borrowed anew.
    fn all(&mut self) -> Unpacked<'_> {
        Unpacked { groups: self.groups, codes: self.codes, scales: self.scales, offsets: self.offsets }
    }

    /// One row alone.
    pub(crate) fn row(&mut self, at: usize) -> Unpacked<'_> {
        let (groups, vectors) = (self.groups, self.groups.div_ceil(LANES));
        Unpacked {
            groups,
            codes: &mut self.codes[at * groups..(at + 1) * groups],
            scales: &mut self.scales[at * vectors..(at + 1) * vectors],
            offsets: &mut self.offsets[at..at + 1],
        }
    }
}

/// Unpacks rows of `matrix` from `first` on, as many as `target` has.
#[inline(always)]
pub(crate) fn unpack<V: Groups, M: Rows<V>>(matrix: &M, first: usize, target: Unpacked<'_>) {
    let groups = matrix.groups();
    assert!(groups == target.groups, "rows as wide");
    let vectors = groups.div_ceil(LANES);
    let parts = target.codes.chunks_exact_mut(groups).zip(target.scales.chunks_exact_mut(vectors));
    for (r, ((codes, scales), offset)) in parts.zip(target.offsets.iter_mut()).enumerate() {
        let row = matrix.row(first + r);
        for (g, codes) in codes.iter_mut().enumerate() {
            // SAFETY: there are `groups` of them.
            V::store_codes(unsafe { M::codes(matrix.at(row, g), 0) }, codes);
        }
        for (v, scales) in scales.iter_mut().enumerate() {
            // SAFETY: `v` is below the number of vectors that `groups` take.
            unsafe { matrix.scales(row, v * LANES) }.store(scales);
        }
        *offset = matrix.offset(row);
    }
}

/// Unpacked rows as a matrix.
struct Bytes<'a, const SIGNED: bool>(&'a Unpacked<'a>);

impl<V: Groups, const SIGNED: bool> Rows<V> for Bytes<'_, SIGNED> {
    type Row = usize;
    type At = *const [u8; GROUP];
    const SIGNED: bool = SIGNED;
    const SHIFTED: bool = true;
    const GROUPED: bool = true;
    const PACKED: bool = false;
    const TOGETHER: usize = 4;

    #[inline(always)]
    fn groups(&self) -> usize {
        self.0.groups
    }

    #[inline(always)]
    fn row(&self, index: usize) -> usize {
        assert!(index < self.0.offsets.len(), "an unpacked row");
        index
    }

    #[inline(always)]
    unsafe fn at(&self, row: usize, group: usize) -> Self::At {
        // SAFETY: `row` was checked when it was made, `group` is the caller's promise.
        unsafe { self.0.codes.as_ptr().add(row * self.0.groups + group) }
    }

    #[inline(always)]
    unsafe fn codes(at: Self::At, k: usize) -> V::Codes {
        // SAFETY: the row has the group by the caller's promise.
        V::load_codes(unsafe { &*at.add(k) })
    }

    #[inline(always)]
    unsafe fn scales(&self, row: usize, group: usize) -> V {
        // SAFETY: as above.
        V::load(unsafe { self.0.scales.get_unchecked(row * self.0.groups.div_ceil(LANES) + group / LANES) })
    }

    #[inline(always)]
    fn row_scale(&self, _row: usize) -> f32 {
        1.0
    }

    #[inline(always)]
    fn offset(&self, row: usize) -> f32 {
        self.0.offsets[row]
    }
}
