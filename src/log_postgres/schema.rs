//! The tables, the identity of a log, and what a role may do with them.

use std::time::Duration;

use treering_log::{LogIdentity, frame};
use uuid::Uuid;

use crate::{error::PostgresError, session::PostgresSession, target::ServerTarget};

/// The version of the tables that this program creates, and the newest that it supports.
pub const SCHEMA_VERSION: i32 = 7;
/// The usual number of shards of a log.
pub const SHARDS_DEFAULT: u32 = 64;
/// Maximum number of shards of a log.
pub const SHARDS_MAX: u32 = 4_096;
const FORMAT_VERSION: i32 = frame::FORMAT_VERSION as i32;

/// Key of the advisory lock that keeps two processes from creating the tables at once.
const LOCK: i64 = 0x7472_6565_7269_6e67;

// Frames are compressed already. The row of a shard changes with each append: free space in its
// page lets PostgreSQL write the new version there.
const TABLES: &str = "
create table treering_log (
    singleton boolean primary key default true check (singleton),
    schema_version integer not null,
    format_version integer not null,
    store uuid not null,
    timeline uuid not null,
    shards integer not null check (shards between 1 and 4096),
    importing text,
    objects text,
    hot_bytes bigint not null default 67108864
);
create table treering_shard (
    shard bigint primary key,
    head bigint not null,
    epoch bigint not null,
    owner uuid not null,
    sealed_upto bigint not null default 0,
    last_segment bigint not null default 0,
    erasing bigint,
    erased bigint not null default 0
) with (fillfactor = 10);
create table treering_frame (
    shard bigint not null,
    first_offset bigint not null,
    count integer not null check (count > 0),
    frame_id uuid not null,
    bytes bytea not null,
    primary key (shard, first_offset)
);
alter table treering_frame alter column bytes set storage external;
create table treering_blob (
    shard bigint not null,
    home_offset bigint not null,
    namespace text not null,
    hash bytea not null,
    bytes bytea not null,
    primary key (shard, home_offset)
);
";

/// The nodes of a cluster. A heartbeat changes the row, so its page has free space. `followed`: shard
/// and offset in turn, for each shard that the node follows.
const NODES: &str = "
create table treering_node (
    node text primary key,
    process uuid not null,
    address text not null,
    lease_ms integer not null,
    seen_at timestamptz not null,
    draining boolean not null,
    drain_asked boolean not null default false,
    followed bigint[] not null default '{}'
) with (fillfactor = 10);
";

/// Marks of erasures, which version 3 added. `erasing`: the first offset at which a record may
/// request an erasure that is not done. `erased`: the offset of the last request that is done.
const ERASURES: &str = "
alter table treering_shard
    add column erasing bigint, add column erased bigint not null default 0;
";

/// What version 4 added, besides the columns `importing` (the store that is being moved in) and
/// `drain_asked`: the conversations of moved stores that are not in the shard of their id.
const MOVED: &str = "
create table treering_moved (
    conversation uuid primary key,
    shard bigint not null
);
";

/// The API keys of a cluster, which version 6 added: one row once there are keys. Each change gives
/// it another `version`.
const KEYS: &str = "
create table treering_keys (
    singleton boolean primary key default true check (singleton),
    version uuid not null,
    content text not null
);
";

/// Sealed segments, which version 7 added: objects that replace rows of frames and large bodies. A
/// row without `is_live` names an object that may exist and is not part of the log: it is being
/// written, or was replaced.
const SEGMENTS: &str = "
create table treering_segment (
    shard bigint not null,
    number bigint not null,
    hash bytea not null,
    first_offset bigint not null,
    last_offset bigint not null,
    index_bytes integer not null,
    bytes bigint not null,
    is_live boolean not null,
    reserved_at timestamptz not null default now(),
    primary key (shard, number)
);
create index treering_segment_live on treering_segment (shard, last_offset) where is_live;
create index treering_segment_garbage on treering_segment (shard) where not is_live;
";

/// What version 7 added to other tables. `objects`: the address of the object storage. `hot_bytes`:
/// how much of each shard stays in the database. `last_segment`: the last number that an object of
/// the shard had. `sealed_upto`: the last offset of its segments.
const TIERED: &str = "
alter table treering_log add column objects text,
    add column hot_bytes bigint not null default 67108864;
alter table treering_shard add column last_segment bigint not null default 0,
    drop column if exists lease_until;
";

/// Creates the tables and the identity of a new log with this number of shards (1 to
/// [`SHARDS_MAX`]; `None`: [`SHARDS_DEFAULT`]), unless they exist. Upgrades the tables of an earlier
/// version. The role of the URL owns the tables; [`grants`] lets another one use them.
///
/// Returns the number of shards. It never changes, because it determines the shard of each
/// conversation.
///
/// # Errors
/// [`PostgresError`], also when a newer version of Treering created them, or when the log has
/// another number of shards than the given one.
pub async fn create_schema(
    url: &str,
    shards: impl Into<Option<u32>>,
) -> Result<u32, PostgresError> {
    let wanted = shards.into();
    let shards = wanted.unwrap_or(SHARDS_DEFAULT);
    if !(1..=SHARDS_MAX).contains(&shards) {
        return Err(PostgresError::Shards {
            what: format!("{shards} is not between 1 and {SHARDS_MAX}"),
        });
    }
    let deadline = Duration::from_secs(30);
    let target = ServerTarget::parse(url, deadline)?;
    let mut session = PostgresSession::connect(&target, deadline).await?;
    let create = format!(
        "begin; select pg_advisory_xact_lock({LOCK});
         do $$ begin if to_regclass('treering_log') is null then {TABLES} {NODES} {MOVED} {KEYS} {SEGMENTS}
         insert into treering_log (schema_version, format_version, store, timeline, shards)
         values ({SCHEMA_VERSION}, {FORMAT_VERSION}, '{}', '{}', {shards});
         end if;
         if (select schema_version from treering_log) = 1 then
         alter table treering_log
             add column shards integer not null default {shards} check (shards between 1 and 4096);
         alter table treering_log alter column shards drop default;
         {NODES}
         update treering_log set schema_version = 2;
         end if;
         if (select schema_version from treering_log) = 2 then
         {ERASURES}
         update treering_log set schema_version = 3;
         end if;
         if (select schema_version from treering_log) = 3 then
         alter table treering_log add column importing text;
         alter table treering_node
             add column if not exists drain_asked boolean not null default false;
         {MOVED}
         update treering_log set schema_version = 4;
         end if;
         if (select schema_version from treering_log) = 4 then
         alter table treering_node
             add column if not exists followed bigint[] not null default '{{}}';
         update treering_log set schema_version = 5;
         end if;
         if (select schema_version from treering_log) = 5 then
         {KEYS}
         update treering_log set schema_version = 6;
         end if;
         if (select schema_version from treering_log) = 6 then
         {SEGMENTS}
         {TIERED}
         update treering_log set schema_version = 7;
         end if; end $$; commit",
        Uuid::new_v4(),
        Uuid::new_v4()
    );
    session.batch(&create).await?;
    let log = read(&mut session, &target.name).await?;
    match wanted {
        Some(wanted) if wanted != log.shards => Err(PostgresError::Shards {
            what: format!("the log has {} shards, not {wanted}", log.shards),
        }),
        _ => Ok(log.shards),
    }
}

/// Lets a role be a node's (see [`grants`]). Creates it, without a password,
/// if it does not exist. The role of the URL must own the tables.
///
/// # Errors
/// [`PostgresError`], for example if the role of the URL may not create others.
pub async fn create_role(url: &str, role: &str) -> Result<(), PostgresError> {
    let deadline = Duration::from_secs(30);
    let target = ServerTarget::parse(url, deadline)?;
    let mut session = PostgresSession::connect(&target, deadline).await?;
    let quoted = role.replace('\'', "''");
    let seals = "select objects is not null from treering_log";
    let seals = session.query(seals, &[]).await?;
    let seals = seals.first().is_some_and(|row| row.get(0));
    let create = format!(
        "do $do$ begin
         if not exists (select from pg_roles where rolname = '{quoted}') then
         execute format('create role %I login', '{quoted}');
         end if; end $do$; {}",
        grants(role, seals)
    );
    Ok(session.batch(&create).await?)
}

/// What the log says about itself.
pub(crate) struct LogRow {
    pub(crate) identity: LogIdentity,
    /// How many shards it has.
    pub(crate) shards: u32,
}

/// Returns the SQL statements that let a role append, read, erase and change keys, and nothing else.
/// To erase, it can replace the content of frames and delete large bodies. Only if it also moves
/// frames to object storage (`seals`), it can delete frames.
///
/// From PostgreSQL 17 on, the role may also run `VACUUM` on these tables. Before, only their owner
/// can.
#[must_use]
pub fn grants(role: &str, seals: bool) -> String {
    let name = role.replace('\'', "''");
    let role = format!("\"{}\"", role.replace('"', "\"\""));
    let sealing = if seals {
        format!(
            "grant delete on treering_frame to {role};
grant insert, update (is_live), delete on treering_segment to {role};
"
        )
    } else {
        String::new()
    };
    format!(
        "grant select on treering_log, treering_moved, treering_segment to {role};
grant select, insert, update on treering_shard, treering_node, treering_keys to {role};
grant select, insert, update (bytes) on treering_frame to {role};
grant select, insert, delete on treering_blob to {role};
{sealing}do $maintain$ begin
if current_setting('server_version_num')::integer >= 170000 then
execute format('grant maintain on treering_frame, treering_blob to %I', '{name}');
end if; end $maintain$;
"
    )
}

/// Reads the log's identity and number of shards. Refuses a log that a newer version wrote, and one
/// that was not upgraded.
pub(crate) async fn read(
    session: &mut PostgresSession,
    target: &str,
) -> Result<LogRow, PostgresError> {
    let none = || PostgresError::NoLog {
        target: target.to_owned(),
    };
    let exists = "select to_regclass('treering_log') is not null";
    let rows = session.query(exists, &[]).await?;
    if !rows.first().is_some_and(|row| row.get(0)) {
        return Err(none());
    }
    let read = "select schema_version, format_version, store, timeline, \
         (to_jsonb(treering_log) ->> 'shards')::integer from treering_log";
    let rows = session.query(read, &[]).await?;
    let row = rows.first().ok_or_else(none)?;
    for (column, what, supported) in [(0, "schema", SCHEMA_VERSION), (1, "format", FORMAT_VERSION)]
    {
        let version = row.get(column);
        if version > supported {
            return Err(PostgresError::NewerVersion {
                what,
                version,
                supported,
            });
        }
    }
    let older = || PostgresError::OlderSchema {
        version: row.get(0),
        supported: SCHEMA_VERSION,
    };
    if row.get::<_, i32>(0) < SCHEMA_VERSION {
        return Err(older());
    }
    let shards = row.get::<_, Option<i32>>(4);
    let shards = shards.and_then(|shards| u32::try_from(shards).ok());
    Ok(LogRow {
        identity: LogIdentity {
            store: row.get(2),
            timeline: row.get(3),
        },
        shards: shards.ok_or_else(older)?,
    })
}
