//! The choice of the next token.

use tch::{Kind, Tensor};

/// The settings of sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// The divisor of the logits. With 0, sampling always takes the most likely token.
    pub temperature: f64,
    /// The number of most likely tokens to sample from.
    pub top_k: usize,
    /// The probability, in (0, 1], that the set of tokens to sample from must reach. The set is the smallest set of
    /// most likely tokens that reaches this probability.
    pub top_p: f64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.8, top_k: 40, top_p: 1.0 }
    }
}

impl Sampling {
    /// Samples a token from `logits`, `[vocabulary]`: sorts the tokens by descending probability, and returns the first
    /// token at which the cumulative probability exceeds `uniform`, a number in [0, 1). As in transformers, the
    /// temperature applies first, `top_k` second and `top_p` last.
    pub(super) fn token(self, logits: &Tensor, uniform: f64) -> i64 {
        let logits = logits.to_kind(Kind::Double);
        if self.temperature <= 0.0 {
            return logits.argmax(0, false).int64_value(&[]);
        }
        let k = (self.top_k.max(1) as i64).min(logits.size()[0]);
        let (values, indices) = logits.topk(k, 0, true, true);
        let cumulative = (values / self.temperature).softmax(0, Kind::Double).cumsum(0, Kind::Double);
        let below = |bound: f64| cumulative.le(bound).to_kind(Kind::Int64).sum(Kind::Int64).int64_value(&[]);
        // the set ends with the token at which the cumulative probability reaches `top_p`
        let last = cumulative.lt(self.top_p).to_kind(Kind::Int64).sum(Kind::Int64).int64_value(&[]).min(k - 1);
        let kept = cumulative.double_value(&[last]);
        let uniform = if self.top_p < 1.0 { uniform * kept } else { uniform };
        indices.int64_value(&[below(uniform).min(last)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the distinct tokens of a thousand draws.
    fn drawn(sampling: Sampling, probabilities: &[f64]) -> Vec<i64> {
        let logits = Tensor::from_slice(probabilities).log();
        let mut tokens: Vec<i64> = (0..1000).map(|at| sampling.token(&logits, f64::from(at) / 1000.0)).collect();
        tokens.dedup();
        tokens
    }

    #[test]
    fn tokens_are_drawn_from_the_most_likely_ones() {
        let probabilities = [0.1, 0.5, 0.25, 0.15];
        let all = Sampling { temperature: 1.0, top_k: 10, top_p: 1.0 };
        assert_eq!(drawn(all, &probabilities), [1, 2, 3, 0]);
        assert_eq!(drawn(Sampling { top_k: 3, ..all }, &probabilities), [1, 2, 3]);
        assert_eq!(drawn(Sampling { top_p: 0.5, ..all }, &probabilities), [1]);
        assert_eq!(drawn(Sampling { top_p: 0.51, ..all }, &probabilities), [1, 2]);
        assert_eq!(drawn(Sampling { top_p: 0.76, ..all }, &probabilities), [1, 2, 3]);
        // of the three most likely tokens, the first has the probability 5/9
        assert_eq!(drawn(Sampling { top_k: 3, top_p: 0.55, ..all }, &probabilities), [1]);
        assert_eq!(drawn(Sampling { temperature: 0.0, ..all }, &probabilities), [1]);
    }

    #[test]
    fn the_kept_tokens_share_all_of_the_probability() {
        let logits = Tensor::from_slice(&[0.5, 0.3, 0.2]).log();
        let sampling = Sampling { temperature: 1.0, top_k: 3, top_p: 0.79 };
        let first = (0..1000).filter(|at| sampling.token(&logits, f64::from(*at) / 1000.0) == 0).count();
        assert!((620..=630).contains(&first), "{first} of 1000 at 5/8");
    }
}
