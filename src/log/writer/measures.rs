//! Measurements of the writer.

use treering_base::measure::{Histogram, Total};

/// What a writer has done since it was started.
#[derive(Debug)]
pub struct WriterMeasures {
    /// Time from handing a group to the log until it was durable, in microseconds.
    pub commit_micros: Histogram,
    /// Events in each appended group.
    pub group_events: Histogram,
    /// Bytes of the requests in appended groups.
    pub bytes: Total,
    /// Requests answered by each appended group, rejections included.
    pub group_requests: Histogram,
    /// Groups that were not appended, or whose outcome is unknown.
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
