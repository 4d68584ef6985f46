//! Groups of 32 without special instructions.

use cortiq_quant::{GROUP, f16_to_f32};

use super::super::portable::Plain;
use super::super::tile::LANES;
use super::Job;
use super::groups::{Groups, Input, Loops};
use super::tile::{self, Rows, Unpacked};

/// Lane `j` adds up columns `4 j` to `4 j + 3`.
#[inline(always)]
fn dot(weight: impl Fn(usize) -> i32, x: impl Fn(usize) -> i32) -> Plain {
    let mut lanes = [0.0; LANES];
    for (j, lane) in lanes.iter_mut().enumerate() {
        let mut sum = 0;
        for k in 4 * j..4 * j + 4 {
            sum += weight(k) * x(k);
        }
        *lane = sum as f32;
    }
    Plain(lanes)
}

#[inline(always)]
fn wide(x: &[u8; 2 * GROUP], k: usize) -> i32 {
    i32::from(i16::from_ne_bytes([x[2 * k], x[2 * k + 1]]))
}

impl Groups for Plain {
    type Codes = [u8; GROUP];

    #[inline(always)]
    fn load_codes(source: &[u8; GROUP]) -> Self::Codes {
        *source
    }

    #[inline(always)]
    fn store_codes(codes: Self::Codes, target: &mut [u8; GROUP]) {
        *target = codes;
    }

    #[inline(always)]
    fn dot8_signed(weights: Self::Codes, x: &[u8; GROUP]) -> Self {
        dot(|k| i32::from(weights[k] as i8), |k| i32::from(x[k] as i8))
    }

    #[inline(always)]
    fn dot8_unsigned(weights: Self::Codes, x: &[u8; GROUP]) -> Self {
        dot(|k| i32::from(weights[k]), |k| i32::from(x[k] as i8))
    }

    #[inline(always)]
    fn dot16_signed(weights: Self::Codes, x: &[u8; 2 * GROUP]) -> Self {
        dot(|k| i32::from(weights[k] as i8), |k| wide(x, k))
    }

    #[inline(always)]
    fn dot16_unsigned(weights: Self::Codes, x: &[u8; 2 * GROUP]) -> Self {
        dot(|k| i32::from(weights[k]), |k| wide(x, k))
    }

    #[inline(always)]
    fn dot16_nibbles(weights: &[u8; 16], x: &[u8; 2 * GROUP]) -> Self {
        let weight = |k: usize| if k < 16 { weights[k] & 15 } else { weights[k - 16] >> 4 };
        dot(|k| i32::from(weight(k)), |k| wide(x, k))
    }

    #[inline(always)]
    fn halves(source: &[[u8; 2]; 8]) -> Self {
        let mut lanes = [0.0; LANES];
        for (lane, half) in lanes.iter_mut().zip(source) {
            *lane = f16_to_f32(u16::from_le_bytes(*half));
        }
        Plain(lanes)
    }

    #[inline(always)]
    fn tile_halves<const N: usize>(source: &[[u8; N]; 8]) -> Self {
        let mut lanes = [0.0; LANES];
        for (lane, tile) in lanes.iter_mut().zip(source) {
            *lane = f16_to_f32(u16::from_le_bytes([tile[0], tile[1]]));
        }
        Plain(lanes)
    }

    #[inline(always)]
    fn first(mut self, count: usize) -> Self {
        self.0[count.min(LANES)..].fill(0.0);
        self
    }

    #[inline(always)]
    fn prefetch(_at: *const u8) {}
}

impl Loops for Plain {
    fn one<I: Input<Self>, M: Rows<Self>>(matrix: &M, job: &mut Job<'_>) {
        tile::one::<Plain, I, M>(matrix, job);
    }

    fn many<I: Input<Self>, M: Rows<Self>>(matrix: &M, job: &mut Job<'_>) {
        tile::many::<Plain, I, M>(matrix, job);
    }

    fn unpack<M: Rows<Self>>(matrix: &M, first: usize, target: Unpacked<'_>) {
        tile::unpack::<Plain, M>(matrix, first, target);
    }
}
