//! Compact boundaries: where a session was compacted.

use super::line::SessionLine;

/// The content of a compact boundary.
#[derive(Clone, Copy, Default)]
pub(super) struct Boundary {
    pub(crate) tokens_before: u64,
    /// The first line that was kept beside the summary.
    pub(crate) kept_from: Option<usize>,
}

impl Boundary {
    /// Reads the boundary at `index`.
    pub(crate) fn at(lines: &[SessionLine], index: usize) -> Self {
        let said = &lines[index].said()["compactMetadata"];
        let head = [
            &said["preservedMessages"]["uuids"][0],
            &said["preservedSegment"]["headUuid"],
        ];
        let head = head.iter().find_map(|uuid| uuid.as_str());
        let is_it = |line: &SessionLine| head == Some(line.text_of("uuid"));
        Self {
            tokens_before: said["preTokens"].as_u64().unwrap_or_default(),
            kept_from: head.and_then(|_| lines[..index].iter().position(is_it)),
        }
    }
}
