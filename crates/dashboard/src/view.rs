//! The view of a run: the steps that the page shows, and the width of the charts. The query of the page's address
//! contains the view. The module does no I/O.

use serde::Deserialize;

/// The allowed widths of charts, in pixels.
const WIDTHS: std::ops::RangeInclusive<u32> = 280..=1600;
/// The default width, for a browser without scripts. Such a browser scales the charts.
const DEFAULT_WIDTH: u32 = 900;

/// The query as received. The page ignores an invalid field, such as an empty field of a form.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ViewQuery {
    from: String,
    to: String,
    width: String,
}

/// The steps that the page shows, and the width of the charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// The first step; `None` for the run's first step.
    from: Option<u64>,
    /// The last step; `None` for the newest step, which changes while the job runs.
    to: Option<u64>,
    /// The width of the charts, in pixels.
    pub(super) width: u32,
}

impl From<&ViewQuery> for View {
    fn from(query: &ViewQuery) -> View {
        View {
            from: query.from.parse().ok(),
            to: query.to.parse().ok(),
            width: query.width.parse().map_or(DEFAULT_WIDTH, |width: u32| width.clamp(*WIDTHS.start(), *WIDTHS.end())),
        }
    }
}

/// A change of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zoom {
    In,
    Out,
    Earlier,
    Later,
    All,
}

impl Zoom {
    /// All zooms, each with its name in the page's script and the label of its link.
    pub(super) const ALL: [(Zoom, &str, &str); 5] = [
        (Zoom::Earlier, "earlier", "Earlier"),
        (Zoom::Later, "later", "Later"),
        (Zoom::In, "in", "Zoom in"),
        (Zoom::Out, "out", "Zoom out"),
        (Zoom::All, "all", "All steps"),
    ];
}

impl View {
    /// Returns the first and the last shown step, for a run whose newest step is `newest`. The last step is after the
    /// first.
    pub(super) fn range(&self, newest: u64) -> (u64, u64) {
        let newest = newest.max(2);
        let last = self.to.unwrap_or(newest).clamp(2, newest);
        (self.from.unwrap_or(1).clamp(1, last - 1), last)
    }

    /// Returns the URL query of the view after `zoom`, with the question mark.
    pub(super) fn query_after(&self, zoom: Zoom, newest: u64) -> String {
        let (first, last) = self.range(newest);
        let (span, half) = (last - first, (last - first).div_ceil(2));
        let (first, last) = match zoom {
            // the zoom selects the newer half of a view that follows the run, and the middle of any other view
            Zoom::In if self.to.is_none() => (first + half, last),
            Zoom::In => (first + span / 4, (first + span / 4).saturating_add(half)),
            Zoom::Out => (first.saturating_sub(half), last.saturating_add(half)),
            Zoom::Earlier => {
                let first = first.saturating_sub(half).max(1);
                (first, first.saturating_add(span))
            }
            Zoom::Later => {
                let last = last.saturating_add(half).min(newest.max(last));
                (last - span, last)
            }
            Zoom::All => (1, newest),
        };
        let from = (first > 1).then(|| format!("from={first}"));
        let to = (last < newest).then(|| format!("to={last}"));
        let parts: Vec<String> = from.into_iter().chain(to).collect();
        format!("?{}", parts.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn view(query: &str) -> View {
        let mut fields = ViewQuery::default();
        for (name, value) in query.trim_start_matches('?').split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "from" => fields.from = value.to_owned(),
                "to" => fields.to = value.to_owned(),
                _ => fields.width = value.to_owned(),
            }
        }
        View::from(&fields)
    }

    #[test]
    fn a_query_that_makes_no_sense_shows_all() {
        for query in ["", "from=&to=", "from=-1&to=x", "from=<script>", "width=NaN"] {
            assert_eq!(view(query).range(100), (1, 100), "{query}");
        }
        assert_eq!(view("from=90&to=10").range(100), (9, 10));
        assert_eq!(view("from=18446744073709551615").range(100), (99, 100));
        assert_eq!((view("width=1").width, view("width=999999").width), (280, 1600));
        assert_eq!(view("").range(0), (1, 2));
    }

    #[test]
    fn zooming_in_and_out_again() {
        let after = |query: &str, zoom| view(query).query_after(zoom, 1000);
        assert_eq!(after("", Zoom::In), "?from=501");
        assert_eq!(after("from=201&to=401", Zoom::In), "?from=251&to=351");
        assert_eq!(after("from=251&to=351", Zoom::Out), "?from=201&to=401");
        assert_eq!(after("from=251&to=351", Zoom::Earlier), "?from=201&to=301");
        assert_eq!(after("from=251&to=351", Zoom::Later), "?from=301&to=401");
        assert_eq!((after("", Zoom::Later), after("from=901&to=999", Zoom::Later)), ("?".into(), "?from=902".into()));
        assert_eq!((after("from=501", Zoom::Out), after("from=7&to=9", Zoom::All)), ("?from=251".into(), "?".into()));
    }

    proptest! {
        #[test]
        fn every_zoom_gives_a_range(from: Option<u64>, to: Option<u64>, newest: u64, zoom in 0usize..5) {
            let query = View { from, to, width: 300 }.query_after(Zoom::ALL[zoom].0, newest);
            let (first, last) = view(&query).range(newest);
            prop_assert!(first >= 1 && first < last && last <= newest.max(2));
        }
    }
}
