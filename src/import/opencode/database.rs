//! Reads sessions of opencode from its database: read-only, and in one transaction, so that
//! concurrent writes of the tool are not seen.

use std::{
    collections::HashMap,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, Row, config::DbConfig, limits::Limit, types::ValueRef};
use serde_json::{Map, Value, json};

use super::{
    super::{
        session::ToolSession,
        source::{LINE_BYTES_MAX, open_regular},
        whole_lines::{SESSION_BYTES_MAX, SessionFault},
    },
    read::SessionDocument,
};

/// How long to wait for a writer that has locked the database.
const BUSY_MAX: Duration = Duration::from_secs(5);
/// First bytes of a database.
const MAGIC: [u8; 16] = *b"SQLite format 3\0";

/// Memory limit for SQLite in bytes: a few values of [`LINE_BYTES_MAX`].
const HEAP_BYTES_MAX: usize = 1 << 30;
/// Bytes that a field of a row takes besides its text.
const FIELD_BYTES: usize = 64;
/// Suffixes of the files that SQLite opens with a database.
const BESIDE: [&str; 3] = ["-journal", "-wal", "-shm"];

/// True for a database with the tool's tables.
#[must_use]
pub fn is_its_database(path: &Path) -> bool {
    let mut head = [0; MAGIC.len()];
    let read = open_regular(path).and_then(|mut file| file.read_exact(&mut head));
    if read.is_err() || head != MAGIC {
        return false;
    }
    if odd_beside(path).is_some() {
        return super::is_named_as_database(path);
    }
    // A database that cannot be read now is recognised by its name. The import then reports why it
    // cannot be read.
    open(path)
        .and_then(|connection| schema(&connection))
        .map_or_else(
            |_| super::is_named_as_database(path),
            |schema| schema.is_some(),
        )
}

/// Returns a file that SQLite would open with the database although it is not a regular file:
/// SQLite would block on a pipe and follow a link.
fn odd_beside(path: &Path) -> Option<PathBuf> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let beside = BESIDE.iter().map(|end| {
        let mut name = real.clone().into_os_string();
        name.push(end);
        PathBuf::from(name)
    });
    let is_odd = |path: &PathBuf| path.symlink_metadata().is_ok_and(|meta| !meta.is_file());
    beside.into_iter().find(is_odd)
}

/// Opens a database of unknown origin: code in its schema is not run, and its resources are
/// limited.
pub(super) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_MAX)?;
    let value_max = i32::try_from(LINE_BYTES_MAX).unwrap_or(i32::MAX);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, value_max)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.execute_batch(&format!(
        "PRAGMA trusted_schema = OFF; PRAGMA query_only = ON; PRAGMA cell_size_check = ON;
         PRAGMA mmap_size = 0; PRAGMA hard_heap_limit = {HEAP_BYTES_MAX};"
    ))?;
    Ok(connection)
}

/// Names of the tables, which depend on the version: `session`, `message`, `part` or `sessions`,
/// `messages`.
struct Schema {
    sessions: &'static str,
    messages: &'static str,
    /// `None`: a message contains its parts.
    parts: Option<&'static str>,
}

/// Passes every session of the database to `each`, oldest first, until it says to stop.
///
/// # Errors
/// [`SessionFault::Database`] when it is not a database of the tool, or cannot be read.
pub fn read_database(
    path: &Path,
    mut each: impl FnMut(Result<ToolSession, SessionFault>) -> bool,
) -> Result<(), SessionFault> {
    let fault = |error: rusqlite::Error| SessionFault::Database {
        path: path.to_owned(),
        why: match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
                "another program has it locked: retry the import in a moment".to_owned()
            }
            _ => error.to_string(),
        },
    };
    if let Some(odd) = odd_beside(path) {
        return Err(SessionFault::Database {
            path: path.to_owned(),
            why: format!("its companion file {} is not a regular file", odd.display()),
        });
    }
    let too_large = || SessionFault::TooLarge {
        path: path.to_owned(),
        max: SESSION_BYTES_MAX,
    };
    let mut connection = open(path).map_err(fault)?;
    // One transaction sees one state of the database.
    let reading = connection.transaction().map_err(fault)?;
    let schema = schema(&reading).map_err(fault)?;
    let Some(schema) = schema else {
        return Err(SessionFault::Database {
            path: path.to_owned(),
            why: "it has no opencode tables (session and message)".to_owned(),
        });
    };
    if bytes_of(&reading, schema.sessions, None).map_err(fault)? > SESSION_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let mut sessions = rows(&reading, schema.sessions, None).map_err(fault)?;
    sessions.sort_by_cached_key(|session| {
        let created = first(session, &["time_created", "created_at"]).as_u64();
        (created.unwrap_or_default(), session["id"].to_string())
    });
    for session in sessions {
        let id = session["id"].as_str().unwrap_or_default().to_owned();
        let whole = match size(&reading, &schema, &id).map_err(fault)? > SESSION_BYTES_MAX as u64 {
            true => Err(too_large()),
            false => whole(&reading, &schema, session).map_err(fault),
        };
        if !each(whole.map(|whole| whole.session(path))) {
            break;
        }
    }
    Ok(())
}

fn schema(reading: &Connection) -> rusqlite::Result<Option<Schema>> {
    // A virtual table has no root page: it is code and is not read.
    let mut found =
        reading.prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")?;
    let tables = found.query_map([], |row| row.get::<_, String>(0))?;
    let tables: Vec<String> = tables.collect::<Result<_, _>>()?;
    let has = |name: &str| tables.iter().any(|table| table == name);
    let schema = if has("session") && has("message") {
        Schema {
            sessions: "session",
            messages: "message",
            parts: has("part").then_some("part"),
        }
    } else if has("sessions") && has("messages") {
        Schema {
            sessions: "sessions",
            messages: "messages",
            parts: has("parts").then_some("parts"),
        }
    } else {
        return Ok(None);
    };
    for table in std::iter::once(schema.messages).chain(schema.parts) {
        let columns = columns(reading, table)?;
        let has = |name: &str| columns.iter().any(|column| column == name);
        if !has("id") || !has("session_id") {
            return Ok(None);
        }
    }
    Ok(Some(schema))
}

/// Returns the size of a session's messages and parts in bytes, before any is read.
fn size(reading: &Connection, schema: &Schema, session: &str) -> rusqlite::Result<u64> {
    let mut bytes = 0;
    for table in std::iter::once(schema.messages).chain(schema.parts) {
        bytes += bytes_of(reading, table, Some(session))?;
    }
    Ok(bytes)
}

/// Returns the approximate size in memory of a table's rows, for one session or for all.
pub(super) fn bytes_of(
    reading: &Connection,
    table: &str,
    session: Option<&str>,
) -> rusqlite::Result<u64> {
    let columns = columns(reading, table)?;
    let fields = columns.len() * FIELD_BYTES;
    // Only the length is read, not the value.
    let lengths = columns.iter().map(|name| {
        let name = quoted(name);
        format!(" + COALESCE(octet_length({name}), 0)")
    });
    let lengths: String = lengths.collect();
    let of_session = session.map_or("", |_| "WHERE session_id = ?1");
    let sql = format!("SELECT COALESCE(SUM({fields}{lengths}), 0) FROM {table} {of_session}");
    let parameters = rusqlite::params_from_iter(session);
    let sum: i64 = reading.query_row(&sql, parameters, |row| row.get(0))?;
    Ok(u64::try_from(sum).unwrap_or_default())
}

/// Returns the columns with stored data. A generated column is code and could produce gigabytes
/// from nothing.
fn columns(reading: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut found = reading.prepare("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden = 0")?;
    let names = found.query_map([table], |row| row.get(0))?;
    names.collect()
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn whole(
    reading: &Connection,
    schema: &Schema,
    session: Value,
) -> rusqlite::Result<SessionDocument> {
    let id = session["id"].as_str().unwrap_or_default().to_owned();
    let of_session = |table: &str| rows(reading, table, Some(&id));
    let mut parts: HashMap<String, Vec<Value>> = HashMap::new();
    for part in schema.parts.map_or_else(|| Ok(Vec::new()), &of_session)? {
        let message = part["message_id"].as_str().unwrap_or_default().to_owned();
        let part = opened(
            part,
            &[
                ("id", "id"),
                ("message_id", "messageID"),
                ("session_id", "sessionID"),
            ],
        );
        parts.entry(message).or_default().push(part);
    }
    let messages = of_session(schema.messages)?.into_iter().map(|message| {
        let id = message["id"].as_str().unwrap_or_default();
        let own = parts.remove(id).map(Value::from);
        let inside = message["parts"]
            .as_array()
            .map(|parts| parts.iter().map(inner_part).collect());
        let created = first(&message, &["time_created", "created_at"]).clone();
        let completed = message["finished_at"].clone();
        let mut info = opened(message, &[("id", "id"), ("session_id", "sessionID")]);
        mend(&mut info, created, completed);
        json!({"info": info, "parts": own.or(inside).unwrap_or_else(|| json!([]))})
    });
    Ok(SessionDocument {
        name: id,
        messages: messages.collect(),
        session: described(session),
    })
}

/// Returns the object in a row's column `data`, with the columns in `names` added to it. A row
/// without such a column is returned itself, without its parts.
fn opened(row: Value, names: &[(&str, &str)]) -> Value {
    let Some(data) = row["data"].as_object() else {
        let mut row = row;
        if let Some(fields) = row.as_object_mut() {
            fields.shift_remove("parts");
        }
        return row;
    };
    let own = names.iter().filter_map(|(column, name)| {
        let value = row.get(*column).filter(|value| !value.is_null())?;
        Some(((*name).to_owned(), value.clone()))
    });
    let fields = data
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()));
    Value::Object(own.chain(fields).collect())
}

/// Adds the time and model fields of the newer schema to a message of the older one, which has its
/// times in columns.
fn mend(info: &mut Value, created: Value, completed: Value) {
    if info["time"].is_object() {
        return;
    }
    let millis = |value: &Value| {
        value.as_u64().map(|time| match time < SECONDS_MAX {
            true => time * 1_000,
            false => time,
        })
    };
    info["time"] = json!({"created": millis(&created), "completed": millis(&completed)});
    if let Some(model) = info["model"].as_str().map(str::to_owned) {
        info["modelID"] = model.into();
    }
}

/// Smaller times are in seconds: as milliseconds, they would be in 1970.
const SECONDS_MAX: u64 = 30_000_000_000;

/// Converts a part of the older schema, `{"type", "data"}`, to the newer form.
fn inner_part(part: &Value) -> Value {
    let Some(data) = part["data"].as_object() else {
        return part.clone();
    };
    let text = |field: &str| data.get(field).and_then(Value::as_str).unwrap_or_default();
    match part["type"].as_str().unwrap_or_default() {
        "text" => json!({"type": "text", "text": text("text")}),
        "reasoning" => json!({"type": "reasoning", "text": text("thinking")}),
        "tool_call" => {
            let input: Option<Value> = serde_json::from_str(text("input")).ok();
            json!({"type": "tool", "callID": text("id"), "tool": text("name"),
                "state": {"status": "pending", "input": input.unwrap_or_else(|| text("input").into())}})
        }
        "tool_result" => {
            let status = match data.get("is_error") == Some(&Value::Bool(true)) {
                true => "error",
                false => "completed",
            };
            json!({"type": "tool-result", "callID": text("tool_call_id"), "tool": text("name"),
                "state": {"status": status, "output": text("content"), "metadata": data.get("metadata")}})
        }
        "finish" => json!({"type": "finish", "reason": text("reason"), "time": data.get("time")}),
        _ => part.clone(),
    }
}

/// Returns the fields of a session, under the names that the tool's JSON files use.
fn described(row: Value) -> Value {
    const NAMES: [(&str, &str); 6] = [
        ("project_id", "projectID"),
        ("workspace_id", "workspaceID"),
        ("parent_id", "parentID"),
        ("parent_session_id", "parentID"),
        ("share_url", "share"),
        ("permission", "permission"),
    ];
    let mut fields = Map::new();
    let mut times = Map::new();
    for (name, value) in row.as_object().into_iter().flatten() {
        let renamed = NAMES.iter().find(|(column, _)| column == name);
        if value.is_null() {
            continue;
        }
        if let Some(time) = name.strip_prefix("time_") {
            times.insert(time.to_owned(), value.clone());
        } else {
            let name = renamed.map_or(name.as_str(), |(_, renamed)| renamed);
            fields.insert(name.to_owned(), value.clone());
        }
    }
    if !times.is_empty() {
        fields.insert("time".to_owned(), Value::Object(times));
    }
    Value::Object(fields)
}

fn first<'a>(row: &'a Value, names: &[&str]) -> &'a Value {
    let mut values = names.iter().filter_map(|name| row.get(*name));
    values.next().unwrap_or(&Value::Null)
}

/// Returns the rows of a table as objects, for one session or for all. A text that contains a JSON
/// object or list is parsed.
fn rows(reading: &Connection, table: &str, session: Option<&str>) -> rusqlite::Result<Vec<Value>> {
    let names = columns(reading, table)?;
    let listed: Vec<_> = names.iter().map(|name| quoted(name)).collect();
    let of_session = session.map_or("", |_| "WHERE session_id = ?1 ORDER BY id");
    let sql = format!("SELECT {} FROM {table} {of_session}", listed.join(", "));
    let mut statement = reading.prepare(&sql)?;
    let object = |row: &Row<'_>| -> rusqlite::Result<Value> {
        let mut fields = Map::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            fields.insert(name.clone(), value(row.get_ref(index)?));
        }
        Ok(Value::Object(fields))
    };
    let parameters = rusqlite::params_from_iter(session);
    statement.query_map(parameters, object)?.collect()
}

fn value(column: ValueRef<'_>) -> Value {
    match column {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => {
            let is_json = text.starts_with(b"{") || text.starts_with(b"[");
            let read = is_json.then(|| serde_json::from_slice(text).ok()).flatten();
            read.unwrap_or_else(|| String::from_utf8_lossy(text).into())
        }
        ValueRef::Blob(bytes) => String::from_utf8_lossy(bytes).into(),
    }
}
