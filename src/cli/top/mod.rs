//! `top`: a running server, as it is now, on a terminal.
//!
//! `scrape` reads what a server says, `source` asks it, `figures` are what an operator wants to
//! know of two such answers, `view` draws them. Here is who asks when, and which keys do what.

mod figures;
mod scrape;
mod source;
mod view;

use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};

use self::{
    figures::Figures,
    scrape::Scrape,
    source::{Asker, MetricsUrl, ServerPlace},
    view::Glance,
};
use super::{
    args::{Common, Target},
    config::{self, Configured},
    error::{CliError, Exit},
    output::Out,
    serve::{listen_default, stop_signal},
    time_arg::length,
};
use crate::{domain::TimestampMicros, engine::holder_of};

/// Between looks at the keys by the thread that reads them.
const KEYS_LOOK: Duration = Duration::from_millis(100);
/// The shortest time between two looks at a server.
const EVERY_MIN: Duration = Duration::from_millis(100);
/// The clock of the view is drawn so often.
const DRAW_EVERY: Duration = Duration::from_secs(1);
/// A frame for scripts has so many rows at most.
const PLAIN_ROWS: u16 = 200;
/// Fewest columns of such a frame.
const PLAIN_COLUMNS_MIN: usize = 40;
const KEYS_MAX: usize = 64;
/// Where packages keep the configuration of the server.
const INSTALLED_CONFIG: &str = "/etc/treering/treering.toml";

/// Watch a running server: rates, latencies, queues, room, requests by method
///
/// Without an address it looks for the server of the data folder (--data) and for its
/// metrics: what the server wrote into its folder, else `metrics` of the configuration
/// file, or of /etc/treering/treering.toml. A server without metrics (serve --metrics ADDR turns them on), and one that
/// --server names, is asked by gRPC, which tells less. q or Ctrl-C ends it.
///
/// With --once, or when the output is no terminal, it looks twice and prints one frame as
/// text; with --json one object, in which rates are those between the two looks.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering top
  treering top --data /var/lib/treering/store
  treering top http://127.0.0.1:9464
  treering top --server https://db.example:7171 --token @key
  treering top --once --every 10s
  treering top --once --json | jq .appends_per_second")]
pub struct TopArgs {
    /// Where its metrics are, as `serve --metrics` has it: http://HOST:PORT
    #[arg(value_name = "URL", conflicts_with = "server")]
    url: Option<String>,
    /// Look so often
    #[arg(long, value_name = "TIME", value_parser = every, default_value = "1s")]
    every: Duration,
    /// Look twice, print one frame and end
    #[arg(long)]
    once: bool,
    /// The server's configuration file (or $TREERING_CONFIG), for its folder and its metrics
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

fn every(text: &str) -> Result<Duration, String> {
    let every = length(text)?;
    if every < EVERY_MIN {
        return Err(format!("{} ms at least", EVERY_MIN.as_millis()));
    }
    Ok(every)
}

/// Shows a server until told to stop.
///
/// # Errors
/// [`CliError::Connect`] when no server answers at first; later that is shown.
pub async fn run(args: &TopArgs, common: &Common, out: &mut Out) -> Result<(), CliError> {
    let mut look = Look::new(args, common)?;
    let first = look.look().await?;
    if args.once || out.json || !io::stdout().is_terminal() {
        sleep(args.every).await;
        let second = look.look().await?;
        return print(&look, &first, &second, out);
    }
    watch(look, first, args.every).await
}

fn print(look: &Look, first: &Seen, second: &Seen, out: &mut Out) -> Result<(), CliError> {
    let mut shown = look.shown();
    see(&mut shown, second, Some(first));
    if out.json {
        let mut all = shown.figures.json();
        all["from"] = json!(shown.from);
        all["seconds"] = json!((second.at - first.at).as_secs_f64());
        out.line(all)?;
        return Ok(());
    }
    let columns = u16::try_from(out.width.max(PLAIN_COLUMNS_MIN)).unwrap_or(u16::MAX);
    for line in view::plain(&shown, columns, PLAIN_ROWS) {
        out.line(line.replace("  q quits", "").trim_end())?;
    }
    Ok(())
}

/// One answer of a server.
#[derive(Clone, Debug)]
struct Seen {
    at: Instant,
    scrape: Scrape,
}

/// Who looks for a server, and at it.
#[derive(Debug)]
struct Look {
    args: TopArgs,
    common: Common,
    asker: Asker,
    source: ServerPlace,
}

impl Look {
    fn new(args: &TopArgs, common: &Common) -> Result<Self, CliError> {
        Ok(Self {
            args: args.clone(),
            common: common.clone(),
            asker: Asker::new(common.clone()),
            source: find(args, common)?,
        })
    }

    /// What the server says now. One that is gone is looked for again: it may have come
    /// back elsewhere.
    async fn look(&mut self) -> Result<Seen, CliError> {
        match self.asker.ask(&self.source).await {
            Ok(scrape) => Ok(Seen {
                at: Instant::now(),
                scrape,
            }),
            Err(error) => {
                let error = told(error, &self.source);
                if let Ok(source) = find(&self.args, &self.common) {
                    self.source = source;
                }
                Err(error)
            }
        }
    }

    fn shown(&self) -> Glance {
        Glance {
            from: self.source.to_string(),
            hint: hint(&self.source),
            ..Glance::default()
        }
    }
}

fn hint(source: &ServerPlace) -> Option<String> {
    matches!(source, ServerPlace::Services(_)).then(|| {
        "less is told by gRPC: for rates and latencies start it with serve --metrics \
         127.0.0.1:9464"
            .to_owned()
    })
}

/// With what to do about it.
fn told(error: CliError, source: &ServerPlace) -> CliError {
    match error {
        CliError::Connect { url, cause } => CliError::Outcome {
            what: format!("no server can be watched at {url}: {cause}"),
            hint: match source {
                ServerPlace::Metrics(_) => {
                    "is it running, and is this the address of its `serve --metrics`?"
                }
                ServerPlace::Services(_) => {
                    "start one with `treering serve`, name its folder with --data, or give the \
                     address of its metrics: treering top http://HOST:PORT"
                }
            }
            .into(),
            exit: Exit::Unavailable,
        },
        error => error,
    }
}

/// Where the server is that the options mean.
fn find(args: &TopArgs, common: &Common) -> Result<ServerPlace, CliError> {
    if let Some(url) = &args.url {
        return Ok(ServerPlace::Metrics(MetricsUrl::read(url)?));
    }
    let named = config::of_serve(args.config.as_deref())?;
    let dir = match (common.target()?, &named.data) {
        (Target::Server(url), _) => return Ok(ServerPlace::Services(url)),
        (Target::Data(_), Some(dir)) if common.data.is_none() => dir.clone(),
        (Target::Data(dir), _) => dir,
    };
    let served = holder_of(&dir);
    let configured = match common.data {
        Some(_) => None,
        None if named.metrics.is_some() || served.address.is_some() => named.metrics,
        None => installed().metrics,
    };
    let fixed = configured.filter(|address| !address.ends_with(":0"));
    if let Some(url) = served.metrics.or(fixed) {
        return Ok(ServerPlace::Metrics(MetricsUrl::read(&url)?));
    }
    let services = served.address;
    let services = services.unwrap_or_else(|| format!("http://{}", listen_default()));
    Ok(ServerPlace::Services(services))
}

/// What a server from a package is told. One that cannot be read is none of ours.
fn installed() -> Configured {
    let file = Path::new(INSTALLED_CONFIG);
    let read = file.is_file().then(|| config::of_serve(Some(file)));
    read.and_then(Result::ok).unwrap_or_default()
}

/// Puts an answer into what is shown.
fn see(shown: &mut Glance, seen: &Seen, before: Option<&Seen>) {
    let seconds = before.map_or(0.0, |before| (seen.at - before.at).as_secs_f64());
    let before = before.map(|before| &before.scrape);
    shown.take(Figures::of(&seen.scrape, before, seconds));
    shown.up_seconds = shown.figures.started_at.map(|from| now() - from);
}

/// In seconds since 1970.
#[allow(clippy::cast_precision_loss)] // Shown in whole seconds.
fn now() -> f64 {
    TimestampMicros::now().0 as f64 / 1e6
}

/// What a key, or the terminal, asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Quit,
    Redraw,
    Nothing,
}

fn asked(event: &Event) -> Asked {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind,
        ..
    }) = event
    else {
        return match event {
            Event::Resize(..) | Event::FocusGained => Asked::Redraw,
            _ => Asked::Nothing,
        };
    };
    let held = modifiers.contains(KeyModifiers::CONTROL);
    match code {
        _ if *kind == KeyEventKind::Release => Asked::Nothing,
        KeyCode::Char('c' | 'C' | 'd') if held => Asked::Quit,
        KeyCode::Char('l') if held => Asked::Redraw,
        KeyCode::Char('q' | 'Q') | KeyCode::Esc if !held => Asked::Quit,
        _ => Asked::Nothing,
    }
}

/// The terminal while it is a view; as it was once this is dropped.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self, CliError> {
        let opened = ratatui::try_init().map_err(|error| {
            ratatui::restore();
            CliError::Outcome {
                what: format!("this terminal cannot show it: {error}"),
                hint: "treering top --once prints it as text".into(),
                exit: Exit::Failed,
            }
        });
        opened.map(Self)
    }

    fn draw(&mut self, shown: &Glance) -> io::Result<()> {
        self.0
            .draw(|frame| view::draw(shown, frame.area(), frame.buffer_mut()))
            .map(drop)
    }

    /// The next drawing draws all of it. [`Terminal::clear`](ratatui::Terminal::clear) would ask
    /// the terminal where its cursor is, and the answer comes as keys do, to another thread.
    fn clear(&mut self) -> io::Result<()> {
        let size = self.0.size()?;
        self.0.resize(size.into())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        ratatui::restore();
    }
}

/// What keys ask for. The thread ends with its receiver.
fn keys() -> mpsc::Receiver<Asked> {
    let (sender, keys) = mpsc::channel(KEYS_MAX);
    thread::spawn(move || {
        // An error is a terminal that is gone.
        while let Ok(waits) = event::poll(KEYS_LOOK) {
            if sender.is_closed() {
                return;
            }
            if !waits {
                continue;
            }
            let Ok(event) = event::read() else { return };
            if sender.blocking_send(asked(&event)).is_err() {
                return;
            }
        }
    });
    keys
}

/// What is known of a server that is looked at again and again.
type Looked = (ServerPlace, Result<Seen, String>);

async fn look_again(mut look: Look, every: Duration, sender: mpsc::Sender<Looked>) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let seen = look.look().await.map_err(|error| error.to_string());
        if sender.send((look.source.clone(), seen)).await.is_err() {
            return;
        }
    }
}

/// Shows it until a key or a signal ends it.
async fn watch(look: Look, first: Seen, every: Duration) -> Result<(), CliError> {
    let mut stop = std::pin::pin!(stop_signal());
    let mut shown = look.shown();
    see(&mut shown, &first, None);
    let mut last = first;
    let (sender, mut looked) = mpsc::channel(1);
    // Whoever ends it does not wait for an answer.
    let mut looking = JoinSet::new();
    looking.spawn(look_again(look, every, sender));
    let mut screen = Screen::open()?;
    let mut keys = keys();
    let mut clock = interval(DRAW_EVERY);
    loop {
        screen.draw(&shown)?;
        tokio::select! {
            () = &mut stop => return Ok(()),
            Some(asked) = keys.recv() => match asked {
                Asked::Quit => return Ok(()),
                Asked::Redraw => screen.clear()?,
                Asked::Nothing => {}
            },
            seen = looked.recv() => match seen {
                Some((source, seen)) => take(&mut shown, &mut last, &source, seen),
                // It panicked, and the terminal is not ours any more.
                None => return Err(broken()),
            },
            _ = clock.tick() => grow_older(&mut shown, &last),
        }
    }
}

fn broken() -> CliError {
    CliError::Outcome {
        what: "what asks the server has broken off".into(),
        hint: "this is a fault in treering: please report it, with what stands above".into(),
        exit: Exit::Failed,
    }
}

fn take(shown: &mut Glance, last: &mut Seen, source: &ServerPlace, seen: Result<Seen, String>) {
    match seen {
        Ok(seen) => {
            shown.from = source.to_string();
            shown.hint = hint(source);
            see(shown, &seen, Some(last));
            *last = seen;
        }
        Err(why) => shown.trouble = Some((last.at.elapsed().as_secs(), why)),
    }
}

/// What changes though nobody answers.
fn grow_older(shown: &mut Glance, last: &Seen) {
    if let Some((since, _)) = &mut shown.trouble {
        *since = last.at.elapsed().as_secs();
    }
}

#[cfg(test)]
mod tests;
