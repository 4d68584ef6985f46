//! What a request may say about sampling.

use cortiq_cmf::GenerationDefaults;

use crate::EngineError;

/// How tokens are chosen. The default is temperature 0.7 and top-p 0.9, without penalties.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by it; 0 takes the best token always. 0 to 5.
    pub temperature: f32,
    /// Only the k best tokens are kept; 0 keeps all. Ties go to the lower ids.
    pub top_k: u32,
    /// Only the best tokens whose probabilities together reach this are kept; 1 keeps all. Above 0, to 1.
    pub top_p: f32,
    /// Tokens below this share of the best token's probability are dropped; 0 drops none. 0 to 1.
    pub min_p: f32,
    /// Logits of tokens that occurred in prompt or answer are divided by it where positive, multiplied
    /// where negative; once per token, however often it occurred. 1 is off. Above 0, to 10.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of each token that occurred in the answer. -2 to 2.
    pub presence_penalty: f32,
    /// Subtracted once for every time the token occurred in the answer. -2 to 2.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens before all else. -100 to 100, or -inf to exclude a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers; without one, each run differs.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.7,
            top_k: 0,
            top_p: 0.9,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Always the best token, without penalties.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, top_p: 1.0, ..Self::default() }
    }

    /// The model's own recommendation, as its header carries it; what it leaves open keeps our default.
    /// `do_sample: false` means greedy. The values are checked by [`SamplingParams::validate`] only.
    pub fn from_generation_defaults(defaults: &GenerationDefaults) -> Self {
        let base = Self::default();
        let temperature = match defaults.do_sample {
            Some(false) => 0.0,
            _ => defaults.temperature.unwrap_or(base.temperature),
        };
        Self {
            temperature,
            top_k: defaults.top_k.unwrap_or(base.top_k),
            top_p: defaults.top_p.unwrap_or(base.top_p),
            min_p: defaults.min_p.unwrap_or(base.min_p),
            repetition_penalty: defaults.repetition_penalty.unwrap_or(base.repetition_penalty),
            ..base
        }
    }

    /// Checks all ranges.
    ///
    /// # Errors
    /// [`EngineError::SamplingParameter`] with the field, its value and the range.
    pub fn validate(&self) -> Result<(), EngineError> {
        let within = |name, value: f32, ok: bool, allowed| {
            if ok && value.is_finite() {
                return Ok(());
            }
            Err(EngineError::SamplingParameter { name, value: value.to_string(), allowed })
        };
        let t = self.temperature;
        within("temperature", t, (0.0..=5.0).contains(&t), "0 to 5")?;
        let p = self.top_p;
        within("top_p", p, p > 0.0 && p <= 1.0, "above 0, at most 1")?;
        let m = self.min_p;
        within("min_p", m, (0.0..=1.0).contains(&m), "0 to 1")?;
        let r = self.repetition_penalty;
        within("repetition_penalty", r, r > 0.0 && r <= 10.0, "above 0, at most 10")?;
        for (name, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            within(name, value, (-2.0..=2.0).contains(&value), "-2 to 2")?;
        }
        for &(_, bias) in &self.logit_bias {
            let ok = (-100.0..=100.0).contains(&bias);
            if bias != f32::NEG_INFINITY {
                within("logit_bias", bias, ok, "-100 to 100, or -inf")?;
            }
        }
        Ok(())
    }

    /// Whether any penalty needs the tokens that occurred.
    pub(super) fn has_penalty(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}
