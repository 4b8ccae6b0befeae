//! `heads`, `verify --since` and `serve --heads`: signed heads of the log.

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
    error::{ClientError, Exit, status_exit},
    json::Object,
    output::{Out, Steps, Tone},
    text::{count, things},
    time_arg::length,
};
use treering_domain::{PublicKey, unhex, with_causes};
use treering_engine::{Engine, Signer};
use treering_heads as heads;
use treering_heads::{HeadError, HeadKeeper, HeadKeeperHandle, HeadTarget, SignedHead};

/// Sign the current state of the store's history, to verify the store against it later
///
/// Reads the whole log, checks its hash chains, and writes a head: a signed file of a few hundred
/// bytes, with the root of a hash tree over all conversations of all namespaces. Keep it away from
/// the store. `treering verify --since HEAD` later tells whether anything before it was changed,
/// removed or rolled back. Later appends and erasures are not changes. `treering serve --heads`
/// signs heads regularly.
///
/// The head is signed with the key that signs receipts, which is in the data folder, or with --key.
/// A key outside the folder is better: whoever has the folder can sign with the key in it.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  treering heads --make-key head.key                  create a key; prints the public key
  treering heads --key head.key --out /mnt/other/head.json --data ./store
  treering verify --since /mnt/other/head.json --signer PUBLIC_KEY --data ./store
  treering serve --data ./store --heads 60s --heads-to s3://bucket/heads --heads-key head.key")]
pub(crate) struct HeadsArgs {
    /// Write the head to this file, replacing it; `-` for standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
    /// Sign with the key in this file. Default: the store's own, `receipts.key` in its folder
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Only create a key in this file, which must not exist, and print its public key
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "key"])]
    pub(super) make_key: Option<PathBuf>,
}

/// Options of `verify` for a head.
#[derive(Args, Debug, Clone)]
pub(crate) struct SinceArgs {
    /// Check instead that nothing before this head was changed, removed or rolled back. The head is
    /// a file of `treering heads` or `serve --heads`
    #[arg(long, value_name = "HEAD", conflicts_with_all = ["deep", "erased"])]
    since: Option<PathBuf>,
    /// Public key that must have signed the head. Default: the store's own, in its folder
    #[arg(long, value_name = "PUBLIC_KEY", requires = "since", value_parser = public_key)]
    signer: Option<PublicKey>,
    /// The store was restored from a backup of the head's store, so it has another id
    #[arg(long, requires = "since")]
    restored: bool,
}

fn public_key(text: &str) -> Result<PublicKey, String> {
    let key = unhex(text.trim().as_bytes()).map(PublicKey);
    key.ok_or_else(|| "a public key has 64 hexadecimal digits, like `signed_by` of a head".into())
}

fn cannot_use(path: &Path, error: &io::Error) -> ClientError {
    ClientError::Usage {
        what: format!("the key file {} is unusable: {error}", path.display()),
        hint: "`treering heads --make-key FILE` creates a new one".into(),
    }
}

fn no_key(what: &str) -> ClientError {
    ClientError::Usage {
        what: what.into(),
        hint: "sign with your own key: `treering heads --make-key FILE`, then --key FILE".into(),
    }
}

const OWN_KEY: &str = "the store's key";

impl HeadsArgs {
    /// Returns true if the store's own key may have to be created in the folder.
    pub(crate) fn makes_own_key(&self, common: &Common) -> Result<bool, ClientError> {
        let data = common.folder()?.filter(|_| self.key.is_none());
        Ok(data.is_some_and(|data| matches!(Signer::found_in_store(&data), Ok(None))))
    }

    fn signer(&self, common: &Common, store: &Connection) -> Result<Signer, ClientError> {
        if let Some(path) = &self.key {
            return Signer::of_file(path).map_err(|error| cannot_use(path, &error));
        }
        let data = common.folder()?;
        let data = data.ok_or_else(|| no_key("a server's key does not leave its data folder"))?;
        // A server that has the folder open creates the key when needed.
        let own = match store.is_embedded() {
            true => Signer::of_store(&data).map(Some),
            false => Signer::found_in_store(&data),
        };
        let own = own.map_err(|error| cannot_use(Path::new(OWN_KEY), &error))?;
        own.ok_or_else(|| no_key("the store has no key yet, and a server holds its folder"))
    }
}

/// Creates a key.
///
/// # Errors
/// [`ClientError::Outcome`] if it cannot be created.
pub(crate) fn make_key(path: &Path, out: &mut Out) -> Result<(), ClientError> {
    let made = Signer::make(path).map_err(|error| ClientError::Outcome {
        what: format!("no key was created in {}: {error}", path.display()),
        hint: "name a new file in an existing folder".into(),
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
/// [`ClientError::Outcome`]; errors of the store.
pub(crate) async fn run(
    args: &HeadsArgs,
    common: &Common,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
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
    written.map_err(|error| ClientError::Outcome {
        what: format!("cannot write {}: {error}", args.out.display()),
        hint: "name a file in an existing, writable folder".into(),
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
    /// Returns the path of the head to check against.
    pub(crate) fn head(&self) -> Option<&Path> {
        self.since.as_deref()
    }

    fn wanted(&self, head: &SignedHead, common: &Common) -> Result<PublicKey, ClientError> {
        if let Some(signer) = self.signer {
            return Ok(signer);
        }
        let own = common.folder()?.as_deref().map(Signer::found_in_store);
        let own = own.transpose();
        let own = own.map_err(|error| cannot_use(Path::new(OWN_KEY), &error))?;
        match own.flatten() {
            Some(own) => Ok(own.public()),
            None => Err(ClientError::Usage {
                what: "the expected signer is unknown: the store's key is not available here"
                    .into(),
                hint: format!(
                    "give it with --signer PUBLIC_KEY; the head states the signer {}",
                    head.signed_by
                ),
            }),
        }
    }
}

/// Checks a store against a head.
///
/// # Errors
/// [`ClientError::Outcome`] if the store differs from it.
pub(crate) async fn check(
    path: &Path,
    args: &SinceArgs,
    common: &Common,
    store: &Connection,
    out: &mut Out,
) -> Result<(), ClientError> {
    let text = fs::read_to_string(path).map_err(|cause| ClientError::ReadFile {
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
            "; {}, as recorded in the history",
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

/// Returns the error as users see it, with a hint and an exit code.
fn refused(error: &HeadError) -> ClientError {
    let what = with_causes(error).to_string();
    let (hint, exit) = match error {
        HeadError::NoHead { .. } => (
            "use a file that `treering heads` or `serve --heads` wrote",
            Exit::Usage,
        ),
        HeadError::Newer { .. } => (
            "use the version of treering that made it, or a newer one",
            Exit::Newer,
        ),
        HeadError::Signature(_) => (
            "use the head exactly as it was written: this one proves nothing",
            Exit::Refused,
        ),
        HeadError::ForeignSigner { .. } => (
            "if you trust this key, name it with --signer",
            Exit::Refused,
        ),
        HeadError::OtherStore { .. } => (
            "use the right store or the right head; for a store that was restored from a backup \
             add --restored",
            Exit::Refused,
        ),
        HeadError::Shorter { .. } | HeadError::Changed { .. } | HeadError::NotErased { .. } => (
            "keep a copy of the folder, and find out who changed it; older heads show since when. \
             `treering restore` restores a backup, and `verify --since HEAD --restored` checks it",
            Exit::Damaged,
        ),
        HeadError::Broken { .. } => (
            "`treering verify` lists all faults of the store itself",
            Exit::Damaged,
        ),
        HeadError::Unreadable(cause) => (
            "`treering verify` checks the store; through a server it needs a key with the role \
             admin for every namespace",
            cause
                .downcast_ref::<ShipRefusal>()
                .map_or(Exit::Failed, |told| status_exit(told.code)),
        ),
        HeadError::Failed { .. } => ("check the free space for temporary files", Exit::Failed),
    };
    ClientError::Outcome {
        what,
        hint: hint.into(),
        exit,
    }
}

/// Signed heads of a server.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Signed heads")]
pub(crate) struct KeepHeadsArgs {
    /// Sign a head at this interval if something was appended (see `treering heads --help`), and
    /// write it to --heads-to. At least 1s
    #[arg(long, value_name = "EVERY", value_parser = every, requires = "heads_to")]
    heads: Option<Duration>,
    /// Where heads are written: a folder or a bucket, as for --backup, with a file for each; a file
    /// with the name *.json, for the newest only; or http(s)://…, which gets each by POST as JSON
    #[arg(long, value_name = "TO", requires = "heads")]
    heads_to: Option<String>,
    /// Sign heads with the key in this file, which should be outside the data folder. Default: the
    /// store's own, `receipts.key`
    #[arg(long, value_name = "FILE", requires = "heads")]
    heads_key: Option<PathBuf>,
}

fn every(text: &str) -> Result<Duration, String> {
    let every = length(text)?;
    match every >= Duration::from_secs(1) {
        true => Ok(every),
        false => Err("must be at least 1s".into()),
    }
}

/// Heads that a server is to sign.
pub(crate) struct HeadsToKeep {
    every: Duration,
    target: HeadTarget,
    /// `None` for the store's own key, which is known once the store is open.
    signer: Option<Signer>,
}

impl KeepHeadsArgs {
    /// Checks the options before anything is opened.
    ///
    /// # Errors
    /// [`ClientError::Usage`]; [`ClientError::Outcome`] for an unusable target or key.
    pub(crate) fn prepare(&self, data: &Path) -> Result<Option<HeadsToKeep>, ClientError> {
        let (Some(every), Some(to)) = (self.heads, &self.heads_to) else {
            return Ok(None);
        };
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if !to.contains("://") && absolute(Path::new(to)).starts_with(absolute(data)) {
            return Err(ClientError::Usage {
                what: format!("{to} is in the data folder, whose changes the heads should reveal"),
                hint: "use a place outside it, best on another machine".into(),
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
    /// Starts to sign heads of a store that this process has open.
    ///
    /// # Errors
    /// [`ClientError::Usage`] if the store cannot have a key.
    pub(crate) fn start(
        self,
        engine: &Engine,
        data: &Path,
    ) -> Result<HeadKeeperHandle, ClientError> {
        let signer = match self.signer {
            Some(signer) => signer,
            None => {
                Signer::of_store(data).map_err(|error| cannot_use(Path::new(OWN_KEY), &error))?
            }
        };
        Ok(HeadKeeper::new(engine.clone(), signer, self.target).start(self.every))
    }
}
