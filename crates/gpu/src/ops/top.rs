//! The best tokens of chosen rows, from their logits.

use cortiq_model::{TopLogit, TopRows};

use crate::kernel::{Bind, Dispatch, WORKGROUP, with_teams};
use crate::plan::{Activation, Recorder};
use crate::shader::{Source, wgsl};
use crate::{Caps, Gpu, GpuError};

/// Numbers of tokens that kernels choose; a row of fewer is the start of one of them.
const SIZES: [usize; 2] = [1, MOST];

/// Most tokens of a row that kernels choose.
const MOST: usize = 64;

/// Logits that a workgroup looks through: the larger slice where its memory suffices.
const SLICES: [usize; 2] = [2048, 1024];

/// Bytes of workgroup memory for the larger slice: keys as they come and sorted, finalists, and 1 KiB for sums.
const LARGE_SLICE_MEMORY: u32 = 20 << 10;

/// Logits that a workgroup looks through on this device.
pub(crate) fn top_slice(caps: &Caps) -> usize {
    let [large, small] = SLICES;
    if caps.workgroup_memory >= LARGE_SLICE_MEMORY { large } else { small }
}

/// Slices that this device can look through.
#[cfg(feature = "lab")]
pub(crate) fn top_slices(caps: &Caps) -> impl Iterator<Item = usize> {
    let most = top_slice(caps);
    SLICES.into_iter().filter(move |&slice| slice <= most)
}

/// The kernels' number of tokens for a row of `count`; none for more than they choose.
pub(crate) fn top_size(count: usize) -> Option<usize> {
    SIZES.into_iter().find(|&size| count <= size)
}

/// Floats of the buffers of all sizes for `rows` rows.
pub(crate) fn top_scratch(vocab_size: usize, rows: usize) -> usize {
    let [_, small] = SLICES;
    SIZES.iter().map(|size| rows * size * (2 * slices_stride(vocab_size, small) + 4)).sum()
}

fn slices_stride(vocab_size: usize, slice: usize) -> usize {
    vocab_size.div_ceil(slice).next_multiple_of(4)
}

/// Recorded kernels for one number of tokens, and the way of their result to the host.
pub(crate) struct Top {
    size: usize,
    pub(crate) dispatches: Vec<Dispatch>,
    /// `[rows, size]` of id and logit.
    best: wgpu::Buffer,
    readback: wgpu::Buffer,
    words: Vec<[u32; 2]>,
}

impl Top {
    /// Records the choice of `size` tokens (of [`top_size`]) from each logit row of a step, up to `rows` of them, by
    /// workgroups that look through `slice` logits (of [`top_slice`]).
    pub(crate) fn record(
        mut rec: Recorder<'_>,
        logits: &Activation,
        size: usize,
        rows: usize,
        slice: usize,
    ) -> Result<Self, GpuError> {
        let (slices, stride) = (logits.width.div_ceil(slice), slices_stride(logits.width, slice));
        // Zeroed: what stands in the padding comes after every key.
        let keys = rec.scratch("top keys", size, rows * size * stride * 4)?;
        let tokens = rec.scratch("top tokens", size, rows * size * stride * 4)?;
        let best = rec.gpu.buffer("top", (rows * size * 8) as u64)?;
        // None of them reads the step.
        let shader = |name, body, lists: usize, length: usize| {
            let finalists: usize = (1..=length).map(|place| lists.min(size / place)).sum();
            let source = Source::new(name, body)
                .part(wgsl!("lib/top_merge.wgsl"))
                .part(wgsl!("lib/top_key.wgsl"))
                .part(wgsl!("lib/ahead4.wgsl"));
            with_teams(source, rec.gpu, WORKGROUP)
                .with("WIDTH", logits.width)
                .with("TOP_K", size)
                .with("SLICES_STRIDE", stride)
                .with("LISTS", lists)
                .with("LENGTH", length)
                .with("FINALISTS", finalists)
        };
        let by_slice = shader("top_slice", wgsl!("top_slice.wgsl"), slice / 32, size.min(32))
            .with("SLICE", slice)
            .part(wgsl!("lib/place_in_set.wgsl"));
        let join = shader("top_join", wgsl!("top_join.wgsl"), slices, size);
        let binds = [Bind::read(1, &logits.buffer), Bind::write(2, &keys), Bind::write(3, &tokens)];
        rec.dispatch(&by_slice, &binds, move |step| [slices as u32, step.logit_rows, 1])?;
        let binds =
            [Bind::read(1, &logits.buffer), Bind::read(2, &keys), Bind::read(3, &tokens), Bind::write(4, &best)];
        rec.dispatch(&join, &binds, |step| [1, step.logit_rows, 1])?;
        let readback = rec.gpu.readback((rows * size * 8) as u64)?;
        Ok(Self { size, dispatches: rec.finish(), best, readback, words: Vec::new() })
    }

    /// Encodes the way of `rows` rows to the host, after the kernels.
    pub(crate) fn copy(&self, encoder: &mut wgpu::CommandEncoder, rows: usize) {
        let bytes = (rows * self.size * 8) as u64;
        encoder.copy_buffer_to_buffer(&self.best, 0, &self.readback, 0, bytes);
    }

    /// Waits for what was submitted and adds its `rows` rows to `out`.
    pub(crate) fn read(&mut self, gpu: &Gpu, rows: usize, out: &mut TopRows) -> Result<(), GpuError> {
        self.words.resize(rows * self.size, [0; 2]);
        gpu.read(&self.readback, &mut self.words)?;
        let token = |&[id, bits]: &[u32; 2]| TopLogit { id, logit: f32::from_bits(bits) };
        self.words.chunks_exact(self.size).for_each(|row| out.push_sorted(row.iter().map(token)));
        Ok(())
    }
}
