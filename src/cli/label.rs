//! `label`: sets labels, title and metadata of a conversation.

use clap::Args;

use super::{
    append::{self, bodies::encode, first_of},
    args::pair,
    branch_args::find_conversation,
    connect::Connection,
    error::ClientError,
    output::{Out, Tone},
    pb,
    text_arg::{free_text, is_json, text_of},
};

/// Set labels, the title and metadata of a conversation
///
/// Values that are not named stay. `treering ls --label` and `--title` list conversations by them.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering label CONVERSATION team=blue stage=review
  treering label CONVERSATION --remove stage --title 'Where the port is set'
  treering label CONVERSATION --metadata owner='{\"name\": \"ada\"}' --remove-metadata draft")]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct LabelArgs {
    /// The conversation: an id or the beginning of one, @last, or words of its title
    conversation: String,
    /// Label to set
    #[arg(value_name = "NAME=VALUE", group = "change", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Label to remove (may be given again)
    #[arg(long, value_name = "NAME", group = "change")]
    remove: Vec<String>,
    /// Its new title
    #[arg(long, value_name = "TEXT", group = "change")]
    #[arg(allow_hyphen_values = true, value_parser = free_text)]
    title: Option<String>,
    /// Metadata to set, as JSON (may be given again)
    #[arg(long, value_name = "NAME=JSON", group = "change", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Metadata to remove (may be given again)
    #[arg(long, value_name = "NAME", group = "change")]
    remove_metadata: Vec<String>,
    /// Actor of the change [default: the account's name]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Idempotency key: repeating the command with it changes nothing
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

impl LabelArgs {
    fn change(&self) -> Result<pb::ConversationChanged, ClientError> {
        Ok(pb::ConversationChanged {
            title: self.title.clone(),
            set_labels: once("label", &self.labels)?.into_iter().collect(),
            remove_labels: self.remove.clone(),
            set_metadata: metadata(&self.metadata)?.into_iter().collect(),
            remove_metadata: self.remove_metadata.clone(),
        })
    }
}

type Pairs = Vec<(String, String)>;

/// Fails if a name is given twice, because one of the values would be lost.
fn once(what: &str, pairs: &[(String, String)]) -> Result<Pairs, ClientError> {
    for (index, (name, _)) in pairs.iter().enumerate() {
        if pairs[..index].iter().any(|(before, _)| before == name) {
            return Err(unusable(&format!("the {what} {name:?} is given twice")));
        }
    }
    Ok(pairs.to_vec())
}

fn metadata(pairs: &[(String, String)]) -> Result<Pairs, ClientError> {
    let read = |(name, value): (String, String)| {
        let value = text_of(&value)?.trim().to_owned();
        if !is_json(&value) {
            return Err(unusable(&format!("the metadata {name:?} is not JSON")));
        }
        Ok((name, value))
    };
    once("metadata", pairs)?.into_iter().map(read).collect()
}

fn unusable(what: &str) -> ClientError {
    ClientError::Usage {
        what: what.to_owned(),
        hint:
            "use: treering label CONVERSATION NAME=VALUE … --metadata NAME=JSON, with strings as \
             '\"text\"'"
                .into(),
    }
}

/// Sets the values.
///
/// # Errors
/// Errors of the store or the output; [`ClientError::Usage`] if a name is given twice or metadata
/// is not JSON.
pub(crate) async fn run(
    args: LabelArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let place = find_conversation(store, &args.conversation).await?;
    let change = args.change()?;
    let body = pb::new_event::Body::ConversationChanged(encode(&change));
    let answer = append::one(store, &place, args.by, body, args.key).await?;
    if out.json {
        return Ok(out.appended(&answer.events, answer.repeated_key, &answer.warnings)?);
    }
    let revision = format!("#{}", first_of(&answer)?.revision);
    let place = out.paint.text(Tone::Name, revision);
    Ok(out.line(format!("Changed, as {place}"))?)
}
