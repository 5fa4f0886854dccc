//! What a PyTorch memory snapshot is.
