//! What Python sees of the capture agent.
