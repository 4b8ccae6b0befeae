//! The stable prefix: how much of the last request the next one repeats.
