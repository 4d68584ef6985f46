// Tokens of this product: all of the step, or those whose logits are wanted.
fn live_tokens() -> u32 {
    if LOGITS { return step_logit_rows(); }
    return step_rows();
}
