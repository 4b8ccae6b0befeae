//! The rules of each provider on calls and results, and a checker of bodies.
