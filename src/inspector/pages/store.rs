//! The store: its content and its metrics, with charts where a table does not suffice.

use std::sync::Arc;

use maud::{Markup, html};

use crate::{
    bounds::SAMPLE_EVERY,
    failure::PageFailure,
    frame::{Page, Tab},
    parts::{
        chart::{bars, curve, share},
        escape::escape_inline,
        numbers::{bytes_human, count, size},
        pieces::figure,
        time,
    },
    request_context::RequestContext,
};
use treering_engine::Measures;
use treering_proto::pb;

const MICROS: f64 = 1e6;

/// Returns the page.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn page(request_context: RequestContext) -> Result<Page, PageFailure> {
    let request = pb::StatsRequest {};
    let stats = request_context
        .store
        .admin()
        .stats(request)
        .await?
        .into_inner();
    let samples = request_context.site.samples.all();
    let every = SAMPLE_EVERY.as_secs();
    let body = html! {
        div.head {
            h1 { "Store" }
            p.dim {
                // The path is only shown to admins of the whole store.
                @if request_context.may_all() && !stats.data_dir.is_empty() { (escape_inline(&stats.data_dir)) " · " }
                "version " (stats.version) " · serving since " (time::ago(stats.started_at.as_ref()))
            }
        }
        div #figures data-every=(every) data-part="#figures" {
            (troubles(&stats, samples.last().map(Arc::as_ref)))
            (holds(&request_context, &stats))
            @if let Some(now) = samples.last() { (does(&samples, now)) (room(&stats, now)) }
            (kinds(&stats))
        }
    };
    Ok(request_context.page("Store", Tab::Store, body))
}

/// Renders the problems that need attention.
fn troubles(stats: &pb::StatsResponse, now: Option<&Measures>) -> Markup {
    let is_full = now.is_some_and(|now| {
        now.disk
            .is_some_and(|disk| disk.free_bytes < now.disk_floor_bytes)
    });
    html! {
        @if is_full { p.notice.bad role="alert" { "The disk is below its floor: appends are refused." } }
        @if stats.damaged_conversations > 0 {
            p.notice.bad role="alert" { (count(stats.damaged_conversations)) " conversations of this namespace are damaged: run " code { "treering verify" } "." }
        }
        @if stats.damaged_reads > 0 {
            p.notice.bad role="alert" { (count(stats.damaged_reads)) " reads met damaged data: " (escape_inline(&stats.first_damage)) }
        }
        @if let Some(now) = now {
            @if now.failed_groups > 0 || now.failed_syncs > 0 {
                p.notice.wait { (count(now.failed_groups)) " groups of appends and " (count(now.failed_syncs)) " syncs have failed since the start." }
            }
        }
    }
}

/// Renders the content of this namespace.
fn holds(request_context: &RequestContext, stats: &pb::StatsResponse) -> Markup {
    html! {
        section {
            h2 { "Namespace " (escape_inline(&request_context.here.namespace)) }
            dl.figures {
                (figure("conversations", &html! { (count(stats.conversations)) }))
                (figure("branches", &html! { (count(stats.branches)) }))
                (figure("events", &html! { (count(stats.events)) }))
                (figure("waiting for approval", &html! { (count(stats.pending_approvals)) }))
                (figure(if stats.quota_bytes.is_some() { "of its quota" } else { "of events, no quota" }, &html! {
                    (bytes_human(stats.event_bytes))
                    @if let Some(quota) = stats.quota_bytes { span.dim { " / " (bytes_human(quota)) } }
                }))
            }
        }
    }
}

/// Returns the rate between each sample and the previous one.
#[allow(clippy::cast_precision_loss)] // Only for drawing.
fn rates(samples: &[Arc<Measures>], of: impl Fn(&Measures) -> u64) -> Vec<f64> {
    let seconds = SAMPLE_EVERY.as_secs_f64();
    let pairs = samples.windows(2);
    pairs
        .map(|pair| of(&pair[1]).saturating_sub(of(&pair[0])) as f64 / seconds)
        .collect()
}

#[allow(clippy::cast_precision_loss)] // Only for drawing.
fn levels(samples: &[Arc<Measures>], of: impl Fn(&Measures) -> u64) -> Vec<f64> {
    samples.iter().map(|sample| of(sample) as f64).collect()
}

fn rate(values: &[f64]) -> String {
    match values.last().copied().unwrap_or(0.0) {
        value if value >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

fn does(samples: &[Arc<Measures>], now: &Measures) -> Markup {
    let events = rates(samples, |sample| sample.group_events.sum);
    let appends = rates(samples, |sample| sample.group_appends.sum);
    let bytes = rates(samples, |sample| sample.appended_bytes);
    let views = levels(samples, |sample| {
        sample.head.saturating_sub(sample.views_durable)
    });
    let index = levels(samples, |sample| {
        sample.head.saturating_sub(sample.index_reached)
    });
    let queue = levels(samples, |sample| sample.queue_appends.0);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A size that is shown.
    let bytes_now = bytes.last().copied().unwrap_or(0.0) as u64;
    html! {
        section {
            h2 { "Activity " span.dim { "the whole store, the last ten minutes" } }
            div.charts {
                (chart("events per second", &rate(&events), &curve(&events, "events per second")))
                (chart("appends per second", &rate(&appends), &curve(&appends, "appends per second")))
                (chart("bytes per second", &bytes_human(bytes_now), &curve(&bytes, "bytes per second")))
                (chart("commit, median", &quantile(&now.commit_micros, 0.5), &durations(&now.commit_micros, "commits by time")))
                (chart("commit, 99th percentile", &quantile(&now.commit_micros, 0.99), &durations(&now.commit_micros, "commits by time")))
                (chart("events per group", &mean(&now.group_events), &counts(&now.group_events, "groups by events")))
                (chart("queue", &count(now.queue_appends.0), &curve(&queue, "waiting appends")))
                (chart("projections behind", &count(now.head.saturating_sub(now.views_durable)), &curve(&views, "events that the projections lack")))
                (chart("index behind", &count(now.head.saturating_sub(now.index_reached)), &curve(&index, "events that the index lacks")))
            }
        }
    }
}

fn chart(word: &str, value: &str, drawn: &Markup) -> Markup {
    html! {
        figure.chartbox {
            figcaption { span.dim { (word) } strong.number { (value) } }
            (drawn)
        }
    }
}

type Distribution = treering_base::measure::Distribution;

/// Returns the upper bound of the histogram bucket that contains this quantile.
#[allow(clippy::cast_precision_loss)] // Two digits are shown.
fn quantile(of: &Distribution, share: f64) -> String {
    let all = of.count();
    if all == 0 {
        return "—".to_owned();
    }
    let mut seen = 0;
    for (index, number) in of.counts.iter().enumerate() {
        seen += number;
        if seen as f64 >= all as f64 * share {
            return match of.bounds.get(index) {
                Some(bound) => micros(*bound),
                None => "longer".to_owned(),
            };
        }
    }
    "longer".to_owned()
}

#[allow(clippy::cast_precision_loss)] // Two digits are shown.
fn micros(micros: u64) -> String {
    match micros as f64 / MICROS {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 0.001 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{:.0} µs", seconds * 1e6),
    }
}

#[allow(clippy::cast_precision_loss)] // Two digits are shown.
fn mean(of: &Distribution) -> String {
    match of.count() {
        0 => "—".to_owned(),
        all => format!("{:.1}", of.sum as f64 / all as f64),
    }
}

fn durations(of: &Distribution, told: &str) -> Markup {
    drawn(of, told, micros)
}

fn counts(of: &Distribution, told: &str) -> Markup {
    drawn(of, told, count)
}

fn drawn(of: &Distribution, told: &str, name: impl Fn(u64) -> String) -> Markup {
    let named = of.counts.iter().enumerate().map(|(index, number)| {
        let name = match of.bounds.get(index) {
            Some(bound) => format!("up to {}", name(*bound)),
            None => "more".to_owned(),
        };
        (name, *number)
    });
    bars(&named.collect::<Vec<_>>(), told)
}

fn room(stats: &pb::StatsResponse, now: &Measures) -> Markup {
    let parts = [
        ("log", now.log_bytes),
        ("views", now.views_bytes),
        ("index", now.index_bytes.unwrap_or(stats.index_bytes)),
    ];
    let all: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    html! {
        section {
            h2 { "Room" }
            div.table role="group" aria-label="Room" tabindex="0" { table.room {
                tbody {
                    @for (name, bytes) in parts {
                        tr {
                            th scope="row" { (name) }
                            td.number { (size(bytes)) }
                            td.drawn { (share(bytes, all, name)) }
                            td.dim {
                                @if name == "log" { (count(now.log_segments)) " segments" }
                                @if name == "index" { (count(stats.indexed_documents)) " documents" }
                            }
                        }
                    }
                    @if let Some(disk) = now.disk {
                        tr {
                            th scope="row" { "free disk" }
                            td.number { (size(disk.free_bytes)) }
                            td.drawn { (share(disk.size_bytes.saturating_sub(disk.free_bytes), disk.size_bytes, "used disk")) }
                            td.dim { "of " (bytes_human(disk.size_bytes)) ", floor " (bytes_human(now.disk_floor_bytes)) }
                        }
                    }
                    @for cache in &now.caches {
                        tr {
                            th scope="row" { "memory: " (cache.name) }
                            td.number { (size(cache.bytes)) }
                            td.drawn { (share(cache.bytes, cache.room_bytes, cache.name)) }
                            td.dim { "of " (bytes_human(cache.room_bytes)) }
                        }
                    }
                }
            } }
        }
    }
}

fn kinds(stats: &pb::StatsResponse) -> Markup {
    let mut kinds: Vec<_> = stats.events_by_kind.iter().collect();
    kinds.sort_by_key(|(name, number)| (std::cmp::Reverse(**number), (*name).clone()));
    let most = kinds.first().map_or(0, |(_, number)| **number);
    html! {
        @if !kinds.is_empty() {
            section {
                h2 { "Events by kind" }
                div.table role="group" aria-label="Events by kind" tabindex="0" { table.room { tbody {
                    @for (name, number) in kinds {
                        tr {
                            th scope="row" { (escape_inline(name)) }
                            td.number { (count(*number)) }
                            td.drawn { (share(*number, most, name)) }
                        }
                    }
                } } }
            }
        }
    }
}
