//! What the causal convolutions of recurrent layers share: taps by position, and the ring of the last inputs.

use std::ops::Range;

use crate::kernels::Isa;

/// Taps `[channels, kernel]` as `[kernel, channels]`, so that a position is a run of channels.
pub(crate) fn transposed_taps(taps: &[f32], kernel: usize) -> Vec<f32> {
    let channels = taps.len() / kernel.max(1);
    let mut out = vec![0.0; taps.len()];
    for (channel, taps) in taps.chunks_exact(kernel.max(1)).enumerate() {
        for (j, tap) in taps.iter().enumerate() {
            out[j * channels + channel] = *tap;
        }
    }
    out
}

/// A depthwise causal convolution over a ring of earlier rows and new ones.
#[derive(Clone, Copy)]
pub(crate) struct Conv<'a> {
    /// `[kernel, width]`, oldest first.
    pub(crate) taps: &'a [f32],
    /// `[kernel - 1, width]`, oldest first.
    pub(crate) ring: &'a [f32],
    /// `[tokens, width]`.
    pub(crate) rows: &'a [f32],
    /// Channels.
    pub(crate) width: usize,
}

impl Conv<'_> {
    /// Channels `columns` of token `t`: taps times rows, summed from the oldest to the newest.
    pub(crate) fn apply(&self, isa: Isa, t: usize, columns: Range<usize>, out: &mut [f32]) {
        out.fill(0.0);
        let before = self.ring.len() / self.width;
        for (j, taps) in self.taps.chunks_exact(self.width).enumerate() {
            // Row `t + j` of the ring followed by the new rows.
            let (source, row) = if t + j < before { (self.ring, t + j) } else { (self.rows, t + j - before) };
            isa.multiply_add(out, &taps[columns.clone()], &source[row * self.width..][columns.clone()]);
        }
    }
}

/// Moves a ring `[kernel - 1, width]` on by `tokens` rows; `fill` writes the new row of a token.
pub(crate) fn advance(ring: &mut [f32], width: usize, tokens: usize, mut fill: impl FnMut(usize, &mut [f32])) {
    let rows = ring.len() / width;
    let kept = rows.saturating_sub(tokens);
    ring.copy_within((rows - kept) * width.., 0);
    for row in kept..rows {
        fill(tokens + row - rows, &mut ring[row * width..(row + 1) * width]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_the_latest_rows() {
        for tokens in 0..6 {
            let mut ring = [-3.0, -3.0, -2.0, -2.0, -1.0, -1.0];
            advance(&mut ring, 2, tokens, |t, row| row.fill(t as f32));
            let expected: Vec<f32> = (-3..tokens as i32).map(|x| x as f32).collect();
            let expected = &expected[expected.len() - 3..];
            assert_eq!(ring, [expected[0], expected[0], expected[1], expected[1], expected[2], expected[2]]);
        }
        advance(&mut [], 2, 3, |_, _| panic!("a kernel of 1 has no ring"));
    }

    #[test]
    fn transposed_taps_are_by_position() {
        assert_eq!(transposed_taps(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
