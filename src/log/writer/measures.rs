//! What the writer has done.

use crate::measure::{Histogram, Total};

/// What a writer has done since it was started.
#[derive(Debug)]
pub struct WriterMeasures {
    /// From handing a group to the log until it was durable, in microseconds.
    pub commit_micros: Histogram,
    /// Events of each group that was appended.
    pub group_events: Histogram,
    /// Bytes of the requests whose group was appended.
    pub bytes: Total,
    /// Requests that each group answered, refused ones too.
    pub group_requests: Histogram,
    /// Groups that were not appended, or of which that is not known.
    pub failed_groups: Total,
}

impl Default for WriterMeasures {
    fn default() -> Self {
        Self {
            commit_micros: Histogram::of_durations(),
            group_events: Histogram::of_counts(),
            bytes: Total::default(),
            group_requests: Histogram::of_counts(),
            failed_groups: Total::default(),
        }
    }
}
