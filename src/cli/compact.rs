//! `compact`: plans a compaction, appends one, and shows the events that a summary replaces.

use clap::{Args, Subcommand};

use super::{
    approve::person,
    args::tokens,
    branch_args::{BranchArgs, FoundBranch, RevisionArg},
    connect::Connection,
    context::{merged_policy, policy_bytes},
    error::{ClientError, reason},
    json, log,
    output::{Out, Tone},
    pb, read,
    text::{count, indent, printable, short_id, things, wrapped},
    text_arg::{free_text, text_of},
};

/// Maximum number of lines of one event that `expand` shows without `--full`.
const LINES: usize = 12;
/// Maximum number of lines of the engine's own summary in a plan.
const EXTRACT_LINES: usize = 24;
/// Maximum number of lines of the instruction in a plan.
const INSTRUCTION_LINES: usize = 6;

/// Replace the older turns of a conversation by a summary in requests
///
/// A compaction cuts at the end of a turn and leaves the last turns unchanged. Nothing is lost: the
/// events stay readable (`expand`), searchable, and part of earlier forks. Without a subcommand, it
/// only shows the plan.
#[derive(Args, Debug, Clone)]
#[command(args_conflicts_with_subcommands = false)]
#[command(after_help = "\
Examples:
  treering compact CONVERSATION                       show the cut and the saving
  treering compact CONVERSATION plan --material       the text for a model to summarise
  treering compact CONVERSATION plan --json | jq -r .instruction
  treering compact CONVERSATION apply --extract       with the engine's own summary
  treering compact CONVERSATION apply --summary @summary.md
  my-model < material.txt | treering compact CONVERSATION apply --summary -
  treering compact CONVERSATION expand                the events that the summary replaces")]
pub(crate) struct CompactArgs {
    #[command(flatten)]
    place: BranchArgs,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(subcommand)]
    what: Option<CompactionCommand>,
}

impl CompactArgs {
    /// Returns true if it appends events.
    pub(crate) fn appends(&self) -> bool {
        matches!(self.what, Some(CompactionCommand::Apply(_)))
    }
}

#[derive(Subcommand, Debug, Clone)]
enum CompactionCommand {
    Plan(PlanArgs),
    Apply(ApplyArgs),
    Expand(ExpandArgs),
}

/// Which turns stay, and the size of requests.
#[derive(Args, Debug, Clone)]
struct BoundsArgs {
    /// Number of finished turns that stay [default: the conversation's policy, else 3]
    #[arg(long, value_name = "TURNS")]
    keep_turns: Option<u32>,
    /// Merge this over the conversation's `context` policy: JSON, @FILE, or -
    #[arg(long, value_name = "JSON")]
    policy: Option<String>,
    /// Token budget of the requests, as in `treering context --budget`: a summary of --extract
    /// leaves room in them
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    budget: Option<u64>,
}

impl BoundsArgs {
    fn policy(&self) -> Result<Vec<u8>, ClientError> {
        Ok(policy_bytes(merged_policy(
            self.policy.as_deref(),
            self.budget,
        )?))
    }
}

/// Show where it would cut, which turns stay, and how many tokens it saves
#[derive(Args, Debug, Clone)]
struct PlanArgs {
    #[command(flatten)]
    bounds: BoundsArgs,
    /// Model for counting tokens [default: the conversation's]
    #[arg(long, short, value_name = "NAME")]
    model: Option<String>,
    /// Show the whole text of the engine's own summary and the instruction
    #[arg(long)]
    full: bool,
    /// Print only the instruction and the material for a summarising model
    #[arg(long)]
    material: bool,
}

/// Append a compaction
#[derive(Args, Debug, Clone)]
#[command(group = clap::ArgGroup::new("text").required(true))]
struct ApplyArgs {
    /// The summary: text, @FILE, or - for standard input
    #[arg(long, value_name = "TEXT", group = "text")]
    #[arg(allow_hyphen_values = true, value_parser = free_text)]
    summary: Option<String>,
    /// Use the engine's own summary, made without a model
    #[arg(long, group = "text")]
    extract: bool,
    #[command(flatten)]
    bounds: BoundsArgs,
    /// Cut after this revision, which must be the end of a turn [default: as planned]
    #[arg(long, value_name = "REVISION", conflicts_with = "keep_turns")]
    cut: Option<u64>,
    /// Append only if this revision, from the plan, is still the branch's head
    #[arg(long, value_name = "REVISION")]
    expect: Option<u64>,
    /// Idempotency key: repeating the command with it returns the first result
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

/// Print the events that a compaction's summary replaces
#[derive(Args, Debug, Clone)]
struct ExpandArgs {
    /// Revision of the compaction [default: the branch's last one]
    #[arg(long, value_name = "REVISION")]
    revision: Option<u64>,
    /// Show whole contents
    #[arg(long)]
    full: bool,
}

/// Plans, applies or expands a compaction.
pub(crate) async fn run(
    args: CompactArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let revision = match &args.what {
        Some(CompactionCommand::Expand(args)) => {
            RevisionArg::Event(args.revision.unwrap_or_default())
        }
        _ => RevisionArg::None,
    };
    let place = args.place.find(store, revision).await?;
    match args.what.unwrap_or(CompactionCommand::Plan(args.plan)) {
        CompactionCommand::Plan(args) => plan(args, place, store, out).await,
        CompactionCommand::Apply(args) => apply(args, place, store, out).await,
        CompactionCommand::Expand(args) => expand(&args, place, store, out).await,
    }
}

async fn plan(
    args: PlanArgs,
    place: FoundBranch,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let request = pb::PlanCompactionRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        keep_turns: args.bounds.keep_turns,
        policy: args.bounds.policy()?.into(),
        model: args.model.unwrap_or_default(),
    };
    let plan = planned(request, store).await?;
    if out.json {
        return Ok(out.line(json::of(&plan))?);
    }
    if args.material {
        out.lines(&plan.instruction)?;
        return Ok(out.lines(format!("\n{}", plan.material))?);
    }
    let state = read::state(store, &plan.conversation_id, &plan.branch, 0).await?;
    let shown = PlanText {
        plan: &plan,
        turn_open: state.branch.is_some_and(|branch| branch.turn_open),
        full: args.full,
    };
    for line in shown.lines(out) {
        out.line(line)?;
    }
    Ok(())
}

async fn planned(
    request: pb::PlanCompactionRequest,
    store: &Connection,
) -> Result<pb::CompactionPlan, ClientError> {
    let answer = store.contexts().plan_compaction(request).await?;
    answer.into_inner().plan.ok_or(ClientError::Answer {
        call: "PlanCompaction",
        part: "plan",
    })
}

/// A plan for people.
struct PlanText<'a> {
    plan: &'a pb::CompactionPlan,
    /// The last turn is open.
    turn_open: bool,
    /// Show whole texts.
    full: bool,
}

impl PlanText<'_> {
    /// Returns lines that fit the width of the terminal.
    fn lines(&self, out: &Out) -> Vec<String> {
        let plan = self.plan;
        let mut lines = self.head(out);
        if plan.cut_revision == 0 {
            let why = format!("Nothing to cut: {}", plan.reason);
            lines.extend(wrapped(&why, out.columns()));
            lines.extend(keep_none(plan));
            return lines;
        }
        lines.extend(self.parts(out));
        let heading = |text: &str| out.paint.text(Tone::Strong, text);
        lines.push(String::new());
        lines.push(heading("The engine's own summary (apply --extract)"));
        lines.extend(self.text(&plan.extract, EXTRACT_LINES, out));
        lines.push(String::new());
        lines.push(heading("Instruction for a model that writes a better one"));
        lines.extend(self.text(&plan.instruction, INSTRUCTION_LINES, out));
        let id = short_id("", &plan.conversation_id);
        lines.extend([
            String::new(),
            "Next:".to_owned(),
            format!("  treering compact {id} plan --material"),
            "      prints instruction and material for a model".to_owned(),
            format!("  treering compact {id} apply --summary -"),
            "      takes the summary that the model writes".to_owned(),
        ]);
        lines
    }

    fn head(&self, out: &Out) -> Vec<String> {
        let (plan, paint) = (self.plan, out.paint);
        let due = match (plan.due, plan.cut_revision) {
            (true, 0) => paint.text(Tone::Wait, "above the threshold"),
            (true, _) => paint.text(Tone::Wait, "a compaction is due"),
            (false, _) => paint.text(Tone::Good, "no compaction is due"),
        };
        let place = format!(
            "{} on {} at #{}",
            paint.text(Tone::Name, &plan.conversation_id),
            paint.text(Tone::Name, &plan.branch),
            plan.head_revision
        );
        let tokens = format!(
            "{} tokens in the window; the threshold is {}: {due}",
            count(plan.tokens_before),
            count(plan.threshold_tokens)
        );
        let mut lines = vec![place];
        lines.extend(wrapped(&tokens, out.columns()));
        lines.push(String::new());
        lines
    }

    /// Returns lines about the cut, the removed part and the remaining part.
    fn parts(&self, out: &Out) -> Vec<String> {
        let (plan, paint) = (self.plan, out.paint);
        let goes = format!(
            "{} in {}, about {} tokens",
            things(u64::from(plan.summarised_turns), "turn", "turns"),
            things(u64::from(plan.summarised_events), "event", "events"),
            count(plan.tokens_before.saturating_sub(plan.tokens_kept))
        );
        let rows = [
            ("Cut after", format!("#{}", plan.cut_revision)),
            ("Summarised", goes),
            ("Kept", self.stays()),
        ];
        let rows = rows.map(|(name, text)| {
            let name = paint.text(Tone::Strong, format!("{name:<11}"));
            format!("{name} {text}")
        });
        let mut lines = Vec::from(rows);
        if plan.kept_turns > 0 && plan.tokens_kept > plan.threshold_tokens / 4 * 3 {
            let text = paint.text(Tone::Wait, "The kept part is close to the threshold:");
            let keeps = match self.turn_open {
                true => "keeps only the open turn",
                false => "keeps no turn",
            };
            let text = format!("{text} `--keep-turns 0` {keeps}");
            lines.extend(wrapped(&text, out.columns()));
        }
        lines
    }

    fn stays(&self) -> String {
        let kept = u64::from(self.plan.kept_turns);
        let finished = things(kept, "finished turn", "finished turns");
        let tokens = count(self.plan.tokens_kept);
        match (kept, self.turn_open) {
            (0, false) => format!("no turn; the rest of the request has {tokens} tokens"),
            (0, true) => format!("the open turn, {tokens} tokens"),
            (_, false) => format!("{finished}, {tokens} tokens"),
            (_, true) => format!("{finished} and the open one, {tokens} tokens"),
        }
    }

    /// Returns the first lines of a text, or all of it if requested. Long lines are wrapped.
    fn text(&self, text: &str, lines_max: usize, out: &Out) -> Vec<String> {
        const MARGIN: usize = 2;
        let columns = out.columns();
        let whole = |text: &str| -> Vec<String> {
            let lines = text.trim_end().lines().flat_map(|line| {
                let line = printable(line);
                let text = line.trim_start();
                let margin = " ".repeat(MARGIN + line.len() - text.len());
                let pieces = wrapped(text, columns.saturating_sub(margin.len()));
                pieces
                    .into_iter()
                    .map(move |piece| format!("{margin}{piece}"))
            });
            lines.collect()
        };
        if self.full {
            return whole(text);
        }
        let head = indent(text, 0, lines_max, out.width.saturating_mul(4)).join("\n");
        let mut lines = whole(&head);
        if text.trim_end().lines().count() > lines_max {
            lines.push("  (--full shows everything)".to_owned());
        }
        lines
    }
}

/// Returns advice if the conversation has finished turns, but all of them are kept.
fn keep_none(plan: &pb::CompactionPlan) -> Option<String> {
    let has_turns =
        plan.reason.contains(" finished turn") && !plan.reason.contains("no finished turn");
    let id = short_id("", &plan.conversation_id);
    has_turns.then(|| format!("Next: `treering compact {id} --keep-turns 0`"))
}

async fn apply(
    args: ApplyArgs,
    place: FoundBranch,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let summary = args.summary.as_deref().map(text_of).transpose()?;
    // The service would take an empty text as a request for the engine's own summary.
    if summary.as_ref().is_some_and(|text| text.trim().is_empty()) {
        return Err(ClientError::Usage {
            what: "the summary is empty".into(),
            hint: "give a text, or use the engine's own summary with --extract".into(),
        });
    }
    let mut request = pb::CompactRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        summary: summary.unwrap_or_default(),
        cut_revision: args.cut.unwrap_or_default(),
        keep_turns: args.bounds.keep_turns,
        expected_head: args.expect.unwrap_or_default(),
        idempotency_key: args.key.unwrap_or_default(),
        actor: person(None),
        trigger: pb::CompactionTrigger::Manual.into(),
    };
    let plan = pb::PlanCompactionRequest {
        conversation_id: request.conversation_id.clone(),
        branch: request.branch.clone(),
        keep_turns: request.keep_turns,
        model: String::new(),
        policy: args.bounds.policy()?.into(),
    };
    if !plan.policy.is_empty() && request.cut_revision == 0 {
        take_over(&mut request, planned(plan.clone(), store).await?);
    }
    let answer = match store.contexts().compact(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) if reason(&status) == "NOTHING_TO_COMPACT" => {
            return Err(nothing_to_cut(&planned(plan, store).await?));
        }
        Err(status) => return Err(status.into()),
    };
    if out.json {
        return Ok(out.line(json::compacted(&answer))?);
    }
    let revision = answer.event.as_ref().map_or(0, |event| event.revision);
    let again = if answer.repeated_key {
        " (already done with this key)"
    } else {
        ""
    };
    out.line(format!(
        "Compacted up to #{} at #{revision}{again}: {} tokens before, {} after",
        answer.cut_revision,
        count(answer.tokens_before),
        count(answer.tokens_after)
    ))?;
    Ok(out.warnings(&answer.warnings)?)
}

/// Copies the cut and the summary of a plan into the request. The plan was made with the call's
/// policy.
fn take_over(request: &mut pb::CompactRequest, plan: pb::CompactionPlan) {
    request.cut_revision = plan.cut_revision;
    if plan.cut_revision > 0 && request.summary.is_empty() {
        request.summary = plan.extract;
    }
    if plan.cut_revision > 0 {
        request.keep_turns = None;
    }
    if request.expected_head == 0 && request.idempotency_key.is_empty() {
        request.expected_head = plan.head_revision;
    }
}

fn nothing_to_cut(plan: &pb::CompactionPlan) -> ClientError {
    let hint = keep_none(plan).map_or_else(
        || "a compaction cuts after a finished turn: wait until a turn has ended".to_owned(),
        |_| "`--keep-turns 0` cuts after the last finished turn".to_owned(),
    );
    ClientError::Usage {
        what: format!("nothing to compact: {}", plan.reason),
        hint,
    }
}

async fn expand(
    args: &ExpandArgs,
    place: FoundBranch,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let request = pb::ExpandRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        compaction_revision: place.revision,
    };
    let how = out.event_text(LINES, args.full);
    let mut events = store.contexts().expand(request).await?.into_inner();
    while let Some(batch) = events.message().await? {
        for event in &batch.events {
            log::print(event, how, out)?;
        }
    }
    Ok(())
}
