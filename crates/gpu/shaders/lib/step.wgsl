// The step: what changes from one submission to the next. Layout in src/step.rs; all offsets are constants, so that
// one load finds a row.
@group(0) @binding(0) var<storage, read> step: array<u32>;

fn step_rows() -> u32 { return step[0]; }
fn step_spans() -> u32 { return step[1]; }
fn step_logit_rows() -> u32 { return step[2]; }

fn row_token(row: u32) -> u32 { return step[4u + STEP_STRIDE * row]; }
fn row_position(row: u32) -> u32 { return step[5u + STEP_STRIDE * row]; }
fn row_span(row: u32) -> u32 { return step[6u + STEP_STRIDE * row]; }
fn logit_row(index: u32) -> u32 { return step[7u + STEP_STRIDE * index]; }

fn span_first_row(span: u32) -> u32 { return step[8u + STEP_STRIDE * span]; }
fn span_len(span: u32) -> u32 { return step[9u + STEP_STRIDE * span]; }
fn span_start(span: u32) -> u32 { return step[10u + STEP_STRIDE * span]; }
// Slot of the sequence in the buffers of recurrent layers.
fn span_slot(span: u32) -> u32 { return step[11u + STEP_STRIDE * span]; }

// Cosine and sine of a pair of dimensions; `rope` is the number of pairs that other ropes have before it.
fn rope_angle(rope: u32, pairs: u32, row: u32, pair: u32) -> vec2<f32> {
    let at = 12u + STEP_STRIDE * row + 2u * (rope + pair);
    return vec2(bitcast<f32>(step[at]), bitcast<f32>(step[at + 1u]));
}

// Block of the cache that holds position `32 * index ...` of a span's sequence, in a group of layers.
fn cache_block(span: u32, cache_group: u32, index: u32) -> u32 {
    return step[STEP_TABLES + (span * CACHE_GROUPS + cache_group) * TABLE_STRIDE + index];
}
