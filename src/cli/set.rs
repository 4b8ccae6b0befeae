//! `set` and `watch`: the active context of a branch, or the long-term context of the namespace.

use clap::{Args, ValueHint};

use super::{
    approve::person,
    branch_args::find_if_named,
    connect::Connection,
    error::ClientError,
    json,
    output::{Out, Tone},
    pb,
    text::{first_line, printable},
    text_arg::{is_json, text_of},
};

/// Set keys of the active context, which the next request includes
///
/// Values are JSON and are stored as written. With --long-term they belong to the namespace, and
/// requests of all its conversations can include them.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering set CONVERSATION open_file '\"src/main.rs\"' tests '{\"failed\": 2}'
  treering set CONVERSATION workspace @workspace.json
  treering set CONVERSATION --remove open_file
  treering set --long-term preferences '{\"language\": \"de\"}'")]
pub(crate) struct SetArgs {
    /// The conversation (not with --long-term), then keys and JSON values alternately
    #[arg(value_name = "CONVERSATION KEY JSON", num_args = 0..)]
    #[arg(allow_negative_numbers = true, value_hint = ValueHint::Other)]
    words: Vec<String>,
    /// Use the namespace's long-term context
    #[arg(long, conflicts_with = "branch")]
    long_term: bool,
    /// The branch [default: the active one]
    #[arg(long, short, value_name = "NAME")]
    branch: Option<String>,
    /// Remove this key (may be given again)
    #[arg(long, value_name = "KEY")]
    remove: Vec<String>,
    /// Provider of the values, for example `workspace`
    #[arg(long = "given-by", value_name = "NAME")]
    provider: Option<String>,
    /// Idempotency key: repeating the command with it changes nothing
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

/// Show the active context, then every change as it happens
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering watch CONVERSATION --once                     show the current keys
  treering --server URL watch CONVERSATION --key open_file
  treering --server URL watch --long-term --json")]
pub(crate) struct WatchArgs {
    /// The conversation: an id or the beginning of one, @last, or words of its title
    #[arg(required_unless_present = "long_term", conflicts_with = "long_term")]
    conversation: Option<String>,
    /// Use the namespace's long-term context
    #[arg(long, conflicts_with = "branch")]
    long_term: bool,
    /// The branch [default: the active one]
    #[arg(long, short, value_name = "NAME")]
    branch: Option<String>,
    /// Only this key (may be given again)
    #[arg(long, value_name = "KEY")]
    key: Vec<String>,
    /// End after showing the current keys
    #[arg(long)]
    once: bool,
}

/// Sets and removes keys.
///
/// # Errors
/// Errors of the store or the output; [`ClientError::Usage`] if a key has no value.
pub(crate) async fn set(
    args: SetArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let mut words = args.words.into_iter();
    let conversation = match args.long_term {
        true => None,
        false => words.next(),
    };
    if !args.long_term && conversation.is_none() {
        return Err(unusable("no conversation is named"));
    }
    let branch = args.branch.as_deref();
    let place = find_if_named(store, conversation.as_deref(), branch).await?;
    let set = pairs(words, args.provider.as_deref().unwrap_or_default())?;
    if set.is_empty() && args.remove.is_empty() {
        return Err(unusable("no key is named"));
    }
    let (new, gone) = (set.len(), args.remove.len());
    let request = pb::SetContextRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        set,
        remove: args.remove,
        idempotency_key: args.key.unwrap_or_default(),
        actor: person(None),
    };
    let answer = store.contexts().set(request).await?.into_inner();
    if out.json {
        return Ok(out.appended(&answer.events, answer.repeated_key, &answer.warnings)?);
    }
    let revision = answer.events.last().map_or(0, |event| event.revision);
    out.line(format!("{new} set, {gone} removed at #{revision}"))?;
    Ok(())
}

fn pairs(
    mut words: impl Iterator<Item = String>,
    provider: &str,
) -> Result<Vec<pb::ContextSet>, ClientError> {
    let mut set = Vec::new();
    while let Some(key) = words.next() {
        let Some(value) = words.next() else {
            return Err(unusable(&format!("key {key:?} has no value")));
        };
        let value = text_of(&value)?.trim().to_owned();
        if !is_json(&value) {
            return Err(unusable(&format!("the value of {key:?} is not JSON")));
        }
        set.push(pb::ContextSet {
            key,
            value: value.into(),
            provider: provider.to_owned(),
        });
    }
    Ok(set)
}

fn unusable(what: &str) -> ClientError {
    ClientError::Usage {
        what: what.to_owned(),
        hint: "use: treering set CONVERSATION KEY JSON …, with strings as '\"text\"'; or \
               --long-term instead of a conversation"
            .into(),
    }
}

/// Shows the keys, then every change.
pub(crate) async fn watch(
    args: WatchArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    use pb::watch_context_response::Item;
    let (conversation, branch) = (args.conversation.as_deref(), args.branch.as_deref());
    let place = find_if_named(store, conversation, branch).await?;
    let request = pb::WatchContextRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        keys: args.key,
    };
    let mut changes = store.contexts().watch(request).await?.into_inner();
    while let Some(change) = changes.message().await? {
        let caught_up = matches!(change.item, Some(Item::CaughtUp(_)));
        if out.json {
            out.line(json::context_change(&change))?;
        } else if let Some(line) = change_line(&change, out) {
            out.line(line)?;
        }
        if caught_up && args.once {
            return Ok(());
        }
        // Show each change at once.
        out.flush()?;
    }
    Ok(())
}

fn change_line(change: &pb::WatchContextResponse, out: &Out) -> Option<String> {
    use pb::watch_context_response::Item;
    let paint = out.paint;
    match change.item.as_ref()? {
        Item::Entry(entry) => {
            let value = String::from_utf8_lossy(&entry.value);
            let revision = entry.event.as_ref().map_or(0, |event| event.revision);
            let by = match entry.provider.as_str() {
                "" => String::new(),
                provider => format!(" by {provider}"),
            };
            Some(format!(
                "{}  {}  {}",
                paint.text(Tone::Name, printable(&entry.key)),
                first_line(&value, out.width),
                paint.text(Tone::Dim, format!("#{revision}{by}"))
            ))
        }
        Item::RemovedKey(key) => Some(format!(
            "{}  {}",
            paint.text(Tone::Name, printable(key)),
            paint.text(Tone::Bad, "removed")
        )),
        Item::CaughtUp(_) => None,
    }
}
