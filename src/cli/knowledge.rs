//! `knowledge`: shows what tool results revealed, and suggestions that are derived from it.

use clap::{Args, Subcommand};

use super::{
    branch_args::{AsOfArgs, FoundBranch},
    connect::Connection,
    error::ClientError,
    json::{self, Array, Object},
    output::{Out, Tone},
    pb,
    text::{count, first_line, printable, things},
    tools,
};

/// Maximum number of files that are shown without `--all`.
const FILES_SHOWN: usize = 20;
/// Maximum number of analysed files, and of variables in each file, shown without `--all`.
const VARIABLES_SHOWN: usize = 12;
/// Maximum number of characters of a variable's detail.
const DETAIL_CHARS: usize = 60;

/// Show knowledge from tool results: files, variables, the working directory
///
/// Rules extract it from results: tools whose names start with `list_`, `discover_` or `find_` give
/// files, `inspect_` and `analyze_` give variables, and arguments like `cwd` the working directory.
/// The conversation's `knowledge` policy changes the rules.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering knowledge CONVERSATION
  treering knowledge CONVERSATION --as-of 41 --recent 10 --tool read_file
  treering knowledge CONVERSATION suggest read_file '{\"path\": null}'
  treering knowledge CONVERSATION prerequisites plot_map
  treering knowledge CONVERSATION guidance --branch retry
  treering knowledge CONVERSATION --json | jq -r 'select(.item == \"file\").path'")]
pub(crate) struct KnowledgeArgs {
    #[command(flatten)]
    place: AsOfArgs,
    /// Only recent results of this tool
    #[arg(long, short, value_name = "NAME")]
    tool: Option<String>,
    /// Number of recent results
    #[arg(long, value_name = "N", default_value_t = 5)]
    recent: u32,
    /// Show every file and variable
    #[arg(long)]
    all: bool,
    #[command(subcommand)]
    what: Option<KnowledgeCommand>,
}

#[derive(Subcommand, Debug, Clone)]
enum KnowledgeCommand {
    /// Fill the empty file and variable arguments of a call
    Suggest {
        /// Name of the tool
        tool: String,
        /// The known arguments, as a JSON object
        #[arg(default_value = "{}")]
        arguments: String,
    },
    /// List the prerequisites of a tool that have not succeeded yet
    Prerequisites {
        /// Name of the tool
        tool: String,
    },
    /// Suggest the next step
    Guidance,
}

/// Prints the knowledge, or the answer of the subcommand.
pub(crate) async fn run(
    args: KnowledgeArgs,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let place = args.place.find(store).await?;
    let Some(what) = &args.what else {
        return show(&args, place, store, out).await;
    };
    let (conversation_id, branch) = (place.conversation, place.branch);
    match what {
        KnowledgeCommand::Suggest { tool, arguments } => {
            let request = pb::SuggestArgumentsRequest {
                conversation_id,
                branch,
                tool: tool.clone(),
                arguments: arguments.clone().into(),
            };
            let answer = store.tools().suggest_arguments(request).await?.into_inner();
            print_suggested(tool, &answer, out)
        }
        KnowledgeCommand::Prerequisites { tool } => {
            let request = pb::MissingPrerequisitesRequest {
                conversation_id,
                branch,
                tool: tool.clone(),
            };
            let answer = store.tools().missing_prerequisites(request).await?;
            print_prerequisites(tool, &answer.into_inner(), out)
        }
        KnowledgeCommand::Guidance => {
            let request = pb::GuidanceRequest {
                conversation_id,
                branch,
            };
            let guidance = store.tools().guidance(request).await?.into_inner().guidance;
            if out.json {
                let mut object = Object::new();
                object.string("guidance", &guidance);
                out.line(object.finish())?;
            } else if guidance.is_empty() {
                out.row("The results do not suggest a next step.")?;
            } else {
                for line in guidance.lines() {
                    out.row(line)?;
                }
            }
            Ok(())
        }
    }
}

async fn show(
    args: &KnowledgeArgs,
    place: FoundBranch,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let request = pb::KnowledgeRequest {
        conversation_id: place.conversation,
        branch: place.branch,
        as_of_revision: place.revision,
        recent: args.recent,
        tool: args.tool.clone().unwrap_or_default(),
    };
    let known = store.tools().knowledge(request).await?.into_inner();
    if out.json {
        return print_json(&known, out);
    }
    let paint = out.paint;
    out.row(paint.text(
        Tone::Strong,
        format!("Knowledge from tool results as of #{}", known.revision),
    ))?;
    if !known.working_directory.is_empty() {
        let from = at(known.working_directory_from.as_ref());
        out.row(format!(
            "working directory {}  {}",
            paint.text(Tone::Name, printable(&known.working_directory)),
            paint.text(Tone::Dim, from)
        ))?;
    }
    print_files(&known, args.all, out)?;
    print_variables(&known.variables, args.all, out)?;
    print_outcomes(&known.tools, out)?;
    if known.left_out > 0 {
        let left_out = count(known.left_out);
        out.note(format!("omitted because of limits: {left_out}"))?;
    }
    if !known.recent.is_empty() {
        out.heading("Recent results, newest first")?;
        for call in &known.recent {
            tools::print_call(call, out)?;
        }
    }
    Ok(())
}

fn print_json(known: &pb::KnowledgeResponse, out: &mut Out) -> Result<(), ClientError> {
    out.line(json::knowledge(known))?;
    for file in &known.files {
        out.line(json::file(file))?;
    }
    for of_file in &known.variables {
        out.line(json::variables(of_file))?;
    }
    for call in &known.recent {
        let mut object = Object::new();
        object.string("item", "result").raw("call", &json::of(call));
        out.line(object.finish())?;
    }
    Ok(())
}

fn at(event: Option<&pb::EventRef>) -> String {
    event.map_or_else(String::new, |event| format!("#{}", event.revision))
}

fn print_files(known: &pb::KnowledgeResponse, all: bool, out: &mut Out) -> Result<(), ClientError> {
    let paint = out.paint;
    let files = folded(&known.files, &known.working_directory);
    out.heading(things(files.len() as u64, "file", "files"))?;
    let shown = if all { files.len() } else { FILES_SHOWN };
    for NamedFile { file, also } in files.iter().take(shown) {
        let mut note = format!("{} {} {}", file.touch, file.tool, at(file.event.as_ref()));
        for other in also {
            note.push_str(&format!(
                ", as {} {} {}",
                printable(&other.path),
                other.tool,
                at(other.event.as_ref())
            ));
        }
        out.row(format!(
            "  {}  {}",
            paint.text(Tone::Name, printable(&file.path)),
            paint.text(Tone::Dim, note)
        ))?;
    }
    more(files.len(), shown, out)
}

/// A file under its longest name.
struct NamedFile<'a> {
    file: &'a pb::KnownFile,
    /// Its shorter names.
    also: Vec<&'a pb::KnownFile>,
}

/// Merges names that certainly mean the same file. A shorter name is merged if exactly one other
/// name ends with it; a name without a folder must also be in the working directory.
fn folded<'a>(files: &'a [pb::KnownFile], working_directory: &str) -> Vec<NamedFile<'a>> {
    let directory = working_directory.trim_matches('/');
    let is_meant = |short: &str, long: &str| {
        let folder = long
            .strip_suffix(short)
            .and_then(|folder| folder.strip_suffix('/'));
        let is_there =
            || folder.is_some_and(|folder| !directory.is_empty() && folder.ends_with(directory));
        long.starts_with('/') && folder.is_some() && (short.contains('/') || is_there())
    };
    let long_name = |short: &pb::KnownFile| {
        let short = short.path.trim_start_matches("./");
        let mut long = (0..files.len()).filter(|at| is_meant(short, &files[*at].path));
        long.next()
            .filter(|_| long.next().is_none() && !short.starts_with('/'))
    };
    let longs: Vec<Option<usize>> = files.iter().map(long_name).collect();
    let named = files
        .iter()
        .enumerate()
        .filter(|(at, _)| longs[*at].is_none());
    let named = named.map(|(at, file)| NamedFile {
        file,
        also: (files.iter().zip(&longs))
            .filter(|(_, long)| **long == Some(at))
            .map(|(short, _)| short)
            .collect(),
    });
    named.collect()
}

fn print_variables(
    variables: &[pb::KnownVariables],
    all: bool,
    out: &mut Out,
) -> Result<(), ClientError> {
    let paint = out.paint;
    let bound = if all { usize::MAX } else { VARIABLES_SHOWN };
    for of_file in variables.iter().take(bound) {
        out.line("")?;
        out.row(format!(
            "{} of {}  {}",
            paint.text(
                Tone::Strong,
                things(of_file.variables.len() as u64, "variable", "variables")
            ),
            paint.text(Tone::Name, printable(&of_file.file)),
            paint.text(
                Tone::Dim,
                format!("{} {}", of_file.tool, at(of_file.event.as_ref()))
            )
        ))?;
        for variable in of_file.variables.iter().take(bound) {
            let detail = match variable.detail.as_str() {
                "null" => String::new(),
                detail => first_line(detail, DETAIL_CHARS),
            };
            out.row(format!(
                "  {}  {}",
                printable(&variable.name),
                paint.text(Tone::Dim, detail)
            ))?;
        }
        more(of_file.variables.len(), bound, out)?;
    }
    if variables.len() > bound {
        out.line("")?;
    }
    more(variables.len(), bound, out)
}

fn more(all: usize, shown: usize, out: &mut Out) -> Result<(), ClientError> {
    if all > shown {
        let rest = count((all - shown) as u64);
        out.note(format!("  … {rest} more (--all)"))?;
    }
    Ok(())
}

fn print_outcomes(outcomes: &[pb::ToolOutcomeCount], out: &mut Out) -> Result<(), ClientError> {
    if outcomes.is_empty() {
        return Ok(());
    }
    let paint = out.paint;
    out.heading("Tools with results")?;
    for tool in outcomes {
        let failed = match tool.failed {
            0 => String::new(),
            failed => paint.text(Tone::Bad, format!(", {} failed", count(failed))),
        };
        out.row(format!(
            "  {}  {}{failed}  {}",
            paint.text(Tone::Tool, printable(&tool.tool)),
            paint.text(Tone::Good, format!("{} succeeded", count(tool.succeeded))),
            paint.text(Tone::Dim, format!("last {}", at(tool.last.as_ref())))
        ))?;
    }
    Ok(())
}

fn print_suggested(
    tool: &str,
    answer: &pb::SuggestArgumentsResponse,
    out: &mut Out,
) -> Result<(), ClientError> {
    if out.json {
        return Ok(out.line(json::suggested(tool, answer))?);
    }
    let paint = out.paint;
    let arguments = String::from_utf8_lossy(&answer.arguments);
    out.row(format!(
        "{} {}",
        paint.text(Tone::Tool, tool),
        printable(&arguments)
    ))?;
    if answer.suggestions.is_empty() {
        out.row("Nothing was filled in: no file or variable argument is open, or none is known.")?;
    }
    for suggestion in &answer.suggestions {
        out.row(format!(
            "  {} = {}  {}",
            paint.text(Tone::Name, printable(&suggestion.argument)),
            printable(&suggestion.value),
            paint.text(
                Tone::Dim,
                format!(
                    "{} ({})",
                    printable(&suggestion.reason),
                    at(suggestion.event.as_ref())
                )
            )
        ))?;
        if !suggestion.alternatives.is_empty() {
            let others = printable(&suggestion.alternatives.join(", "));
            out.note(format!("    or {others}"))?;
        }
    }
    Ok(())
}

fn print_prerequisites(
    tool: &str,
    answer: &pb::MissingPrerequisitesResponse,
    out: &mut Out,
) -> Result<(), ClientError> {
    if out.json {
        let mut object = Object::new();
        object
            .string("tool", tool)
            .raw("missing", &Array::of_strings(&answer.missing))
            .raw("configured", &Array::of_strings(&answer.configured));
        return Ok(out.line(object.finish())?);
    }
    if answer.configured.is_empty() {
        let tool = printable(tool);
        out.row(format!("{tool} has no configured prerequisites."))?;
    }
    for name in &answer.configured {
        let (tone, word) = if answer.missing.contains(name) {
            (Tone::Wait, "has not yet succeeded")
        } else {
            (Tone::Good, "has succeeded")
        };
        out.row(format!(
            "  {}  {}",
            printable(name),
            out.paint.text(tone, word)
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Tools named one file by its full path and by relative paths, and it was listed several times.
    // Names that may belong to different files must stay separate.
    #[test]
    fn paths_of_one_file_are_listed_once() {
        let file = |path: &str| pb::KnownFile {
            path: path.into(),
            ..Default::default()
        };
        let names = |paths: &[&str], directory: &str| -> Vec<(String, usize)> {
            let files: Vec<_> = paths.iter().map(|path| file(path)).collect();
            let folded = folded(&files, directory);
            let names = folded.iter();
            names
                .map(|named| (named.file.path.clone(), named.also.len()))
                .collect()
        };
        let all = [
            "src/cli/log.rs",
            "/home/dev/src/cli/log.rs",
            "log.rs",
            "./cli/log.rs",
        ];
        let whole = "/home/dev/src/cli/log.rs".to_owned();
        assert_eq!(names(&all, "src/cli"), [(whole.clone(), 3)]);
        assert_eq!(
            names(&all, "src"),
            [(whole.clone(), 2), ("log.rs".into(), 0)]
        );
        let two = ["/a/src/log.rs", "/b/src/log.rs", "src/log.rs"];
        assert_eq!(names(&two, "").len(), 3);
    }
}
