//! Computes the events that tool runs add.

use super::{
    super::{
        RUN_LABEL, SpanToolResult, ToolRun, canonical_text,
        merge_state::{self, NodeIndex, digest, result_digest},
        message::text_of,
    },
    BranchIndex, LATEST, Merge,
};
use treering_domain::{EventBody, JsonText, TimestampMicros, ToolResultRecorded};

impl Merge<'_> {
    /// Adds a tool run: as the result of its call, or as an annotation if that result is known
    /// already. If its call is not known yet, the run is stored until the call comes.
    pub fn tool(&mut self, run: &ToolRun) {
        let run = &self.with_call(run);
        let places = self
            .known
            .calls
            .get(&run.call_id)
            .cloned()
            .unwrap_or_default();
        let line_of = |node: NodeIndex| self.known.nodes[node].line;
        let mut open = places.iter().rev().copied();
        if let Some((node, _)) = open.find(|call| self.known.is_open(*call, line_of(call.0))) {
            let line = self.known.nodes[node].line;
            return self.ran(line, run);
        }
        if places
            .last()
            .is_some_and(|call| self.ran_before(*call, run))
        {
            return;
        }
        if self.known.has_run(run) || self.known.runs.contains_key(&run.call_id) {
            return;
        }
        self.create(None, "", run.end);
        let kept = merge_state::keep_run(run);
        self.push(0, EventBody::Custom(kept), Some(run.end));
    }

    /// Assigns a run without a call id to the open call of its tool with the same arguments.
    fn with_call(&self, run: &ToolRun) -> ToolRun {
        let mut run = run.clone();
        if run.call_id.is_empty() {
            let arguments = digest(&canonical_text(run.arguments.as_str()));
            let all = self.known.nodes.iter().enumerate();
            let calls = all.flat_map(|(node, of)| {
                of.calls
                    .iter()
                    .enumerate()
                    .map(move |(at, call)| ((node, at), call))
            });
            let mut found = calls.filter(|((node, at), call)| {
                call.tool == run.tool
                    && (run.arguments.is_absent() || call.arguments == arguments)
                    && self
                        .known
                        .is_open((*node, *at), self.known.nodes[*node].line)
            });
            if let Some((_, call)) = found.next() {
                run.call_id.clone_from(&call.id);
            }
        }
        run
    }

    /// Appends the result of an open call.
    pub(super) fn ran(&mut self, line: BranchIndex, run: &ToolRun) {
        let result = ToolResultRecorded {
            call_id: run.call_id.clone(),
            success: run.error.is_none(),
            error_message: run.error.clone().unwrap_or_default(),
            execution_time_ms: Some(run.millis),
            parts: run.parts.clone(),
            structured: JsonText::default(),
            raw: None,
        };
        self.close();
        self.push(line, EventBody::ToolResultRecorded(result), Some(run.end));
    }

    /// Annotates a run of a call whose result is known. Returns false when it is not.
    #[allow(clippy::cast_precision_loss)] // A run takes less than 2^52 ms.
    fn ran_before(&mut self, call: (NodeIndex, usize), run: &ToolRun) -> bool {
        let line = self.known.nodes[call.0].line;
        let Some(result) = self.known.result(call, line, LATEST) else {
            return false;
        };
        let says = result.says(&result_digest(
            &run.parts,
            run.error.as_deref().unwrap_or(""),
        ));
        if result.is_timed && says {
            return true;
        }
        let target = result.revision;
        let comment = match says || run.parts.is_empty() {
            true => String::new(),
            false => canonical_text(&text_of(&run.parts)),
        };
        self.annotate(line, target, RUN_LABEL, Some(run.millis as f64), comment);
        true
    }

    /// Returns a result with the content that the model received, and the outcome, duration and end
    /// of its run if that is known.
    pub(super) fn result_of(
        &self,
        told: &SpanToolResult,
    ) -> (ToolResultRecorded, Option<TimestampMicros>) {
        let mut result = ToolResultRecorded {
            call_id: told.call_id.clone(),
            success: true,
            error_message: String::new(),
            execution_time_ms: None,
            parts: told.parts.clone(),
            structured: JsonText::default(),
            raw: None,
        };
        let Some(run) = self
            .runs
            .get(&told.call_id)
            .or_else(|| self.known.runs.get(&told.call_id))
        else {
            return (result, None);
        };
        result.execution_time_ms = Some(run.millis);
        result.success = run.error.is_none();
        result.error_message = run.error.clone().unwrap_or_default();
        (result, Some(run.end))
    }
}
