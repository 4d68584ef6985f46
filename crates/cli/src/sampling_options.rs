//! Flags about how tokens are chosen.

use clap::Args;
use cortiq_engine::SamplingParams;

use crate::output::Usage;
use crate::values::LogitBias;

/// Flags about how tokens are chosen. What is not given comes from the file's recommendation.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingOptions {
    /// Take the best token always
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    greedy: bool,
    /// Divisor of the logits; 0 takes the best token always
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Keep the K best tokens only; 0 keeps all
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Keep the best tokens that reach this probability together
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Drop tokens below this share of the best token's probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Divide the logits of tokens that occurred already; 1 is off
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,
    /// Subtract this from the logits of tokens that the answer has already
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtract this for each time that the answer has the token
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Add X to the logit of token ID; repeatable
    #[arg(long, value_name = "ID=X")]
    logit_bias: Vec<LogitBias>,
    /// Seed of the random numbers: the same seed gives the same text
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingOptions {
    /// Refuses values that no model could use.
    pub fn check(&self) -> anyhow::Result<()> {
        self.over(SamplingParams::greedy()).validate().map_err(|error| Usage(error.to_string()).into())
    }

    /// The parameters to use with a model that recommends `defaults`.
    pub fn params(&self, defaults: &SamplingParams) -> SamplingParams {
        self.over(if self.greedy { SamplingParams::greedy() } else { defaults.clone() })
    }

    fn over(&self, base: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            logit_bias: self.logit_bias.iter().map(|b| (b.id, b.bias)).collect(),
            seed: self.seed.or(base.seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        sampling: SamplingOptions,
    }

    fn parse(flags: &[&str]) -> SamplingOptions {
        Only::try_parse_from(["x"].iter().chain(flags)).unwrap().sampling
    }

    #[test]
    fn flags_override_the_recommendation() {
        let model = SamplingParams { temperature: 0.2, repetition_penalty: 1.3, ..SamplingParams::default() };
        assert_eq!(parse(&[]).params(&model), model);
        let some = parse(&["--temperature", "1.5", "--logit-bias", "3=-inf", "--seed", "9"]).params(&model);
        assert_eq!((some.temperature, some.repetition_penalty, some.seed), (1.5, 1.3, Some(9)));
        assert_eq!(some.logit_bias, [(3, f32::NEG_INFINITY)]);
    }

    #[test]
    fn greedy_is_free_of_the_recommendation() {
        let model = SamplingParams { temperature: 0.2, repetition_penalty: 1.3, ..SamplingParams::default() };
        assert_eq!(parse(&["--greedy"]).params(&model), SamplingParams::greedy());
        let with_penalty = parse(&["--greedy", "--presence-penalty", "-1"]).params(&model);
        assert_eq!((with_penalty.temperature, with_penalty.presence_penalty), (0.0, -1.0));
    }

    #[test]
    fn impossible_values_are_wrong_usage() {
        for flags in [
            ["--temperature", "-1"],
            ["--temperature", "nan"],
            ["--top-p", "0"],
            ["--min-p", "2"],
            ["--repetition-penalty", "0"],
            ["--frequency-penalty", "-9"],
            ["--logit-bias", "1=500"],
        ] {
            let error = parse(&flags).check().unwrap_err();
            assert!(error.is::<Usage>(), "{flags:?}: {error}");
        }
        assert!(parse(&["--temperature", "0"]).check().is_ok());
    }
}
