use proptest::prelude::*;
use serde_json::json;

use super::*;

fn of(value: &Value, bytes_max: usize) -> Value {
    let told = cut(&value.to_string(), bytes_max).unwrap().text;
    assert!(told.len() <= bytes_max + bytes_max / 8, "{}", told.len());
    serde_json::from_str(&told).unwrap()
}

// A search returned ten pages with 3 kB of encrypted text each. Cut to head and tail, the result
// kept no title and no URL.
#[test]
fn search_hits_keep_title_and_url_without_blobs() {
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
    // With less room, the first and last items stay, with a count of the others.
    let told = of(&json!(pages), 600);
    let texts = told.to_string();
    assert!(
        texts.contains("Page 0") && texts.contains("Page 9"),
        "{texts}"
    );
    assert!(texts.contains("more …]"), "{texts}");
}

// An error beside a long log was lost with the middle of the text.
#[test]
fn errors_beside_long_texts_are_kept() {
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
    // The same holds for JSON inside a text, as MCP servers return it.
    let wrapped = json!({"content": [{"type": "text", "text": value.to_string()}]});
    let told = of(&wrapped, 400);
    let inner: Value = serde_json::from_str(told["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(inner["error"], "disk full");
}

/// A flight as returned by an airline's search.
fn flight(at: usize) -> Value {
    json!({
        "flight_number": format!("HAT{:03}", 8 + at * 11),
        "origin": "MIA",
        "destination": "LAX",
        "scheduled_departure_time_est": format!("{:02}:00:00", at + 9),
        "scheduled_arrival_time_est": "20:30:00",
        "status": "available",
        "available_seats": {"basic_economy": at, "economy": 16, "business": 12 - at},
        "prices": {"basic_economy": 50 + at, "economy": 180 + at, "business": 371 + at},
    })
}

// The cut first removed prices, seats and parts of times from a list of nine flights, and each item
// kept different members. All items must keep the same members.
#[test]
fn list_items_keep_the_same_differing_members() {
    let flights: Vec<Value> = (0..9).map(flight).collect();
    let cut = cut(&json!(flights).to_string(), 1_200).unwrap();
    let told: Vec<Value> = serde_json::from_str(&cut.text).unwrap();
    let same = "origin \"MIA\", scheduled_arrival_time_est \"20:30:00\", status \"available\"";
    let said = cut.beside.told();
    assert!(
        said.starts_with("; the same in each: available_seats.economy 16"),
        "{said}"
    );
    assert!(said.ends_with(same), "{said}");
    assert!(told.len() >= 5, "{told:#?}");
    for (at, told) in told.iter().enumerate().filter(|(_, told)| told.is_object()) {
        let flight = match told["flight_number"].as_str().unwrap() {
            "HAT096" => flight(8),
            number => flights
                .iter()
                .find(|flight| flight["flight_number"] == number)
                .unwrap()
                .clone(),
        };
        assert_eq!(told["prices"], flight["prices"], "{at}");
        let (departs, seats) = ("scheduled_departure_time_est", "available_seats");
        assert_eq!(told[departs], flight[departs], "{at}");
        assert_eq!(told[seats]["business"], flight[seats]["business"], "{at}");
    }
    assert!(
        !cut.text.contains('…') || cut.text.contains("more …]"),
        "{}",
        cut.text
    );

    // The same holds for lists in a list, objects keyed by id, and JSON in a text.
    let pairs: Vec<Value> = (0..9)
        .map(|at| json!([flight(at), flight(at + 1)]))
        .collect();
    let by_id: Map<String, Value> = (0..9).map(|at| (format!("id{at}"), flight(at))).collect();
    for value in [json!(pairs), json!({"flights": by_id})] {
        let told = of(&value, 1_600).to_string();
        assert!(
            told.contains(r#""economy":180,"#) && !told.contains("origin"),
            "{told}"
        );
        assert!(
            told.contains(r#""09:00:00""#) && told.contains(" more"),
            "{told}"
        );
    }
    let text = json!([{"type": "text", "text": json!(flights).to_string()}]);
    let told = of(&text, 1_400);
    let told: Value = serde_json::from_str(told[0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(told[0]["prices"], flights[0]["prices"]);
}

// Short texts were cut to `"status":"ava…"`, `"date":"2024…"` and `"20…"` for 20:00:00. That is
// useless, and as long as the original.
#[test]
fn short_texts_are_kept_whole_or_dropped() {
    let flights: Vec<Value> = (0..9).map(flight).collect();
    let wide: Map<String, Value> = (0..80)
        .map(|at| {
            (
                format!("member_{at}"),
                json!(format!("2024-05-{at:02} 20:00:00")),
            )
        })
        .collect();
    for bytes_max in (200..3_000).step_by(50) {
        for value in [json!(flights), json!(wide), json!([flights, wide])] {
            let Some(told) = cut(&value.to_string(), bytes_max) else {
                continue;
            };
            let marks = told.text.matches('…').count();
            assert_eq!(marks, marks_of_lists(&told.text), "{}", told.text);
        }
    }
}

fn marks_of_lists(text: &str) -> usize {
    2 * text.matches(" more …]").count() + text.matches(r#""…":""#).count()
}

// Empty members took more room than a title. The title was cut to twelve characters, and no URL
// stayed.
#[test]
fn null_and_constant_members_are_dropped_first() {
    let page = |at: usize| {
        json!({
            "encrypted_content": null,
            "page_age": null,
            "title": format!("Sunrise and sunset times in San Francisco, page {at}"),
            "type": "web_search_result",
            "url": format!("https://host.example/astronomy/usa/san-francisco/{at}"),
        })
    };
    let pages: Vec<Value> = (0..10).map(page).collect();
    let cut = cut(&json!(pages).to_string(), 700).unwrap();
    let told: Vec<Value> = serde_json::from_str(&cut.text).unwrap();
    assert!(told.len() >= 4, "{}", cut.text);
    for (at, told) in told.iter().enumerate().take(2) {
        let page = page(at);
        assert_eq!(told, &json!({"title": page["title"], "url": page["url"]}));
    }
    let said = cut.beside.told();
    assert!(said.contains("type \"web_search_result\""), "{said}");
}

// A list of dates or of number rows keeps its ends. A single important value beside it stays.
#[test]
fn lists_of_values_keep_whole_values_at_both_ends() {
    let days: Vec<String> = (1..400)
        .map(|at| format!("2024-{:02}-{:02}", at / 31 + 1, at % 31))
        .collect();
    let rows: Vec<Vec<f64>> = (0..300).map(|at| vec![f64::from(at) + 0.5, 2.25]).collect();
    let told = of(
        &json!({"total": 399, "next": null, "days": days, "rows": rows}),
        600,
    );
    assert_eq!(
        (&told["total"], &told["days"][0]),
        (&json!(399), &json!(days[0]))
    );
    assert_eq!(told["rows"][0], json!([0.5, 2.25]));
    assert_eq!(
        told["rows"].as_array().unwrap().last(),
        Some(&json!([299.5, 2.25]))
    );

    // A few different texts keep their beginnings and ends. Numbers beside them stay.
    let of_log =
        |name: &str| json!({"name": name, "code": 0, "log": "line of a log\n".repeat(300)});
    let told = of(&json!([of_log("build"), of_log("test")]), 700);
    for (at, name) in ["build", "test"].iter().enumerate() {
        assert_eq!(
            (&told[at]["name"], &told[at]["code"]),
            (&json!(name), &json!(0))
        );
        assert!(told[at]["log"].as_str().unwrap().ends_with("of a log\n"));
    }
}

#[test]
fn text_that_is_not_json_is_not_cut_as_json() {
    for text in ["", "[not json", "\"a text\"", "7", "{\"a\": 1} and more"] {
        assert!(cut(text, 100).is_none(), "{text}");
    }
}

// A model reads its own call again, so keys and short values must stay as it wrote them.
#[test]
fn cut_arguments_keep_keys_and_short_values() {
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
    // For any value, the output is JSON, at most an eighth over its limit.
    #[test]
    fn any_json_is_cut_to_valid_json_within_its_limit(value in any_json(), bytes_max in 0_usize..2_000) {
        if let Some(told) = cut(&value.to_string(), bytes_max) {
            prop_assert!(told.text.len() <= bytes_max + bytes_max / 8);
            let told: Value = serde_json::from_str(&told.text).unwrap();
            prop_assert_eq!(told.is_object(), value.is_object());
        }
    }
}
