//! Tool knowledge: what results have shown, by rules.
