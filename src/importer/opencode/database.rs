//! Sessions of opencode from its database: read only, and all of it as of one moment,
//! whatever the tool writes meanwhile.

use std::{collections::HashMap, fs::File, io::Read, path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags, Row, types::ValueRef};
use serde_json::{Map, Value, json};

use super::{
    super::{
        session::ToolSession,
        whole_lines::{SESSION_BYTES_MAX, SessionFault},
    },
    read::Whole,
};

/// How long to wait for a writer that has the database for itself.
const BUSY_MAX: Duration = Duration::from_secs(5);
/// With these bytes a database begins.
const MAGIC: [u8; 16] = *b"SQLite format 3\0";

/// True for a database that has the tool's tables.
#[must_use]
pub fn is_its_database(path: &Path) -> bool {
    let mut head = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    if read.is_err() || head != MAGIC {
        return false;
    }
    // One that cannot be read now may be: why it cannot is told when it is read.
    open(path)
        .and_then(|connection| schema(&connection))
        .map_or_else(
            |_| super::is_named_as_database(path),
            |schema| schema.is_some(),
        )
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_MAX)?;
    Ok(connection)
}

/// The names of its tables and columns: they were `session`, `message`, `part` in one
/// version, `sessions`, `messages` in another.
struct Schema {
    sessions: &'static str,
    messages: &'static str,
    /// None: a message holds its parts.
    parts: Option<&'static str>,
}

/// Gives every session of the database, the older first. Stops when `each` says so.
///
/// # Errors
/// [`SessionFault::Database`] when it is no database of the tool's, or cannot be read.
pub fn read_database(
    path: &Path,
    mut each: impl FnMut(Result<ToolSession, SessionFault>) -> bool,
) -> Result<(), SessionFault> {
    let fault = |error: rusqlite::Error| SessionFault::Database {
        path: path.to_owned(),
        why: match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
                "another program has it for itself: import it again in a moment".to_owned()
            }
            _ => error.to_string(),
        },
    };
    let mut connection = open(path).map_err(fault)?;
    // One transaction: one moment.
    let reading = connection.transaction().map_err(fault)?;
    let schema = schema(&reading).map_err(fault)?;
    let Some(schema) = schema else {
        return Err(SessionFault::Database {
            path: path.to_owned(),
            why: "it has no tables of opencode's (session and message)".to_owned(),
        });
    };
    let sessions = rows(
        &reading,
        &format!("SELECT * FROM {}", schema.sessions),
        None,
    );
    let mut sessions = sessions.map_err(fault)?;
    sessions.sort_by_cached_key(|session| {
        let created = first(session, &["time_created", "created_at"]).as_u64();
        (created.unwrap_or_default(), session["id"].to_string())
    });
    for session in sessions {
        let id = session["id"].as_str().unwrap_or_default().to_owned();
        let whole = match size(&reading, &schema, &id).map_err(fault)? > SESSION_BYTES_MAX as u64 {
            true => Err(SessionFault::TooLarge {
                path: path.to_owned(),
                max: SESSION_BYTES_MAX,
            }),
            false => whole(&reading, &schema, session).map_err(fault),
        };
        if !each(whole.map(|whole| whole.session(path))) {
            break;
        }
    }
    Ok(())
}

fn schema(reading: &Connection) -> rusqlite::Result<Option<Schema>> {
    let mut found = reading.prepare("SELECT name FROM sqlite_master WHERE type = 'table'")?;
    let tables = found.query_map([], |row| row.get::<_, String>(0))?;
    let tables: Vec<String> = tables.collect::<Result<_, _>>()?;
    let has = |name: &str| tables.iter().any(|table| table == name);
    Ok(if has("session") && has("message") {
        Some(Schema {
            sessions: "session",
            messages: "message",
            parts: has("part").then_some("part"),
        })
    } else if has("sessions") && has("messages") {
        Some(Schema {
            sessions: "sessions",
            messages: "messages",
            parts: has("parts").then_some("parts"),
        })
    } else {
        None
    })
}

/// Bytes of a session's messages and parts, before any is read.
fn size(reading: &Connection, schema: &Schema, session: &str) -> rusqlite::Result<u64> {
    let mut bytes = 0;
    for table in std::iter::once(schema.messages).chain(schema.parts) {
        let columns = columns(reading, table)?;
        let text = ["data", "parts"]
            .into_iter()
            .filter(|name| columns.iter().any(|c| c == name));
        let lengths: Vec<_> = text
            .map(|name| format!("COALESCE(LENGTH({name}), 0)"))
            .collect();
        if lengths.is_empty() {
            continue;
        }
        let sql = format!(
            "SELECT COALESCE(SUM({}), 0) FROM {table} WHERE session_id = ?1",
            lengths.join(" + ")
        );
        let sum: i64 = reading.query_row(&sql, [session], |row| row.get(0))?;
        bytes += u64::try_from(sum).unwrap_or_default();
    }
    Ok(bytes)
}

fn columns(reading: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let statement = reading.prepare(&format!("SELECT * FROM {table} LIMIT 0"))?;
    Ok(statement.column_names().map(str::to_owned).collect())
}

fn whole(reading: &Connection, schema: &Schema, session: Value) -> rusqlite::Result<Whole> {
    let id = session["id"].as_str().unwrap_or_default().to_owned();
    let of_session = |table: &str| {
        let sql = format!("SELECT * FROM {table} WHERE session_id = ?1 ORDER BY id");
        rows(reading, &sql, Some(&id))
    };
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
    Ok(Whole {
        name: id,
        messages: messages.collect(),
        session: described(session),
    })
}

/// What a row holds in its column `data`, with what is in columns of its own; without such
/// a column, the row.
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

/// The older schema says in columns what the newer has in `data`.
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

/// A time below it is in seconds: in milliseconds it would be in 1970.
const SECONDS_MAX: u64 = 30_000_000_000;

/// A part as the older schema keeps it, `{"type", "data"}`, as the newer has it.
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

/// What is known of a session, in the names that its JSON files have.
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

/// Rows as objects. A text that holds an object or a list is read as one.
fn rows(reading: &Connection, sql: &str, session: Option<&str>) -> rusqlite::Result<Vec<Value>> {
    let mut statement = reading.prepare(sql)?;
    let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
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
