//! `items`: JSON values in long-term memory, by path and key.

use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use prost_types::Timestamp;

use super::{
    approve::person,
    connect::Connection,
    error::ClientError,
    json::{Array, Object, rfc3339},
    output::{Out, Tone},
    pb::{self, item_op::Op, item_result::Result as Answer},
    safe::tell,
    search::By,
    text::{first_line, printable},
    text_arg::{is_json, text_of},
    time_arg::term,
};

/// Maximum number of characters of a value in one line.
const VALUE_CHARS: usize = 200;

/// Store JSON values by path and key, for all conversations
///
/// A path consists of labels separated by slashes: users/ada. Every change is an event, so earlier
/// values can be read and erased; `get --json` shows which event set a value.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering items put users/ada likes '{\"answers\": \"short\", \"level\": 3}'
  treering items put sessions/42 cart @cart.json --ttl 12h
  treering items get users/ada likes
  treering items search users --words 'short answers'
  treering items search users --words 'dislikes long replies' --by meaning
  treering items search users --where 'level>=3' --where 'answers=\"short\"'
  treering items ls --depth 1
  treering items rm users/ada likes")]
pub(crate) struct ItemsArgs {
    #[command(subcommand)]
    what: ItemsCommand,
}

#[derive(Subcommand, Debug, Clone)]
enum ItemsCommand {
    /// Put a value, replacing the current one
    Put {
        /// The path
        path: String,
        /// The key
        key: String,
        /// The value as JSON
        #[arg(allow_negative_numbers = true, value_hint = ValueHint::Other)]
        value: String,
        /// Expire the value after this time, for example 90s, 30m, 12h or 7d
        #[arg(long, value_name = "TIME", value_parser = time_to_live)]
        ttl: Option<Duration>,
        /// Text to index for searches, instead of all texts in the value
        #[arg(long, value_name = "TEXT")]
        text: Option<String>,
        /// Actor of the change [default: $USER, else `treering-cli`]
        #[arg(long, value_name = "NAME")]
        actor: Option<String>,
    },
    /// Show a value
    Get {
        /// The path
        path: String,
        /// The key
        key: String,
    },
    /// Search values: newest first, or with words the best matches first
    Search {
        /// Only below this path
        #[arg(default_value = "", hide_default_value = true)]
        path: String,
        /// Words to search for
        #[arg(long = "words", value_name = "WORDS")]
        query: Option<String>,
        /// Compare the words, their meaning, or both; see `treering search --by`
        #[arg(long, value_enum, default_value_t = By::Words, hide_default_value = true)]
        #[arg(requires = "query")]
        by: By,
        /// Condition: FIELD, one of = != > >= < <=, and JSON. Dots separate nested fields (may be
        /// given again)
        #[arg(long = "where", value_name = "CONDITION", value_parser = condition)]
        conditions: Vec<pb::ItemCondition>,
        /// Maximum number of values
        #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
        limit: u32,
        /// Skip this many values
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        offset: u32,
    },
    /// List the paths that have values
    Ls {
        /// Only paths with this prefix; * is any label
        #[arg(default_value = "", hide_default_value = true)]
        path: String,
        /// Truncate longer paths to this many labels
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        depth: u32,
        /// Maximum number of paths
        #[arg(long, short = 'n', value_name = "N", default_value_t = 1_000)]
        limit: u32,
    },
    /// Remove a value
    Rm {
        /// The path
        path: String,
        /// The key
        key: String,
        /// Actor of the change [default: $USER, else `treering-cli`]
        #[arg(long, value_name = "NAME")]
        actor: Option<String>,
    },
}

impl ItemsArgs {
    /// Whether it changes something.
    pub(crate) fn changes(&self) -> bool {
        matches!(
            self.what,
            ItemsCommand::Put { .. } | ItemsCommand::Rm { .. }
        )
    }

    /// Whether it may append the first events of a store.
    pub(crate) fn begins(&self) -> bool {
        matches!(self.what, ItemsCommand::Put { .. })
    }

    /// Whether it needs an embedder.
    pub(crate) fn compares_meanings(&self) -> bool {
        matches!(self.what, ItemsCommand::Search { by, .. } if by != By::Words)
    }

    /// Whether it waits for the index, and keeps what was indexed.
    pub(crate) fn waits(&self) -> bool {
        matches!(&self.what, ItemsCommand::Search { query: Some(query), .. } if !query.is_empty())
    }
}

fn time_to_live(text: &str) -> Result<Duration, String> {
    match term(text)? {
        Duration::ZERO => Err("must be positive, for example 12h".to_owned()),
        term => Ok(term),
    }
}

fn condition(text: &str) -> Result<pb::ItemCondition, String> {
    use pb::ItemComparison as Is;
    // Longer operators first: >= begins with >.
    let signs = [
        ("!=", Is::NotEqual),
        (">=", Is::GreaterOrEqual),
        ("<=", Is::LessOrEqual),
        ("=", Is::Equal),
        (">", Is::Greater),
        ("<", Is::Less),
    ];
    let places = signs
        .iter()
        .filter_map(|sign| Some((text.find(sign.0)?, sign)));
    let (at, (sign, comparison)) = places
        .min_by_key(|(at, (sign, _))| (*at, std::cmp::Reverse(sign.len())))
        .ok_or("expected a field, one of = != > >= < <=, and JSON, for example level>=3")?;
    let (field, value) = (text[..at].trim(), text[at + sign.len()..].trim());
    if field.is_empty() {
        return Err("the field before the comparison is missing".to_owned());
    }
    if !is_json(value) {
        return Err(format!(
            "the value for {field} is not JSON: strings need quotation marks"
        ));
    }
    Ok(pb::ItemCondition {
        field: field.split('.').map(str::to_owned).collect(),
        comparison: (*comparison).into(),
        value: value.to_owned().into(),
    })
}

fn labels(path: &str) -> Vec<String> {
    match path.trim_matches('/') {
        "" => Vec::new(),
        path => path.split('/').map(str::to_owned).collect(),
    }
}

/// Runs the subcommand and prints the result.
///
/// # Errors
/// Errors of the store or the output; [`ClientError::Usage`] for invalid JSON.
pub(crate) async fn run(
    args: ItemsArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let changes = args.changes();
    let (op, actor) = op(args.what)?;
    let ops = vec![pb::ItemOp {
        op: Some(op.clone()),
    }];
    let answer = match changes {
        true => {
            let request = pb::ItemsRequest {
                ops,
                idempotency_key: String::new(),
                key_life_seconds: 0,
                actor: person(actor),
            };
            store.items().batch(request).await?
        }
        false => store.items().read(pb::ReadItemsRequest { ops }).await?,
    };
    let answer = answer.into_inner();
    let changed = answer.position.is_some();
    let result = answer.results.into_iter().next();
    match (result.and_then(|result| result.result), op) {
        (Some(Answer::Got(got)), Op::Get(asked)) => match got.item {
            Some(item) => print_value(&item, out),
            None => Err(ClientError::NotFound {
                what: format!("no item {} under {}", asked.key, asked.path.join("/")),
                hint: "`treering items ls` lists the paths with items".to_owned(),
            }),
        },
        (Some(Answer::Found(found)), _) => {
            for item in &found.items {
                print_item(item, out)?;
            }
            print_partial(found.partial)
        }
        (Some(Answer::Paths(found)), _) => {
            for path in &found.paths {
                print_path(&path.path, out)?;
            }
            print_partial(found.partial)
        }
        (_, Op::Put(put)) => told("put", &put.path, &put.key, true, out),
        (_, Op::Delete(gone)) => told("removed", &gone.path, &gone.key, changed, out),
        _ => Ok(()),
    }
}

fn op(what: ItemsCommand) -> Result<(Op, Option<String>), ClientError> {
    Ok(match what {
        ItemsCommand::Put {
            path,
            key,
            value,
            ttl,
            text,
            actor,
        } => {
            let value = text_of(&value)?.trim().to_owned();
            if !is_json(&value) {
                return Err(ClientError::Usage {
                    what: "the value is not JSON".to_owned(),
                    hint: "write a string as '\"text\"'; read a file with @FILE".into(),
                });
            }
            let ttl_ms = ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
            let put = pb::PutItem {
                path: labels(&path),
                key,
                value: value.into(),
                ttl_ms,
                text,
            };
            (Op::Put(put), actor)
        }
        ItemsCommand::Get { path, key } => {
            let get = pb::GetItem {
                path: labels(&path),
                key,
                refresh_ttl: false,
            };
            (Op::Get(get), None)
        }
        ItemsCommand::Search {
            path,
            query,
            by,
            conditions,
            limit,
            offset,
        } => {
            let search = pb::SearchItems {
                under: labels(&path),
                query: query.unwrap_or_default(),
                by: by.number(),
                filter: conditions,
                limit,
                offset,
                refresh_ttl: false,
            };
            (Op::Search(search), None)
        }
        ItemsCommand::Ls { path, depth, limit } => {
            let prefix = pb::PathMatch {
                end: pb::PathEnd::Prefix.into(),
                path: labels(&path),
            };
            let list = pb::ListItemPaths {
                matches: match prefix.path.is_empty() {
                    true => Vec::new(),
                    false => vec![prefix],
                },
                depth_max: depth,
                limit,
                offset: 0,
            };
            (Op::ListPaths(list), None)
        }
        ItemsCommand::Rm { path, key, actor } => {
            let gone = pb::DeleteItem {
                path: labels(&path),
                key,
            };
            (Op::Delete(gone), actor)
        }
    })
}

fn print_partial(partial: bool) -> Result<(), ClientError> {
    if partial {
        tell!(
            "The result may be incomplete: the scan limit was reached. Search under a longer path."
        );
    }
    Ok(())
}

fn told(
    what: &str,
    path: &[String],
    key: &str,
    changed: bool,
    out: &mut Out,
) -> Result<(), ClientError> {
    if out.json {
        let mut object = Object::new();
        object
            .raw("path", &Array::of_strings(path))
            .string("key", key)
            .boolean(what, changed);
        return Ok(out.line(object.finish())?);
    }
    let name = printable(&format!("{}/{key}", path.join("/")));
    let line = match changed {
        true => format!("{what} {name}"),
        false => format!("{name} did not exist"),
    };
    Ok(out.line(line)?)
}

fn print_path(path: &[String], out: &mut Out) -> Result<(), ClientError> {
    let line = match out.json {
        true => {
            let mut object = Object::new();
            object.raw("path", &Array::of_strings(path));
            object.finish()
        }
        false => printable(&path.join("/")),
    };
    Ok(out.line(line)?)
}

fn print_value(item: &pb::Item, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        return Ok(out.line(json(item))?);
    }
    let value = String::from_utf8_lossy(&item.value);
    Ok(out.lines(value.trim_end())?)
}

fn print_item(item: &pb::Item, out: &mut Out) -> Result<(), ClientError> {
    if out.json {
        return Ok(out.line(json(item))?);
    }
    let name = format!("{}/{}", item.path.join("/"), item.key);
    let name = out.paint.text(Tone::Name, name);
    let when = out
        .paint
        .text(Tone::Dim, out.when(item.updated_at.as_ref()));
    let value = match item.value_left_out {
        true => "(omitted: get this item alone)".to_owned(),
        false => first_line(&String::from_utf8_lossy(&item.value), VALUE_CHARS),
    };
    Ok(out.line(format!("{name}  {when}  {value}"))?)
}

fn json(item: &pb::Item) -> String {
    let mut object = Object::new();
    object
        .raw("path", &Array::of_strings(&item.path))
        .string("key", &item.key);
    match std::str::from_utf8(&item.value) {
        Ok(value) if !item.value_left_out => object.raw("value", value),
        _ => object.boolean("value_left_out", true),
    };
    let mut time = |name: &str, time: Option<&Timestamp>| {
        if let Some(time) = time.and_then(rfc3339) {
            object.string(name, &time);
        }
    };
    time("created_at", item.created_at.as_ref());
    time("updated_at", item.updated_at.as_ref());
    time("expires_at", item.expires_at.as_ref());
    object
        .string("conversation_id", &item.conversation_id)
        .number("revision", item.revision);
    if let Some(score) = item.score {
        object.float("score", f64::from(score));
    }
    object.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    // The longest operator must win, an operator inside the value must be ignored, and a value that
    // is not JSON must be an error.
    #[test]
    fn conditions_are_parsed() {
        use pb::ItemComparison as Is;
        for (text, field, comparison, value) in [
            ("level>=3", "level", Is::GreaterOrEqual, "3"),
            ("level > 3", "level", Is::Greater, "3"),
            ("a.b!=null", "a.b", Is::NotEqual, "null"),
            ("t=\"a>=b\"", "t", Is::Equal, "\"a>=b\""),
            ("n<=-1.5", "n", Is::LessOrEqual, "-1.5"),
            ("n<1", "n", Is::Less, "1"),
        ] {
            let read = condition(text).unwrap();
            assert_eq!(read.field.join("."), field, "{text}");
            assert_eq!(read.comparison(), comparison, "{text}");
            assert_eq!(read.value, value, "{text}");
        }
        for bad in ["level", "=3", "t=short", "n>"] {
            assert!(condition(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn time_to_live_is_parsed() {
        for (text, seconds) in [
            ("90s", 90),
            ("30m", 1_800),
            ("12h", 43_200),
            ("7 d", 604_800),
        ] {
            assert_eq!(
                time_to_live(text),
                Ok(Duration::from_secs(seconds)),
                "{text}"
            );
        }
        for bad in ["", "7", "d", "0s", "-1d", "1.5h", "99999999999999999999d"] {
            assert!(time_to_live(bad).is_err(), "{bad}");
        }
    }
}
