//! Collects the options of `serve`. Precedence: flags, then environment, then the configuration
//! file.
//!
//! Values from the environment and the file are appended to the command line as options, so that
//! clap checks all of them in the same way. Nothing here depends on the meaning of an option.

use std::{
    env,
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
};

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand, parser::ValueSource};
use serde_json::json;
use toml_edit::{Document, Item, TableLike, Value};

use super::{Cli, Command, StandaloneCommand, error::ClientError, output::Out};
use treering_domain::with_causes;

const SERVE: &str = "serve";
/// Prefix of the environment variable of an option, followed by its name in capitals.
const ENV_PREFIX: &str = "TREERING_";
/// Environment variable with the path of the file.
pub(crate) const CONFIG_ENV: &str = "TREERING_CONFIG";
/// Options that are valid on the command line only: output and target of a single run.
const ONLY_TYPED: [&str; 9] = [
    "absolute",
    "color",
    "config",
    "help",
    "json",
    "namespace",
    "no-pager",
    "server",
    "until-stdin-closes",
];
/// The option whose value is never shown.
const SECRET: &str = "token";
/// Minimum similarity of a name that is suggested for a mistyped one.
const NEAR: f64 = 0.75;

/// Check a configuration file of `serve`, or show the effective options
///
/// The file can have every option of `serve`, by its name without the dashes. Options with a common
/// prefix can be in a table: `summariser-url` is `url` in `[summariser]`. Precedence: flags, then
/// environment variables (TREERING_ and the option's name, for example TREERING_LISTEN), then the
/// file.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering config check /etc/treering/treering.toml
  treering config print /etc/treering/treering.toml
  TREERING_MEMORY=1GiB treering config print -- --listen 127.0.0.1:9000")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    what: ConfigCommand,
}

#[derive(Subcommand, Debug, Clone)]
enum ConfigCommand {
    /// Check a file and list all errors in it
    Check {
        /// Path of the file; default: $TREERING_CONFIG
        file: Option<PathBuf>,
    },
    /// Show each option with its value and source
    Print {
        /// Path of the file; default: $TREERING_CONFIG, else no file
        file: Option<PathBuf>,
        /// Options of `serve`, as on its command line
        #[arg(last = true, value_name = "OPTION")]
        options: Vec<OsString>,
    },
}

/// Checks the file or shows the options.
///
/// # Errors
/// [`ClientError::Usage`] for invalid options, [`ClientError::ReadFile`].
pub(crate) fn run(args: &ConfigArgs, out: &mut Out) -> Result<(), ClientError> {
    match &args.what {
        ConfigCommand::Check { file } => check(file.as_deref(), out),
        ConfigCommand::Print { file, options } => print(file.as_deref(), options, out),
    }
}

fn check(file: Option<&Path>, out: &mut Out) -> Result<(), ClientError> {
    let Some(file) = file.map(Path::to_owned).or_else(|| config_of(&os_env)) else {
        return Err(ClientError::Usage {
            what: "no file is named and TREERING_CONFIG is not set".into(),
            hint: "use: treering config check FILE".into(),
        });
    };
    let set = Settings::read(&file)?;
    let mut words = vec!["treering".into(), SERVE.into()];
    words.extend(set.0.iter().flat_map(Setting::words).map(OsString::from));
    let complaint = |what| {
        let place = file.display().to_string();
        refused(vec![ConfigProblem { place, what }])
    };
    let read = Cli::try_parse_from(words).map_err(|error| complaint(first_line(&error)))?;
    if let Command::Alone(StandaloneCommand::Serve(serve)) = &read.command {
        let judged = serve.check();
        judged.map_err(|error| complaint(with_causes(&error).to_string()))?;
    }
    if out.json {
        let line = json!({"file": file.to_string_lossy(), "options": set.0.len()});
        return Ok(out.line(line)?);
    }
    let count = set.0.len();
    Ok(out.line(format!("{}: {count} options, all valid", file.display()))?)
}

fn print(file: Option<&Path>, options: &[OsString], out: &mut Out) -> Result<(), ClientError> {
    let mut words = vec!["treering".into(), SERVE.into()];
    words.extend(options.iter().cloned());
    if let Some(file) = file {
        words.push("--config".into());
        words.push(file.into());
    }
    let put = ConfigLayer::together(&words, &os_env)?.unwrap_or_default();
    let mut all = words;
    all.extend(put.words());
    let matches = Cli::command().try_get_matches_from(all);
    let matches = matches.map_err(|error| refused(vec![of_line(&error)]))?;
    let serve = matches.subcommand_matches(SERVE);
    for option in options_of_serve() {
        let typed = serve.and_then(|serve| serve.value_source(&option.id));
        let (origin, values) = match put.0.iter().find(|set| set.name == option.name) {
            Some(setting) => (setting.origin.to_string(), setting.values.clone()),
            None => {
                let raw = serve.and_then(|serve| serve.try_get_raw(&option.id).ok()?);
                let values = raw.into_iter().flatten();
                let values = values.map(|value| value.to_string_lossy().into_owned());
                let origin = match typed == Some(ValueSource::CommandLine) {
                    true => "typed",
                    false => "default",
                };
                (origin.to_owned(), values.collect())
            }
        };
        let value = match option.name == SECRET && !values.is_empty() {
            true => "(hidden)".to_owned(),
            false => values.join(","),
        };
        if out.json {
            out.line(json!({"option": option.name, "value": value, "from": origin}))?;
        } else {
            let shown = if value.is_empty() { "-" } else { &value };
            out.line(format!("{:<26} {shown:<32} {origin}", option.name))?;
        }
    }
    Ok(())
}

/// Returns the command line. If the command is `serve`, appends the options from the environment
/// and the file.
///
/// # Errors
/// [`ClientError::Usage`] with all invalid options, [`ClientError::ReadFile`].
pub(crate) fn with_settings(mut words: Vec<OsString>) -> Result<Vec<OsString>, ClientError> {
    if let Some(put) = ConfigLayer::together(&words, &os_env)? {
        words.extend(put.words());
    }
    Ok(words)
}

/// Options from the environment and the file.
#[derive(Debug, Default)]
struct ConfigLayer(Vec<Setting>);

type Env<'a> = &'a dyn Fn(&str) -> Option<OsString>;

fn os_env(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn config_of(env: Env<'_>) -> Option<PathBuf> {
    env(CONFIG_ENV).map(PathBuf::from)
}

impl ConfigLayer {
    /// Returns `None` if the command is not `serve`.
    fn together(words: &[OsString], env: Env<'_>) -> Result<Option<Self>, ClientError> {
        // Errors are reported when the whole line is parsed.
        let lenient = Cli::command().ignore_errors(true);
        let Ok(matches) = lenient.try_get_matches_from(words) else {
            return Ok(None);
        };
        let Some(typed) = matches.subcommand_matches(SERVE) else {
            return Ok(None);
        };
        let named = typed.try_get_one::<PathBuf>("config").ok().flatten();
        let file = named.cloned().or_else(|| config_of(env));
        let of_file = match file {
            Some(file) => Settings::read(&file)?.0,
            None => Vec::new(),
        };
        let mut put = Vec::new();
        for option in options_of_serve() {
            if typed.value_source(&option.id) == Some(ValueSource::CommandLine) {
                continue;
            }
            let variable = option.variable();
            match env(&variable) {
                Some(value) => put.push(option.of_env(variable, &value)?),
                None => put.extend(of_file.iter().find(|it| it.name == option.name).cloned()),
            }
        }
        Ok(Some(Self(put)))
    }

    fn words(&self) -> impl Iterator<Item = OsString> + '_ {
        self.0.iter().flat_map(Setting::words).map(OsString::from)
    }
}

/// An option of `serve` that the file can set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServeOption {
    id: String,
    name: String,
    takes: OptionArity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionArity {
    /// A flag.
    Nothing,
    One,
    Several,
}

fn options_of_serve() -> Vec<ServeOption> {
    let mut command = Cli::command();
    command.build();
    let serve = command.find_subcommand(SERVE);
    let args = serve.into_iter().flat_map(clap::Command::get_arguments);
    args.filter_map(|arg| {
        let name = arg.get_long().filter(|name| !ONLY_TYPED.contains(name))?;
        let takes = match arg.get_action() {
            ArgAction::SetTrue => OptionArity::Nothing,
            ArgAction::Append => OptionArity::Several,
            ArgAction::Set => OptionArity::One,
            _ => return None,
        };
        Some(ServeOption {
            id: arg.get_id().to_string(),
            name: name.to_owned(),
            takes,
        })
    })
    .collect()
}

impl ServeOption {
    fn variable(&self) -> String {
        format!("{ENV_PREFIX}{}", self.name.replace('-', "_").to_uppercase())
    }

    fn of_env(&self, variable: String, value: &std::ffi::OsStr) -> Result<Setting, ClientError> {
        let text = value.to_string_lossy().into_owned();
        let values = match (self.takes, text.as_str()) {
            (OptionArity::Nothing, "true" | "1" | "yes") => Ok(vec!["true".to_owned()]),
            (OptionArity::Nothing, "false" | "0" | "no") => Ok(vec!["false".to_owned()]),
            (OptionArity::Nothing, _) => Err("must be true or false".to_owned()),
            _ => Ok(vec![text]),
        };
        let setting = values.map(|values| Setting {
            name: self.name.clone(),
            takes: self.takes,
            values,
            origin: Origin::Environment {
                variable: variable.clone(),
            },
        });
        let setting = setting.and_then(|setting| setting.check().map(|()| setting));
        setting.map_err(|what| {
            refused(vec![ConfigProblem {
                place: variable,
                what,
            }])
        })
    }
}

/// An option with its value and source.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    name: String,
    takes: OptionArity,
    values: Vec<String>,
    origin: Origin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Environment { variable: String },
    File { path: PathBuf, line: usize },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment { variable } => f.write_str(variable),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
        }
    }
}

impl Setting {
    /// Returns the option as words of a command line.
    fn words(&self) -> Vec<String> {
        match self.takes {
            OptionArity::Nothing if self.values == ["true"] => vec![format!("--{}", self.name)],
            OptionArity::Nothing => Vec::new(),
            // `serve` reads this variable itself.
            OptionArity::One if self.is_data_of_env() => Vec::new(),
            OptionArity::One | OptionArity::Several => {
                let value = |value| format!("--{}={value}", self.name);
                self.values.iter().map(value).collect()
            }
        }
    }

    fn is_data_of_env(&self) -> bool {
        matches!(&self.origin, Origin::Environment { variable } if variable == super::args::DATA_ENV)
    }

    /// # Errors
    /// The reason why the value is invalid on its own.
    fn check(&self) -> Result<(), String> {
        let words = ["treering".to_owned(), SERVE.to_owned()];
        match Cli::try_parse_from(words.into_iter().chain(self.words())) {
            // An option that this one requires is missing here. The whole line is checked later.
            Err(error) if error.kind() != clap::error::ErrorKind::MissingRequiredArgument => {
                let said = first_line(&error);
                let why = said
                    .split_once(">': ")
                    .map_or(said.as_str(), |(_, why)| why);
                Err(why.to_owned())
            }
            _ => Ok(()),
        }
    }
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    match lines.next() {
        Some(more) if first.ends_with(':') => format!("{first} {more}"),
        _ => first,
    }
}

fn of_line(error: &clap::Error) -> ConfigProblem {
    ConfigProblem {
        place: "the command line".to_owned(),
        what: first_line(error),
    }
}

/// An error in a setting.
#[derive(Debug)]
struct ConfigProblem {
    place: String,
    what: String,
}

fn refused(complaints: Vec<ConfigProblem>) -> ClientError {
    let lines = complaints
        .iter()
        .map(|it| format!("{}: {}", it.place, it.what));
    ClientError::Usage {
        what: lines.collect::<Vec<_>>().join("\n"),
        hint: "`treering serve --help` lists all options; `treering config print FILE` shows the \
               effective settings"
            .into(),
    }
}

/// The settings of a file.
#[derive(Debug)]
struct Settings(Vec<Setting>);

impl Settings {
    fn read(path: &Path) -> Result<Self, ClientError> {
        let text = fs::read_to_string(path).map_err(|cause| ClientError::ReadFile {
            path: path.to_owned(),
            cause,
        })?;
        Self::of(path, &text).map_err(refused)
    }

    fn of(path: &Path, text: &str) -> Result<Self, Vec<ConfigProblem>> {
        let document = Document::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            vec![ConfigProblem {
                place: format!("{}:{}", path.display(), line_of(text, at)),
                what: error.message().to_owned(),
            }]
        })?;
        let mut reading = ConfigReader {
            path,
            text,
            options: options_of_serve(),
            settings: Vec::new(),
            complaints: Vec::new(),
        };
        reading.table(document.as_table(), "");
        if reading.complaints.is_empty() {
            Ok(Self(reading.settings))
        } else {
            Err(reading.complaints)
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

struct ConfigReader<'a> {
    path: &'a Path,
    text: &'a str,
    options: Vec<ServeOption>,
    settings: Vec<Setting>,
    complaints: Vec<ConfigProblem>,
}

impl ConfigReader<'_> {
    fn table(&mut self, table: &dyn TableLike, within: &str) {
        for (key, item) in table.iter() {
            let name = match within {
                "" => key.to_owned(),
                within => format!("{within}-{key}"),
            };
            let span = table.key(key).and_then(toml_edit::Key::span);
            let line = line_of(self.text, span.map_or(0, |span| span.start));
            if let Err(what) = self.item(&name, item, line) {
                let place = format!("{}:{line}", self.path.display());
                self.complaints.push(ConfigProblem { place, what });
            }
        }
    }

    fn item(&mut self, name: &str, item: &Item, line: usize) -> Result<(), String> {
        if let Some(table) = item.as_table_like() {
            self.table(table, name);
            return Ok(());
        }
        let Some(option) = self.options.iter().find(|option| option.name == name) else {
            return Err(self.unknown(name));
        };
        let option = option.clone();
        if self.settings.iter().any(|setting| setting.name == name) {
            return Err(format!("{name} is set more than once"));
        }
        let value = item.as_value();
        let values = match (option.takes, value) {
            (OptionArity::Nothing, Some(Value::Boolean(is))) => vec![is.value().to_string()],
            (OptionArity::Nothing, _) => return Err(format!("{name} must be true or false")),
            (OptionArity::Several, Some(Value::Array(several))) => {
                let texts: Option<Vec<_>> = several.iter().map(text_of).collect();
                texts.ok_or_else(|| format!("{name} must be an array of strings or numbers"))?
            }
            (_, Some(value)) => {
                vec![text_of(value).ok_or_else(|| format!("{name} must be a string or a number"))?]
            }
            (_, None) => return Err(format!("{name} must be a string or a number")),
        };
        let setting = Setting {
            name: name.to_owned(),
            takes: option.takes,
            values,
            origin: Origin::File {
                path: self.path.to_owned(),
                line,
            },
        };
        setting.check().map_err(|why| format!("{name}: {why}"))?;
        self.settings.push(setting);
        Ok(())
    }

    fn unknown(&self, name: &str) -> String {
        let mut near: Vec<_> = self
            .options
            .iter()
            .map(|option| (strsim::jaro_winkler(&option.name, name), &option.name))
            .filter(|(likeness, _)| *likeness >= NEAR)
            .collect();
        near.sort_by(|a, b| b.0.total_cmp(&a.0));
        let near: Vec<_> = near.iter().take(3).map(|(_, name)| name.as_str()).collect();
        match near.as_slice() {
            [] => format!("{name} is not an option of serve"),
            near => format!(
                "{name} is not an option of serve; similar: {}",
                near.join(", ")
            ),
        }
    }
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        Value::Float(number) => Some(number.value().to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Vec<(String, Vec<String>)>, Vec<String>> {
        let read = Settings::of(Path::new("t.toml"), text);
        let read = read.map(|read| read.0.into_iter().map(|it| (it.name, it.values)).collect());
        read.map_err(|complaints| {
            let lines = complaints
                .into_iter()
                .map(|it| format!("{}: {}", it.place, it.what));
            lines.collect()
        })
    }

    fn put(line: &str, env: &[(&str, &str)]) -> Result<String, String> {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        let read = |name: &str| {
            let found = env.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let put = ConfigLayer::together(&words, &read).map_err(|error| error.to_string())?;
        let words = put.unwrap_or_default();
        let words = words
            .words()
            .map(|word| word.to_string_lossy().into_owned());
        Ok(words.collect::<Vec<_>>().join(" "))
    }

    // Precedence: flags, then environment, then the file. A value from the wrong source is often
    // noticed too late.
    #[test]
    fn flags_override_environment_and_environment_overrides_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("t.toml");
        let text = "listen = '127.0.0.1:1'\nmemory = '1GiB'\npseudonyms = true\n";
        fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let env = [("TREERING_MEMORY", "512MiB"), ("TREERING_CONFIG", file)];
        assert_eq!(
            put("treering serve --listen 127.0.0.1:2", &env).unwrap(),
            "--memory=512MiB --pseudonyms"
        );
        let line = format!("treering serve --config {file}");
        let all = "--listen=127.0.0.1:1 --memory=1GiB --pseudonyms";
        assert_eq!(put(&line, &[]).unwrap(), all);
        assert_eq!(put("treering ls", &env).unwrap(), "");
        assert_eq!(put("treering serve", &[]).unwrap(), "");
        let wrong = put("treering serve", &[("TREERING_LISTEN", "nowhere")]);
        assert!(wrong.unwrap_err().starts_with("TREERING_LISTEN: "));
        // `serve` reads this variable itself, and the file must not override it.
        fs::write(file, "data = '/of/file'").unwrap();
        assert_eq!(put(&line, &[("TREERING_DATA", "/of/env")]).unwrap(), "");
        assert_eq!(put(&line, &[]).unwrap(), "--data=/of/file");
    }

    // If a mistyped key were ignored, a server would listen at another address or have no limits.
    // All errors are reported at once, with their lines.
    #[test]
    fn unknown_and_invalid_settings_are_reported_with_line() {
        let text = "listn = '127.0.0.1:1'\n\n[summariser]\nurl = 7\nmodle = 'm'\n[other]\nx = 1\n";
        let wrong = settings(text).unwrap_err();
        assert_eq!(wrong.len(), 3, "{wrong:#?}");
        assert!(
            wrong[0].starts_with("t.toml:1: listn is not an option") && wrong[0].contains("listen")
        );
        assert!(wrong[1].starts_with("t.toml:5: ") && wrong[1].contains("summariser-model"));
        assert!(wrong[2].starts_with("t.toml:7: other-x is not an option"));
        for (text, place, said) in [
            ("memory = '1TB'", "t.toml:1", "MiB"),
            ("\nlisten = 'here'", "t.toml:2", "invalid"),
            ("listen = true", "t.toml:1", "string or a number"),
            ("json = true", "t.toml:1", "not an option"),
            ("listen = ", "t.toml:1", ""),
            ("[summariser]\nurl='u'\n[summariser]\n", "t.toml:3", ""),
        ] {
            let wrong = settings(text).unwrap_err().join("\n");
            assert!(wrong.starts_with(place) && wrong.contains(said), "{wrong}");
        }
    }

    // Lists, tables and flat names are equivalent.
    #[test]
    fn tables_and_lists_become_options() {
        let text = "summariser-url = 'http://h/v1'\n[summariser]\nmodel = 'm'\ntasks = ['dialogue', 'snapshots']";
        let pair = |name: &str, values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            (name.to_owned(), values)
        };
        assert_eq!(
            settings(text).unwrap(),
            [
                pair("summariser-url", &["http://h/v1"]),
                pair("summariser-model", &["m"]),
                pair("summariser-tasks", &["dialogue", "snapshots"]),
            ]
        );
        let twice = "summariser-url = 'http://a'\n[summariser]\nurl = 'http://b'";
        assert!(settings(twice).unwrap_err()[0].contains("more than once"));
    }
}
