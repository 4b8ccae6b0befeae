//! The budget: what is shortened or dropped until a request fits.
