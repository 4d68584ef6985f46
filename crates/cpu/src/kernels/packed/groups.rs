//! What the loops need from an instruction set, beside its f32 lanes.

use cortiq_quant::GROUP;

use super::super::tile::Lanes;
use super::job::Job;
use super::tile::{Rows, Unpacked};

/// Codes of a group, and their products with the codes of an input's group.
///
/// A dot product is given as eight lanes that add up to it; which columns a lane has is the same in every product.
pub(crate) trait Groups: Lanes {
    /// 32 codes of one byte.
    type Codes: Copy;

    /// Codes in memory.
    fn load_codes(source: &[u8; GROUP]) -> Self::Codes;
    /// Writes codes to memory.
    fn store_codes(codes: Self::Codes, target: &mut [u8; GROUP]);
    /// Signed weights times inputs of 8 bits.
    fn dot8_signed(weights: Self::Codes, x: &[u8; GROUP]) -> Self;
    /// Weights 0 to 127 times inputs of 8 bits.
    fn dot8_unsigned(weights: Self::Codes, x: &[u8; GROUP]) -> Self;
    /// Signed weights times inputs of 16 bits.
    fn dot16_signed(weights: Self::Codes, x: &[u8; 2 * GROUP]) -> Self;
    /// Weights 0 to 255 times inputs of 16 bits.
    fn dot16_unsigned(weights: Self::Codes, x: &[u8; 2 * GROUP]) -> Self;
    /// Weights in the low halves of bytes, then in the high ones, times inputs of 16 bits.
    fn dot16_nibbles(weights: &[u8; 16], x: &[u8; 2 * GROUP]) -> Self;
    /// Eight f16.
    fn halves(source: &[[u8; 2]; 8]) -> Self;
    /// Eight f16 at the front of tiles.
    fn tile_halves<const N: usize>(source: &[[u8; N]; 8]) -> Self;
    /// The first `count` lanes, 0 in the others.
    fn first(self, count: usize) -> Self;
    /// Asks for a line of memory ahead of its use; any address will do.
    fn prefetch(at: *const u8);
}

/// Bits of an input's codes.
pub(crate) trait Input<V: Groups> {
    /// Codes of a group.
    type Group;
    /// Group `index` of a row.
    ///
    /// # Safety
    /// The row has the group.
    unsafe fn group(codes: *const u8, index: usize) -> *const Self::Group;
    /// Signed weights times inputs.
    fn dot_signed(weights: V::Codes, x: &Self::Group) -> V;
    /// Weights 0 to 127 times inputs.
    fn dot_unsigned(weights: V::Codes, x: &Self::Group) -> V;
    /// Weights in the halves of bytes, whose codes are `unpacked` with the low halves first, times inputs.
    fn dot_nibbles(weights: &[u8; 16], unpacked: V::Codes, x: &Self::Group) -> V;
}

/// Inputs of 8 bits.
pub(crate) struct Bits8;

/// Inputs of 16 bits.
pub(crate) struct Bits16;

impl<V: Groups> Input<V> for Bits8 {
    type Group = [u8; GROUP];

    #[inline(always)]
    unsafe fn group(codes: *const u8, index: usize) -> *const Self::Group {
        // SAFETY: the row has the group by the caller's promise.
        unsafe { codes.add(index * GROUP).cast() }
    }

    #[inline(always)]
    fn dot_signed(weights: V::Codes, x: &Self::Group) -> V {
        V::dot8_signed(weights, x)
    }

    #[inline(always)]
    fn dot_unsigned(weights: V::Codes, x: &Self::Group) -> V {
        V::dot8_unsigned(weights, x)
    }

    #[inline(always)]
    fn dot_nibbles(_weights: &[u8; 16], unpacked: V::Codes, x: &Self::Group) -> V {
        V::dot8_unsigned(unpacked, x)
    }
}

impl<V: Groups> Input<V> for Bits16 {
    type Group = [u8; 2 * GROUP];

    #[inline(always)]
    unsafe fn group(codes: *const u8, index: usize) -> *const Self::Group {
        // SAFETY: the row has the group by the caller's promise.
        unsafe { codes.add(index * 2 * GROUP).cast() }
    }

    #[inline(always)]
    fn dot_signed(weights: V::Codes, x: &Self::Group) -> V {
        V::dot16_signed(weights, x)
    }

    #[inline(always)]
    fn dot_unsigned(weights: V::Codes, x: &Self::Group) -> V {
        V::dot16_unsigned(weights, x)
    }

    #[inline(always)]
    fn dot_nibbles(weights: &[u8; 16], _unpacked: V::Codes, x: &Self::Group) -> V {
        V::dot16_nibbles(weights, x)
    }
}

/// The loops, compiled for the instruction set: not inlined into what calls them.
pub(crate) trait Loops: Groups {
    /// [`super::tile::one`].
    fn one<I: Input<Self>, M: Rows<Self>>(matrix: &M, job: &mut Job<'_>);
    /// [`super::tile::many`].
    fn many<I: Input<Self>, M: Rows<Self>>(matrix: &M, job: &mut Job<'_>);
    /// [`super::tile::unpack`].
    fn unpack<M: Rows<Self>>(matrix: &M, first: usize, target: Unpacked<'_>);
}
