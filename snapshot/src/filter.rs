//! Which allocations are meant: one small grammar for the page, its addresses, the interface and the command line.
//!
//! ```text
//! size>1MiB stack~attention pool:private live@peak -is:older
//! ```
//! A filter is a list of terms with spaces between them; all must hold. A `-` before a term turns it round. What is
//! in double quotes stays together.
//!
//! | term | holds for allocations |
//! |---|---|
//! | `size>1MiB` | whose block is larger; also `>=`, `<`, `<=`, `=`; also of `requested` and `waste`, the difference |
//! | `born>=1000` `freed<2000` | that began or ended at such a state; one that outlives the trace is freed at none |
//! | `life<100` | that lived so many states; one that outlives the trace has lived to its end |
//! | `live@peak` | that were alive at the peak; also `live@start`, `live@end`, `live@1234` |
//! | `stack~attention` | with the text in a function or file of their stack, upper and lower case alike |
//! | `file~model.py` `module~optim` | with the text in the file, or the module, of the line that asked for them |
//! | `pool:default` `pool:private` | in the default pool, or in any other; also by name: `pool:"graph 1"` |
//! | `stream:0` | of this stream, by its handle in decimal or hex |
//! | `address:0x7f00000` | whose block covers this address |
//! | `is:older` `is:kept` `is:pending` | older than the trace; never freed in it; waiting for a stream at the end |
//! | `attention` | as `stack~attention` |

use std::{fmt, str::FromStr};

use crate::{
    Snapshot,
    model::StackId,
    origins::Origins,
    replay::NEVER,
    sites,
    words::{self, size},
};

/// The longest filter that is read, bytes: what is longer was not typed by anybody.
pub const MAX_BYTES: usize = 4096;

/// Which allocations are meant; the empty filter means all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    terms: Vec<(bool, Term)>,
}

#[derive(Debug, Clone, PartialEq)]
enum Term {
    Number(Number, Compare, u64),
    Text(Text, String),
    Live(Moment),
    Pool(Pool),
    Stream(u64),
    Address(u64),
    Is(Is),
}

/// What a named set of words stands for.
type Words<T> = &'static [(&'static str, T)];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    Size,
    Requested,
    Waste,
    Born,
    Freed,
    Life,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Compare {
    More,
    AtLeast,
    Less,
    AtMost,
    Equal,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Text {
    Stack,
    File,
    Module,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    Peak,
    Start,
    End,
    State(u32),
}

#[derive(Debug, Clone, PartialEq)]
enum Pool {
    Default,
    Private,
    Named(String),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Is {
    Older,
    Kept,
    Pending,
}

const NUMBERS: Words<Number> = &[
    ("size", Number::Size),
    ("requested", Number::Requested),
    ("waste", Number::Waste),
    ("born", Number::Born),
    ("freed", Number::Freed),
    ("life", Number::Life),
];
const TEXTS: Words<Text> = &[("stack", Text::Stack), ("file", Text::File), ("module", Text::Module)];
const STATES: Words<Is> = &[("older", Is::Older), ("kept", Is::Kept), ("pending", Is::Pending)];
/// Longer ones first, so that `>=` is not read as `>`.
const COMPARES: Words<Compare> = &[
    (">=", Compare::AtLeast),
    ("<=", Compare::AtMost),
    (">", Compare::More),
    ("<", Compare::Less),
    ("=", Compare::Equal),
];

impl Filter {
    /// True when all are meant.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }
}

/// Why a text is no filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError(String);

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FilterError {}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        if text.len() > MAX_BYTES {
            return Err(FilterError(format!("the filter is longer than {MAX_BYTES} bytes")));
        }
        let words = split(text)?;
        let terms = words.iter().map(|word| match word.strip_prefix('-') {
            Some(rest) if !rest.is_empty() => Ok((false, term(rest)?)),
            _ => Ok((true, term(word)?)),
        });
        Ok(Self { terms: terms.collect::<Result<_, FilterError>>()? })
    }
}

/// At spaces outside quotes. A backslash is no escape: nobody has `"` in a path.
fn split(text: &str) -> Result<Vec<String>, FilterError> {
    let (mut words, mut word, mut is_quoted, mut is_word) = (Vec::new(), String::new(), false, false);
    for c in text.chars() {
        match c {
            '"' => {
                is_quoted = !is_quoted;
                is_word = true;
            }
            c if c.is_whitespace() && !is_quoted => {
                if std::mem::take(&mut is_word) {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => {
                word.push(c);
                is_word = true;
            }
        }
    }
    if is_quoted {
        return Err(FilterError("a \" in the filter has no other that ends it".to_owned()));
    }
    if is_word {
        words.push(word);
    }
    Ok(words)
}

fn term(word: &str) -> Result<Term, FilterError> {
    let name_end = word.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(word.len());
    let (name, rest) = word.split_at(name_end);
    if let Some(number) = named(NUMBERS, name)
        && let Some((compare, value)) =
            COMPARES.iter().find_map(|(sign, compare)| Some((*compare, rest.strip_prefix(sign)?)))
    {
        let value = number.value(value).ok_or_else(|| {
            FilterError(format!(
                "{word}: after the sign stands {} such as {}",
                number.kind(),
                number.example()
            ))
        })?;
        return Ok(Term::Number(number, compare, value));
    }
    if let (Some(text), Some(part)) = (named(TEXTS, name), rest.strip_prefix('~')) {
        return match part {
            "" => Err(FilterError(format!("{word}: after the ~ stands the text that is looked for"))),
            part => Ok(Term::Text(text, part.to_lowercase())),
        };
    }
    let wrong = |expected: &str| FilterError(format!("{word}: expected {expected}"));
    match (name, rest.get(..1), rest.get(1..).unwrap_or_default()) {
        ("live", Some("@"), moment) => {
            moment.parse().map(Term::Live).map_err(|()| wrong("live@peak, live@start, live@end or live@1234"))
        }
        ("pool", Some(":"), "default") => Ok(Term::Pool(Pool::Default)),
        ("pool", Some(":"), "private") => Ok(Term::Pool(Pool::Private)),
        ("pool", Some(":"), "") => Err(wrong("pool:default, pool:private or a pool's name")),
        ("pool", Some(":"), name) => Ok(Term::Pool(Pool::Named(name.to_owned()))),
        ("stream", Some(":"), handle) => {
            number_from(handle).map(Term::Stream).ok_or_else(|| wrong("a stream's handle, such as stream:0"))
        }
        ("address", Some(":"), address) => number_from(address)
            .map(Term::Address)
            .ok_or_else(|| wrong("an address, such as address:0x7f00000")),
        ("is", Some(":"), state) => {
            named(STATES, state).map(Term::Is).ok_or_else(|| wrong("is:older, is:kept or is:pending"))
        }
        _ if word.is_empty() => {
            Err(FilterError("two quotes with nothing between them look for nothing".to_owned()))
        }
        // A path with a colon, a name with a ~: whatever is no term is looked for in stacks.
        _ => Ok(Term::Text(Text::Stack, word.to_lowercase())),
    }
}

fn named<T: Copy>(words: Words<T>, name: &str) -> Option<T> {
    words.iter().find(|(word, _)| *word == name).map(|(_, meant)| *meant)
}

fn word<T: Copy + PartialEq>(words: Words<T>, meant: T) -> &'static str {
    words.iter().find(|(_, known)| *known == meant).map_or("", |(word, _)| word)
}

fn number_from(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// "512", "1.5MiB", "2GB": binary units, whatever they are called; nobody measures a GPU in powers of ten.
fn bytes_from(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let bytes = number.parse::<f64>().ok()? * (1_u64 << shift) as f64;
    // Up to the largest whole number that a float holds for certain.
    (bytes.is_finite() && (0.0..9e15).contains(&bytes)).then_some(bytes as u64)
}

impl Number {
    fn is_bytes(self) -> bool {
        matches!(self, Self::Size | Self::Requested | Self::Waste)
    }

    fn value(self, text: &str) -> Option<u64> {
        if self.is_bytes() { bytes_from(text) } else { text.replace(',', "").parse().ok() }
    }

    fn kind(self) -> &'static str {
        if self.is_bytes() { "a size" } else { "a number of events" }
    }

    fn example(self) -> &'static str {
        if self.is_bytes() { "1MiB" } else { "1000" }
    }
}

impl Compare {
    fn holds(self, a: u64, b: u64) -> bool {
        match self {
            Self::More => a > b,
            Self::AtLeast => a >= b,
            Self::Less => a < b,
            Self::AtMost => a <= b,
            Self::Equal => a == b,
        }
    }
}

impl FromStr for Moment {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "peak" => Ok(Self::Peak),
            "start" => Ok(Self::Start),
            "end" => Ok(Self::End),
            state => state.replace(',', "").parse().map(Self::State).map_err(|_no_number| ()),
        }
    }
}

/// As it may be typed: read again, it is the same filter.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (holds, term)) in self.terms.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            let sign = if *holds { "" } else { "-" };
            write!(f, "{space}{sign}{term}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number, compare, value) => {
                write!(f, "{}{}", word(NUMBERS, *number), word(COMPARES, *compare))?;
                let short = size(*value).replace(' ', "");
                // In a unit only where nothing is lost by it.
                match number.is_bytes() && bytes_from(&short) == Some(*value) {
                    true => f.write_str(&short),
                    false => write!(f, "{value}"),
                }
            }
            Self::Text(text, part) => write!(f, "{}~{}", word(TEXTS, *text), quoted(part)),
            Self::Live(Moment::Peak) => f.write_str("live@peak"),
            Self::Live(Moment::Start) => f.write_str("live@start"),
            Self::Live(Moment::End) => f.write_str("live@end"),
            Self::Live(Moment::State(state)) => write!(f, "live@{state}"),
            Self::Pool(Pool::Default) => f.write_str("pool:default"),
            Self::Pool(Pool::Private) => f.write_str("pool:private"),
            Self::Pool(Pool::Named(name)) => write!(f, "pool:{}", quoted(name)),
            Self::Stream(handle) => write!(f, "stream:{handle}"),
            Self::Address(address) => write!(f, "address:{address:#x}"),
            Self::Is(is) => write!(f, "is:{}", word(STATES, *is)),
        }
    }
}

fn quoted(text: &str) -> String {
    if text.contains(char::is_whitespace) { format!("\"{text}\"") } else { text.to_owned() }
}

/// A filter made ready for the allocations of one device.
#[derive(Debug)]
pub struct Matcher<'a> {
    origins: &'a Origins<'a>,
    terms: Vec<(bool, Ready)>,
    /// The last state there is.
    end: u32,
}

/// A term with everything looked up that is the same for all allocations.
#[derive(Debug)]
enum Ready {
    Number(Number, Compare, u64),
    /// Which stacks have the text, by number.
    Stacks(Vec<bool>),
    Live(u32),
    Pool(Pool),
    Stream(u64),
    Address(u64),
    Is(Is),
}

impl<'a> Matcher<'a> {
    /// Looks through the stacks once, so that asking for an allocation is quick.
    pub fn new(filter: &Filter, origins: &'a Origins<'a>) -> Self {
        let replay = origins.replay;
        let end = replay.curves.n_states().saturating_sub(1) as u32;
        let ready = |term: &Term| match term {
            Term::Number(number, compare, value) => Ready::Number(*number, *compare, *value),
            Term::Text(text, part) => Ready::Stacks(stacks_with(origins.snapshot, *text, part)),
            Term::Live(moment) => Ready::Live(match moment {
                Moment::Peak => replay.peak_state,
                Moment::Start => 0,
                Moment::End => end,
                Moment::State(state) => *state,
            }),
            Term::Pool(pool) => Ready::Pool(pool.clone()),
            Term::Stream(handle) => Ready::Stream(*handle),
            Term::Address(address) => Ready::Address(*address),
            Term::Is(is) => Ready::Is(*is),
        };
        let terms = filter.terms.iter().map(|(holds, term)| (*holds, ready(term))).collect();
        Self { origins, terms, end }
    }

    /// Whether an allocation is meant.
    pub fn matches(&self, allocation: usize) -> bool {
        self.terms.iter().all(|(holds, term)| self.holds(term, allocation) == *holds)
    }

    /// The allocations that are meant, in order of their beginning.
    pub fn rows(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.origins.replay.allocations.len()).filter(|row| self.matches(*row))
    }

    fn holds(&self, term: &Ready, row: usize) -> bool {
        let allocations = &self.origins.replay.allocations;
        let (from, to) = (allocations.from[row], allocations.to[row]);
        match term {
            Ready::Number(number, compare, value) => {
                let found = match number {
                    Number::Size => allocations.size[row],
                    Number::Requested => allocations.requested[row],
                    Number::Waste => allocations.size[row].saturating_sub(allocations.requested[row]),
                    Number::Born => u64::from(from),
                    Number::Freed if to == NEVER => return false,
                    Number::Freed => u64::from(to),
                    // Alive in the last state, too.
                    Number::Life if to == NEVER => u64::from(self.end.saturating_sub(from)) + 1,
                    Number::Life => u64::from(to.saturating_sub(from)),
                };
                compare.holds(found, *value)
            }
            Ready::Stacks(have) => {
                let stack = allocations.stack[row];
                stack != StackId::NONE && have.get(stack.0 as usize).copied().unwrap_or(false)
            }
            Ready::Live(state) => from <= *state && *state < to,
            Ready::Pool(pool) => match (pool, self.origins.pool(row)) {
                (_, None) => false,
                (Pool::Default, Some(found)) => found == (0, 0),
                (Pool::Private, Some(found)) => found != (0, 0),
                (Pool::Named(name), Some(found)) => words::pool(found) == *name,
            },
            Ready::Stream(handle) => self.origins.stream(row) == Some(*handle),
            Ready::Address(address) => {
                let first = allocations.address[row];
                (first..first.saturating_add(allocations.size[row])).contains(address)
            }
            Ready::Is(Is::Older) => self.origins.is_older(row),
            Ready::Is(Is::Kept) => to == NEVER && allocations.free_requested[row] == NEVER,
            Ready::Is(Is::Pending) => to == NEVER && allocations.free_requested[row] != NEVER,
        }
    }
}

/// Which stacks have a text in them, by number.
fn stacks_with(snapshot: &Snapshot, text: Text, part: &str) -> Vec<bool> {
    let has = |found: &str| found.to_lowercase().contains(part);
    let stacks = (0..snapshot.stacks.len()).map(|id| StackId(id as u32));
    match text {
        Text::Stack => {
            let frames = snapshot.stacks.all_frames().iter();
            let frames: Vec<bool> = frames.map(|frame| has(&sites::frame(snapshot, *frame))).collect();
            let is_in = |id: &u32| frames.get(*id as usize).copied().unwrap_or(false);
            stacks.map(|stack| snapshot.stacks.frame_ids(stack).iter().any(is_in)).collect()
        }
        Text::File | Text::Module => stacks
            .map(|stack| {
                let site = match text {
                    Text::File => sites::site(snapshot, stack),
                    _ => sites::innermost_python(snapshot, stack),
                };
                site.is_some_and(|frame| {
                    let file = sites::place(snapshot, frame).file;
                    has(&if text == Text::File { file } else { sites::module(&file) })
                })
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{read, replay::replay};

    const TRAINING: &[u8] = include_bytes!("../fixtures/fsdp1_w2_clear_rank0_step5.pickle");
    const POOLS: &[u8] = include_bytes!("../fixtures/pools_graphs_mempool.pickle");

    fn filter(text: &str) -> Filter {
        text.parse().unwrap()
    }

    fn error(text: &str) -> String {
        text.parse::<Filter>().unwrap_err().to_string()
    }

    /// The allocations that are meant.
    fn rows(pickle: &[u8], text: &str) -> Vec<usize> {
        let snapshot = read::open(pickle).unwrap();
        let device = &snapshot.devices[0];
        let replayed = replay(&snapshot, device);
        let origins = Origins { snapshot: &snapshot, device, replay: &replayed };
        let filter = filter(text);
        Matcher::new(&filter, &origins).rows().collect()
    }

    /// The allocations for which `holds`.
    fn those(pickle: &[u8], holds: impl Fn(&Origins<'_>, usize) -> bool) -> Vec<usize> {
        let snapshot = read::open(pickle).unwrap();
        let device = &snapshot.devices[0];
        let replayed = replay(&snapshot, device);
        let origins = Origins { snapshot: &snapshot, device, replay: &replayed };
        (0..replayed.allocations.len()).filter(|row| holds(&origins, *row)).collect()
    }

    #[test]
    fn a_filter_is_written_as_it_is_read() {
        for text in [
            "",
            "size>1.00MiB stack~attention pool:private live@peak -is:older",
            "size>=1000 requested<2.00GiB waste=512B born<=10 freed>20 life<30",
            "live@start live@end live@1234 -pool:default pool:\"graph 1\" stream:3 address:0x7f0000000000",
            "file~model.py module~torch.optim stack~\"two words\" is:kept is:pending",
        ] {
            assert_eq!(filter(text).to_string(), text);
        }
        assert_eq!(filter("  Attention   size>1mib ").to_string(), "stack~attention size>1.00MiB");
        assert_eq!(filter("size>1.5G").to_string(), "size>1.50GiB");
        assert_eq!(filter("size>1000001"), filter("size>1000001"));
        assert_eq!(filter("size>1000001").to_string(), "size>1000001");
        assert_eq!(filter("\"a b\" c").to_string(), "stack~\"a b\" stack~c");
    }

    #[test]
    fn what_is_no_term_is_looked_for_in_stacks_and_half_a_term_is_named() {
        assert_eq!(filter("model.py:88").to_string(), "stack~model.py:88");
        assert_eq!(filter("size").to_string(), "stack~size");
        assert_eq!(filter("-").to_string(), "stack~-");
        assert_eq!(error("size>much"), "size>much: after the sign stands a size such as 1MiB");
        assert_eq!(error("born>peak"), "born>peak: after the sign stands a number of events such as 1000");
        assert_eq!(error("stack~"), "stack~: after the ~ stands the text that is looked for");
        assert_eq!(error("live@noon"), "live@noon: expected live@peak, live@start, live@end or live@1234");
        assert_eq!(error("is:big"), "is:big: expected is:older, is:kept or is:pending");
        assert_eq!(error("stream:x"), "stream:x: expected a stream's handle, such as stream:0");
        assert!(error("\"open").contains("no other that ends it"));
        assert!(error("\"\"").contains("nothing between them"));
        assert!(error(&"x".repeat(MAX_BYTES + 1)).contains("longer than 4096 bytes"));
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(bytes_from("1.5MiB"), Some(3 << 19));
        assert_eq!(bytes_from("2GB"), Some(2 << 30));
        assert_eq!(bytes_from("512"), Some(512));
        assert_eq!(bytes_from("99999999999TiB"), None);
        assert_eq!(bytes_from("-1"), None);
        assert_eq!(bytes_from("infMiB"), None);
        assert_eq!(bytes_from(""), None);
    }

    #[test]
    fn each_term_means_what_it_says() {
        let check = |text: &str, holds: &dyn Fn(&Origins<'_>, usize) -> bool| {
            let expected = those(TRAINING, holds);
            assert_eq!(rows(TRAINING, text), expected, "{text}");
            let others = those(TRAINING, |origins, row| !holds(origins, row));
            assert_eq!(rows(TRAINING, &format!("-{text}")), others, "-{text}");
        };
        check("size>64KiB", &|origins, row| origins.replay.allocations.size[row] > 65_536);
        check("requested<=1000", &|origins, row| origins.replay.allocations.requested[row] <= 1000);
        check("waste>0", &|origins, row| {
            origins.replay.allocations.size[row] > origins.replay.allocations.requested[row]
        });
        check("born>100", &|origins, row| origins.replay.allocations.from[row] > 100);
        check("freed<200", &|origins, row| origins.replay.allocations.to[row] < 200);
        check("is:older", &|origins, row| row < origins.replay.n_preexisting);
        check("is:kept", &|origins, row| origins.replay.allocations.free_requested[row] == NEVER);
        check("live@peak", &|origins, row| {
            let at = origins.replay.peak_state;
            origins.replay.allocations.from[row] <= at && at < origins.replay.allocations.to[row]
        });
        check("stack~ADAM", &|origins, row| {
            let frames = origins.snapshot.stacks.frames(origins.replay.allocations.stack[row]);
            frames.into_iter().any(|frame| {
                [frame.name, frame.filename]
                    .iter()
                    .any(|id| origins.snapshot.strings.text(*id).to_lowercase().contains("adam"))
            })
        });
        check("address:0x0", &|_, _| false);
    }

    #[test]
    fn a_real_training_has_some_of_each() {
        let n_all = rows(TRAINING, "").len();
        for text in ["size>64KiB", "live@peak", "live@peak -is:older", "stack~backward", "is:kept", "life<10"]
        {
            let n = rows(TRAINING, text).len();
            assert!(0 < n && n < n_all, "{text}: {n} of {n_all}");
        }
        let n_private = rows(POOLS, "pool:private").len();
        assert!(n_private > 0);
        // Of some that came and went before the end nothing tells the pool.
        let n_unknown = those(POOLS, |origins, row| origins.pool(row).is_none()).len();
        assert_eq!(n_private + rows(POOLS, "pool:default").len() + n_unknown, rows(POOLS, "").len());
        assert_eq!(rows(POOLS, "-pool:private -pool:default").len(), n_unknown);
    }

    #[test]
    fn the_bytes_alive_at_the_peak_are_the_active_level_there() {
        let snapshot = read::open(TRAINING).unwrap();
        let device = &snapshot.devices[0];
        let replayed = replay(&snapshot, device);
        let sum: u64 = rows(TRAINING, "live@peak").iter().map(|row| replayed.allocations.size[*row]).sum();
        assert_eq!(sum, replayed.curves.active[replayed.peak_state as usize]);
    }
}
