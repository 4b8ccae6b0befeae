//! Each rule, broken by hand.
