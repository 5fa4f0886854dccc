//! What the address bar holds: enough for a colleague to see the same picture.
//!
//! Pure: an address becomes a [`Route`] and a [`Route`] an address, and the round trip is tested.

use tidegauge_api::paths::page;

/// A page of the dashboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// The list of runs.
    Runs,
    /// One run's grid.
    Run {
        /// Id of the run.
        id: String,
        /// The first and the last step that are shown; all without.
        steps: Option<(u64, u64)>,
    },
    /// One snapshot's timeline.
    Snapshot {
        /// Id of the snapshot.
        id: String,
        /// What of it is shown.
        view: View,
    },
    /// The upload form.
    Upload,
    /// A file opened in the browser.
    File {
        /// What of it is shown.
        view: View,
    },
    /// An address no page has.
    Unknown {
        /// The path as it stood in the address bar.
        path: String,
    },
}

/// What of a snapshot is shown. What is absent is the page's choice: the busiest device, the whole trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Device ordinal.
    pub device: Option<u32>,
    /// First state of the window and one past its last.
    pub window: Option<(u32, u32)>,
    /// The allocation that is pinned in the side pane.
    pub allocation: Option<u32>,
    /// Which allocations are meant; all when empty. What is no filter is kept: the page says why it is none.
    pub only: String,
}

/// "?steps=401-420"; what makes no sense is left out.
fn steps(query: &str) -> Option<(u64, u64)> {
    let mut pairs = query.trim_start_matches('?').split('&').filter_map(|pair| pair.split_once('='));
    let (first, last) = pairs.find(|(name, _)| *name == "steps")?.1.split_once('-')?;
    first.parse().ok().zip(last.parse().ok()).filter(|(first, last)| first <= last)
}

impl Route {
    /// One run's grid with all its steps.
    pub fn run(id: impl Into<String>) -> Self {
        Self::Run { id: id.into(), steps: None }
    }

    /// The page at a path and query, as `location` gives them: `/runs/01J…`, `?device=5`.
    pub fn parse(path: &str, query: &str) -> Self {
        let view = || View::parse(query);
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        match segments.as_slice() {
            [] => Self::Runs,
            ["upload"] => Self::Upload,
            ["file"] => Self::File { view: view() },
            ["runs", id] => Self::Run { id: (*id).to_owned(), steps: steps(query) },
            ["snapshots", id] => Self::Snapshot { id: (*id).to_owned(), view: view() },
            _ => Self::Unknown { path: path.to_owned() },
        }
    }

    /// The address of this page, without the origin.
    pub fn address(&self) -> String {
        match self {
            Self::Runs => page::RUNS.to_owned(),
            Self::Run { id, steps: None } => page::run(id),
            Self::Run { id, steps: Some((first, last)) } => format!("{}?steps={first}-{last}", page::run(id)),
            Self::Snapshot { id, view } => page::snapshot(id) + &view.query(),
            Self::Upload => page::UPLOAD.to_owned(),
            Self::File { view } => page::FILE.to_owned() + &view.query(),
            Self::Unknown { path } => path.clone(),
        }
    }

    /// The view this page shows of a snapshot; the default on pages without one.
    pub fn view(&self) -> View {
        match self {
            Self::Snapshot { view, .. } | Self::File { view } => view.clone(),
            _ => View::default(),
        }
    }

    /// This page with another view; pages without one stay as they are.
    pub fn with_view(&self, view: View) -> Self {
        match self {
            Self::Snapshot { id, .. } => Self::Snapshot { id: id.clone(), view },
            Self::File { .. } => Self::File { view },
            other => other.clone(),
        }
    }
}

impl View {
    /// The view in a query string. What makes no sense is left out: an address may come from anywhere.
    pub fn parse(query: &str) -> Self {
        let text = |name: &str| {
            let mut pairs = query.trim_start_matches('?').split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let number = |name: &str| text(name).and_then(|value| value.parse::<u32>().ok());
        let window = number("from").zip(number("to")).filter(|(from, to)| from < to);
        let only = text("where").map(percent_decoded).unwrap_or_default();
        Self { device: number("device"), window, allocation: number("allocation"), only }
    }

    /// The query string that holds this view, with its `?`; empty when everything is the page's choice.
    pub fn query(&self) -> String {
        let (from, to) = self.window.unzip();
        let pairs = [("device", self.device), ("from", from), ("to", to), ("allocation", self.allocation)];
        let mut pairs: Vec<String> =
            pairs.iter().filter_map(|(name, value)| value.map(|value| format!("{name}={value}"))).collect();
        if !self.only.is_empty() {
            pairs.push(format!("where={}", percent_encoded(&self.only)));
        }
        if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
    }
}

/// An address with a query of the given pairs; empty values are left out.
///
/// ```
/// use tidegauge_viewer::link::with_query;
/// let address = with_query("/api", &[("run", "llama 8b"), ("role", ""), ("rank", "3")]);
/// assert_eq!(address, "/api?run=llama%208b&rank=3");
/// ```
pub fn with_query(address: &str, pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = pairs
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}={}", percent_encoded(value)))
        .collect();
    if pairs.is_empty() { address.to_owned() } else { format!("{address}?{}", pairs.join("&")) }
}

/// Everything but the unreserved characters of RFC 3986 as `%XX`.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The text behind `%XX`, and behind the `+` that forms write for a space. What is no text becomes question marks.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = || char::from(*after.first()?).to_digit(16).zip(char::from(*after.get(1)?).to_digit(16));
        let (byte, n_more) = match (first, (*first == b'%').then(hex).flatten()) {
            (_, Some((high, low))) => ((high * 16 + low) as u8, 2),
            (b'+', None) => (b' ', 0),
            (byte, None) => (*byte, 0),
        };
        bytes.push(byte);
        rest = &after[n_more..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(address: &str) -> Route {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        Route::parse(path, query)
    }

    #[test]
    fn every_page_comes_back_from_its_address() {
        let only = "size>1MiB stack~\"a & b\" 100%".to_owned();
        let view = View { device: Some(5), window: Some((100, 9000)), allocation: Some(77), only };
        for route in [
            Route::Runs,
            Route::run("01JD"),
            Route::Run { id: "01JD".to_owned(), steps: Some((401, 420)) },
            Route::Snapshot { id: "01JE".to_owned(), view: View::default() },
            Route::Snapshot { id: "01JE".to_owned(), view },
            Route::Upload,
            Route::File { view: View { device: Some(0), ..View::default() } },
            Route::Unknown { path: "/nothing/here".to_owned() },
        ] {
            assert_eq!(parse(&route.address()), route);
        }
    }

    #[test]
    fn an_address_spells_its_view_out() {
        let view = View { device: Some(5), window: Some((100, 9000)), ..View::default() };
        let route = Route::Snapshot { id: "01JE".to_owned(), view };
        assert_eq!(route.address(), "/snapshots/01JE?device=5&from=100&to=9000");
    }

    #[test]
    fn a_query_that_makes_no_sense_is_the_page_s_choice() {
        assert_eq!(View::parse("?device=gpu&from=9&to=9"), View::default());
        assert_eq!(View::parse("?from=5"), View::default());
        assert_eq!(View::parse("?device=99999999999"), View::default());
        assert_eq!(View::parse("?&&=&device=1").device, Some(1));
    }

    #[test]
    fn a_slash_at_the_end_changes_nothing() {
        assert_eq!(parse("/runs/01JD/"), Route::run("01JD"));
        for nonsense in ["5", "9-5", "a-b", "-", "1-2-3"] {
            assert_eq!(Route::parse("/runs/01JD", &format!("?steps={nonsense}")), Route::run("01JD"));
        }
        assert_eq!(parse("/runs"), Route::Unknown { path: "/runs".to_owned() });
    }

    #[test]
    fn a_filter_is_read_however_it_was_encoded() {
        for query in ["?where=size%3E1MiB%20a", "?where=size>1MiB+a", "?device=x&where=size%3e1MiB+a"] {
            assert_eq!(View::parse(query).only, "size>1MiB a");
        }
        assert_eq!(View::parse("?where=%").only, "%");
        assert_eq!(View::parse("?where=%zz%4").only, "%zz%4");
        assert_eq!(View::parse("?where=%ff").only, "\u{fffd}");
    }

    #[test]
    fn a_query_may_hold_any_text() {
        assert_eq!(with_query("/a", &[("run", "ünter/&=?")]), "/a?run=%C3%BCnter%2F%26%3D%3F");
        assert_eq!(with_query("/a", &[("run", "")]), "/a");
    }
}
