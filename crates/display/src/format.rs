//! Quantities as text, beside `indicatif`'s `HumanBytes` and `HumanCount`.

use jiff::{SignedDuration, Timestamp};
use stagecoach_api::job::FloatString;
use stagecoach_lifecycle::UnixMillis;

/// Seconds as `0.4s`, `41s`, `3m 12s` or `2h 5m 3s`.
pub fn duration(seconds: f64) -> String {
    match SignedDuration::try_from_secs_f64(seconds.round()) {
        Ok(whole) if seconds >= 9.95 => format!("{whole:#}"),
        Ok(_) if seconds >= 0.0 => format!("{seconds:.1}s"),
        _ => "-".into(),
    }
}

/// A share from 0 to 1 as whole percent.
pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.0}%", share * 100.0) } else { "-".into() }
}

/// A loss in nats.
pub fn nats(loss: Option<f64>) -> String {
    match loss {
        Some(loss) if loss.is_finite() => format!("{:.4}", FloatString(loss).rounded(4).0),
        _ => "not finite".into(),
    }
}

/// Date and time in UTC, to the second.
pub fn time(at: UnixMillis) -> String {
    let timestamp = i64::try_from(at.0).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
    timestamp.map_or_else(|| "an unknown time".into(), |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_of_nearly_nothing_has_no_sign() {
        let texts = [-0.0, -0.00004, 0.00004, -0.00006, 2.5].map(|loss| nats(Some(loss)));
        assert_eq!(texts, ["0.0000", "0.0000", "0.0000", "-0.0001", "2.5000"]);
    }

    #[test]
    fn durations_change_their_unit() {
        let pairs = [
            (0.42, "0.4s"),
            (41.2, "41s"),
            (59.6, "1m"),
            (192.0, "3m 12s"),
            (7503.0, "2h 5m 3s"),
            (f64::NAN, "-"),
            (-1.0, "-"),
        ];
        for (seconds, text) in pairs {
            assert_eq!(duration(seconds), text);
        }
    }
}
