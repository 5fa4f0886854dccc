//! The dashboard in the browser.

fn main() {}
