//! Where a file belongs, read from its path.
