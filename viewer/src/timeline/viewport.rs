//! The part of the trace that is in view, and how it moves.
//!
//! The x axis counts states: state `k` is memory after the first `k` events and takes the space from `k` to
//! `k + 1`, so a trace of `n` events is `n + 1` wide. Bounds are fractional, so that a slow drag is smooth; what
//! is asked of the worker and written to the address bar is rounded outward to whole states.

/// The narrowest window, in states: fewer would show less than an event and what is around it.
pub const MIN_STATES: f64 = 8.0;

/// A window on the states of one trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Viewport {
    n_states: u32,
    from: f64,
    to: f64,
}

impl Viewport {
    /// The whole trace of `n_events` events.
    pub fn whole(n_events: u32) -> Self {
        let n_states = n_events.saturating_add(1);
        Self { n_states, from: 0.0, to: f64::from(n_states) }
    }

    /// A window of this trace, moved and widened to what the trace has.
    pub fn window(self, from: f64, to: f64) -> Self {
        let all = f64::from(self.n_states);
        let width = (to - from).clamp(MIN_STATES.min(all), all);
        let from = from.clamp(0.0, all - width);
        Self { from, to: from + width, ..self }
    }

    /// Left edge, states.
    pub fn from(self) -> f64 {
        self.from
    }

    /// Right edge, states.
    pub fn to(self) -> f64 {
        self.to
    }

    /// Width, states.
    pub fn width(self) -> f64 {
        self.to - self.from
    }

    /// States of the trace.
    pub fn n_states(self) -> u32 {
        self.n_states
    }

    /// True when all of the trace is in view.
    pub fn is_whole(self) -> bool {
        self.width() >= f64::from(self.n_states)
    }

    /// The whole states that cover the window: the first, and one past the last.
    pub fn states(self) -> (u32, u32) {
        // Both lie within 0..=n_states, by `window`.
        let from = self.from.floor() as u32;
        let to = (self.to.ceil() as u32).min(self.n_states);
        (from, to.max(from + 1))
    }

    /// Zoomed by `factor` (above 1 shows less), with the state at fraction `at` of the width standing still.
    pub fn zoomed(self, factor: f64, at: f64) -> Self {
        let all = f64::from(self.n_states);
        let still = self.from + self.width() * at;
        let width = (self.width() / factor).clamp(MIN_STATES.min(all), all);
        self.window(still - width * at, still + width * (1.0 - at))
    }

    /// Moved right by a fraction of its width.
    pub fn panned(self, fraction: f64) -> Self {
        let by = self.width() * fraction;
        self.window(self.from + by, self.to + by)
    }

    /// Moved as little as it takes to show `state` with some room around it.
    pub fn showing(self, state: u32) -> Self {
        let (state, margin) = (f64::from(state) + 0.5, self.width() * 0.05);
        if state < self.from + margin {
            self.window(state - margin, state - margin + self.width())
        } else if state > self.to - margin {
            self.window(state + margin - self.width(), state + margin)
        } else {
            self
        }
    }

    /// Fraction of the width at which a position on the state axis lies; outside 0..=1 when out of view.
    pub fn fraction_from_position(self, position: f64) -> f64 {
        (position - self.from) / self.width()
    }

    /// The state at a fraction of the width.
    pub fn state_from_fraction(self, fraction: f64) -> u32 {
        let position = self.from + self.width() * fraction.clamp(0.0, 1.0);
        (position.floor() as u32).min(self.n_states - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zooming_keeps_what_is_under_the_pointer() {
        let view = Viewport::whole(9_999).zoomed(4.0, 0.25);
        assert_eq!((view.from(), view.to()), (1_875.0, 4_375.0));
        let state = view.state_from_fraction(0.7);
        assert_eq!(view.zoomed(3.0, 0.7).state_from_fraction(0.7), state);
    }

    #[test]
    fn a_window_never_leaves_the_trace() {
        let whole = Viewport::whole(999);
        assert_eq!(whole.zoomed(0.1, 0.5), whole);
        assert_eq!(whole.panned(0.5), whole);
        let right = whole.window(900.0, 950.0).panned(9.0);
        assert_eq!((right.from(), right.to()), (950.0, 1_000.0));
        assert_eq!(whole.window(-50.0, 50.0), whole.window(0.0, 100.0));
        assert_eq!(whole.window(4_000.0, 9_000.0), whole);
    }

    #[test]
    fn zooming_in_stops_at_a_few_states_and_short_traces_are_always_whole() {
        let mut view = Viewport::whole(1_000_000);
        for _ in 0..200 {
            view = view.zoomed(1.5, 0.3);
        }
        assert_eq!(view.width(), MIN_STATES);
        let short = Viewport::whole(2);
        assert_eq!(short.zoomed(8.0, 0.5), short);
        assert_eq!(short.states(), (0, 3));
    }

    #[test]
    fn whole_states_cover_the_window() {
        let whole = Viewport::whole(99);
        assert_eq!(whole.states(), (0, 100));
        assert_eq!(whole.window(10.25, 20.75).states(), (10, 21));
        assert_eq!(whole.window(90.5, 100.0).states(), (90, 100));
    }

    #[test]
    fn a_state_out_of_view_comes_into_view_and_one_in_view_moves_nothing() {
        let view = Viewport::whole(9_999).window(1_000.0, 2_000.0);
        assert_eq!(view.showing(1_500), view);
        for state in [0, 999, 2_001, 9_999] {
            let moved = view.showing(state);
            let at = moved.fraction_from_position(f64::from(state) + 0.5);
            assert!((0.0..=1.0).contains(&at), "{state} at {at}");
            assert_eq!(moved.width(), view.width());
        }
    }

    #[test]
    fn fractions_and_states_agree() {
        let view = Viewport::whole(999).window(100.0, 200.0);
        assert_eq!(view.state_from_fraction(0.0), 100);
        assert_eq!(view.state_from_fraction(0.5), 150);
        assert_eq!(view.fraction_from_position(150.0), 0.5);
        assert_eq!(Viewport::whole(9).state_from_fraction(1.0), 9);
    }
}
