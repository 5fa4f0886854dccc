//! The program `tidegauge`.

fn main() {}
