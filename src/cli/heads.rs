//! `heads`, `verify --since`, and `serve --heads`: signed heads of a store's history.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use super::{
    args::Common,
    backup::{self, Remote, ShipRefusal},
    connect::Connection,
    error::{CliError, Exit, status_exit},
    json::Object,
    output::{Out, Steps, Tone},
    text::{count, things},
    time_arg::length,
};
use treering_domain::{PublicKey, unhex, with_causes};
use treering_engine::{Engine, Signer};
use treering_heads as heads;
use treering_heads::{HeadError, HeadKeeping, HeadTarget, HeadsKept, SignedHead};

/// Sign what the store's history is now, to hold the store against it later
///
/// Reads all of the log, checks its hash chains, and writes a head: a few hundred bytes with the
/// root of a tree of hashes over all conversations of all namespaces, signed. Keep it where the
/// store is not. `treering verify --since HEAD` tells later whether anything before it was
/// changed, removed or rolled back; what was appended since, and what was erased, is no
/// change. `treering serve --heads` makes heads by itself.
///
/// It is signed with the key that signs receipts, which is in the data folder, or better with
/// one that is elsewhere (--key): who has the folder can sign with the key in it.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering heads --make-key head.key                  once; it prints the public key
  treering heads --key head.key --out /mnt/other/head.json --data ./store
  treering verify --since /mnt/other/head.json --signer PUBLIC_KEY --data ./store
  treering serve --data ./store --heads 60s --heads-to s3://bucket/heads --heads-key head.key")]
pub struct HeadsArgs {
    /// Write the head to this file, in place of what it has; `-`: standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
    /// Sign with the key in this file. Default: the store's own, `receipts.key` of its folder
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Only make a key, in this file, which must not be there, and print its public half
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "key"])]
    pub(super) make_key: Option<PathBuf>,
}

/// What `verify` is told about a head.
#[derive(Args, Debug, Clone)]
pub struct SinceArgs {
    /// Check instead that nothing was changed, removed or rolled back of what this head, which
    /// `treering heads` or `serve --heads` wrote, says
    #[arg(long, value_name = "HEAD", conflicts_with_all = ["deep", "erased"])]
    since: Option<PathBuf>,
    /// Who must have signed the head: a public key. Default: the store's own, of its folder
    #[arg(long, value_name = "PUBLIC_KEY", requires = "since", value_parser = public_key)]
    signer: Option<PublicKey>,
    /// The store was restored from a backup of the one that the head is of, so it has another id
    #[arg(long, requires = "since")]
    restored: bool,
}

fn public_key(text: &str) -> Result<PublicKey, String> {
    let key = unhex(text.trim().as_bytes()).map(PublicKey);
    key.ok_or_else(|| "a public key has 64 hexadecimal digits, as `signed_by` of a head".into())
}

fn cannot_use(path: &Path, error: &io::Error) -> CliError {
    CliError::Usage {
        what: format!("the key file {} cannot be used: {error}", path.display()),
        hint: "`treering heads --make-key FILE` makes one that is not there".into(),
    }
}

fn no_key(what: &str) -> CliError {
    CliError::Usage {
        what: what.into(),
        hint: "sign with one of your own: `treering heads --make-key FILE`, then --key FILE".into(),
    }
}

const OWN_KEY: &str = "the store's key";

impl HeadsArgs {
    /// True when the folder is to get a key.
    pub fn makes_own_key(&self, common: &Common) -> Result<bool, CliError> {
        let data = common.folder()?.filter(|_| self.key.is_none());
        Ok(data.is_some_and(|data| matches!(Signer::found_in_store(&data), Ok(None))))
    }

    fn signer(&self, common: &Common, store: &Connection) -> Result<Signer, CliError> {
        if let Some(path) = &self.key {
            return Signer::of_file(path).map_err(|error| cannot_use(path, &error));
        }
        let data = common.folder()?;
        let data = data.ok_or_else(|| no_key("a server's key does not leave its folder"))?;
        // A server that has the folder makes it when it needs one.
        let own = match store.is_embedded() {
            true => Signer::of_store(&data).map(Some),
            false => Signer::found_in_store(&data),
        };
        let own = own.map_err(|error| cannot_use(Path::new(OWN_KEY), &error))?;
        own.ok_or_else(|| no_key("the store has no key yet, and a server has its folder"))
    }
}

/// Makes a key.
///
/// # Errors
/// [`CliError::Outcome`] when it cannot be made.
pub fn make_key(path: &Path, out: &mut Out) -> Result<(), CliError> {
    let made = Signer::make(path).map_err(|error| CliError::Outcome {
        what: format!("no key was made in {}: {error}", path.display()),
        hint: "name a file that is not there, in a folder that is".into(),
        exit: Exit::Failed,
    })?;
    let public = made.public().to_string();
    if out.json {
        let mut object = Object::new();
        object
            .string("key", &path.display().to_string())
            .string("public_key", &public);
        return Ok(out.line(object.finish())?);
    }
    Ok(out.line(public)?)
}

/// Signs a head.
///
/// # Errors
/// [`CliError::Outcome`], and what the store says.
pub async fn run(
    args: &HeadsArgs,
    common: &Common,
    store: &Connection,
    out: &mut Out,
) -> Result<(), CliError> {
    let signer = args.signer(common, store)?;
    let bar = Steps::start("heads");
    let source = Remote(store);
    let found = heads::survey(&source, None, |done, total| bar.reach(done, total));
    let found = found.await.map_err(|error| refused(&error))?;
    drop(bar);
    let Some(root) = found.root else {
        return Err(refused(&HeadError::Shorter {
            ends: 0,
            position: found.ends,
        }));
    };
    let head = SignedHead::sign(found.log, found.at, root, &signer);
    if args.out == Path::new("-") {
        return Ok(out.line(head.text())?);
    }
    let written = heads::write(&args.out, &format!("{}\n", head.text()));
    written.map_err(|error| CliError::Outcome {
        what: format!("cannot write {}: {error}", args.out.display()),
        hint: "name a file in a folder that is there and may be written".into(),
        exit: Exit::Failed,
    })?;
    if out.json {
        return Ok(out.line(head.text())?);
    }
    Ok(out.line(format!(
        "Signed by {}: {} up to position {}, in {}",
        head.signed_by,
        things(head.conversations, "conversation", "conversations"),
        count(head.position),
        args.out.display()
    ))?)
}

impl SinceArgs {
    /// The head that the store is to be held against.
    pub fn head(&self) -> Option<&Path> {
        self.since.as_deref()
    }

    fn wanted(&self, head: &SignedHead, common: &Common) -> Result<PublicKey, CliError> {
        if let Some(signer) = self.signer {
            return Ok(signer);
        }
        let own = common.folder()?.as_deref().map(Signer::found_in_store);
        let own = own.transpose();
        let own = own.map_err(|error| cannot_use(Path::new(OWN_KEY), &error))?;
        match own.flatten() {
            Some(own) => Ok(own.public()),
            None => Err(CliError::Usage {
                what:
                    "whose signature the head must have is not known: no key of the store is here"
                        .into(),
                hint: format!(
                    "say it with --signer PUBLIC_KEY; the head says that it was signed by {}",
                    head.signed_by
                ),
            }),
        }
    }
}

/// Holds a store against a head.
///
/// # Errors
/// [`CliError::Outcome`] when it is not as it was signed.
pub async fn check(
    path: &Path,
    args: &SinceArgs,
    common: &Common,
    store: &Connection,
    out: &mut Out,
) -> Result<(), CliError> {
    let text = fs::read_to_string(path).map_err(|cause| CliError::ReadFile {
        path: path.to_owned(),
        cause,
    })?;
    let head = SignedHead::read(&text).map_err(|error| refused(&error))?;
    let signer = args.wanted(&head, common)?;
    let bar = Steps::start("verify");
    let source = Remote(store);
    let checked = heads::check(&source, &head, signer, args.restored, |done, total| {
        bar.reach(done, total);
    });
    let checked = checked.await;
    drop(bar);
    if let (Err(error), true) = (&checked, out.json) {
        let mut object = Object::new();
        object
            .boolean("as_signed", false)
            .string("fault", &with_causes(error).to_string());
        out.line(object.finish())?;
    }
    let checked = checked.map_err(|error| refused(&error))?;
    if out.json {
        let mut object = Object::new();
        object
            .boolean("as_signed", true)
            .number("position", head.position)
            .number("conversations", head.conversations)
            .string("signed_by", &head.signed_by.to_string())
            .number("ends", checked.ends)
            .number("erased", checked.erased);
        return Ok(out.line(object.finish())?);
    }
    let erased = match checked.erased {
        0 => String::new(),
        events => format!(
            "; {}, as the history says",
            things(events, "event was erased", "events were erased")
        ),
    };
    Ok(out.line(format!(
        "{}: {} up to position {}, and {} since{erased}",
        out.paint.text(Tone::Good, "as signed"),
        things(head.conversations, "conversation", "conversations"),
        count(head.position),
        things(
            checked.ends.saturating_sub(head.position),
            "event",
            "events"
        ),
    ))?)
}

/// What a person is told, and the exit code.
fn refused(error: &HeadError) -> CliError {
    let what = with_causes(error).to_string();
    let (hint, exit) = match error {
        HeadError::NoHead { .. } => (
            "name what `treering heads` or `serve --heads` wrote",
            Exit::Usage,
        ),
        HeadError::Newer { .. } => ("use a treering as new as the one that made it", Exit::Newer),
        HeadError::Signature(_) => (
            "take the head as it was written: this one proves nothing",
            Exit::Refused,
        ),
        HeadError::ForeignSigner { .. } => (
            "if you know that this is the right one, name it with --signer",
            Exit::Refused,
        ),
        HeadError::OtherStore { .. } => (
            "name the right store, or the right head; of a store that was restored from a backup \
             say --restored",
            Exit::Refused,
        ),
        HeadError::Shorter { .. } | HeadError::Changed { .. } | HeadError::NotErased { .. } => (
            "keep a copy of the folder, and find out who changed it; older heads narrow down since \
             when. `treering restore` makes a store of a backup, which `verify --since HEAD \
             --restored` checks",
            Exit::Damaged,
        ),
        HeadError::Broken { .. } => (
            "`treering verify` tells all that is wrong with the store itself",
            Exit::Damaged,
        ),
        HeadError::Unreadable(cause) => (
            "`treering verify` tells whether the store is sound; through a server it takes a key \
             of an admin of every namespace",
            cause
                .downcast_ref::<ShipRefusal>()
                .map_or(Exit::Failed, |told| status_exit(told.code)),
        ),
        HeadError::Failed { .. } => (
            "check that there is room where temporary files are",
            Exit::Failed,
        ),
    };
    CliError::Outcome {
        what,
        hint: hint.into(),
        exit,
    }
}

/// A server's heads.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Signed heads")]
pub struct KeepHeadsArgs {
    /// So often, when something was appended, sign what the history is (see `treering heads
    /// --help`) and put that where --heads-to says. At least 1s
    #[arg(long, value_name = "EVERY", value_parser = every, requires = "heads_to")]
    heads: Option<Duration>,
    /// Where heads go: a folder or a bucket, as of --backup, with a file for each; a file whose
    /// name ends with .json, with the newest; or http(s)://…, which each is sent to (POST, JSON)
    #[arg(long, value_name = "TO", requires = "heads")]
    heads_to: Option<String>,
    /// Sign them with the key in this file, which is better not in the data folder. Default: the
    /// store's own, `receipts.key`
    #[arg(long, value_name = "FILE", requires = "heads")]
    heads_key: Option<PathBuf>,
}

fn every(text: &str) -> Result<Duration, String> {
    let every = length(text)?;
    match every >= Duration::from_secs(1) {
        true => Ok(every),
        false => Err("takes at least 1s".into()),
    }
}

/// Heads that a server is to keep.
pub struct HeadsToKeep {
    every: Duration,
    target: HeadTarget,
    /// None: the store's own, once that is open.
    signer: Option<Signer>,
}

impl KeepHeadsArgs {
    /// Finds fault before anything is opened.
    ///
    /// # Errors
    /// [`CliError::Usage`], [`CliError::Outcome`] for a place or a key that cannot be used.
    pub fn prepare(&self, data: &Path) -> Result<Option<HeadsToKeep>, CliError> {
        let (Some(every), Some(to)) = (self.heads, &self.heads_to) else {
            return Ok(None);
        };
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if !to.contains("://") && absolute(Path::new(to)).starts_with(absolute(data)) {
            return Err(CliError::Usage {
                what: format!("{to} is in the data folder, which heads are to be held against"),
                hint: "name a place that is not changed together with it, best on another machine"
                    .into(),
            });
        }
        let target = HeadTarget::new(to).map_err(|error| backup::refused(&error))?;
        let signer = self
            .heads_key
            .as_deref()
            .map(|path| Signer::of_file(path).map_err(|error| cannot_use(path, &error)));
        Ok(Some(HeadsToKeep {
            every,
            target,
            signer: signer.transpose()?,
        }))
    }
}

impl HeadsToKeep {
    /// Keeps heads of a store that this process has in this folder.
    ///
    /// # Errors
    /// [`CliError::Usage`] when the store can have no key.
    pub fn start(self, engine: &Engine, data: &Path) -> Result<HeadsKept, CliError> {
        let signer = match self.signer {
            Some(signer) => signer,
            None => {
                Signer::of_store(data).map_err(|error| cannot_use(Path::new(OWN_KEY), &error))?
            }
        };
        Ok(HeadKeeping::new(engine.clone(), signer, self.target).start(self.every))
    }
}
