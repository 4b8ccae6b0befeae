//! The scripted agent. Its texts are fixed, but its decisions depend on the results of its tools in
//! the user's folder.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    time::Instant,
};

use super::{
    super::{connect::Connection, error::ClientError, pb},
    author::{
        AGENT, Author, PERSON, asks, decides, gives_up, judges, offers, returns, says, starts,
        system_prompt,
    },
    tools::{FoundFile, Task, Workplace, walk},
};

/// Name of the alternative branch.
pub(crate) const OTHER_WAY: &str = "search-first";

/// A summary of the run for the tour.
#[derive(Debug)]
pub(crate) struct DemoRun {
    /// The conversation's UUID.
    pub(crate) conversation: String,
    /// What happened, one line for each step, with its last revision.
    pub(crate) steps: Vec<(u64, String)>,
    /// Revision where the other branch forks.
    pub(crate) fork_revision: u64,
    /// A word that occurs in the results.
    pub(crate) word: String,
}

/// Tools with their descriptions, and whether their calls require approval.
const TOOLS: [(&str, &str, bool); 5] = [
    (
        "list_files",
        "Lists the files of a folder with their sizes",
        false,
    ),
    ("read_file", "Reads a text file", false),
    ("search_text", "Finds the lines that hold a text", false),
    (
        "measure_folder",
        "Counts files and bytes by kind of file",
        true,
    ),
    ("delete_file", "Deletes a file", true),
];

/// Works in a folder and records what happens.
pub(crate) async fn work(store: &Connection, place: Workplace) -> Result<DemoRun, ClientError> {
    let folder = &place.root;
    let name = folder.file_name().map_or_else(
        || folder.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    );
    let mut session = Session::begin(store, place, &name).await?;
    let seen = session.look_around().await?;
    let fork_revision = session.revision;
    session.read_what_is_large(&seen).await?;
    session.ask_for_approvals(&seen).await?;
    let answer = format!(
        "{name} holds {} files. I would start with {}.",
        seen.files.len(),
        seen.first_to_read()
    );
    session
        .conclude(&answer, 0.6, "read one large file")
        .await?;
    let word = seen.word();
    session.fork(fork_revision).await?;
    session.search_instead(&word, fork_revision).await?;
    Ok(DemoRun {
        conversation: session.author.conversation,
        steps: session.steps,
        fork_revision,
        word,
    })
}

/// Results of the first calls.
struct InitialFindings {
    files: Vec<FoundFile>,
    text: String,
}

impl InitialFindings {
    fn first_to_read(&self) -> String {
        let readme = self
            .files
            .iter()
            .find(|file| file.path.to_lowercase().starts_with("readme"));
        readme.or(largest_text(&self.files)).map_or_else(
            || "a first file, as there is none yet".into(),
            |file| file.path.clone(),
        )
    }

    /// The most frequent word of 5 to 20 letters, except for [`COMMON`] words.
    fn word(&self) -> String {
        let mut counts: HashMap<String, usize> = HashMap::new();
        let words = self
            .text
            .split(|c: char| !c.is_ascii_alphabetic())
            .filter(|word| (5..=20).contains(&word.len()))
            .filter(|word| !COMMON.contains(&word.to_lowercase().as_str()));
        for word in words {
            *counts.entry(word.to_lowercase()).or_default() += 1;
        }
        counts
            .into_iter()
            .max_by(|(a, n), (b, m)| n.cmp(m).then(b.cmp(a)))
            .map_or_else(|| "empty".into(), |(word, _)| word)
    }
}

/// Words that say nothing about the topic of a folder.
const COMMON: [&str; 12] = [
    "about", "after", "because", "before", "other", "should", "their", "there", "these", "which",
    "where", "would",
];

/// Extensions of text files.
const TEXTS: [&str; 12] = [
    "md", "rs", "py", "js", "ts", "go", "c", "h", "java", "txt", "toml", "proto",
];

fn largest_text(files: &[FoundFile]) -> Option<&FoundFile> {
    files
        .iter()
        .filter(|file| {
            let ending = Path::new(&file.path).extension().and_then(|e| e.to_str());
            ending.is_some_and(|ending| TEXTS.contains(&ending))
        })
        .max_by_key(|file| (file.bytes, file.path.clone()))
}

struct Session<'a> {
    author: Author<'a>,
    place: Workplace,
    steps: Vec<(u64, String)>,
    calls: u32,
    revision: u64,
}

impl<'a> Session<'a> {
    async fn begin(
        store: &'a Connection,
        place: Workplace,
        name: &str,
    ) -> Result<Session<'a>, ClientError> {
        let question = format!("What is in the folder {name}, and what should I read first?");
        let created = pb::ConversationCreated {
            title: question.clone(),
            config: Some(pb::Config {
                model_id: "scripted".into(),
                mode: "demo".into(),
                ..Default::default()
            }),
            labels: BTreeMap::from([("demo".to_owned(), "true".to_owned())]),
            ..Default::default()
        };
        let author = Author::begin(store, &created).await?;
        let opening = vec![
            system_prompt("Look before you answer. Ask before you change anything."),
            offers(&TOOLS),
        ];
        author.append(AGENT, opening).await?;
        let asked = vec![says(pb::Role::User, &question)];
        let revision = author.append(PERSON, asked).await?;
        let steps = vec![(revision, format!("A user asks: {question}"))];
        Ok(Session {
            author,
            place,
            steps,
            calls: 0,
            revision,
        })
    }

    fn step(&mut self, revision: u64, what: impl Into<String>) {
        self.revision = revision;
        self.steps.push((revision, what.into()));
    }

    fn next_call(&mut self) -> String {
        self.calls += 1;
        format!("call_{}", self.calls)
    }

    /// Makes up to three parallel calls in one message.
    async fn look_around(&mut self) -> Result<InitialFindings, ClientError> {
        let (files, _) = walk(&self.place);
        let readme = files
            .iter()
            .find(|file| file.path.to_lowercase().starts_with("readme"))
            .or(largest_text(&files))
            .map(|file| file.path.clone());
        let mut tasks = vec![Task::ListFiles, Task::SearchText("TODO".into())];
        tasks.extend(readme.map(Task::ReadFile));
        let plan = "I look at the folder from several sides at once.";
        let results = self.run_together(plan, tasks).await?;
        let what = results
            .iter()
            .map(|(task, _, milliseconds)| format!("{} ({milliseconds} ms)", task.tool()))
            .collect::<Vec<_>>();
        self.step(
            self.revision,
            format!("{} calls in parallel: {}", what.len(), what.join(", ")),
        );
        let texts = results
            .into_iter()
            .filter_map(|(_, outcome, _)| outcome.ok())
            .collect::<Vec<_>>();
        Ok(InitialFindings {
            files,
            text: texts.join("\n"),
        })
    }

    async fn run_together(
        &mut self,
        plan: &str,
        tasks: Vec<Task>,
    ) -> Result<Vec<CallRun>, ClientError> {
        let ids: Vec<_> = tasks.iter().map(|_| self.next_call()).collect();
        let mut bodies = vec![says(pb::Role::Assistant, plan)];
        for (id, task) in ids.iter().zip(&tasks) {
            bodies.push(asks(id, task.tool(), &task.arguments(), false));
        }
        bodies.extend(ids.iter().map(|id| starts(id)));
        self.author.append(AGENT, bodies).await?;
        let running: Vec<_> = tasks
            .into_iter()
            .map(|task| run(task, self.place.clone()))
            .collect();
        let ran = futures::future::try_join_all(running).await?;
        let bodies = ids
            .iter()
            .zip(&ran)
            .map(|(id, (_, outcome, ms))| returns(id, outcome, *ms))
            .collect();
        self.revision = self.author.append(AGENT, bodies).await?;
        Ok(ran)
    }

    /// Reads the largest text file, if there is one, and tries to read a missing file.
    async fn read_what_is_large(&mut self, seen: &InitialFindings) -> Result<(), ClientError> {
        if let Some(file) = largest_text(&seen.files) {
            let plan = format!("The largest text is {}; I read it.", file.path);
            let ran = self
                .run_together(&plan, vec![Task::ReadFile(file.path.clone())])
                .await?;
            let bytes = ran
                .first()
                .and_then(|(_, outcome, _)| outcome.as_ref().ok())
                .map_or(0, String::len);
            self.step(
                self.revision,
                format!("read_file {} ({bytes} bytes kept whole)", file.path),
            );
        }
        let missing = (0..1_000)
            .map(|number| format!("NOTES-{number}.md"))
            .find(|name| !self.place.root.join(name).exists())
            .unwrap_or_else(|| "NOTES.md".into());
        let plan = "There may be notes from last time.";
        let ran = self
            .run_together(plan, vec![Task::ReadFile(missing)])
            .await?;
        let error = ran
            .into_iter()
            .find_map(|(_, outcome, _)| outcome.err())
            .unwrap_or_default();
        self.step(self.revision, format!("a call that fails: {error}"));
        Ok(())
    }

    /// Requests two approvals: one call is denied and does not run, the other is approved and runs.
    async fn ask_for_approvals(&mut self, seen: &InitialFindings) -> Result<(), ClientError> {
        let victim = seen
            .files
            .last()
            .map_or_else(|| "anything".into(), |file| file.path.clone());
        let task = Task::DeleteFile(victim.clone());
        let (id, arguments) = self.request("This one looks unused.", &task).await?;
        let reason = "nothing is to be deleted";
        let bodies = vec![decides(&id, &arguments, pb::Decision::Denied, reason)];
        self.author.append(PERSON, bodies).await?;
        let revision = self.author.append(AGENT, vec![gives_up(&id)]).await?;
        self.step(
            revision,
            format!("delete_file {victim}: denied by a person, never run"),
        );

        let task = Task::MeasureFolder;
        let plan = "Then I only measure, if I may.";
        let (id, arguments) = self.request(plan, &task).await?;
        let bodies = vec![decides(
            &id,
            &arguments,
            pb::Decision::Approved,
            "only reads",
        )];
        self.author.append(PERSON, bodies).await?;
        self.author.append(AGENT, vec![starts(&id)]).await?;
        let (_, outcome, ms) = run(task, self.place.clone()).await?;
        let bodies = vec![returns(&id, &outcome, ms)];
        let revision = self.author.append(AGENT, bodies).await?;
        self.step(revision, format!("measure_folder: approved, run ({ms} ms)"));
        Ok(())
    }

    async fn request(&mut self, plan: &str, task: &Task) -> Result<(String, String), ClientError> {
        let id = self.next_call();
        let arguments = task.arguments();
        let bodies = vec![
            says(pb::Role::Assistant, plan),
            asks(&id, task.tool(), &arguments, true),
        ];
        self.author.append(AGENT, bodies).await?;
        Ok((id, arguments))
    }

    async fn conclude(&mut self, answer: &str, score: f64, why: &str) -> Result<(), ClientError> {
        let bodies = vec![says(pb::Role::Assistant, answer)];
        let revision = self.author.append(AGENT, bodies).await?;
        self.step(revision, format!("it answers: {answer}"));
        self.author.append(PERSON, vec![judges(score, why)]).await?;
        Ok(())
    }

    async fn fork(&mut self, at_revision: u64) -> Result<(), ClientError> {
        let store = self.author.store();
        let request = pb::ForkRequest {
            conversation_id: self.author.conversation.clone(),
            branch: self.author.branch.clone(),
            at_revision,
            name: OTHER_WAY.into(),
            actor: PERSON.into(),
            ..Default::default()
        };
        let answer = store.conversations().fork(request).await?.into_inner();
        let head = answer.branch.map_or(0, |branch| branch.head);
        self.author = self.author.on_branch(OTHER_WAY);
        self.step(
            head,
            format!("a fork after #{at_revision}, named {OTHER_WAY}: one small event"),
        );
        Ok(())
    }

    async fn search_instead(&mut self, word: &str, fork: u64) -> Result<(), ClientError> {
        let plan = format!("Rather than read one large file, I search for \"{word}\" in all.");
        let ran = self
            .run_together(&plan, vec![Task::SearchText(word.to_owned())])
            .await?;
        let lines = ran
            .first()
            .and_then(|(_, outcome, _)| outcome.as_ref().ok())
            .map_or(0, |text| text.lines().count());
        self.step(
            self.revision,
            format!("on {OTHER_WAY}: search_text \"{word}\" returns {lines} lines"),
        );
        let answer = format!("\"{word}\" runs through this folder: start where it is explained.");
        self.conclude(&answer, 0.8, &format!("better than main since #{fork}"))
            .await
    }
}

/// A call that ran: the task, its outcome, and its duration in milliseconds.
type CallRun = (Task, Result<String, String>, u64);

async fn run(task: Task, place: Workplace) -> Result<CallRun, ClientError> {
    let ran = tokio::task::spawn_blocking(move || {
        let started = Instant::now();
        let outcome = task.run(&place);
        let took = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        (task, outcome, took)
    });
    ran.await
        .map_err(|error| ClientError::Output(std::io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tour searches for a word that must occur in the results, even if the folder is empty.
    #[test]
    fn search_word_is_taken_from_the_results() {
        let seen = |text: &str| InitialFindings {
            files: Vec::new(),
            text: text.into(),
        };
        assert_eq!(seen("branch a Branch, events b_branch").word(), "branch");
        assert_eq!(seen("alpha gamma").word(), "alpha");
        assert_eq!(seen("").word(), "empty");
    }

    /// The agent must not read a binary file, even if it is the largest.
    #[test]
    fn demo_reads_the_largest_text_file() {
        let file = |path: &str, bytes| FoundFile {
            path: path.into(),
            bytes,
        };
        let seen = InitialFindings {
            files: vec![file("a.bin", 900), file("b.rs", 10), file("c.md", 20)],
            text: String::new(),
        };
        assert_eq!(
            largest_text(&seen.files).map(|f| f.path.as_str()),
            Some("c.md")
        );
        assert_eq!(seen.first_to_read(), "c.md");
    }
}
