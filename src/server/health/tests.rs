//! Health of a server whose log fails, is damaged, or works.

use std::sync::atomic::Ordering;

use super::*;
use crate::{audit::Audit, shutdown::Stopper};
use treering_domain::Namespace;
use treering_engine::{Engine, EventSource, OpenOptions, ReadQuery, testkit::Store};
use treering_log::fallible_log::{AppendEnding, FallibleLog};

const EVENTS: &str = "treering.v1.Events";

fn health(store: &Store, stop: super::super::shutdown::StopSignal) -> HealthService {
    let engine = store.engine.clone();
    let audit = Audit::new(engine.clone());
    HealthService::new(ServiceContext {
        engine,
        stop,
        audit,
    })
    .unwrap()
}

fn serving(health: &HealthService, name: &str) -> bool {
    match health.status(name) {
        ServingStatus::Serving => true,
        ServingStatus::NotServing => false,
        other => panic!("{name}: {other:?}"),
    }
}

// Every service in the descriptors, and our two names, must have a health status, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn every_service_has_a_health_status() {
    let store = Store::new().await;
    let (stopper, stop) = Stopper::new();
    let health = health(&store, stop);
    let described = described_services().unwrap();
    for service in [
        "Admin",
        "Backups",
        "Contexts",
        "Conversations",
        "Events",
        "Search",
        "Tools",
    ] {
        assert!(described.contains(&format!("treering.v1.{service}")));
    }
    let named = || {
        described
            .iter()
            .map(String::as_str)
            .chain(["", LIVE, READY])
    };
    for name in named() {
        assert!(serving(&health, name), "{name}");
    }
    for name in ["nope", "treering.v1", "treering.v1.Events.Append"] {
        assert_eq!(health.status(name), ServingStatus::ServiceUnknown);
    }
    stopper.advance(Phase::Draining);
    for name in named() {
        // A process that is shutting down must not be killed for being unready.
        assert_eq!(serving(&health, name), name == LIVE, "{name}");
    }
}

// A load balancer must not send appends to a server that refuses them all, nor stop reads that
// still work.
#[tokio::test(flavor = "multi_thread")]
async fn failed_writer_makes_only_its_services_unhealthy() {
    let store = Store::new().await;
    let (_stopper, stop) = Stopper::new();
    let health = health(&store, stop);
    store.lose(AppendEnding::LostAnswer).await;
    for name in ["", READY, EVENTS] {
        assert!(!serving(&health, name), "{name}");
    }
    for name in [LIVE, "treering.v1.Conversations", "treering.v1.Contexts"] {
        assert!(serving(&health, name), "{name}");
    }
    store.mend();
    store.insist(store.message("next")).await;
    for name in ["", READY, EVENTS] {
        assert!(serving(&health, name), "{name}");
    }
}

// One damaged frame must be reported and the rest served. It must not make the server permanently
// unready.
#[tokio::test(flavor = "multi_thread")]
async fn damage_is_reported_and_stays_ready() {
    // Set before any frame is cached.
    let log = FallibleLog::default();
    log.damaged.store(true, Ordering::SeqCst);
    let store = Store::over(log).await;
    let (_stopper, stop) = Stopper::new();
    let health = health(&store, stop);
    assert!(store.engine.damage_met().is_none());
    for reads in 1..=2 {
        let query = ReadQuery::all(Namespace::default(), EventSource::Log);
        assert!(store.engine.read_all(query).await.is_err());
        assert_eq!(store.engine.damage_met().unwrap().reads, reads);
    }
    for name in ["", LIVE, READY, EVENTS] {
        assert!(serving(&health, name), "{name}");
    }
}

// An alert must come before the disk is full: below its floor the store is not ready, but still
// accepts appends.
#[tokio::test(flavor = "multi_thread")]
async fn disk_below_its_floor_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = OpenOptions::new(dir.path());
    options.limits.disk_floor_bytes = Some(u64::MAX);
    let engine = Engine::open(options).await.unwrap();
    let (_stopper, stop) = Stopper::new();
    let health = HealthService::new(ServiceContext {
        audit: Audit::new(engine.clone()),
        engine,
        stop,
    })
    .unwrap();
    for (name, serves) in [(LIVE, true), ("treering.v1.Search", true), (READY, false)] {
        assert_eq!(serving(&health, name), serves, "{name}");
    }
    let why = health.shared.engine.health().ready.unwrap_err();
    assert!(
        why.contains("the disk has") && why.contains("free some space"),
        "{why}"
    );
    health.shared.engine.close().await;
}
