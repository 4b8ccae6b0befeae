//! The task list that an agent maintains through tool calls. A call writes the whole list (`todos`,
//! `plan`, `tasks`), or creates or updates one task (`TaskCreate`, `TaskUpdate`).

use serde_json::Value;

use super::text::{clip, one_line};

/// Maximum length of a task, in characters.
const TASK_CHARS_MAX: usize = 200;
/// Maximum number of open tasks that are returned.
const TASKS_MAX: usize = 20;
/// Keys of a task list, and of a task's text in it.
const LISTS: [&str; 3] = ["todos", "plan", "tasks"];
const TEXTS: [&str; 6] = ["content", "step", "title", "text", "subject", "description"];

/// The tasks known from calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskList(Vec<Task>);

#[derive(Clone, Debug)]
struct Task {
    id: String,
    text: String,
    status: String,
}

impl TaskList {
    /// Reads a call and its result, if known. Returns true if the call is about tasks. A failed
    /// call changes nothing.
    pub fn note(&mut self, tool: &str, arguments: &str, returned: &str, success: bool) -> bool {
        let failed = !success || returned.trim_start().starts_with("<tool_use_error>");
        if failed || returned.contains("Task not found") {
            let before = self.0.clone();
            let is_about = self.note(tool, arguments, "", true);
            self.0 = before;
            return is_about;
        }
        let plain: String = tool.chars().filter(|c| c.is_alphanumeric()).collect();
        match plain.to_lowercase().as_str() {
            "taskcreate" => self.created(arguments, returned),
            "taskupdate" => self.updated(arguments),
            "tasklist" => self.listed(returned),
            _ => self.written(arguments),
        }
    }

    /// Returns the open tasks, in order.
    pub fn open(&self) -> Vec<String> {
        let open = self.0.iter().filter(|task| {
            !matches!(
                task.status.as_str(),
                "completed" | "done" | "cancelled" | "complete" | "deleted"
            )
        });
        let told = open.map(|task| {
            let told = format!("{} ({})", one_line(&task.text), task.status);
            clip(&told, TASK_CHARS_MAX)
        });
        told.take(TASKS_MAX).collect()
    }

    /// Returns the number of tasks, open and done.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    fn written(&mut self, arguments: &str) -> bool {
        // Cheap test first: most calls have no task list, and some are long.
        let has = |key: &&str| arguments.contains(&format!("\"{key}\""));
        if !LISTS.iter().any(has) {
            return false;
        }
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
            return false;
        };
        let list = LISTS.iter().find_map(|key| arguments.get(*key)?.as_array());
        let tasks = list.map(|list| list.iter().filter_map(Task::read).collect::<Vec<_>>());
        let Some(tasks) = tasks.filter(|tasks| !tasks.is_empty()) else {
            return false;
        };
        self.0 = tasks;
        true
    }

    fn created(&mut self, arguments: &str, returned: &str) -> bool {
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
            return false;
        };
        let Some(text) = text_of(&arguments) else {
            return false;
        };
        // Reads `Task #3 created successfully: …`.
        let number = returned.split_once('#').map(|(_, rest)| {
            rest.chars()
                .take_while(char::is_ascii_digit)
                .collect::<String>()
        });
        let number = number.filter(|number| !number.is_empty());
        let next = self.0.len() + 1;
        self.0.push(Task {
            id: number.unwrap_or_else(|| next.to_string()),
            text,
            status: "pending".to_owned(),
        });
        true
    }

    /// Reads the whole list from the output of a listing: `#1 [completed] Write the parser`, one
    /// task per line.
    fn listed(&mut self, returned: &str) -> bool {
        let task = |line: &str| {
            let (id, rest) = line.trim().strip_prefix('#')?.split_once(" [")?;
            let (status, text) = rest.split_once(']')?;
            let is_id = !id.is_empty() && id.chars().all(|c| c.is_ascii_digit());
            (is_id && !text.trim().is_empty()).then(|| Task {
                id: id.to_owned(),
                text: text.trim().to_owned(),
                status: status.to_owned(),
            })
        };
        let tasks: Vec<Task> = returned.lines().filter_map(task).collect();
        if !tasks.is_empty() || returned.trim() == "No tasks found" {
            self.0 = tasks;
            self.0
                .sort_by_key(|task| task.id.parse().unwrap_or(u64::MAX));
        }
        true
    }

    fn updated(&mut self, arguments: &str) -> bool {
        let Ok(arguments) = serde_json::from_str::<Value>(arguments) else {
            return false;
        };
        let id = match &arguments["taskId"] {
            Value::String(id) => id.clone(),
            Value::Number(id) => id.to_string(),
            _ => return false,
        };
        if let Some(task) = self.0.iter_mut().rev().find(|task| task.id == id) {
            if let Some(status) = arguments["status"].as_str() {
                status.clone_into(&mut task.status);
            }
            if let Some(subject) = arguments["subject"].as_str() {
                subject.clone_into(&mut task.text);
            }
        }
        true
    }
}

impl Task {
    fn read(task: &Value) -> Option<Self> {
        Some(Self {
            id: task["id"].as_str().unwrap_or_default().to_owned(),
            text: text_of(task)?,
            status: task.get("status")?.as_str()?.to_owned(),
        })
    }
}

fn text_of(task: &Value) -> Option<String> {
    let text = TEXTS.iter().find_map(|key| task.get(*key)?.as_str())?;
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    // A request must name the open tasks, not only count the calls that created and changed them.
    #[test]
    fn open_tasks_are_tracked_from_every_task_tool() {
        let mut tasks = TaskList::default();
        let made = |n: u8| format!("Task #{n} created successfully: x");
        assert!(tasks.note(
            "TaskCreate",
            r#"{"subject":"format","description":"d"}"#,
            &made(4),
            true
        ));
        assert!(tasks.note("TaskCreate", r#"{"subject":"lint"}"#, &made(5), true));
        assert!(tasks.note(
            "TaskUpdate",
            r#"{"taskId":"4","status":"completed"}"#,
            "",
            true
        ));
        assert!(tasks.note(
            "TaskUpdate",
            r#"{"taskId":"5","status":"in_progress"}"#,
            "",
            true
        ));
        assert_eq!(tasks.open(), ["lint (in_progress)"]);
        let todos = r#"{"todos":[{"content":"a","status":"completed"},
            {"content":"b","status":"pending"}]}"#;
        assert!(tasks.note("TodoWrite", todos, "", true));
        assert_eq!(tasks.open(), ["b (pending)"]);
        // Only the list shows the tasks that others finished.
        let listed = "#2 [pending] b\n#1 [completed] a\n#10 [in_progress] c";
        assert!(tasks.note("TaskList", "{}", listed, true));
        assert_eq!(tasks.open(), ["b (pending)", "c (in_progress)"]);
        assert!(tasks.note(
            "TaskUpdate",
            r#"{"taskId":"10","status":"completed"}"#,
            "",
            true
        ));
        assert!(tasks.note("TaskList", "{}", "elsewhere", true));
        assert_eq!(tasks.open(), ["b (pending)"]);
        // A failed call must change nothing, or a finished task could be listed as the next one.
        let update = r#"{"taskId":"2","status":"in_progress"}"#;
        assert!(tasks.note("TaskUpdate", update, "Sibling tool call errored", false));
        assert!(tasks.note("TaskUpdate", update, "Task not found", true));
        assert_eq!(tasks.open(), ["b (pending)"]);
        assert!(tasks.note("TaskList", "{}", "No tasks found", true));
        assert_eq!(tasks.open(), [] as [String; 0]);
        assert!(!tasks.note("Write", r#"{"file_path":"a.rs"}"#, "", true));
        assert!(!tasks.note("deploy", r#"{"plan":"as said"}"#, "", true));
        assert_eq!(tasks.open(), [] as [String; 0]);
    }
}
