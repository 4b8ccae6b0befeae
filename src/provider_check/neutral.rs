//! Rules of Treering's own format.

use std::borrow::Cow;

use serde::Deserialize;

use crate::{
    Violations,
    ledger::{CALL_ID_UNIQUE, Ledger},
    read::{SHAPE, Value, read, read_body},
};

pub(crate) const RULES: &[&str] = &[SHAPE, "format", "item-type", CALL_ID_UNIQUE, "outcome"];

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    format: Cow<'a, str>,
    #[serde(borrow)]
    items: Vec<Value<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    parts: Option<Value<'a>>,
    #[serde(borrow)]
    blocks: Option<Vec<Value<'a>>>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    outcome: Option<Outcome<'a>>,
}

#[derive(Deserialize)]
struct Outcome<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
}

pub(crate) fn check(body: &[u8], report: &mut Violations) {
    let Some(body): Option<Body<'_>> = read_body(body, report) else {
        return;
    };
    if body.format != "treering.context/1" {
        report.add(
            "format",
            format_args!("format"),
            "the format or its version is unknown",
        );
    }
    let mut calls = Ledger::default();
    for (at, item) in body.items.iter().enumerate() {
        let path = format_args!("items[{at}]");
        let Some(item): Option<Item<'_>> = read(item.json(), path, report) else {
            continue;
        };
        match (item.r#type.as_ref(), item.parts, item.blocks) {
            ("message", Some(_), None) => {}
            ("step", None, Some(blocks)) => check_step(at, &blocks, &mut calls, report),
            _ => report.add(
                "item-type",
                path,
                "neither a message with parts nor a step with blocks",
            ),
        }
    }
}

fn check_step<'a>(
    at: usize,
    blocks: &[Value<'a>],
    calls: &mut Ledger<'a>,
    report: &mut Violations,
) {
    for (place, block) in blocks.iter().enumerate() {
        let path = format_args!("items[{at}].blocks[{place}]");
        let Some(block): Option<Block<'a>> = read(block.json(), path, report) else {
            continue;
        };
        if block.r#type != "call" {
            continue;
        }
        calls.own(block.id.unwrap_or_default(), path, report);
        let kinds = ["result", "snapshot", "missing"];
        if !block
            .outcome
            .is_some_and(|outcome| kinds.contains(&outcome.r#type.as_ref()))
        {
            report.add("outcome", path, "a call without an outcome");
        }
    }
}
