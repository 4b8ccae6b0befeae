//! `compact`: where a compaction would cut, appending one, and reading what one
//! stands for.

use clap::{Args, Subcommand};

use super::{
    approve::person,
    args::tokens,
    branch_args::{BranchArgs, FoundBranch, RevisionArg},
    connect::Connection,
    context::{merged_policy, policy_bytes},
    error::CliError,
    json, log,
    output::{Out, Tone},
    pb, read,
    text::{count, indent, printable, short_id, things, wrapped},
    text_arg::{free_text, text_of},
};

/// Lines of content of one event that `expand` shows without `--full`.
const LINES: usize = 12;
/// Lines of the engine's own summary that a plan shows.
const EXTRACT_LINES: usize = 24;
/// Lines of the instruction that it shows.
const INSTRUCTION_LINES: usize = 6;

/// Let a summary stand for the older turns of a conversation
///
/// A compaction cuts at the end of a turn and keeps the last turns as they are.
/// Nothing is lost: the originals stay readable (`expand`), searchable, and part
/// of every fork made before. Without a subcommand it only plans.
#[derive(Args, Debug, Clone)]
#[command(args_conflicts_with_subcommands = false)]
#[command(after_help = "\
Examples:
  treering compact CONVERSATION                       where it would cut, and what it would save
  treering compact CONVERSATION plan --material       what a model is to summarise, as text
  treering compact CONVERSATION plan --json | jq -r .instruction
  treering compact CONVERSATION apply --extract       with the engine's own summary
  treering compact CONVERSATION apply --summary @summary.md
  my-model < material.txt | treering compact CONVERSATION apply --summary -
  treering compact CONVERSATION expand                the events that the summary stands for")]
pub struct CompactArgs {
    #[command(flatten)]
    place: BranchArgs,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(subcommand)]
    what: Option<CompactionCommand>,
}

impl CompactArgs {
    /// True when it does more than look.
    pub fn appends(&self) -> bool {
        matches!(self.what, Some(CompactionCommand::Apply(_)))
    }
}

#[derive(Subcommand, Debug, Clone)]
enum CompactionCommand {
    Plan(PlanArgs),
    Apply(ApplyArgs),
    Expand(ExpandArgs),
}

/// What stays, and how large requests may be.
#[derive(Args, Debug, Clone)]
struct BoundsArgs {
    /// Finished turns that stay [default: the conversation's policy, else 3]
    #[arg(long, value_name = "TURNS")]
    keep_turns: Option<u32>,
    /// Merged over the conversation's `context` policy: JSON, @FILE, or -
    #[arg(long, value_name = "JSON")]
    policy: Option<String>,
    /// For requests of at most so many tokens, as `treering context --budget` makes them: a
    /// summary of --extract leaves room in them
    #[arg(long, value_name = "TOKENS", value_parser = tokens)]
    budget: Option<u64>,
}

impl BoundsArgs {
    fn policy(&self) -> Result<Vec<u8>, CliError> {
        Ok(policy_bytes(merged_policy(
            self.policy.as_deref(),
            self.budget,
        )?))
    }
}

/// Show where it would cut, what stays, and what that saves
#[derive(Args, Debug, Clone)]
struct PlanArgs {
    #[command(flatten)]
    bounds: BoundsArgs,
    /// The model whose tokens are counted [default: the conversation's]
    #[arg(long, short, value_name = "NAME")]
    model: Option<String>,
    /// Show the engine's own summary and the instruction whole
    #[arg(long)]
    full: bool,
    /// Print the instruction and the material for a summarising model, and
    /// nothing else
    #[arg(long)]
    material: bool,
}

/// Append a compaction
#[derive(Args, Debug, Clone)]
#[command(group = clap::ArgGroup::new("text").required(true))]
struct ApplyArgs {
    /// The summary: its text, @FILE, or - for standard input
    #[arg(long, value_name = "TEXT", group = "text")]
    #[arg(allow_hyphen_values = true, value_parser = free_text)]
    summary: Option<String>,
    /// The engine's own summary, made without a model
    #[arg(long, group = "text")]
    extract: bool,
    #[command(flatten)]
    bounds: BoundsArgs,
    /// Cut after this revision, the end of a turn [default: where a plan would]
    #[arg(long, value_name = "REVISION", conflicts_with = "keep_turns")]
    cut: Option<u64>,
    /// Only if this is still the branch's head, as the plan named it
    #[arg(long, value_name = "REVISION")]
    expect: Option<u64>,
    /// Appending again with the same key answers with the first result
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

/// Print the events that a compaction's summary stands for
#[derive(Args, Debug, Clone)]
struct ExpandArgs {
    /// The compaction [default: the branch's last one]
    #[arg(long, value_name = "REVISION")]
    revision: Option<u64>,
    /// Show contents whole, however long
    #[arg(long)]
    full: bool,
}

/// Plans, applies or expands.
pub async fn run(args: CompactArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
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
) -> Result<(), CliError> {
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
) -> Result<pb::CompactionPlan, CliError> {
    let answer = store.contexts().plan_compaction(request).await?;
    answer.into_inner().plan.ok_or(CliError::Answer {
        call: "PlanCompaction",
        part: "plan",
    })
}

/// A plan for people.
struct PlanText<'a> {
    plan: &'a pb::CompactionPlan,
    /// A turn has not ended.
    turn_open: bool,
    /// Texts are shown whole.
    full: bool,
}

impl PlanText<'_> {
    /// Lines that are not wider than the terminal.
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
            "      takes the summary that it writes".to_owned(),
        ]);
        lines
    }

    fn head(&self, out: &Out) -> Vec<String> {
        let (plan, paint) = (self.plan, out.paint);
        let due = match (plan.due, plan.cut_revision) {
            (true, 0) => paint.text(Tone::Wait, "it is above it"),
            (true, _) => paint.text(Tone::Wait, "a compaction is due"),
            (false, _) => paint.text(Tone::Good, "none is due yet"),
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

    /// Where it cuts, what goes and what stays.
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
            let text = paint.text(Tone::Wait, "What stays is nearly due by itself:");
            let keeps = match self.turn_open {
                true => "keeps the open turn alone",
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

    /// A text by its first lines, unless all of it is wanted; what is too wide goes on in the
    /// next line.
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
            lines.push("  (--full shows all of it)".to_owned());
        }
        lines
    }
}

/// What to do where there are turns, and all are to stay.
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
) -> Result<(), CliError> {
    let summary = args.summary.as_deref().map(text_of).transpose()?;
    // An empty text means the engine's own to the service, and was not asked for.
    if summary.as_ref().is_some_and(|text| text.trim().is_empty()) {
        return Err(CliError::Usage {
            what: "the summary is empty".into(),
            hint: "give a text, or take the engine's own with --extract".into(),
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
        Err(status) if status.message().contains("nothing to compact") => {
            return Err(nothing_to_cut(&planned(plan, store).await?));
        }
        Err(status) => return Err(status.into()),
    };
    if out.json {
        return Ok(out.line(json::compacted(&answer))?);
    }
    let revision = answer.event.as_ref().map_or(0, |event| event.revision);
    let again = if answer.repeated_key {
        " (done before with this key)"
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

/// Takes over what was planned with a policy of the call.
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

fn nothing_to_cut(plan: &pb::CompactionPlan) -> CliError {
    let hint = keep_none(plan).map_or_else(
        || "a compaction cuts after a finished turn: wait until one has ended".to_owned(),
        |_| "`--keep-turns 0` cuts after the last of them".to_owned(),
    );
    CliError::Usage {
        what: format!("there is nothing to compact: {}", plan.reason),
        hint,
    }
}

async fn expand(
    args: &ExpandArgs,
    place: FoundBranch,
    store: &Connection,
    out: &mut Out,
) -> Result<(), CliError> {
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
