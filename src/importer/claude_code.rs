//! Sessions of Claude Code.
