//! Cutting JSON: it stays JSON. Addresses, titles, ids and errors stay longest; the middle of
//! long texts and lists goes.

use serde_json::{Map, Value};

use super::blobs;

/// Longer texts are not taken apart: their head and tail have to do.
const TEXT_BYTES_MAX: usize = 512 * 1024;
/// What an item of a list, or a member, is worth telling in.
const ITEM_BYTES: usize = 64;
const MEMBER_BYTES: usize = 24;
/// What stands where something was, and around a text.
const MARK_BYTES: usize = 24;
/// In fewer bytes a text says how it begins, and not how much is missing.
const MARKED_BYTES: usize = 160;
/// Members that say most, and whatever else speaks of an error.
const TELLING: [&str; 19] = [
    "error",
    "message",
    "title",
    "name",
    "url",
    "uri",
    "href",
    "link",
    "id",
    "path",
    "file",
    "status",
    "code",
    "state",
    "text",
    "summary",
    "snippet",
    "result",
    "description",
];

/// A text that is JSON in about `bytes_max` bytes at the most, as JSON; none where it is not,
/// or is a single value.
pub(super) fn cut(text: &str, bytes_max: usize) -> Option<String> {
    let text = text.trim();
    if text.len() > TEXT_BYTES_MAX || !text.starts_with(['{', '[']) {
        return None;
    }
    let text = blobs::without(text, 0);
    let mut value: Value = serde_json::from_str(&text).ok()?;
    fit(&mut value, bytes_max);
    let told = value.to_string();
    // Where names alone are longer, head and tail say as much.
    (told.len() <= bytes_max + bytes_max / 8).then_some(told)
}

/// Bytes of a value, written.
fn size(value: &Value) -> usize {
    match value {
        Value::Null => 4,
        Value::Bool(_) => 5,
        Value::Number(number) => number.to_string().len(),
        Value::String(text) => text_size(text),
        Value::Array(items) => 2 + items.iter().map(|item| size(item) + 1).sum::<usize>(),
        Value::Object(members) => {
            let members = members.iter();
            2 + members
                .map(|(key, value)| beside(key) + size(value))
                .sum::<usize>()
        }
    }
}

fn text_size(text: &str) -> usize {
    let escaped = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..0x20 => 6,
        _ => 1,
    });
    2 + escaped.sum::<usize>()
}

/// Bytes of a member beside its value.
fn beside(key: &str) -> usize {
    text_size(key) + 2
}

fn fit(value: &mut Value, bytes_max: usize) {
    if size(value) <= bytes_max {
        return;
    }
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => *text = shorter(text, bytes_max),
        Value::Array(items) => fit_items(items, bytes_max.saturating_sub(2)),
        Value::Object(members) => fit_members(members, bytes_max.saturating_sub(2)),
    }
}

/// Head and tail of a text; of one that is JSON itself, its parts.
fn shorter(text: &str, bytes_max: usize) -> String {
    let room = bytes_max.saturating_sub(2);
    // Quotes are written with a sign before each.
    if let Some(json) = cut(text, room * 3 / 4)
        && text_size(&json) <= bytes_max
    {
        return json;
    }
    let share = text.len() as u128 * room as u128 / text_size(text) as u128;
    let room = usize::try_from(share).unwrap_or(room);
    if room < MARKED_BYTES {
        let head = text.floor_char_boundary(room.saturating_sub("…".len()));
        return format!("{}…", &text[..head]);
    }
    let room = room - MARK_BYTES;
    let head = text.floor_char_boundary(room * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - room / 3);
    if tail <= head {
        return text.to_owned();
    }
    let gone = tail - head;
    format!("{}[… {gone} bytes …]{}", &text[..head], &text[tail..])
}

/// The first and the last items, in equal shares; between them how many are not there.
fn fit_items(items: &mut Vec<Value>, bytes_max: usize) {
    let sizes: Vec<usize> = items.iter().map(|item| size(item) + 1).collect();
    let least: usize = sizes.iter().map(|size| (*size).min(ITEM_BYTES)).sum();
    if least > bytes_max {
        let room = bytes_max.saturating_sub(MARK_BYTES);
        let (mut head, mut tail, mut taken) = (0, items.len(), 0);
        // Two from the front for each from the end.
        while head < tail {
            let from_front = head <= 2 * (items.len() - tail);
            let at = if from_front { head } else { tail - 1 };
            taken += sizes[at].min(ITEM_BYTES);
            if taken > room {
                break;
            }
            if from_front {
                head += 1;
            } else {
                tail -= 1;
            }
        }
        let gone = tail - head;
        let mark = Value::String(format!("[… {gone} more …]"));
        items.splice(head..tail, [mark]);
        return share(items.iter_mut().map(|item| (1, item)).collect(), bytes_max);
    }
    share(items.iter_mut().map(|item| (1, item)).collect(), bytes_max);
}

/// The members that say most, in equal shares; the others are counted.
fn fit_members(members: &mut Map<String, Value>, bytes_max: usize) {
    let needs = |(key, value): (&String, &Value)| beside(key) + size(value).min(MEMBER_BYTES);
    let least: usize = members.iter().map(needs).sum();
    if least > bytes_max {
        let mut by_worth: Vec<(Worth, usize, usize)> = members
            .iter()
            .enumerate()
            .map(|(at, (key, value))| (worth(key, value), at, needs((key, value))))
            .collect();
        by_worth.sort_unstable();
        let mut room = bytes_max.saturating_sub(MARK_BYTES / 2);
        let mut stays = vec![false; members.len()];
        for (_, at, needs) in by_worth {
            if needs <= room {
                room -= needs;
                stays[at] = true;
            }
        }
        let before = members.len();
        let mut stays = stays.into_iter();
        members.retain(|_, _| stays.next().unwrap_or_default());
        let gone = before - members.len();
        members.insert("…".to_owned(), Value::String(format!("{gone} more")));
    }
    let members = members.iter_mut();
    share(
        members.map(|(key, value)| (beside(key), value)).collect(),
        bytes_max,
    );
}

/// What a member says: the first stay longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    Telling,
    Ordinary,
    Nothing,
}

fn worth(key: &str, value: &Value) -> Worth {
    let is_nothing = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty() || text.starts_with("[… "),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    let key = key.to_ascii_lowercase();
    match is_nothing {
        true => Worth::Nothing,
        false if TELLING.contains(&key.as_str()) || key.contains("error") => Worth::Telling,
        false => Worth::Ordinary,
    }
}

/// Values in so many bytes together, with what stands beside each: short ones leave theirs
/// to the long ones.
fn share(values: Vec<(usize, &mut Value)>, bytes_max: usize) {
    let beside: usize = values.iter().map(|(beside, _)| beside).sum();
    let mut by_size: Vec<(usize, &mut Value)> = values
        .into_iter()
        .map(|(_, value)| (size(value), value))
        .collect();
    by_size.sort_by_key(|(size, _)| *size);
    let mut left = bytes_max.saturating_sub(beside);
    let mut count = by_size.len();
    for (size, value) in by_size {
        let most = left / count;
        if size > most {
            fit(value, most);
        }
        left = left.saturating_sub(self::size(value));
        count -= 1;
    }
}

/// The arguments of a call as an object of the same keys, with long texts cut so that it has
/// about `bytes_max` bytes, if they are one.
pub(super) fn cut_texts(arguments: &str, bytes_max: usize, whole: &str) -> Option<String> {
    let mut value: Value = serde_json::from_str(arguments).ok()?;
    if !value.is_object() {
        return None;
    }
    let mut sizes = Vec::new();
    texts(&mut value, &mut |text| sizes.push(text.len()));
    sizes.sort_unstable();
    let (all, mut count) = (sizes.iter().sum::<usize>(), sizes.len());
    let mut left = bytes_max.saturating_sub(arguments.len().saturating_sub(all));
    let mut each_max = left;
    for size in sizes {
        each_max = left / count;
        if size > each_max {
            break;
        }
        left -= size;
        count -= 1;
    }
    let each_max = each_max.max(MARK_BYTES * 4);
    let mut changed = false;
    texts(&mut value, &mut |text| {
        if text.len() > each_max + each_max / 4 {
            let room = each_max - MARK_BYTES;
            let head = line_end(text, text.floor_char_boundary(room * 2 / 3));
            let tail = line_start(text, text.ceil_char_boundary(text.len() - room / 3));
            let gone = tail - head;
            changed = true;
            *text = format!(
                "{}[… {gone} bytes are left out{whole} …]{}",
                &text[..head],
                &text[tail..]
            );
        }
    });
    changed.then(|| value.to_string())
}

/// The end of the line before, where that is near.
fn line_end(text: &str, at: usize) -> usize {
    match text[..at].rfind('\n') {
        Some(line) if at - line <= at / 4 => line + 1,
        _ => at,
    }
}

/// The beginning of the next line, where that is near.
fn line_start(text: &str, at: usize) -> usize {
    let rest = text.len() - at;
    match text[at..].find('\n') {
        Some(line) if line < rest / 4 => at + line + 1,
        _ => at,
    }
}

/// Each text of a value.
fn texts(value: &mut Value, apply: &mut dyn FnMut(&mut String)) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => apply(text),
        Value::Array(items) => items.iter_mut().for_each(|item| texts(item, apply)),
        Value::Object(members) => members.values_mut().for_each(|value| texts(value, apply)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn of(value: &Value, bytes_max: usize) -> Value {
        let told = cut(&value.to_string(), bytes_max).unwrap();
        assert!(told.len() <= bytes_max + bytes_max / 8, "{}", told.len());
        serde_json::from_str(&told).unwrap()
    }

    // A search returned ten pages with 3 kB of encrypted text each: head and tail were a
    // part of the first and of the last, and no title, no address was left.
    #[test]
    fn what_a_search_found_stays_without_its_blobs() {
        let page = |at: usize| {
            json!({
                "encrypted_content": format!("Eq{}", "wTCioIDBgCIiQ5MGZjMWI5Mi1i".repeat(100)),
                "page_age": "3 hours ago",
                "title": format!("Page {at}"),
                "type": "web_search_result",
                "url": format!("https://host.example/pages/{at}"),
            })
        };
        let pages: Vec<Value> = (0..10).map(page).collect();
        let told = of(&json!(pages), 2_000);
        for at in 0..10 {
            assert_eq!(told[at]["title"], format!("Page {at}"));
            assert_eq!(told[at]["url"], format!("https://host.example/pages/{at}"));
        }
        // With less room, the first and the last, and how many are between.
        let told = of(&json!(pages), 600);
        let texts = told.to_string();
        assert!(
            texts.contains("Page 0") && texts.contains("Page 9"),
            "{texts}"
        );
        assert!(texts.contains("more …]"), "{texts}");
    }

    // An error beside a long log was lost with everything in the middle.
    #[test]
    fn errors_stay_beside_long_texts() {
        let log = "line of a log\n".repeat(500);
        let value = json!({"stdout": log, "error": "disk full", "stderr": log, "exit_code": 28});
        let told = of(&value, 600);
        assert_eq!(told["error"], "disk full");
        assert_eq!(told["exit_code"], 28);
        let stdout = told["stdout"].as_str().unwrap();
        assert!(
            stdout.starts_with("line of") && stdout.contains(" bytes …]"),
            "{stdout}"
        );
        // Also in JSON in a text, as servers of tools wrap it.
        let wrapped = json!({"content": [{"type": "text", "text": value.to_string()}]});
        let told = of(&wrapped, 400);
        let inner: Value =
            serde_json::from_str(told["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(inner["error"], "disk full");
    }

    #[test]
    fn what_is_not_json_is_not_taken_apart() {
        for text in ["", "[not json", "\"a text\"", "7", "{\"a\": 1} and more"] {
            assert_eq!(cut(text, 100), None, "{text}");
        }
    }

    // A model reads its own call again: the keys and the short values are as it wrote them.
    #[test]
    fn arguments_keep_their_keys() {
        let content = "let x = 1;\n".repeat(3_000);
        let arguments = json!({"file_path": "/src/a.rs", "content": content, "n": 3}).to_string();
        let told = cut_texts(&arguments, 600, "; the whole: #7").unwrap();
        assert!(told.len() < 700, "{}", told.len());
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(
            (&told["file_path"], &told["n"]),
            (&json!("/src/a.rs"), &json!(3))
        );
        let content = told["content"].as_str().unwrap();
        assert!(content.starts_with("let x = 1;\n") && content.contains("; the whole: #7 …]"));
        for as_it_is in ["", "[1]", "\"x\"", "{\"a\": 1}"] {
            assert_eq!(cut_texts(as_it_is, 600, ""), None);
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(Value::from),
            ".{0,200}".prop_map(Value::from),
            Just(Value::Null),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::vec(("[a-z…]{0,12}", inner), 0..8)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        // Whatever it is, what comes out is JSON within its bound.
        #[test]
        fn any_json_is_cut_to_json(value in any_json(), bytes_max in 0_usize..2_000) {
            if let Some(told) = cut(&value.to_string(), bytes_max) {
                prop_assert!(told.len() <= bytes_max + bytes_max / 8);
                let told: Value = serde_json::from_str(&told).unwrap();
                prop_assert_eq!(told.is_object(), value.is_object());
            }
        }
    }
}
