//! `replay --serve-tools`: an agent runs again from a fork, and its tool calls are answered with
//! the recorded results of the parent branch.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use clap::{Args, ValueEnum};
use tokio::net::TcpListener;
use tonic::Code;

use super::{
    super::{
        append::{self, bodies::encode},
        approve::person,
        args::{Common, Target},
        branch_args::FoundBranch,
        connect::Connection,
        diff,
        error::ClientError,
        json::{Array, Object},
        output::{Out, Tone},
        pb, read,
        serve::{RunningServer, stop_signal},
        text::{count, first_line, printable},
        web::WebOptions,
    },
    ReplayArgs,
    player::{Player, Question},
};
use treering_engine::{OpenMode, OpenOptions};

/// Actor of the recorded results.
const ACTOR: &str = "replay";
/// Maximum number of events of each branch in the comparison at the end.
const DIFF_EVENTS_MAX: u32 = 1_000;

/// Options to run an agent again with recorded results.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "With --serve-tools")]
pub(crate) struct ServeToolsArgs {
    /// Answer the tool calls on --branch with recorded results
    #[arg(long, conflicts_with_all = ["speed", "until", "as_of"])]
    pub(crate) serve_tools: bool,
    /// The branch with the recorded results [default: the parent of --branch]
    #[arg(long, value_name = "BRANCH", requires = "serve_tools")]
    from: Option<String>,
    /// Fork after this revision first; needs --name
    #[arg(long, value_name = "REVISION", requires_all = ["serve_tools", "name"])]
    #[arg(conflicts_with = "branch")]
    fork_at: Option<u64>,
    /// Name of the fork
    #[arg(long, value_name = "NAME", requires = "fork_at")]
    name: Option<String>,
    /// Fork into a new conversation that shares the history
    #[arg(long, requires = "fork_at")]
    new_conversation: bool,
    /// Serve the store of --data at this address for the agent; port 0 takes any free one
    #[arg(long, value_name = "ADDR", requires = "serve_tools")]
    listen: Option<SocketAddr>,
    /// Decide on calls that need approval as recorded
    #[arg(long, value_name = "HOW", requires = "serve_tools")]
    approve: Option<Approve>,
    /// What to do with a call that has no recorded result
    #[arg(
        long,
        value_name = "HOW",
        default_value = "skip",
        requires = "serve_tools"
    )]
    on_miss: MissPolicy,
    /// End when nothing was appended to the branch for this many seconds [default: at Ctrl-C]
    #[arg(long, value_name = "SECONDS", requires = "serve_tools")]
    until_idle: Option<u64>,
}

/// Who approves.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Approve {
    /// As recorded.
    Recorded,
}

/// What to do with a call without a recorded result.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum MissPolicy {
    /// Leave it open, for someone else to answer.
    Skip,
    /// End it with an error result.
    Fail,
}

impl ReplayArgs {
    /// Returns the address at which the store is served during the replay.
    pub(crate) fn listens(&self) -> Option<SocketAddr> {
        self.again.listen
    }
}

/// Counts for the summary.
#[derive(Debug, Default)]
struct Tally {
    served: u64,
    approved: u64,
    denied: u64,
    /// Calls without a recorded result. A call is counted once, even if it was asked again after
    /// its approval.
    missed: BTreeSet<(String, u32)>,
    /// Calls that wait for a person at the end.
    waiting: u64,
}

/// Like [`run`], but also serves the store of a folder for the agent.
///
/// # Errors
/// Errors of the store or the output; [`ClientError::Usage`] if the store is on a server.
pub(crate) async fn listen(
    args: &ReplayArgs,
    addr: SocketAddr,
    common: &Common,
    out: &mut Out,
) -> Result<(), ClientError> {
    let Target::Data(dir) = common.target()? else {
        return Err(ClientError::Usage {
            what: "--listen serves a data folder, but a server was named".into(),
            hint: "omit --listen: the agent can use the same server".into(),
        });
    };
    let listener = TcpListener::bind(addr)
        .await
        .map_err(|cause| ClientError::Listen { addr, cause })?;
    // The store must exist, since a new one has nothing to replay.
    let options = OpenOptions {
        mode: OpenMode::Append,
        ..OpenOptions::new(&dir)
    };
    let served = RunningServer::start(options, listener, WebOptions::default()).await?;
    let url = served.url();
    if out.json {
        let mut object = Object::new();
        object.string("serving", &url);
        out.line(object.finish())?;
    } else {
        let url = out.paint.text(Tone::Name, &url);
        out.line(format!("Serving {} at {url}", dir.display()))?;
    }
    let done = match Connection::to_server_as(&url, &common.namespace, &common.credentials()).await
    {
        Ok(store) => {
            let done = super::run(args, &store, out).await;
            let closed = store.close().await;
            done.and(closed)
        }
        Err(error) => Err(error),
    };
    out.flush()?;
    let stopped = served.stop().await;
    done.and(stopped)
}

/// Answers calls until the replay ends, then compares both branches.
///
/// # Errors
/// Errors of the store or the output; [`ClientError::Usage`] if the branch has no parent.
pub(crate) async fn run(
    args: &ReplayArgs,
    place: FoundBranch,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let (played, source) = places(&args.again, place, store).await?;
    if out.json {
        let mut object = Object::new();
        object
            .string("conversation", &played.conversation)
            .string("branch", &played.branch)
            .string("from_conversation", &source.conversation)
            .string("from_branch", &source.branch);
        out.line(object.finish())?;
    } else {
        out.line(format!(
            "Calls on {} of {} get the results recorded on {}",
            out.paint.text(Tone::Name, printable(&played.branch)),
            out.paint.text(Tone::Name, &played.conversation),
            out.paint.text(Tone::Name, printable(&source.branch)),
        ))?;
        if args.again.until_idle.is_none() {
            out.line("Ctrl-C ends it.")?;
        }
    }
    out.flush()?;
    let mut replay = Replay {
        args: &args.again,
        store,
        source,
        played,
        tally: Tally::default(),
    };
    let mut player = Player::default();
    replay.follow(&mut player, out).await?;
    replay.tally.waiting = player.open().filter(|question| question.pending).count() as u64;
    replay.conclude(args.full, out).await
}

/// Returns the followed branch, and the recorded one.
async fn places(
    again: &ServeToolsArgs,
    place: FoundBranch,
    store: &Connection,
) -> Result<(FoundBranch, FoundBranch), ClientError> {
    let id = |state: &pb::ConversationState| {
        let summary = state.summary.as_ref();
        summary.map_or_else(String::new, |summary| summary.conversation_id.clone())
    };
    let of = |conversation, branch| FoundBranch {
        conversation,
        branch,
        ..Default::default()
    };
    let named = |state: &pb::ConversationState| {
        let branch = state.branch.as_ref();
        of(
            id(state),
            branch.map_or_else(String::new, |b| b.name.clone()),
        )
    };
    if let Some(at_revision) = again.fork_at {
        let from = again.from.as_deref().unwrap_or_default();
        let state = read::state(store, &place.conversation, from, 0).await?;
        let source = named(&state);
        let request = pb::ForkRequest {
            conversation_id: place.conversation,
            branch: source.branch.clone(),
            at_revision,
            name: again.name.clone().unwrap_or_default(),
            into_conversation: if again.new_conversation { "new" } else { "" }.into(),
            actor: person(None),
            ..Default::default()
        };
        let forked = store.conversations().fork(request).await?.into_inner();
        let name = forked.branch.unwrap_or_default().name;
        return Ok((of(forked.conversation_id, name), source));
    }
    let state = read::state(store, &place.conversation, &place.branch, 0).await?;
    let played = named(&state);
    let own = state.branch.as_ref().map_or(0, |branch| branch.branch_id);
    let parent = state.summary.as_ref().and_then(|summary| {
        let parent = summary.parent.as_ref();
        parent.filter(|_| summary.shares_history && own == 0)
    });
    let (conversation, left) = match parent {
        Some(parent) => (parent.conversation_id.clone(), Some(parent.branch_id)),
        None => {
            let this = state.branches.iter().find(|branch| branch.branch_id == own);
            let left = this.filter(|_| own != 0).map(|this| this.parent_branch_id);
            (id(&state), left)
        }
    };
    let recorded = match parent {
        Some(_) => read::state(store, &conversation, "", 0).await?.branches,
        None => state.branches,
    };
    let wanted = |branch: &&pb::Branch| match &again.from {
        Some(name) => branch.name == *name,
        None => Some(branch.branch_id) == left,
    };
    let source = recorded.iter().find(wanted);
    let source = source.map(|branch| of(conversation, branch.name.clone()));
    match source {
        Some(source) if source != played => Ok((played, source)),
        _ => Err(ClientError::Usage {
            what: format!(
                "{} has no other branch with recorded results",
                played.branch
            ),
            hint: "name a fork with --branch, or create one with --fork-at REVISION --name NAME; \
                   --from names the recorded branch"
                .into(),
        }),
    }
}

/// The state of one replay.
struct Replay<'a> {
    args: &'a ServeToolsArgs,
    store: &'a Connection,
    source: FoundBranch,
    played: FoundBranch,
    tally: Tally,
}

impl Replay<'_> {
    /// Follows the branch and answers its calls, until it is idle or the process is asked to stop.
    async fn follow(&mut self, player: &mut Player, out: &mut Out) -> Result<(), ClientError> {
        use pb::subscribe_response::Item;
        let request = pb::SubscribeRequest {
            source: Some(pb::subscribe_request::Source::Branch(pb::BranchSource {
                conversation_id: self.played.conversation.clone(),
                branch: self.played.branch.clone(),
            })),
            ..Default::default()
        };
        let mut news = self.store.events().subscribe(request).await?.into_inner();
        let idle = self.args.until_idle.map(Duration::from_secs);
        let mut stop = std::pin::pin!(stop_signal());
        let mut live = false;
        let mut quiet_since = tokio::time::Instant::now();
        loop {
            let quiet = async {
                match idle {
                    Some(idle) => tokio::time::sleep_until(quiet_since + idle).await,
                    None => std::future::pending().await,
                }
            };
            let item = tokio::select! {
                item = news.message() => item?.and_then(|response| response.item),
                () = quiet => return Ok(()),
                () = &mut stop => return Ok(()),
            };
            match item {
                Some(Item::Event(event)) => {
                    quiet_since = tokio::time::Instant::now();
                    let question = player.take(&event).map_err(|_| ClientError::Answer {
                        call: "Events.Subscribe",
                        part: "event's body",
                    })?;
                    if let Some(question) = question.filter(|_| live) {
                        self.answer(&question, out).await?;
                    }
                }
                // Calls that were already open are answered after all their events have been read.
                Some(Item::CaughtUp(_)) if !live => {
                    live = true;
                    let open: Vec<Question> = player.open().cloned().collect();
                    for question in &open {
                        self.answer(question, out).await?;
                    }
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    async fn answer(&mut self, question: &Question, out: &mut Out) -> Result<(), ClientError> {
        if question.pending && self.args.approve.is_none() {
            return self.say(question, Tone::Wait, "waits for approval", out);
        }
        let request = pb::RecordedRequest {
            conversation_id: self.source.conversation.clone(),
            branch: self.source.branch.clone(),
            tool: question.tool.clone(),
            arguments: question.arguments.clone(),
            occurrence: question.occurrence,
        };
        let recorded = self.store.tools().recorded(request).await?.into_inner();
        let (Some(result), true) = (recorded.result, recorded.found) else {
            return self.miss(question, out).await;
        };
        let call = recorded.call.unwrap_or_default();
        if question.pending {
            match call.approval() {
                pb::ApprovalStatus::Approved => {
                    // The decision arrives as an event; then the call is answered.
                    let done = self.decide(question, pb::Decision::Approved, &call).await?;
                    self.tally.approved += u64::from(done);
                    return self.say(question, Tone::Good, "approved as recorded", out);
                }
                pb::ApprovalStatus::Denied => {
                    let done = self.decide(question, pb::Decision::Denied, &call).await?;
                    self.tally.denied += u64::from(done);
                }
                _ => return self.say(question, Tone::Wait, "waits: no approval is recorded", out),
            }
        }
        let result = pb::ToolResultRecorded {
            call_id: question.call_id.clone(),
            // The raw form contains the original id of the call.
            raw: None,
            ..result
        };
        if !self.append_result(&result).await? {
            return self.say(question, Tone::Dim, "was answered by another client", out);
        }
        self.tally.served += 1;
        let word = format!("served from #{}", call.end_revision);
        self.say(question, Tone::Good, &word, out)
    }

    /// Handles a call without a recorded result, which may have been denied.
    async fn miss(&mut self, question: &Question, out: &mut Out) -> Result<(), ClientError> {
        if question.pending
            && let Some(call) = self.denied(question).await?
        {
            let done = self.decide(question, pb::Decision::Denied, &call).await?;
            self.tally.denied += u64::from(done);
            return self.say(question, Tone::Bad, "denied as recorded", out);
        }
        let missed = (question.call_id.clone(), question.occurrence);
        self.tally.missed.insert(missed);
        if self.args.on_miss == MissPolicy::Fail {
            let result = pb::ToolResultRecorded {
                call_id: question.call_id.clone(),
                success: false,
                error_message: format!(
                    "no result is recorded for call number {} of {} with these arguments",
                    question.occurrence, question.tool
                ),
                ..Default::default()
            };
            self.append_result(&result).await?;
        }
        self.say(question, Tone::Bad, "missed: nothing is recorded", out)
    }

    /// Returns the same call on the recorded branch, if it was denied.
    async fn denied(&self, question: &Question) -> Result<Option<pb::ToolCall>, ClientError> {
        let request = pb::ToolHistoryRequest {
            conversation_id: self.source.conversation.clone(),
            branch: self.source.branch.clone(),
            tool: question.tool.clone(),
            ..Default::default()
        };
        let calls = self
            .store
            .tools()
            .history(request)
            .await?
            .into_inner()
            .calls;
        let value = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).ok();
        let wanted = value(&question.arguments);
        Ok(calls.into_iter().find(|call| {
            call.approval() == pb::ApprovalStatus::Denied && value(&call.arguments) == wanted
        }))
    }

    async fn decide(
        &self,
        question: &Question,
        decision: pb::Decision,
        recorded: &pb::ToolCall,
    ) -> Result<bool, ClientError> {
        let hash = blake3::hash(&question.arguments);
        let body = pb::ApprovalDecided {
            call_id: question.call_id.clone(),
            decision: decision.into(),
            arguments_hash: hash.as_bytes().to_vec().into(),
            decided_by: recorded.decided_by.clone(),
            reason: format!("as recorded at #{}", recorded.decision_revision),
        };
        let body = pb::new_event::Body::ApprovalDecided(encode(&body));
        self.append(body).await
    }

    async fn append_result(&self, result: &pb::ToolResultRecorded) -> Result<bool, ClientError> {
        let body = pb::new_event::Body::ToolResultRecorded(encode(result));
        self.append(body).await
    }

    /// Appends to the branch. Returns false if the call is not open any more.
    async fn append(&self, body: pb::new_event::Body) -> Result<bool, ClientError> {
        let by = Some(ACTOR.to_owned());
        match append::one(self.store, &self.played, by, body, None).await {
            Ok(_) => Ok(true),
            // Another client has answered first.
            Err(ClientError::Status(status)) if status.code() == Code::FailedPrecondition => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn say(
        &self,
        question: &Question,
        tone: Tone,
        what: &str,
        out: &mut Out,
    ) -> Result<(), ClientError> {
        if out.json {
            let mut object = Object::new();
            object
                .string("call_id", &question.call_id)
                .string("tool", &question.tool)
                .number("occurrence", question.occurrence.into())
                .string("outcome", what)
                .bytes("arguments", &question.arguments);
            out.line(object.finish())?;
        } else {
            let arguments = String::from_utf8_lossy(&question.arguments);
            out.line(format!(
                "  {} {}  {}  {}",
                out.paint.text(Tone::Tool, printable(&question.tool)),
                out.paint.text(Tone::Name, printable(&question.call_id)),
                out.paint.text(tone, what),
                out.paint
                    .text(Tone::Dim, first_line(&arguments, out.width / 2)),
            ))?;
        }
        Ok(out.flush()?)
    }

    /// Prints the events of both branches after the fork, and the counts.
    async fn conclude(&self, full: bool, out: &mut Out) -> Result<(), ClientError> {
        let diff = self.difference().await?;
        if !out.json {
            out.line("")?;
        }
        let names = [self.source.branch.as_str(), self.played.branch.as_str()];
        diff::print(&diff, names, full, out)?;
        let tally = &self.tally;
        let counts = [
            ("served", tally.served),
            ("missed", tally.missed.len() as u64),
            ("approved", tally.approved),
            ("denied", tally.denied),
            ("waiting", tally.waiting),
        ];
        if out.json {
            let mut object = Object::new();
            object.raw("branches", &Array::of_strings(&names.map(str::to_owned)));
            for (name, number) in counts {
                object.number(name, number);
            }
            return Ok(out.line(object.finish())?);
        }
        let said: Vec<String> = counts
            .iter()
            .enumerate()
            .filter(|(place, (_, number))| *place < 2 || *number > 0)
            .map(|(_, (name, number))| format!("{} {name}", count(*number)))
            .collect();
        out.line("")?;
        let said = out.paint.text(Tone::Strong, said.join(", "));
        Ok(out.line(format!("Tool calls: {said}"))?)
    }

    async fn difference(&self) -> Result<pb::DiffResponse, ClientError> {
        if self.source.conversation == self.played.conversation {
            let request = pb::DiffRequest {
                conversation_id: self.played.conversation.clone(),
                left_branch: self.source.branch.clone(),
                right_branch: self.played.branch.clone(),
                headers_only: false,
                limit: DIFF_EVENTS_MAX,
            };
            return Ok(self.store.conversations().diff(request).await?.into_inner());
        }
        let state = read::state(self.store, &self.played.conversation, "", 0).await?;
        let parent = state.summary.and_then(|summary| summary.parent);
        let parent = parent.unwrap_or_default();
        let limit = u64::from(DIFF_EVENTS_MAX);
        let left = pb::ReadRequest {
            from_revision: parent.revision + 1,
            limit: limit + 1,
            ..read::of_branch(&self.source.conversation, &self.source.branch)
        };
        let right = pb::ReadRequest {
            limit: limit + 1,
            ..read::of_conversation(&self.played.conversation)
        };
        let mut left = read::all(self.store, left).await?;
        let mut right = read::all(self.store, right).await?;
        let max = usize::try_from(limit).unwrap_or(usize::MAX);
        let truncated = left.len() > max || right.len() > max;
        left.truncate(max);
        right.truncate(max);
        Ok(pb::DiffResponse {
            ancestor_conversation_id: parent.conversation_id,
            ancestor_revision: parent.revision,
            left,
            right,
            truncated,
        })
    }
}
