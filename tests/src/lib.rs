//! Helpers for tests of the whole product.
