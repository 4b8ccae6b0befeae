//! What tool results have shown.
