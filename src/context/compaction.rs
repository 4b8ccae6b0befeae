//! Compaction: where to cut, what to summarise, and what to ask of the model
//! that writes the summary.
