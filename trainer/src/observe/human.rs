//! Numbers as people read them.

/// Digits in groups of three: `4,812`.
pub fn thousands(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::from(if value <= -0.5 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits and a unit of thousands: `950`, `4.21M`, `12.3B`.
pub fn count(value: u64) -> String {
    scaled(value as f64, 1000.0, &["", "k", "M", "B", "T"], "")
}

/// Bytes with a binary unit: `512 B`, `1.21 MiB`.
pub fn bytes(value: u64) -> String {
    scaled(value as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"], " ")
}

fn scaled(mut value: f64, base: f64, units: &[&str], space: &str) -> String {
    let mut unit = 0;
    // 999.5 would be written with four digits.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { 1 + usize::from(value < 9.995) };
    format!("{value:.digits$}{space}{}", units.get(unit).unwrap_or(&""))
}

/// Seconds: `0.4s`, `41s`, `3m12s`, `2h05m`, `3d04h`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "-".into();
    }
    if seconds < 9.95 {
        return format!("{seconds:.1}s");
    }
    match seconds.round() as u64 {
        whole @ 0..60 => format!("{whole}s"),
        whole @ 60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        whole @ 3600..86_400 => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
        whole => format!("{}d{:02}h", whole / 86_400, whole / 3600 % 24),
    }
}

/// A share from 0 to 1 as whole percent.
pub(super) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.0}%", share * 100.0) } else { "-".into() }
}

/// A loss in nats; what isn't finite says so.
pub(super) fn nats(loss: Option<f64>) -> String {
    match loss {
        Some(loss) if loss.is_finite() => format!("{loss:.4}"),
        _ => "not finite".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_three() {
        let pairs = [(0.0, "0"), (999.0, "999"), (1000.0, "1,000"), (4811.7, "4,812"), (-1_234_567.0, "-1,234,567")];
        for (value, text) in pairs {
            assert_eq!(thousands(value), text);
        }
        assert_eq!((thousands(-0.2), thousands(f64::NAN)), ("0".into(), "-".into()));
    }

    #[test]
    fn three_digits_and_a_unit() {
        for (value, text) in [
            (0, "0"),
            (950, "950"),
            (1_000, "1.00k"),
            (4_213_000, "4.21M"),
            (999_999, "1.00M"),
            (99_960_000_000, "100B"),
        ] {
            assert_eq!(count(value), text);
        }
        for (value, text) in [(512, "512 B"), (1024, "1.00 KiB"), (5_662_310, "5.40 MiB"), (u64::MAX, "16384 PiB")] {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn durations_change_their_unit() {
        let pairs =
            [(0.42, "0.4s"), (41.2, "41s"), (59.6, "1m00s"), (192.0, "3m12s"), (7500.0, "2h05m"), (273_600.0, "3d04h")];
        for (seconds, text) in pairs {
            assert_eq!(duration(seconds), text);
        }
        assert_eq!((duration(f64::NAN), duration(-1.0)), ("-".into(), "-".into()));
    }
}
