//! Weights in device memory: aligned planes instead of the container's tiles, one file per layout.
//!
//! Rows of several matrices that share their input may stand in one device matrix. A matrix whose planes exceed the
//! binding limit is cut into pieces by rows.

mod float;
mod overlay;
mod q1;
mod q4;
mod q8;
mod ternary;
mod vbit;

use cortiq_quant::MatrixView;

use crate::kernel::Bind;
use crate::shader::{Source, wgsl};
use crate::slots::padded;
use crate::{Gpu, GpuError};

/// Binding of the first plane; the others follow in the order that the layout's shader file declares.
const FIRST_PLANE: u32 = 10;

/// How weights stand in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// f32. Also what becomes of a quantised matrix whose groups straddle rows (a width that is no multiple of 32).
    F32,
    /// Pairs of f16.
    F16,
    /// Pairs of bf16.
    Bf16,
    /// int8 codes and f32 row scales.
    Q8,
    /// The same with an f32 factor per column.
    Q8Field,
    /// Nibbles and f16 scales per group of 32.
    Q4,
    /// Rows of 3, 4, 5, 6 or 8 bits and f16 scales per group of 32.
    Vbit,
    /// Signs and f16 scales per group of 32.
    Q1,
    /// Signs and corrections to some weights.
    Q1Overlay,
    /// Two masks per group (plus, minus), f16 scales and outliers.
    Ternary,
}

impl Layout {
    /// The layout for a matrix.
    pub(crate) fn of(view: &MatrixView<'_>) -> Self {
        let whole_groups = view.cols().is_multiple_of(32);
        match view {
            MatrixView::F32(_) => Self::F32,
            MatrixView::F16(_) => Self::F16,
            MatrixView::Bf16(_) => Self::Bf16,
            MatrixView::Q8Row(_) => Self::Q8,
            MatrixView::Q8_2f(_) => Self::Q8Field,
            _ if !whole_groups => Self::F32,
            MatrixView::Q4Block(_) | MatrixView::Q4Tiled(_) => Self::Q4,
            MatrixView::Vbit(_) => Self::Vbit,
            MatrixView::Q1(_) => Self::Q1,
            MatrixView::Q1s(_) => Self::Q1Overlay,
            MatrixView::Q1t(_) => Self::Ternary,
            // The enum is open; whatever comes is decoded.
            _ => Self::F32,
        }
    }

    /// Whether products may use int8 activations.
    pub(crate) fn takes_int8(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Whether some weights are corrected by a sparse overlay.
    pub(crate) fn has_overlay(self) -> bool {
        matches!(self, Self::Q1Overlay | Self::Ternary)
    }

    /// Adds the declarations of the planes and `weight4`; see `shaders/weights/`.
    pub(crate) fn with_weights(self, source: Source, cols: usize) -> Source {
        let source = source.with("COLS4", padded(cols) / 4).with("BLOCKS", padded(cols) / 32);
        match self {
            Self::F32 => source.part(wgsl!("weights/f32.wgsl")),
            Self::F16 => source.part(wgsl!("weights/f16.wgsl")),
            Self::Bf16 => source.part(wgsl!("weights/bf16.wgsl")),
            Self::Q8 => source.part(wgsl!("weights/q8.wgsl")),
            Self::Q8Field => source.part(wgsl!("weights/q8_field.wgsl")),
            Self::Q4 => source.part(wgsl!("weights/q4.wgsl")),
            Self::Vbit => source.part(wgsl!("weights/vbit.wgsl")),
            Self::Q1 => source.part(wgsl!("weights/q1.wgsl")),
            Self::Q1Overlay => source.part(wgsl!("weights/overlay.wgsl")).part(wgsl!("weights/q1.wgsl")),
            Self::Ternary => source.part(wgsl!("weights/overlay.wgsl")).part(wgsl!("weights/ternary.wgsl")),
        }
    }

    /// Adds the product with int8 activations, on top of [`Layout::with_weights`]; see `shaders/dot/`.
    pub(crate) fn with_dot(self, source: Source) -> Source {
        match self {
            Self::Q8 | Self::Q8Field => source.part(wgsl!("dot/q8.wgsl")),
            Self::Q4 => source.part(wgsl!("dot/q4.wgsl")),
            Self::Vbit => source.part(wgsl!("dot/vbit.wgsl")),
            Self::Q1 | Self::Q1Overlay => source.part(wgsl!("dot/q1.wgsl")),
            Self::Ternary => source.part(wgsl!("dot/ternary.wgsl")),
            Self::F32 | Self::F16 | Self::Bf16 => source,
        }
    }
}

/// Bytes that a matrix takes on the device, with what alignment may add.
pub(crate) fn device_bytes(view: &MatrixView<'_>) -> u64 {
    /// Planes of a matrix, each rounded up.
    const ROUNDING: usize = 6 * 16;
    let (rows, cols) = (view.rows(), view.cols());
    let (width, groups) = (padded(cols), cols / 32);
    let overlay = |entries: usize| entries * 8 + (rows + 1) * 4;
    let bytes = match (Layout::of(view), view) {
        (Layout::Q8, _) => rows * (width + 4),
        (Layout::Q8Field, _) => rows * (width + 4) + width * 4,
        (Layout::Q4, _) => rows * groups * 18,
        (Layout::Q1, _) => rows * groups * 6,
        (Layout::Vbit, MatrixView::Vbit(view)) => {
            let bits: usize = view.widths().iter().take(rows).map(|&width| usize::from(width)).sum();
            groups * bits * 4 + rows * (groups * 2 + 8)
        }
        (Layout::Q1Overlay, MatrixView::Q1s(view)) => {
            rows * groups * 6 + overlay((0..rows).map(|row| view.row_entries(row).len()).sum())
        }
        (Layout::Ternary, MatrixView::Q1t(view)) => {
            rows * groups * 10 + overlay((0..rows).map(|row| view.row_entries(row).len()).sum())
        }
        (Layout::F16 | Layout::Bf16, _) => rows * width * 2,
        _ => rows * width * 4,
    };
    (bytes + ROUNDING) as u64
}

/// A row of one of the matrices that are packed together.
#[derive(Clone, Copy)]
struct RowRef<'a> {
    view: &'a MatrixView<'a>,
    row: usize,
}

impl RowRef<'_> {
    fn decode(&self, out: &mut [f32]) {
        self.view.decode_row(self.row, &mut out[..self.view.cols()]);
    }
}

/// Planes of packed rows, in binding order.
type Planes = Vec<Vec<u32>>;

fn pack(layout: Layout, rows: &[RowRef<'_>], cols: usize) -> Planes {
    match layout {
        Layout::F32 => float::pack_f32(rows, cols),
        Layout::F16 => float::pack_f16(rows, cols),
        Layout::Bf16 => float::pack_bf16(rows, cols),
        Layout::Q8 | Layout::Q8Field => q8::pack(rows, cols),
        Layout::Q4 => q4::pack(rows, cols),
        Layout::Vbit => vbit::pack(rows, cols),
        Layout::Q1 => q1::pack(rows, cols),
        Layout::Q1Overlay => q1::pack_overlay(rows, cols),
        Layout::Ternary => ternary::pack(rows, cols),
    }
}

/// Some rows of a device matrix.
pub(crate) struct Piece {
    /// First row in the matrix.
    pub(crate) first_row: usize,
    /// Rows.
    pub(crate) rows: usize,
    planes: Vec<wgpu::Buffer>,
}

impl Piece {
    /// The planes as bindings.
    pub(crate) fn binds(&self) -> impl Iterator<Item = Bind<'_>> {
        self.binds_from(FIRST_PLANE)
    }

    /// The planes as bindings from `first` on, beside another matrix.
    pub(crate) fn binds_from(&self, first: u32) -> impl Iterator<Item = Bind<'_>> {
        self.planes.iter().zip(first..).map(|(plane, slot)| Bind::read(slot, plane))
    }

    /// The planes of the overlay, which come last, as bindings.
    pub(crate) fn overlay_binds(&self) -> impl Iterator<Item = Bind<'_>> {
        self.binds().skip(2)
    }
}

/// One or several stacked matrices of equal width in device memory.
pub(crate) struct DeviceMatrix {
    /// How.
    pub(crate) layout: Layout,
    /// Input features.
    pub(crate) cols: usize,
    /// Output features of each stacked matrix.
    pub(crate) parts: Vec<usize>,
    /// Factors of the columns per part, `[parts, padded(cols)]`, where the layout has them.
    pub(crate) fields: Option<wgpu::Buffer>,
    /// Runs of rows.
    pub(crate) pieces: Vec<Piece>,
}

impl DeviceMatrix {
    /// Uploads `views`, which have one layout and one width.
    pub(crate) fn upload(gpu: &Gpu, label: &str, views: &[&MatrixView<'_>]) -> Result<Self, GpuError> {
        let first = views.first().ok_or_else(|| GpuError::Unsupported(format!("{label} without matrices")))?;
        let (layout, cols) = (Layout::of(first), first.cols());
        let each = |view: &&MatrixView<'_>| Layout::of(view) == layout && view.cols() == cols;
        if !views.iter().all(each) {
            return Err(GpuError::Unsupported(format!("{label}: stacked matrices of different kinds")));
        }
        let rows: Vec<RowRef<'_>> =
            views.iter().flat_map(|&view| (0..view.rows()).map(move |row| RowRef { view, row })).collect();
        let fields = match layout {
            Layout::Q8Field => Some(gpu.buffer_with(label, &q8::fields(views, cols))?),
            _ => None,
        };
        let rows_per_piece = Self::rows_per_piece(gpu, layout, cols).max(1);
        let mut pieces = Vec::new();
        for (i, chunk) in rows.chunks(rows_per_piece).enumerate() {
            let planes = pack(layout, chunk, cols)
                .iter()
                .map(|plane| gpu.buffer_with(label, plane))
                .collect::<Result<Vec<_>, _>>()?;
            // Staging memory of one matrix at a time.
            gpu.queue.submit([]);
            gpu.wait()?;
            pieces.push(Piece { first_row: i * rows_per_piece, rows: chunk.len(), planes });
        }
        Ok(Self { layout, cols, parts: views.iter().map(|view| view.rows()).collect(), fields, pieces })
    }

    /// Rows of `cols` weights that one binding holds.
    pub(crate) fn rows_per_piece(gpu: &Gpu, layout: Layout, cols: usize) -> usize {
        // An f32 row is the widest that a layout makes of `cols` weights, but for the few words beside it.
        let row_bytes = match layout {
            Layout::F32 => padded(cols) * 4,
            Layout::F16 | Layout::Bf16 => padded(cols) * 2,
            _ => padded(cols),
        };
        let limit = gpu.caps().max_binding.min(gpu.caps().max_buffer);
        usize::try_from(limit / row_bytes.max(1) as u64).unwrap_or(usize::MAX)
    }

    /// Output features of all parts.
    pub(crate) fn rows(&self) -> usize {
        self.parts.iter().sum()
    }
}

/// Two f16 in a word, the first one low.
fn pair(low: [u8; 2], high: [u8; 2]) -> u32 {
    u32::from_le_bytes([low[0], low[1], high[0], high[1]])
}

/// f16 values packed in pairs; an odd one gets a zero beside it.
fn pairs(halves: &[[u8; 2]]) -> Vec<u32> {
    halves.chunks(2).map(|two| pair(two[0], two.get(1).copied().unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use cortiq_cmf::Dtype;
    use cortiq_quant::random_payload;

    use super::*;

    #[test]
    fn bytes_are_foreseen() {
        for dtype in Dtype::ALL {
            for (rows, cols) in [(1, 32), (7, 96), (300, 64)] {
                let payload = random_payload(dtype, rows, cols, 3).unwrap();
                let view = MatrixView::new(dtype, &payload, rows, cols).unwrap();
                let all: Vec<_> = (0..rows).map(|row| RowRef { view: &view, row }).collect();
                let layout = Layout::of(&view);
                let fields = if layout == Layout::Q8Field { padded(cols) } else { 0 };
                let words: usize = pack(layout, &all, cols).iter().map(Vec::len).sum();
                let (real, foreseen) = ((words + fields) as u64 * 4, device_bytes(&view));
                assert!((real..=real + 96).contains(&foreseen), "{dtype:?} {rows}x{cols}: {real}, not {foreseen}");
            }
        }
    }
}
