//! Matrices times the batch.
//!
//! Bytes read: every matrix once per step, in its own dtype (once per item's tokens where there are few rows). Inputs
//! are quantised once for all matrices that read them; all matrices of an operation are one dispatch.

use cortiq_model::{HeadOp, LinearPart, ModelError, Slot};
use cortiq_quant::MatrixView;
use smallvec::SmallVec;

use super::product::{Product, Source, prepare};
use crate::executor::{Model, Run};
use crate::kernels::{InputBits, Inputs, Isa};
use crate::pool::{ColumnTile, Columns, Pool, Scratch};

/// Rows of an item for one token: some tens of kilobytes, to be streamed.
const ROWS_OF_ONE: usize = 32;

/// Rows of an item for several tokens: unpacked, they stay in the first-level cache.
const ROWS_OF_MANY: usize = 16;

/// Fewest tokens of an item where rows alone give too few items.
const LEAST_TOKENS: usize = 32;

/// Items per thread that are wanted, so that all threads end together.
const ITEMS_PER_THREAD: usize = 4;

/// One matrix of a dispatch: `out[t, r] = x[t] · view[r] + bias[r]`.
#[derive(Clone, Copy)]
pub(super) struct Weight<'a> {
    pub(super) view: &'a MatrixView<'a>,
    pub(super) bias: Option<&'a [f32]>,
}

impl<'a> Weight<'a> {
    fn new(model: &'a Model, part: &LinearPart) -> Self {
        let bias = part.bias.map(|id| model.program.vectors[id.0].as_slice());
        Self { view: model.matrix(part.weight), bias }
    }

    /// The rows of one tile, for its tokens.
    pub(super) fn run_tile(&self, isa: Isa, scratch: &mut Scratch, source: Source<'_>, mut tile: ColumnTile<'_>) {
        let (count, first, n) = (tile.count, tile.first, tile.rows());
        let product = Product { isa, view: self.view, source };
        let buffer = Scratch::sized(&mut scratch.rows, count * n + product.scratch(count, n));
        let (sums, rest) = buffer.split_at_mut(count * n);
        product.run(first..first + count, tile.first_row..tile.first_row + n, sums, rest);
        for (t, sums) in sums.chunks_exact(count).enumerate() {
            let out = tile.row(t);
            out.copy_from_slice(sums);
            if let Some(bias) = self.bias {
                for (y, b) in out.iter_mut().zip(&bias[first..]) {
                    *y += b;
                }
            }
        }
    }
}

/// Rows and tokens of an item, for matrices of `rows` rows together.
pub(super) fn item_shape(tokens: usize, rows: usize, threads: usize) -> (usize, usize) {
    if tokens <= 1 {
        return (ROWS_OF_ONE, usize::MAX);
    }
    let wanted = ITEMS_PER_THREAD * threads;
    let parts = wanted.div_ceil(rows.div_ceil(ROWS_OF_MANY).max(1));
    let part = tokens.div_ceil(parts).next_multiple_of(4).max(LEAST_TOKENS);
    (ROWS_OF_MANY, part)
}

/// How products are computed: kernels, the bits of quantised inputs (none: all in f32), and where they are kept.
pub(super) struct Arithmetic<'a> {
    pub(super) isa: Isa,
    pub(super) width: Option<InputBits>,
    pub(super) inputs: &'a mut Inputs,
}

/// Several matrices times one input, as one dispatch.
pub(super) fn matmul(
    pool: &mut Pool,
    Arithmetic { isa, width, inputs }: Arithmetic<'_>,
    x: &[f32],
    weights: &[Weight<'_>],
    outs: &[Columns<'_>],
) -> Result<(), ModelError> {
    inputs.clear();
    let mut places = SmallVec::<[Option<usize>; 4]>::new();
    for weight in weights {
        places.push(prepare(pool, isa, inputs, weight.view, x, width)?);
    }
    let rows: usize = weights.iter().map(|weight| weight.view.rows()).sum();
    let tokens = weights.first().map_or(0, |weight| x.len() / weight.view.cols());
    let shape = item_shape(tokens, rows, pool.threads());
    pool.run_grid(outs, shape, 1, |scratch, index, tile| {
        let source = Source { x, packed: places[index].map(|place| inputs.rows(place)) };
        weights[index].run_tile(isa, scratch, source, tile);
    })?;
    Ok(())
}

/// All parts of a linear operation in one dispatch, with inputs of at least `width` where the mode is fast.
pub(crate) fn linear(
    model: &Model,
    run: &mut Run,
    input: Slot,
    parts: &[LinearPart],
    width: InputBits,
) -> Result<(), ModelError> {
    let Run { slots, pool, inputs, .. } = run;
    let weights: SmallVec<[Weight<'_>; 4]> = parts.iter().map(|part| Weight::new(model, part)).collect();
    let mut outs: SmallVec<[Vec<f32>; 4]> = parts.iter().map(|part| std::mem::take(&mut slots[part.out.0])).collect();
    let columns: SmallVec<[Columns<'_>; 4]> =
        outs.iter_mut().zip(&weights).map(|(out, weight)| Columns::new(out, weight.view.rows())).collect();
    let arithmetic = Arithmetic { isa: model.isa, width: model.fast(width), inputs };
    let result = matmul(pool, arithmetic, &slots[input.0], &weights, &columns);
    drop(columns);
    for (out, part) in outs.into_iter().zip(parts) {
        slots[part.out.0] = out;
    }
    result
}

/// Logits of the chosen rows, into `run.logits`.
pub(crate) fn head(model: &Model, run: &mut Run, rows: &[usize], op: &HeadOp) -> Result<(), ModelError> {
    let Run { slots, head_input, logits, pool, inputs, .. } = run;
    let width = model.width(op.input);
    head_input.clear();
    for &row in rows {
        head_input.extend_from_slice(&slots[op.input.0][row * width..(row + 1) * width]);
    }
    logits.resize(rows.len() * model.program.vocab_size, 0.0);
    let weight = Weight { view: model.matrix(op.weight), bias: None };
    let columns = Columns::new(logits, model.program.vocab_size);
    let arithmetic = Arithmetic { isa: model.isa, width: model.fast(InputBits::Eight), inputs };
    matmul(pool, arithmetic, head_input, &[weight], &[columns])?;
    if let Some(cap) = op.softcap {
        logits.iter_mut().for_each(|l| *l = cap * (*l / cap).tanh());
    }
    Ok(())
}
