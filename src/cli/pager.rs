//! Pages long output as git does: with `$TREERING_PAGER`, else `$PAGER`, else `less`, which quits
//! if the output fits the screen.

use std::{
    env, io,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
};

/// Default options of `less`: quit if all fits, keep colours, leave the screen unchanged.
const LESS: &str = "FRX";

/// A running pager.
#[derive(Debug)]
pub(crate) struct Pager {
    child: Child,
}

impl Pager {
    /// Starts the user's pager. `None` if there is none, or the user has disabled it.
    pub(crate) fn start() -> Option<(Self, ChildStdin)> {
        let command = wanted(|name| env::var(name).ok())?;
        let mut child = shell(&command).stdin(Stdio::piped()).spawn().ok()?;
        let to = child.stdin.take()?;
        Some((Self { child }, to))
    }

    /// Waits until the user quits the pager.
    pub(crate) fn wait(mut self) {
        // The exit code does not matter: the output was shown, or the user did not want it.
        let _ = self.child.wait();
    }
}

/// Returns the command of the pager, or `None` if it is `cat`, empty or not installed.
fn wanted(var: impl Fn(&str) -> Option<String>) -> Option<String> {
    let command = var("TREERING_PAGER")
        .or_else(|| var("PAGER"))
        .unwrap_or_else(|| "less".into());
    let program = command.split_whitespace().next()?;
    let path = var("PATH").unwrap_or_default();
    let is_there = |program: &str| {
        program.contains('/')
            || env::split_paths(&path).any(|folder| Path::new(&folder).join(program).is_file())
    };
    (program != "cat" && is_there(program)).then_some(command)
}

#[cfg(unix)]
fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command);
    if env::var_os("LESS").is_none() {
        shell.env("LESS", LESS);
    }
    shell
}

#[cfg(not(unix))]
fn shell(command: &str) -> Command {
    let mut words = command.split_whitespace();
    let mut shell = Command::new(words.next().unwrap_or("more"));
    shell.args(words).env("LESS", LESS);
    shell
}

/// Ignores Ctrl-C in this process, so that a running pager handles it. The command ends when the
/// user quits the pager.
pub(crate) async fn leave_interrupts() -> io::Result<()> {
    loop {
        tokio::signal::ctrl_c().await?;
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    // If the pager is missing, the output must still be shown. An empty value or `cat` disables it.
    #[test]
    fn pager_is_chosen_from_the_environment() {
        let env = |pairs: &'static [(&'static str, &'static str)]| {
            move |name: &str| {
                let value = pairs.iter().find(|(key, _)| *key == name);
                value.map(|(_, value)| (*value).to_owned())
            }
        };
        let sh = ("PATH", "/bin:/usr/bin");
        let chosen = |pairs| wanted(env(pairs));
        assert_eq!(chosen(&[("PATH", "/nowhere")]), None);
        assert_eq!(chosen(&[("PAGER", ""), ("PATH", "/bin")]), None);
        assert_eq!(chosen(&[("PAGER", "cat"), ("PATH", "/bin")]), None);
        assert_eq!(
            wanted(env(&[("PAGER", "sh -c cat"), ("PATH", "/bin")])),
            Some("sh -c cat".into())
        );
        let _ = sh;
        let both = env(&[("TREERING_PAGER", "cat"), ("PAGER", "sh"), ("PATH", "/bin")]);
        assert_eq!(wanted(both), None);
    }
}
