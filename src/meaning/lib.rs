//! Vectors of passages: how texts are cut for a model, how vectors are stored and compared.
//!
//! An [`Embedder`] turns texts into vectors; `treering-embedders` has a local one and one that
//! queries an endpoint. A passage is embedded by its [`windows`], because models read only short
//! texts. The vectors of a segment of the search index are a [`VectorColumn`]: a file that never
//! changes. This crate knows neither the index nor the log.

#![cfg_attr(not(test), warn(unreachable_pub))]

mod column;
mod embedder;
mod signs;
mod vector;
mod windows;

pub use column::{
    ColumnError, PassageKey, PassageVectors, VECTOR_FORMAT, VectorColumn, VectorColumnBuilder,
};
pub use embedder::{EmbedError, Embedder, TextRole};
pub use signs::keep_nearest_by_signs;
pub use vector::{DIMENSIONS_MAX, QueryVector, StoredVector, VectorError};
pub use windows::{TextWindow, windows};
