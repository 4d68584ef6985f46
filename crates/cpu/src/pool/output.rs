//! Jobs that write parts of a buffer: the pool hands every item its own part, so that operations need no `unsafe`.

use std::marker::PhantomData;
use std::ops::Range;

use super::{Pool, Scratch, WorkerPanicked};

/// A slice that several workers write, each elsewhere.
#[derive(Clone, Copy)]
struct Shared<'a> {
    start: *mut f32,
    len: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: writes go through `part`, whose callers (in this file) never hold two overlapping parts.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    fn new(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), lifetime: PhantomData }
    }

    /// # Safety
    /// While the result lives, nobody else may hold an overlapping part.
    unsafe fn part(&self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "part outside of a shared slice");
        // SAFETY: inside the slice by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }
}

/// A row-major `[n, width]` buffer of which items write columns.
pub(crate) struct Columns<'a> {
    shared: Shared<'a>,
    width: usize,
}

impl<'a> Columns<'a> {
    /// Wraps a buffer whose length is a multiple of `width`.
    pub(crate) fn new(buffer: &'a mut [f32], width: usize) -> Self {
        Self { shared: Shared::new(buffer), width }
    }

    fn tiles(&self, tile_width: usize) -> usize {
        self.width.div_ceil(tile_width)
    }

    fn rows(&self) -> usize {
        self.shared.len / self.width.max(1)
    }
}

/// The columns that belong to one item, in all rows or some.
pub(crate) struct ColumnTile<'a> {
    columns: &'a Columns<'a>,
    /// First column.
    pub(crate) first: usize,
    /// Number of columns.
    pub(crate) count: usize,
    /// First row.
    pub(crate) first_row: usize,
    rows: usize,
}

impl ColumnTile<'_> {
    /// Rows of the tile.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The tile's columns in its row `t`.
    pub(crate) fn row(&mut self, t: usize) -> &mut [f32] {
        assert!(t < self.rows, "a row of the tile");
        let start = (self.first_row + t) * self.columns.width + self.first;
        // SAFETY: tiles are made by the methods of `Pool` below, which give every item columns of its own, and this
        // one is borrowed mutably.
        unsafe { self.columns.shared.part(start..start + self.count) }
    }
}

impl Pool {
    /// Cuts `buffer` into parts of `part` elements and runs `job(scratch, index, part)` for each.
    pub(crate) fn run_parts<F>(
        &mut self,
        buffer: &mut [f32],
        part: usize,
        grain: usize,
        job: F,
    ) -> Result<(), WorkerPanicked>
    where
        F: Fn(&mut Scratch, usize, &mut [f32]) + Sync,
    {
        let (len, shared) = (buffer.len(), Shared::new(buffer));
        self.run(len.div_ceil(part), grain, |scratch, range| {
            for index in range {
                // SAFETY: the pool runs every index once, and parts of different indexes do not overlap.
                let own = unsafe { shared.part(index * part..len.min((index + 1) * part)) };
                job(scratch, index, own);
            }
        })
    }

    /// Cuts `buffer` into parts of `part` elements and the columns of `columns` into tiles of `tile_width`, as many
    /// of the one as of the other, and runs `job(scratch, index, part, tile)` for each pair.
    pub(crate) fn run_parts_with_columns<F>(
        &mut self,
        (buffer, part): (&mut [f32], usize),
        (columns, tile_width): (&Columns<'_>, usize),
        job: F,
    ) -> Result<(), WorkerPanicked>
    where
        F: Fn(&mut Scratch, usize, &mut [f32], ColumnTile<'_>) + Sync,
    {
        self.run_parts(buffer, part, 1, |scratch, index, own| {
            let first = index * tile_width;
            let count = tile_width.min(columns.width.saturating_sub(first));
            job(scratch, index, own, ColumnTile { columns, first, count, first_row: 0, rows: columns.rows() });
        })
    }

    /// Cuts the columns of several buffers into tiles of `tile_width` and runs `job(scratch, buffer index, tile)`
    /// for each, all as one dispatch.
    pub(crate) fn run_columns<F>(
        &mut self,
        buffers: &[Columns<'_>],
        tile_width: usize,
        grain: usize,
        job: F,
    ) -> Result<(), WorkerPanicked>
    where
        F: Fn(&mut Scratch, usize, ColumnTile<'_>) + Sync,
    {
        self.run_grid(buffers, (tile_width, usize::MAX), grain, job)
    }

    /// As [`Pool::run_columns`], with the rows of each tile cut into parts of `tile_rows`.
    pub(crate) fn run_grid<F>(
        &mut self,
        buffers: &[Columns<'_>],
        (tile_width, tile_rows): (usize, usize),
        grain: usize,
        job: F,
    ) -> Result<(), WorkerPanicked>
    where
        F: Fn(&mut Scratch, usize, ColumnTile<'_>) + Sync,
    {
        let parts = |columns: &Columns<'_>| columns.rows().div_ceil(tile_rows).max(1);
        let items = |columns: &Columns<'_>| columns.tiles(tile_width) * parts(columns);
        let all: usize = buffers.iter().map(items).sum();
        self.run(all, grain, |scratch, range| {
            // Items of a grain follow each other, so the buffer is searched for once.
            let (mut index, mut before) = (0, 0);
            for item in range {
                while item - before >= items(&buffers[index]) {
                    before += items(&buffers[index]);
                    index += 1;
                }
                let columns = &buffers[index];
                let (tile, part) = ((item - before) / parts(columns), (item - before) % parts(columns));
                let (first, first_row) = (tile * tile_width, part * tile_rows.min(columns.rows()));
                let count = tile_width.min(columns.width - first);
                let rows = tile_rows.min(columns.rows() - first_row);
                job(scratch, index, ColumnTile { columns, first, count, first_row, rows });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_columns_reach_every_element_once() {
        let mut pool = Pool::new(3).unwrap();
        let mut buffer = vec![0.0; 23];
        pool.run_parts(&mut buffer, 5, 1, |_, index, part| part.iter_mut().for_each(|x| *x += index as f32)).unwrap();
        let expected: Vec<f32> = (0..23).map(|i| (i / 5) as f32).collect();
        assert_eq!(buffer, expected);

        let (mut a, mut b) = (vec![0.0; 2 * 7], vec![0.0; 2 * 4]);
        let buffers = [Columns::new(&mut a, 7), Columns::new(&mut b, 4)];
        pool.run_columns(&buffers, 3, 1, |_, index, mut tile| {
            let first = tile.first;
            for t in 0..2 {
                for (i, x) in tile.row(t).iter_mut().enumerate() {
                    *x += (100 * index + 10 * t + first + i) as f32;
                }
            }
        })
        .unwrap();
        assert_eq!(a, [0., 1., 2., 3., 4., 5., 6., 10., 11., 12., 13., 14., 15., 16.]);
        assert_eq!(b, [100., 101., 102., 103., 110., 111., 112., 113.]);

        let mut grid = vec![0.0; 5 * 4];
        pool.run_grid(&[Columns::new(&mut grid, 4)], (3, 2), 1, |_, _, mut tile| {
            for t in 0..tile.rows() {
                let first = 10 * (tile.first_row + t) + tile.first;
                tile.row(t).iter_mut().enumerate().for_each(|(i, x)| *x += (first + i) as f32);
            }
        })
        .unwrap();
        let expected: Vec<f32> = (0..20).map(|i| (i / 4 * 10 + i % 4) as f32).collect();
        assert_eq!(grid, expected);

        let (mut parts, mut rows) = (vec![0.0; 6], vec![0.0; 2 * 7]);
        pool.run_parts_with_columns((&mut parts, 2), (&Columns::new(&mut rows, 7), 3), |_, index, part, mut tile| {
            part.fill(index as f32);
            (0..tile.rows()).for_each(|t| tile.row(t).fill((10 * t + index) as f32));
        })
        .unwrap();
        assert_eq!(parts, [0., 0., 1., 1., 2., 2.]);
        assert_eq!(rows, [0., 0., 0., 1., 1., 1., 2., 10., 10., 10., 11., 11., 11., 12.]);
    }
}
