//! Checks the PostgreSQL settings without which acknowledged events could be lost.

use crate::{error::PostgresError, session::PostgresSession};

/// SQL that is true when a commit of this session is durable, and on the standby. `$1` is whether a
/// single copy is accepted. This SQL is part of each append and barrier, because settings can
/// change at any time: Patroni, for example, may empty `synchronous_standby_names` when a standby
/// is gone.
macro_rules! durable {
    () => {
        "current_setting('fsync') = 'on' \
         and current_setting('full_page_writes') = 'on' \
         and current_setting('synchronous_commit') in ('on', 'remote_apply') \
         and ($1 or current_setting('synchronous_standby_names') <> '')"
    };
}
pub(crate) use durable;

/// Prepares a session for the log: makes commits synchronous and lets warnings through. Only a
/// warning reports that a commit is not on the standby.
pub(crate) const PREPARE_SESSION: &str = "set client_min_messages = warning; \
     select set_config('synchronous_commit', case current_setting('synchronous_commit') \
         when 'remote_apply' then 'remote_apply' else 'on' end, false)";

const READ: &str = "select current_setting('fsync'), current_setting('full_page_writes'), \
     current_setting('synchronous_commit'), current_setting('data_checksums'), \
     current_setting('synchronous_standby_names'), pg_is_in_recovery()::text";

struct Rule {
    setting: &'static str,
    allowed: &'static [&'static str],
    why: &'static str,
    cure: &'static str,
}

const RULES: [Rule; 4] = [
    Rule {
        setting: "fsync",
        allowed: &["on"],
        why: "a crash of the machine would lose acknowledged events",
        cure: "Set fsync = on and reload the server",
    },
    Rule {
        setting: "full_page_writes",
        allowed: &["on"],
        why: "a crash of the machine would damage pages",
        cure: "Set full_page_writes = on and reload the server",
    },
    Rule {
        setting: "synchronous_commit",
        allowed: &["on", "remote_apply"],
        why: "a commit returns before it is durable. Treering sets this for its sessions, but \
              something between it and the server, such as a pooler, resets it",
        cure: "Connect directly, or through a pooler in session mode",
    },
    Rule {
        setting: "data_checksums",
        allowed: &["on"],
        why: "the server would not detect damaged pages",
        cure: "Stop the server and run pg_checksums --enable",
    },
];

/// Where acknowledged events are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// On one server.
    Single,
    /// On a synchronous standby too.
    Synchronous,
}

/// Reads the settings.
///
/// # Errors
/// The first setting that makes acknowledgements unsafe, or the failure to read the settings.
pub(crate) async fn check(
    session: &mut PostgresSession,
    accept_single_copy: bool,
) -> Result<Copies, PostgresError> {
    let rows = session.query(READ, &[]).await?;
    let values = rows.first();
    let value = |index: usize| values.map_or("", |row| row.get::<_, &str>(index));
    for (index, rule) in RULES.iter().enumerate() {
        if !rule.allowed.contains(&value(index)) {
            return Err(PostgresError::Setting {
                setting: rule.setting,
                value: value(index).to_owned(),
                why: rule.why,
                cure: rule.cure,
            });
        }
    }
    if value(5) != "false" {
        return Err(PostgresError::Setting {
            setting: "pg_is_in_recovery()",
            value: value(5).to_owned(),
            why: "this server is a standby",
            cure: "Name the primary in the URL, or list all servers, separated by commas",
        });
    }
    if value(4).is_empty() && !accept_single_copy {
        return Err(PostgresError::Setting {
            setting: "synchronous_standby_names",
            value: String::new(),
            why: "no standby is sure to have acknowledged events, so they are lost if this server \
                  is lost",
            cure: "Configure a synchronous standby, or accept a single copy",
        });
    }
    Ok(if value(4).is_empty() {
        Copies::Single
    } else {
        Copies::Synchronous
    })
}
