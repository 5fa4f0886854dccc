//! Round numbers for both axes.

use crate::format;

/// One tick: where it is, and its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    /// Position on the axis, in the axis' own unit: bytes or states.
    pub at: f64,
    /// What stands beside it.
    pub label: String,
}

/// Ticks of an axis of bytes from 0 to `top`, at most `n_max` of them: 1, 2 or 5 times a power of ten of one
/// binary unit, which is returned beside them.
pub fn byte_ticks(top: u64, n_max: usize) -> (Vec<Tick>, &'static str) {
    const UNITS: [(&str, f64); 5] = [
        ("TiB", 1_099_511_627_776.0),
        ("GiB", 1_073_741_824.0),
        ("MiB", 1_048_576.0),
        ("KiB", 1_024.0),
        ("B", 1.0),
    ];
    if top == 0 {
        return (vec![Tick { at: 0.0, label: "0".to_owned() }], "B");
    }
    let top = top as f64;
    // A unit is worth its name from one of it on.
    let (unit, bytes_per_unit) = UNITS.into_iter().find(|(_, bytes)| top >= *bytes).unwrap_or(("B", 1.0));
    let step = round_step(top / bytes_per_unit, n_max);
    let decimals = decimals_of(step);
    let n = (top / bytes_per_unit / step).floor() as usize;
    let tick = |i: usize| {
        let value = i as f64 * step;
        Tick { at: value * bytes_per_unit, label: format!("{value:.decimals$}") }
    };
    ((0..=n.min(n_max)).map(tick).collect(), unit)
}

/// Ticks of an axis of events between two positions, at most `n_max` of them, on whole events.
pub fn event_ticks(from: f64, to: f64, n_max: usize) -> Vec<Tick> {
    let step = round_step(to - from, n_max).max(1.0);
    let first = (from / step).ceil();
    let n = ((to / step).floor() - first) as usize;
    (0..=n.min(n_max))
        .map(|i| (first + i as f64) * step)
        .filter(|at| (from..=to).contains(at))
        .map(|at| Tick { at, label: format::count(at as u64) })
        .collect()
}

/// The smallest of 1, 2, 5 × 10ⁿ that divides `span` into at most `n_max` parts.
fn round_step(span: f64, n_max: usize) -> f64 {
    let least = (span / n_max.max(1) as f64).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        // A step a rounding error below the least one is that one.
        .find(|step| *step >= least * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

fn decimals_of(step: f64) -> usize {
    if step >= 1.0 { 0 } else { (-step.log10()).ceil() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn bytes_get_round_numbers_of_one_unit() {
        let (ticks, unit) = byte_ticks(66 << 30, 5);
        assert_eq!((labels(&ticks), unit), (vec!["0", "20", "40", "60"], "GiB"));
        assert_eq!(ticks[1].at, 20.0 * 1_073_741_824.0);
        let (ticks, unit) = byte_ticks(1_200_000_000, 6);
        assert_eq!((labels(&ticks), unit), (vec!["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"], "GiB"));
        let (ticks, unit) = byte_ticks(700, 4);
        assert_eq!((labels(&ticks), unit), (vec!["0", "200", "400", "600"], "B"));
    }

    #[test]
    fn an_axis_of_nothing_has_its_zero() {
        assert_eq!(labels(&byte_ticks(0, 5).0), ["0"]);
    }

    #[test]
    fn events_get_round_numbers_in_view_only() {
        assert_eq!(
            labels(&event_ticks(0.0, 38_912.0, 8)),
            ["0", "5,000", "10,000", "15,000", "20,000", "25,000", "30,000", "35,000"]
        );
        assert_eq!(
            labels(&event_ticks(9_970.0, 10_020.0, 5)),
            ["9,970", "9,980", "9,990", "10,000", "10,010", "10,020"]
        );
        assert_eq!(labels(&event_ticks(3.2, 8.9, 20)), ["4", "5", "6", "7", "8"]);
    }

    #[test]
    fn steps_are_never_finer_than_asked() {
        for span in [1.0, 7.0, 99.0, 1_000.0, 123_456.0, 9.9e9] {
            for n_max in 1..20 {
                assert!(span / round_step(span, n_max) <= n_max as f64 + 1e-6);
            }
        }
    }
}
