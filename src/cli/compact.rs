//! `compact`: where a compaction would cut, appending one, and reading what one
//! stands for.

use clap::{Args, Subcommand};

use super::{
    approve::person,
    branch::NamedBranch,
    connect::Connection,
    context::{merged_policy, policy_bytes},
    error::CliError,
    json,
    named::Named,
    output::{Out, Tone},
    pb,
    text::{EventText, count, event_lines, indent, things},
    text_arg::text_of,
};

/// Lines of content of one event that `expand` shows without `--full`.
const LINES: usize = 12;
/// Lines of the engine's own summary that a plan shows.
const EXTRACT_LINES: usize = 24;

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
    /// The conversation: an id or the beginning of one, @last, or words of its title
    conversation: String,
    /// The branch [default: the active one]
    #[arg(long, short, value_name = "NAME", global = true)]
    branch: Option<String>,
    #[command(flatten)]
    plan: PlanArgs,
    #[command(subcommand)]
    what: Option<CompactionCommand>,
}

impl CompactArgs {
    /// What it names.
    pub fn named(&mut self) -> Named<'_> {
        let named = Named::new(&mut self.conversation).branch(&mut self.branch);
        match &mut self.what {
            Some(CompactionCommand::Expand(args)) => named.maybe_event(&mut args.revision),
            _ => named,
        }
    }
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

/// Show where it would cut, what stays, and what that saves
#[derive(Args, Debug, Clone)]
struct PlanArgs {
    /// Finished turns that stay [default: the conversation's policy, else 3]
    #[arg(long, value_name = "TURNS")]
    keep_turns: Option<u32>,
    /// The model whose tokens are counted [default: the conversation's]
    #[arg(long, short, value_name = "NAME")]
    model: Option<String>,
    /// Merged over the conversation's `context` policy: JSON, @FILE, or -
    #[arg(long, value_name = "JSON")]
    policy: Option<String>,
    /// For requests of at most so many tokens, as `treering context --budget` makes them
    #[arg(long, value_name = "TOKENS")]
    budget: Option<u64>,
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
    summary: Option<String>,
    /// The engine's own summary, made without a model
    #[arg(long, group = "text")]
    extract: bool,
    /// Finished turns that stay [default: the conversation's policy, else 3]
    #[arg(long, value_name = "TURNS")]
    keep_turns: Option<u32>,
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
///
/// # Errors
/// What the store or the output says.
pub async fn run(args: CompactArgs, store: &Connection, out: &mut Out) -> Result<(), CliError> {
    let place = NamedBranch {
        conversation: args.conversation,
        branch: args.branch.unwrap_or_default(),
    };
    match args.what.unwrap_or(CompactionCommand::Plan(args.plan)) {
        CompactionCommand::Plan(args) => plan(args, place, store, out).await,
        CompactionCommand::Apply(args) => apply(args, place, store, out).await,
        CompactionCommand::Expand(args) => expand(&args, place, store, out).await,
    }
}

async fn plan(
    args: PlanArgs,
    place: NamedBranch,
    store: &Connection,
    out: &mut Out,
) -> Result<(), CliError> {
    let policy = merged_policy(args.policy.as_deref(), args.budget)?;
    let request = pb::PlanCompactionRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        keep_turns: args.keep_turns,
        model: args.model.unwrap_or_default(),
        policy: policy_bytes(policy).into(),
    };
    let answer = store.contexts().plan_compaction(request).await?;
    let plan = answer.into_inner().plan.ok_or(CliError::Answer {
        call: "PlanCompaction",
        part: "plan",
    })?;
    if out.json {
        return Ok(out.line(json::of(&plan))?);
    }
    if args.material {
        out.line(&plan.instruction)?;
        return Ok(out.line(format!("\n{}", plan.material))?);
    }
    for line in plan_lines(&plan, out) {
        out.row(line)?;
    }
    Ok(())
}

fn plan_lines(plan: &pb::CompactionPlan, out: &Out) -> Vec<String> {
    let paint = out.paint;
    let due = if plan.due {
        paint.text(Tone::Wait, "a compaction is due")
    } else {
        paint.text(Tone::Good, "none is due yet")
    };
    let mut lines = vec![
        format!(
            "{} on {} at #{}",
            paint.text(Tone::Name, &plan.conversation_id),
            paint.text(Tone::Name, &plan.branch),
            plan.head_revision
        ),
        format!(
            "{} tokens in the window; the threshold is {}: {due}",
            count(plan.tokens_before),
            count(plan.threshold_tokens)
        ),
        String::new(),
    ];
    if plan.cut_revision == 0 {
        lines.push(format!("Nothing to cut: {}", plan.reason));
        if plan.reason.contains(" finished turn") && !plan.reason.contains("no finished turn") {
            let id = &plan.conversation_id;
            lines.push(format!(
                "Next: `treering compact {id} --keep-turns 0` cuts after the last of them"
            ));
        }
        return lines;
    }
    let stays = format!(
        "{} and the open one, {} tokens",
        things(
            u64::from(plan.kept_turns),
            "finished turn",
            "finished turns"
        ),
        count(plan.tokens_kept)
    );
    let goes = format!(
        "{} in {}, about {} tokens",
        things(u64::from(plan.summarised_turns), "turn", "turns"),
        things(u64::from(plan.summarised_events), "event", "events"),
        count(plan.tokens_before.saturating_sub(plan.tokens_kept))
    );
    for (name, text) in [
        ("Cut after", format!("#{}", plan.cut_revision)),
        ("Summarised", goes),
        ("Kept", stays),
    ] {
        let name = paint.text(Tone::Strong, format!("{name:<11}"));
        lines.push(format!("{name} {text}"));
    }
    if plan.kept_turns > 0 && plan.tokens_kept > plan.threshold_tokens / 4 * 3 {
        let text = paint.text(Tone::Wait, "What stays is nearly due by itself:");
        lines.push(format!("{text} `--keep-turns 0` keeps the open turn alone"));
    }
    let heading = |text: &str| paint.text(Tone::Strong, text);
    lines.push(String::new());
    lines.push(heading("The engine's own summary (apply --extract)"));
    let width = out.width.saturating_sub(2);
    lines.extend(indent(&plan.extract, 2, EXTRACT_LINES, width * 4));
    lines.push(String::new());
    lines.push(heading("Instruction for a model that writes a better one"));
    lines.extend(indent(&plan.instruction, 2, 6, width * 4));
    lines.push(String::new());
    lines.push(format!(
        "Next: `treering compact {id} plan --material` prints instruction and material,\n      \
         `treering compact {id} apply --summary -` takes the summary.",
        id = plan.conversation_id
    ));
    lines
}

async fn apply(
    args: ApplyArgs,
    place: NamedBranch,
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
    let request = pb::CompactRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        summary: summary.unwrap_or_default(),
        cut_revision: args.cut.unwrap_or_default(),
        keep_turns: args.keep_turns,
        expected_head: args.expect.unwrap_or_default(),
        idempotency_key: args.key.unwrap_or_default(),
        actor: person(None),
        trigger: pb::CompactionTrigger::Manual.into(),
    };
    let answer = store.contexts().compact(request).await?.into_inner();
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
    for warning in &answer.warnings {
        let mark = out.paint.text(Tone::Wait, "warning:");
        out.line(format!("{mark} {warning}"))?;
    }
    Ok(())
}

async fn expand(
    args: &ExpandArgs,
    place: NamedBranch,
    store: &Connection,
    out: &mut Out,
) -> Result<(), CliError> {
    let request = pb::ExpandRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        compaction_revision: args.revision.unwrap_or_default(),
    };
    let how = EventText::new(out, LINES, args.full);
    let mut events = store.contexts().expand(request).await?.into_inner();
    while let Some(batch) = events.message().await? {
        for event in &batch.events {
            if out.json {
                out.line(json::event(event))?;
                continue;
            }
            for line in event_lines(event, how) {
                out.line(line)?;
            }
        }
    }
    Ok(())
}
