//! Explains why a search found nothing: names that do not exist, and filters that exclude
//! everything.

use super::super::{
    connect::Connection,
    error::ClientError,
    json, ls, pb,
    text::{printable, things},
    time_arg,
};

/// Returns sentences about a search without hits, or none if there is nothing to explain.
pub(super) async fn nothing_found(
    request: &pb::SearchRequest,
    store: &Connection,
) -> Result<Vec<String>, ClientError> {
    let mut why = unknown_names(request, store).await?;
    why.extend(of_paths(request, store).await?);
    if request
        .happened_from
        .as_ref()
        .is_some_and(time_arg::is_to_come)
    {
        why.push("--since is in the future.".to_owned());
    }
    why.extend(blocking_filters(request, store).await?);
    Ok(why)
}

/// Returns sentences about names that no conversation has.
async fn unknown_names(
    request: &pb::SearchRequest,
    store: &Connection,
) -> Result<Vec<String>, ClientError> {
    if request.sources.is_empty() && request.labels.is_empty() {
        return Ok(Vec::new());
    }
    let there = ls::names(store).await?;
    let mut why = Vec::new();
    let is_unknown = |source: &&String| !there.sources.contains(*source);
    let sources: Vec<&str> = request
        .sources
        .iter()
        .filter(is_unknown)
        .map(String::as_str)
        .collect();
    if !sources.is_empty() {
        why.push(ls::none_from(&sources.join(", "), &there.sources));
    }
    let is_unknown = |label: &&String| !there.has_label(label);
    let labels: Vec<_> = request
        .labels
        .iter()
        .filter(is_unknown)
        .map(|label| printable(label))
        .collect();
    if !labels.is_empty() {
        let there_is = match ls::some_of(&there.labels) {
            some if some.is_empty() => "no conversation has a label".to_owned(),
            some => format!("the labels are {some}"),
        };
        why.push(format!(
            "No conversations with the label {}: {there_is}.",
            labels.join(", ")
        ));
    }
    Ok(why)
}

/// Returns a hint if `--path` may be only part of a name, because no call names this path.
async fn of_paths(
    request: &pb::SearchRequest,
    store: &Connection,
) -> Result<Option<String>, ClientError> {
    let plain = request.paths.iter().find(|path| !path.contains(['*', '?']));
    let Some(plain) = plain else { return Ok(None) };
    let with_path = pb::SearchRequest {
        paths: vec![plain.clone()],
        at_least: request.at_least,
        wait_max: request.wait_max,
        ..Default::default()
    };
    if hits(&with_path, store).await?.is_some() {
        return Ok(None);
    }
    let plain = printable(plain);
    Ok(Some(format!(
        "--path {plain} matches only whole file and folder names; use '*{plain}*' to match parts \
         of names."
    )))
}

/// A filter as the user typed it, and the request without it.
type Filter = (String, pb::SearchRequest);

/// Returns how many hits there are without one of the filters, or without all of them.
async fn blocking_filters(
    request: &pb::SearchRequest,
    store: &Connection,
) -> Result<Vec<String>, ClientError> {
    let filters = filters(request);
    // Skipped for a regular expression, since each query would scan all texts.
    if filters.is_empty() || request.regex {
        return Ok(Vec::new());
    }
    let is_listing = request.query.is_empty();
    if is_listing && filters.len() == 1 {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for (filter, without) in &filters {
        let hits = hits(without, store).await?;
        if let Some(hits) = hits {
            found.push(format!("without {filter}: {hits}"));
        }
    }
    if !found.is_empty() {
        return Ok(vec![format!("There are matches {}.", found.join("; "))]);
    }
    if filters.len() > 1 && !is_listing {
        let bare = pb::SearchRequest {
            query: request.query.clone(),
            mode: request.mode,
            at_least: request.at_least,
            wait_max: request.wait_max,
            ..Default::default()
        };
        if let Some(hits) = hits(&bare, store).await? {
            return Ok(vec![format!(
                "There are matches without all of these filters: {hits}."
            )]);
        }
    }
    Ok(vec![
        "There are no matches without the filters either.".to_owned(),
    ])
}

async fn hits(
    request: &pb::SearchRequest,
    store: &Connection,
) -> Result<Option<String>, ClientError> {
    let request = pb::SearchRequest {
        limit: 1,
        offset: 0,
        by_conversation: false,
        count_all: false,
        ..request.clone()
    };
    let answer = store.search().search(request).await?.into_inner();
    let more = if answer.more_than_total {
        "more than "
    } else {
        ""
    };
    let number = things(answer.total, "hit", "hits");
    Ok((answer.total > 0).then(|| format!("{more}{number}")))
}

fn filters(request: &pb::SearchRequest) -> Vec<Filter> {
    fn listed<T>(option: &str, values: &[T], name: impl Fn(&T) -> String) -> String {
        let names: Vec<_> = values.iter().map(name).collect();
        match names.is_empty() {
            true => String::new(),
            false => format!("{option} {}", names.join(", ")),
        }
    }
    let texts =
        |option: &str, texts: &[String]| listed(option, texts, |text: &String| printable(text));
    let when = |is_set: bool, typed: &str| if is_set { typed } else { "" }.to_owned();
    let outcome = match request.success {
        Some(true) => "--success",
        _ => "--failed",
    };
    let branch = Some(request.branch.clone()).filter(|branch| !branch.is_empty());
    let kinds = listed("--kind", &request.kinds, |kind| json::kind_name(*kind));
    let roles = listed("--role", &request.roles, |role| json::role_name(*role));
    type Take = fn(&mut pb::SearchRequest);
    let all: [(String, Take); 11] = [
        (texts("--tool", &request.tools), |it| it.tools.clear()),
        (texts("--path", &request.paths), |it| it.paths.clear()),
        (when(request.happened_from.is_some(), "--since"), |it| {
            it.happened_from = None
        }),
        (when(request.happened_to.is_some(), "--until"), |it| {
            it.happened_to = None
        }),
        (texts("--source", &request.sources), |it| it.sources.clear()),
        (texts("--label", &request.labels), |it| it.labels.clear()),
        (roles, |it| it.roles.clear()),
        (kinds, |it| it.kinds.clear()),
        (when(request.success.is_some(), outcome), |it| {
            it.success = None
        }),
        (texts("--branch", branch.as_slice()), |it| it.branch.clear()),
        (
            when(!request.conversation_id.is_empty(), "--conversation"),
            |it| {
                it.conversation_id.clear();
                it.branch.clear();
                it.include_sub_contexts = false;
            },
        ),
    ];
    let set = all.into_iter().filter(|(typed, _)| !typed.is_empty());
    set.map(|(typed, take)| {
        let mut without = request.clone();
        take(&mut without);
        (typed, without)
    })
    .collect()
}
