//! Measures what users wait for, and makes the file it is measured on.

fn main() {}
