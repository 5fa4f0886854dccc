//! Bold and dim on a terminal; plain text everywhere else, and where `NO_COLOR` asks for it.

use std::{
    env,
    io::{self, IsTerminal as _},
};

/// Whether there is anything but plain text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    is_on: bool,
}

impl Style {
    /// What standard output takes. See <https://no-color.org> for `NO_COLOR`.
    pub(crate) fn of_stdout() -> Self {
        let is_unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { is_on: io::stdout().is_terminal() && !is_unwanted }
    }

    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self { is_on: false }
    }

    /// A heading.
    pub(crate) fn bold(self, text: &str) -> String {
        self.wrapped("1", text)
    }

    /// What matters less.
    pub(crate) fn dim(self, text: &str) -> String {
        self.wrapped("2", text)
    }

    /// What needs a look.
    pub(crate) fn warning(self, text: &str) -> String {
        self.wrapped("33", text)
    }

    fn wrapped(self, code: &str, text: &str) -> String {
        if self.is_on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
