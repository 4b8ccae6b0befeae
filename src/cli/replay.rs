//! `replay`: prints a branch as it happened, optionally with its timing, or runs an agent again on
//! a fork with recorded results instead of tools ([`serve_tools`]).

mod player;
pub(crate) mod serve_tools;

#[cfg(test)]
mod again_tests;

use std::{
    io::{IsTerminal, stdout},
    time::Duration,
};

use clap::Args;
use prost_types::Timestamp;

use super::{
    branch_args::AsOfArgs,
    connect::Connection,
    error::ClientError,
    json::{approval_name, moment},
    log,
    output::{Out, Tone},
    pb, read,
};

/// Maximum number of lines of one event that are shown without `--full`.
const LINES: usize = 40;

/// Speed on a terminal without `--speed`.
const READING_SPEED: f64 = 20.0;
/// Longest pause at that speed, in seconds.
const READING_PAUSE_SECONDS_MAX: u64 = 1;
/// Longest pause with `--speed`, in seconds.
const PAUSE_SECONDS_MAX: u64 = 10;

/// Print a branch as it happened, or run its agent again with recorded results
///
/// With --serve-tools, the calls that an agent makes on a fork are answered with the results that
/// the parent branch has recorded for the same tool and arguments. At the end, both branches are
/// compared.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering replay CONVERSATION                 at a pace to read along
  treering replay CONVERSATION --speed 1       with the original pauses
  treering replay CONVERSATION | less          without pauses, as every output to a file or pipe
  treering replay CONVERSATION --speed 10 --until 80
  treering replay CONVERSATION --as-of 41      the state and branch at that time
  treering replay CONVERSATION --serve-tools --fork-at 41 --name again --listen 127.0.0.1:0
  treering replay CONVERSATION --serve-tools --branch again --approve recorded --until-idle 30")]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    place: AsOfArgs,
    /// Keep the original timing, multiplied by this speed [default: on a terminal 20, with pauses of
    /// at most 1 second; otherwise no pauses]
    #[arg(long, value_name = "X", value_parser = speed)]
    speed: Option<f64>,
    /// Longest pause between two events, in seconds [default: 10 with --speed]
    #[arg(long, value_name = "SECONDS")]
    pause_max: Option<u64>,
    /// Stop after this revision
    #[arg(long, value_name = "REVISION")]
    until: Option<u64>,
    /// Show whole contents
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    again: serve_tools::ServeToolsArgs,
}

impl ReplayArgs {
    /// Returns true if events are printed with pauses, or live.
    pub(crate) fn is_timed(&self) -> bool {
        self.speed.is_some() || self.again.serve_tools || stdout().is_terminal()
    }
}

fn speed(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('x').parse::<f64>() {
        Ok(speed) if speed.is_finite() && speed > 0.0 => Ok(speed),
        _ => Err("use a number above 0, for example 1 or 2.5".into()),
    }
}

/// Prints the branch.
pub(crate) async fn run(
    args: &ReplayArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let mut place = args.place.find(store).await?;
    if args.again.serve_tools {
        return serve_tools::run(args, place, store, out).await;
    }
    let as_of = place.revision;
    let mut state = None;
    if as_of > 0 {
        let then = read::state(store, &place.conversation, &place.branch, as_of).await?;
        if let Some(of_branch) = &then.branch {
            place.branch.clone_from(&of_branch.name);
        }
        state = Some(then);
    }
    let bounds = [args.until.unwrap_or_default(), as_of].into_iter();
    let to_revision = bounds.filter(|revision| *revision > 0).min().unwrap_or(0);
    let request = pb::ReadRequest {
        to_revision,
        ..read::of_branch(&place.conversation, &place.branch)
    };
    let how = out.event_text(LINES, args.full);
    let mut events = read::start(store, request).await?;
    let mut pace = Pace::new(args, !out.json && stdout().is_terminal());
    while let Some(batch) = events.message().await? {
        for event in &batch.events {
            if let Some(pause) = pace.before(event) {
                out.flush()?;
                tokio::time::sleep(pause).await;
            }
            log::print(event, how, out)?;
        }
    }
    match state {
        Some(state) if !out.json => print_state(&state, as_of, out),
        _ => Ok(()),
    }
}

/// Computes the pause before each event.
struct Pace {
    speed: Option<f64>,
    pause_max: Duration,
    last: Option<Timestamp>,
}

impl Pace {
    fn new(args: &ReplayArgs, is_read_along: bool) -> Self {
        let default = is_read_along.then_some(READING_SPEED);
        let pause_max = match args.speed {
            Some(_) => PAUSE_SECONDS_MAX,
            None => READING_PAUSE_SECONDS_MAX,
        };
        Self {
            speed: args.speed.or(default),
            pause_max: Duration::from_secs(args.pause_max.unwrap_or(pause_max)),
            last: None,
        }
    }

    fn before(&mut self, event: &pb::Event) -> Option<Duration> {
        let speed = self.speed?;
        let time = event.occurred_at.or(event.recorded_at)?;
        let last = self.last.replace(time)?;
        // Clocks of several authors may differ. If time goes backwards, there is no pause.
        let apart: Duration = (moment(&time)? - moment(&last)?).try_into().ok()?;
        let pause = Duration::try_from_secs_f64(apart.as_secs_f64() / speed)
            .unwrap_or(self.pause_max)
            .min(self.pause_max);
        (!pause.is_zero()).then_some(pause)
    }
}

fn print_state(
    state: &pb::ConversationState,
    as_of: u64,
    out: &mut Out,
) -> Result<(), ClientError> {
    let branch = state.branch.clone().unwrap_or_default();
    let paint = out.paint;
    out.heading(format!(
        "As of #{as_of}, on {} (head #{})",
        branch.name, branch.head
    ))?;
    out.line(format!(
        "  {} finished turns, {}",
        branch.finished_turns,
        if branch.turn_open {
            "one open"
        } else {
            "none open"
        }
    ))?;
    for call in &branch.open_calls {
        out.line(format!(
            "  open call {} {} (#{}, approval {})",
            paint.text(Tone::Name, &call.call_id),
            call.tool,
            call.request.as_ref().map_or(0, |event| event.revision),
            approval_name(call.approval())
        ))?;
    }
    let mut context: Vec<_> = branch.active_context.iter().collect();
    context.sort_by_key(|(key, _)| *key);
    for (key, event) in context {
        out.line(format!("  context {key} set at #{}", event.revision))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> pb::Event {
        pb::Event {
            recorded_at: Some(Timestamp { seconds, nanos: 0 }),
            ..Default::default()
        }
    }

    /// On a terminal, a replay without `--speed` must pause between events, unlike `log`.
    #[test]
    fn replay_on_a_terminal_has_pauses_to_read_along() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: ReplayArgs,
        }
        let pace = |line: &[&str], is_read_along| {
            let line = [&["replay", "@last"], line].concat();
            let args = <Line as clap::Parser>::try_parse_from(line).unwrap().args;
            let pace = Pace::new(&args, is_read_along);
            (pace.speed, pace.pause_max.as_secs())
        };
        assert_eq!(pace(&[], true), (Some(20.0), 1));
        assert_eq!(pace(&[], false).0, None);
        assert_eq!(pace(&["--speed", "2"], true), (Some(2.0), 10));
        assert_eq!(
            pace(&["--speed", "2", "--pause-max", "3"], false),
            (Some(2.0), 3)
        );
    }

    /// A night between two events must not stop a replay for hours, and a clock that was set back
    /// must not stop it at all.
    #[test]
    fn replay_pauses_follow_recorded_times_up_to_the_maximum() {
        let mut pace = Pace {
            speed: Some(2.0),
            pause_max: Duration::from_secs(10),
            last: None,
        };
        let pauses: Vec<_> = [0, 4, 40_000, 30_000, 30_001]
            .map(|second| pace.before(&at(second)).map(|p| p.as_millis()))
            .into();
        assert_eq!(
            pauses,
            vec![None, Some(2_000), Some(10_000), None, Some(500)]
        );
    }
}
