//! Keys and TLS, tested with the built program as client and server.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
};
use tokio::net::TcpStream;

use super::child::{self, PATIENCE, Server, run, run_with, set_mode, write_secret};

/// A CA in a folder of its own.
struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        let dir = dir.join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("ca.pem"), cert.pem()).unwrap();
        Self {
            dir,
            issuer: Issuer::new(params, key),
        }
    }

    fn ca(&self) -> String {
        text(&self.dir.join("ca.pem"))
    }

    /// Signs a new pair. Returns the paths of its certificate and key.
    fn sign(&self, name: &str) -> (String, String) {
        let (cert, key) = (self.dir.join("cert.pem"), self.dir.join("key.pem"));
        self.sign_into(name, &cert, &key);
        (text(&cert), text(&key))
    }

    /// Signs a client's pair. Returns the environment variables that name it.
    fn client(&self, file: &str, subject: &[(DnType, &str)]) -> Vec<(&'static str, String)> {
        let cert = self.dir.join(format!("{file}.pem"));
        let key = self.dir.join(format!("{file}.key"));
        let mut params = CertificateParams::new(vec!["agent.example".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        self.sign_params(&params, &cert, &key);
        vec![
            ("TREERING_CLIENT_CERT", text(&cert)),
            ("TREERING_CLIENT_KEY", text(&key)),
        ]
    }

    fn sign_into(&self, name: &str, cert: &Path, key: &Path) {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        self.sign_params(&params, cert, key);
    }

    fn sign_params(&self, params: &CertificateParams, cert: &Path, key: &Path) {
        let pair = KeyPair::generate().unwrap();
        let signed = params.signed_by(&pair, &self.issuer).unwrap();
        write_secret(key, pair.serialize_pem());
        fs::write(cert, signed.pem()).unwrap();
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Runs a command. Returns its output, its errors and its exit code.
async fn said(arguments: &[&str], variables: &[(&str, &str)]) -> (String, String, Option<i32>) {
    let output = run_with(arguments, variables).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (
        text(&output.stdout),
        text(&output.stderr),
        output.status.code(),
    )
}

async fn key(data: &str, arguments: &[&str]) -> String {
    let create = [&["keys", "create", "--data", data][..], arguments].concat();
    let (key, errors, code) = said(&create, &[]).await;
    assert_eq!(code, Some(0), "{errors}");
    assert!(
        key.starts_with("tr_live_") && !key.contains(char::is_whitespace),
        "{key}"
    );
    key
}

/// Repeats until the condition holds: a server checks its files every few seconds.
async fn until(what: &str, mut wanted: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !wanted().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect(what);
}

// The whole life of a key on the command line, while a server uses the folder: created, used,
// rotated, revoked. The secret is shown once and nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn key_is_created_used_rotated_and_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    let data = &text(&folder);
    let ops = key(data, &["ops", "--role", "admin:*"]).await;
    let server = Server::start(&folder).await;
    let url = server.url.as_str();
    let ls = ["ls", "--server", url];

    let (_, errors, code) = said(&ls, &[]).await;
    assert_eq!(code, Some(4), "{errors}");
    assert!(errors.contains("TREERING_TOKEN"), "{errors}");
    let (_, errors, code) = said(&ls, &[("TREERING_TOKEN", &ops[..90])]).await;
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("mistyped or incomplete"), "{errors}");
    assert_eq!(said(&ls, &[("TREERING_TOKEN", &ops)]).await.2, Some(0));
    // By the folder that the server uses, too.
    let by_folder = ["ls", "--data", data];
    let (_, errors, code) = said(&by_folder, &[]).await;
    assert_eq!(code, Some(4), "{errors}");
    assert!(errors.contains("TREERING_TOKEN"), "{errors}");
    assert_eq!(
        said(&by_folder, &[("TREERING_TOKEN", &ops)]).await.2,
        Some(0)
    );

    let grants = [
        "agent",
        "--role",
        "writer",
        "--namespace",
        "a",
        "--expires",
        "90d",
    ];
    let agent = key(data, &grants).await;
    let say = |namespace| {
        let line = [
            "append",
            "new",
            "message",
            "user",
            "hello",
            "--server",
            url,
            "--namespace",
        ];
        [&line[..], &[namespace]].concat()
    };
    assert_eq!(
        said(&say("a"), &[("TREERING_TOKEN", &agent)]).await.2,
        Some(0)
    );
    let (_, errors, code) = said(&say("b"), &[("TREERING_TOKEN", &agent)]).await;
    assert_eq!(code, Some(4), "{errors}");
    assert!(
        errors.contains("needs the role writer in namespace b"),
        "{errors}"
    );
    let (_, errors, code) = said(&say("_system"), &[("TREERING_TOKEN", &ops)]).await;
    assert_eq!(code, Some(4), "{errors}");
    assert!(errors.contains("reserved"), "{errors}");

    let file = dir.path().join("token");
    let rotate = ["keys", "rotate", "agent", "--grace", "0s", "--data", data];
    let (second, _, code) = said(&rotate, &[]).await;
    assert_eq!(code, Some(0));
    write_secret(&file, format!("{second}\n"));
    assert_eq!(
        said(&say("a"), &[("TREERING_TOKEN", &agent)]).await.2,
        Some(4)
    );
    let from_file = format!("@{}", text(&file));
    assert_eq!(
        said(&say("a"), &[("TREERING_TOKEN", &from_file)]).await.2,
        Some(0)
    );

    assert_eq!(
        said(&["keys", "revoke", "agent", "--data", data], &[])
            .await
            .2,
        Some(0)
    );
    let (_, errors, code) = said(&say("a"), &[("TREERING_TOKEN", &second)]).await;
    assert_eq!(code, Some(4), "{errors}");
    assert!(errors.contains("was revoked"), "{errors}");
    assert_eq!(
        said(&["keys", "revoke", "agent", "--data", data], &[])
            .await
            .2,
        Some(4)
    );
    assert_eq!(
        said(&["keys", "revoke", "nobody", "--data", data], &[])
            .await
            .2,
        Some(3)
    );

    let (list, _, _) = said(&["keys", "ls", "--data", data], &[]).await;
    assert!(list.contains("agent  revoked  writer:a"), "{list}");
    assert!(list.contains("ops  good  admin:*"), "{list}");
    for secret in [&ops, &agent, &second] {
        let secret = &secret[30..];
        assert!(!list.contains(secret));
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let bytes = fs::read(entry.path()).unwrap_or_default();
            let shown = String::from_utf8_lossy(&bytes);
            assert!(!shown.contains(secret), "{:?}", entry.path());
        }
    }
    // If nobody serves the folder, no key is needed.
    server.kill().await;
    assert_eq!(said(&by_folder, &[]).await.2, Some(0));
}

// "Who approved that?" is asked months later. The answer must be in the store, whether keys were
// created with a server or without, and only some roles may read or write it.
#[tokio::test(flavor = "multi_thread")]
async fn audit_records_which_key_was_used() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    let data = &text(&folder);
    let ops = key(data, &["ops", "--role", "admin:*"]).await;
    let server = Server::start(&folder).await;
    let console = key(data, &["console", "--role", "approver"]).await;
    let agent = key(data, &["agent", "--role", "writer"]).await;
    let as_key = async |key: &str, line: &[&str]| {
        let line = [line, &["--server", &server.url]].concat();
        said(&line, &[("TREERING_TOKEN", key)]).await
    };
    let (id, errors, _) = as_key(
        &agent,
        &["append", "new", "message", "user", "hello", "--json"],
    )
    .await;
    let id: serde_json::Value = serde_json::from_str(&id).expect(&errors);
    let id = id["events"][0]["conversation"].as_str().unwrap();
    let call = ["append", id, "call", "c1", "rm", "{}", "--needs-approval"];
    assert_eq!(as_key(&agent, &call).await.2, Some(0));
    let approve = ["approve", id, "c1", "--by", "ada"];
    let (_, errors, code) = as_key(&agent, &approve).await;
    assert_eq!(code, Some(4), "{errors}");
    let (_, errors, code) = as_key(&console, &approve).await;
    assert_eq!(code, Some(0), "{errors}");
    // Reading a conversation is not an export.
    assert_eq!(as_key(&console, &["log", id]).await.2, Some(0));
    let export = ["export", "--format", "markdown", id];
    let (_, errors, code) = as_key(&console, &export).await;
    assert_eq!(code, Some(0), "{errors}");
    let erased = format!("{id}#2");
    let (_, errors, code) = as_key(&ops, &["erase", &erased, "--yes"]).await;
    assert_eq!(code, Some(0), "{errors}");
    said(&["keys", "revoke", "agent", "--data", data], &[]).await;

    assert_eq!(as_key(&console, &["audit"]).await.2, Some(4));
    let noted = async || {
        let (lines, errors, code) = as_key(&ops, &["audit"]).await;
        assert_eq!(code, Some(0), "{errors}");
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<serde_json::Value>>()
    };
    until("the changes of keys", async || noted().await.len() >= 7).await;
    let noted = noted().await;
    let deeds: Vec<_> = noted
        .iter()
        .map(|one| (&one["deed"], &one["key"]))
        .collect();
    for (deed, key) in [
        ("key_made", "ops"),
        ("key_made", "console"),
        ("key_made", "agent"),
        ("decide", "console"),
        ("export", "console"),
        ("erase", "ops"),
        ("key_revoked", "agent"),
    ] {
        let times = deeds
            .iter()
            .filter(|(d, k)| *d == deed && *k == key)
            .count();
        assert_eq!(times, 1, "{deed} {key}: {deeds:?}");
    }
    let decided = noted.iter().find(|one| one["deed"] == "decide").unwrap();
    assert_eq!(decided["call_id"], "c1");
    assert_eq!(decided["conversation_id"], id);
    assert_eq!(decided["decision"], "approved");
    server.kill().await;
    // Changes made while nobody served are recorded at the next start, once.
    said(&["keys", "rotate", "console", "--data", data], &[]).await;
    let server = Server::start(&folder).await;
    let audit = ["audit", "--server", &server.url];
    until("the change before the start", async || {
        let (lines, _, _) = said(&audit, &[("TREERING_TOKEN", &ops)]).await;
        lines.contains("key_rotated")
    })
    .await;
    let (lines, _, _) = said(&audit, &[("TREERING_TOKEN", &ops)]).await;
    assert_eq!(lines.lines().count(), noted.len() + 1, "{lines}");
    server.kill().await;
}

// A server for other machines: with keys and TLS it starts without a warning. The command line
// accepts it by its CA, and a client that trusts another CA is not served.
#[tokio::test(flavor = "multi_thread")]
async fn remote_server_is_used_with_keys_and_tls() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    let data = &text(&folder);
    let ops = key(data, &["ops", "--role", "admin:*"]).await;
    let ours = Authority::new(dir.path(), "ours");
    let theirs = Authority::new(dir.path(), "theirs");
    let (cert, tls_key) = ours.sign("server");
    let listen = ["--listen", "0.0.0.0:0"];
    let tls = ["--tls-cert", &cert, "--tls-key", &tls_key];

    let alone = [&["serve", "--data", data][..], &listen].concat();
    let (_, errors, code) = said(&alone, &[]).await;
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("there is no TLS"), "{errors}");

    let server = Server::start_with(&folder, &[&listen[..], &tls[..]].concat()).await;
    let url = &server.url;
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let token = [("TREERING_TOKEN", ops.as_str())];
    let ls = |url: &str, more: &[&str]| {
        let line = [&["ls", "--server", url][..], more].concat();
        line.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let asked = async |url: &str, more: &[&str]| {
        let line = ls(url, more);
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        said(&line, &token).await
    };
    assert_eq!(asked(url, &["--ca", &ours.ca()]).await.2, Some(0));
    for more in [&["--ca", &theirs.ca()][..], &[]] {
        let (_, errors, code) = asked(url, more).await;
        assert_eq!(code, Some(5), "{errors}");
        assert!(errors.contains("--ca FILE"), "{errors}");
    }
    let plain = url.replace("https", "http");
    let (_, errors, code) = asked(&plain, &[]).await;
    assert_eq!(code, Some(5), "{errors}");
    assert!(errors.contains("https://"), "{errors}");
    let (_, errors, code) = asked(&plain, &["--ca", &ours.ca()]).await;
    assert_eq!(code, Some(2), "{errors}");

    // Renewed by another CA: new connections get the new certificate, without a restart.
    theirs.sign_into("server", Path::new(&cert), Path::new(&tls_key));
    until("a new certificate", async || {
        asked(url, &["--ca", &theirs.ca()]).await.2 == Some(0)
    })
    .await;
    // An invalid renewal: the old certificate stays, also after a reload signal.
    fs::write(&cert, "no certificate").unwrap();
    let hangup = std::process::Command::new("kill");
    let mut hangup = hangup;
    let done = hangup.args(["-HUP", &server.pid().to_string()]).status();
    assert!(done.unwrap().success());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(asked(url, &["--ca", &theirs.ca()]).await.2, Some(0));
    // After a reload signal the certificate changes at once.
    ours.sign_into("server", Path::new(&cert), Path::new(&tls_key));
    let mut hangup = std::process::Command::new("kill");
    let done = hangup.args(["-HUP", &server.pid().to_string()]).status();
    assert!(done.unwrap().success());
    until("the certificate after a hangup", async || {
        asked(url, &["--ca", &ours.ca()]).await.2 == Some(0)
    })
    .await;
    server.kill().await;
}

// If client certificates are required, a client without one, or with one of another CA, is refused,
// whatever its key.
#[tokio::test(flavor = "multi_thread")]
async fn mutual_tls_requires_a_trusted_client_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    let ours = Authority::new(dir.path(), "ours");
    let clients = Authority::new(dir.path(), "clients");
    let strangers = Authority::new(dir.path(), "strangers");
    let (cert, tls_key) = ours.sign("server");
    let arguments = [
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        &cert,
        "--tls-key",
        &tls_key,
        "--client-ca",
        &clients.ca(),
    ];
    let server = Server::start_with(&folder, &arguments).await;
    let ca = ours.ca();
    let ls = ["ls", "--server", &server.url, "--ca", &ca];
    let (_, errors, code) = said(&ls, &[]).await;
    assert_eq!(code, Some(5), "{errors}");
    assert!(errors.contains("--client-cert"), "{errors}");
    for (authority, served) in [(&clients, true), (&strangers, false)] {
        let (cert, key) = authority.sign("agent");
        let pair = [
            ("TREERING_CLIENT_CERT", &*cert),
            ("TREERING_CLIENT_KEY", &*key),
        ];
        let (_, errors, code) = said(&ls, &pair).await;
        assert_eq!(code == Some(0), served, "{errors}");
    }
    server.kill().await;
}

// A fleet with certificates needs no secrets. A certificate whose subject belongs to a key has
// exactly that key's permissions and name, until the key ends. The whole subject counts. For an
// unknown subject, the error shows how to write it.
#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_authenticates_as_its_key() {
    use DnType::{CommonName, OrganizationName};
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    let data = &text(&folder);
    let ours = Authority::new(dir.path(), "ours");
    let clients = Authority::new(dir.path(), "clients");
    let strangers = Authority::new(dir.path(), "strangers");
    let worker = [(OrganizationName, "Acme"), (CommonName, "worker-7")];
    let known = clients.client("known", &worker);
    let forged = strangers.client("forged", &worker);
    let short = clients.client("short", &worker[1..]);
    let sly = clients.client("sly", &[(CommonName, "worker-7,O=Acme")]);
    let nameless = clients.client("nameless", &[]);
    let grants = ["--role", "writer:a", "--requests-per-second", "1000"];
    let subject = ["--certificate-subject", "CN=worker-7,O=Acme"];
    let create = async |name: &str, more: &[&str]| {
        let line = [&["keys", "create", name, "--data", data][..], more].concat();
        said(&line, &[]).await
    };
    let (out, errors, code) = create("worker", &[&grants[..], &subject].concat()).await;
    assert_eq!((code, &*out), (Some(0), ""), "{errors}");
    assert!(errors.contains("CN=worker-7,O=Acme"), "{errors}");
    let ops = key(data, &["ops", "--role", "admin:*"]).await;
    // Two keys with one subject would be two names for one caller.
    let (_, errors, code) = create("other", &[&grants[..], &subject].concat()).await;
    assert_eq!(code, Some(4), "{errors}");
    assert!(errors.contains("the key worker already has"), "{errors}");
    for wrong in ["worker-7", "CN=worker-7, O=Acme", "", "O=,CN=a"] {
        let wrong = ["--certificate-subject", wrong];
        let (_, errors, code) = create("other", &[&grants[..], &wrong].concat()).await;
        assert_eq!(code, Some(2), "{errors}");
    }
    let rotate = ["keys", "rotate", "worker", "--data", data];
    let (_, errors, code) = said(&rotate, &[]).await;
    assert_eq!(code, Some(4), "{errors}");
    assert!(errors.contains("has no secret"), "{errors}");

    let (cert, tls_key) = ours.sign("server");
    let ca = ours.ca();
    let arguments = [
        &["--listen", "127.0.0.1:0", "--tls-cert", &cert][..],
        &["--tls-key", &tls_key, "--client-ca", &clients.ca()],
    ];
    let server = Server::start_with(&folder, &arguments.concat()).await;
    let asked = async |line: &[&str], shown: &[(&str, String)], token: &str| {
        let line = [line, &["--server", &server.url, "--ca", &ca]].concat();
        let mut variables: Vec<_> = shown
            .iter()
            .map(|(name, value)| (*name, &**value))
            .collect();
        variables.push(("TREERING_TOKEN", token));
        said(&line, &variables).await
    };
    let say = [
        "append",
        "new",
        "message",
        "user",
        "hello",
        "--json",
        "--namespace",
    ];
    let say = |namespace| [&say[..], &[namespace]].concat();
    let (id, errors, code) = asked(&say("a"), &known, "").await;
    assert_eq!(code, Some(0), "{errors}");
    let id: serde_json::Value = serde_json::from_str(&id).unwrap();
    let id = id["events"][0]["conversation"].as_str().unwrap();
    let (_, errors, code) = asked(&say("b"), &known, "").await;
    assert_eq!(code, Some(4), "{errors}");
    assert!(
        errors.contains("key worker needs the role writer"),
        "{errors}"
    );
    let log = ["log", id, "--json", "--namespace", "a"];
    let (log, errors, _) = asked(&log, &known, "").await;
    assert!(log.contains("\"actor\":\"worker\""), "{log} {errors}");

    for (shown, word) in [
        (&short, "subject CN=worker-7:"),
        (&sly, r"subject CN=worker-7\,O=Acme:"),
        (&nameless, "no subject"),
    ] {
        let (_, errors, code) = asked(&say("a"), shown, "").await;
        assert_eq!(code, Some(4), "{errors}");
        assert!(errors.contains(word), "{word}: {errors}");
    }
    assert_eq!(asked(&say("a"), &forged, "").await.2, Some(5));
    // A key that is sent takes precedence, and a certificate does not make up for an invalid key.
    assert_eq!(asked(&say("b"), &known, &ops).await.2, Some(0));
    assert_eq!(asked(&say("b"), &short, &ops).await.2, Some(0));
    said(&["keys", "revoke", "ops", "--data", data], &[]).await;
    let (_, errors, code) = asked(&say("a"), &known, &ops).await;
    assert_eq!(code, Some(4), "{errors}");
    assert!(errors.contains("the key ops was revoked"), "{errors}");

    let (list, _, _) = said(&["keys", "ls", "--data", data], &[]).await;
    assert!(list.contains("worker  good  writer:a"), "{list}");
    assert!(list.contains("CN=worker-7,O=Acme"), "{list}");
    said(&["keys", "revoke", "worker", "--data", data], &[]).await;
    let (_, errors, code) = asked(&say("a"), &known, "").await;
    assert_eq!(code, Some(4), "{errors}");
    assert!(errors.contains("the key worker was revoked"), "{errors}");
    // A revoked key no longer blocks its subject, and an expired key is invalid.
    let brief = [&grants[..], &subject, &["--expires", "1s"]].concat();
    assert_eq!(create("worker", &brief).await.2, Some(0));
    assert_eq!(asked(&say("a"), &known, "").await.2, Some(0));
    until("the end of the key", async || {
        let (_, errors, code) = asked(&say("a"), &known, "").await;
        code == Some(4) && errors.contains("the key worker has expired")
    })
    .await;
    server.kill().await;
    let (list, _, _) = said(&["keys", "ls", "--data", data, "--json"], &[]).await;
    let used = list
        .lines()
        .filter(|line| line.contains("certificate_subject"));
    assert_eq!(used.count(), 2, "{list}");
    until("what was noted", async || {
        let (audit, _, _) = said(&["audit", "--data", data], &[]).await;
        audit.contains("\"certificate_subject\":\"CN=worker-7,O=Acme\"")
    })
    .await;
}

// A certificate that belongs to a key must also authenticate for pages and for agents, without
// another login. It is valid as long as its key, and a page of another site cannot make use of it.
#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_authenticates_over_http() {
    use DnType::CommonName;
    use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    let data = &text(&folder);
    let ours = Authority::new(dir.path(), "ours");
    let clients = Authority::new(dir.path(), "clients");
    let person = clients.client("person", &[(CommonName, "person")]);
    let stranger = clients.client("stranger", &[(CommonName, "stranger")]);
    let subject = ["--certificate-subject", "CN=person"];
    let create = [
        &[
            "keys",
            "create",
            "person",
            "--role",
            "approver:default",
            "--data",
            data,
        ][..],
        &subject,
    ];
    assert_eq!(said(&create.concat(), &[]).await.2, Some(0));
    let (cert, tls_key) = ours.sign("server");
    let arguments = [
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        &cert,
        "--tls-key",
        &tls_key,
        "--client-ca",
        &clients.ca(),
    ];
    let server = Server::start_with(&folder, &arguments).await;
    let channel = async |shown: &[(&str, String)]| {
        let read = |name: &str| {
            let (_, path) = shown.iter().find(|(own, _)| *own == name).unwrap();
            fs::read(path).unwrap()
        };
        let identity =
            Identity::from_pem(read("TREERING_CLIENT_CERT"), read("TREERING_CLIENT_KEY"));
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(fs::read(ours.ca()).unwrap()))
            .identity(identity);
        let endpoint = Endpoint::new(server.url.clone()).unwrap();
        endpoint.tls_config(tls).unwrap().connect().await.unwrap()
    };
    let (person, stranger) = (channel(&person).await, channel(&stranger).await);
    let recall = r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "recall", "arguments": {}}}"#;
    let version = [("mcp-protocol-version", "2025-06-18")];
    for page in ["/", "/approvals", "/store"] {
        let (status, body) = child::asked(&person, "GET", page, &[], "").await;
        assert_eq!(status, 200, "{page}: {body}");
        assert_eq!(
            child::asked(&stranger, "GET", page, &[], "").await.0,
            303,
            "{page}"
        );
    }
    let (_, login) = child::asked(&person, "GET", "/login", &[], "").await;
    assert!(
        login.contains("belongs to the key <strong><bdi>person"),
        "{login}"
    );
    let (_, login) = child::asked(&stranger, "GET", "/login", &[], "").await;
    assert!(login.contains("subject CN=stranger"), "{login}");
    let (status, body) = child::asked(&person, "POST", "/mcp", &version, recall).await;
    assert!(
        status == 200 && !body.contains("\"isError\":true"),
        "{body}"
    );
    assert_eq!(
        child::asked(&stranger, "POST", "/mcp", &version, recall)
            .await
            .0,
        401
    );
    // It is valid for its namespace only, and a key that is sent takes precedence.
    assert_eq!(
        child::asked(&person, "GET", "/@team-b/", &[], "").await.0,
        403
    );
    let bad = [version[0], ("authorization", "Bearer tr_live_nothing")];
    assert_eq!(
        child::asked(&person, "POST", "/mcp", &bad, recall).await.0,
        401
    );
    // Browsers send the certificate with every request, whichever page makes it. So a form needs a
    // token.
    let token = |page: &str| {
        let (_, rest) = page.split_once("name=\"token\" value=\"").unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    let theirs = token(&login);
    let form = format!(
        "token={theirs}&decision=approved&conversation=x&call=y&hash={}",
        "00".repeat(32)
    );
    let kind = ("content-type", "application/x-www-form-urlencoded");
    let sent = child::asked(&person, "POST", "/approvals", &[kind], &form).await;
    assert!(
        sent.0 == 403 && sent.1.contains("is not from a page"),
        "{sent:?}"
    );
    let (_, login) = child::asked(&person, "GET", "/login", &[], "").await;
    let form = form.replace(&theirs, &token(&login));
    let sent = child::asked(&person, "POST", "/approvals", &[kind], &form).await;
    assert_eq!(
        sent.0, 404,
        "it is taken, and there is no such call: {sent:?}"
    );
    let evil = [kind, ("origin", "https://evil.example")];
    assert_eq!(
        child::asked(&person, "POST", "/approvals", &evil, &form)
            .await
            .0,
        403
    );
    said(&["keys", "revoke", "person", "--data", data], &[]).await;
    assert_eq!(child::asked(&person, "GET", "/", &[], "").await.0, 303);
    assert_eq!(
        child::asked(&person, "POST", "/mcp", &version, recall)
            .await
            .0,
        401
    );
    server.kill().await;
}

// A store that required keys must not start without them, after a restore or after keys.json was
// removed. Otherwise everybody who reaches it has access.
#[tokio::test(flavor = "multi_thread")]
async fn store_that_had_keys_does_not_open_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&dir.path().join(name));
    let (store, copy, again) = (at("store"), at("copy"), at("again"));
    let ops = key(&store, &["ops", "--role", "admin:*"]).await;
    let server = Server::start(Path::new(&store)).await;
    let append = [
        "append",
        "new",
        "message",
        "user",
        "mine",
        "--server",
        &server.url,
    ];
    let (_, errors, code) = said(&append, &[("TREERING_TOKEN", &ops)]).await;
    assert_eq!(code, Some(0), "{errors}");
    until("what was noted", async || {
        let audit = ["audit", "--server", &server.url];
        let (noted, _, _) = said(&audit, &[("TREERING_TOKEN", &ops)]).await;
        noted.contains("key_made")
    })
    .await;
    server.kill().await;
    assert_eq!(
        said(&["backup", &copy, "--data", &store], &[]).await.2,
        Some(0)
    );
    let (told, errors, code) = said(&["restore", &copy, "--to", &again], &[]).await;
    assert_eq!(code, Some(0), "{errors}");
    assert!(told.contains("and no keys"), "{told}");
    fs::remove_file(Path::new(&store).join("keys.json")).unwrap();
    for data in [&store, &again] {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--data", data];
        let (_, errors, code) = said(&serve, &[]).await;
        assert_eq!(code, Some(4), "{errors}");
        assert!(
            errors.contains("this store had keys") && errors.contains("keys create"),
            "{errors}"
        );
        // A user who has the folder has all of its data anyway, and may disable keys explicitly.
        let open = ["--listen", "127.0.0.1:0", "--insecure"];
        let open = Server::start_with(Path::new(data), &open).await;
        assert_eq!(said(&["ls", "--server", &open.url], &[]).await.2, Some(0));
        open.kill().await;
        let new = key(data, &["new", "--role", "admin:*"]).await;
        let kept = Server::start(Path::new(data)).await;
        let ls = ["ls", "--server", &kept.url];
        assert_eq!(said(&ls, &[]).await.2, Some(4));
        assert_eq!(said(&ls, &[("TREERING_TOKEN", &new)]).await.2, Some(0));
        kept.kill().await;
    }
}

// A key was created before the first server started, and its file was lost. The audit must have the
// key, and the store must not be open to everybody.
#[tokio::test(flavor = "multi_thread")]
async fn loss_of_keys_made_offline_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let data = &text(dir.path());
    let store = |name: &str| dir.path().join(name);
    let refused = async || {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--data", data];
        let (_, errors, code) = said(&serve, &[]).await;
        assert_eq!(code, Some(4), "{errors}");
        assert!(errors.contains("this store had keys"), "{errors}");
    };
    let append = ["append", "new", "message", "user", "mine", "--data", data];
    assert_eq!(said(&append, &[]).await.2, Some(0));
    key(data, &["ops", "--role", "admin:*"]).await;
    fs::remove_file(store("keys.json")).unwrap();
    refused().await;
    fs::write(store("keys.json"), r#"{"format": 1, "keys": []}"#).unwrap();
    set_mode(&store("keys.json"), 0o600);
    refused().await;
    // A store whose keys are older than the file `keys.made` gets that file.
    fs::remove_file(store("keys.json")).unwrap();
    key(data, &["ops", "--role", "admin:*"]).await;
    fs::remove_file(store("keys.made")).unwrap();
    Server::start(dir.path()).await.kill().await;
    assert!(store("keys.made").exists());
}

// A key, a token or a private key that all users of the machine can read must be refused.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn secret_files_readable_by_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    let data = &text(&folder);
    let ours = Authority::new(dir.path(), "ours");
    let (cert, tls_key) = ours.sign("server");
    let ops = key(data, &["ops", "--role", "admin:*"]).await;
    let file = |name: &str| text(&dir.path().join(name));
    let (token, backup_key, to) = (file("token"), file("backup.key"), file("copy"));
    write_secret(Path::new(&token), &ops);
    write_secret(Path::new(&backup_key), "0123456789abcdef".repeat(4));
    let keys = text(&folder.join("keys.json"));
    let append = ["append", "new", "message", "user", "mine", "--data", data];
    assert_eq!(said(&append, &[]).await.2, Some(0));
    let (listen, any) = ("--listen", "127.0.0.1:0");
    let from_token = format!("@{token}");
    let serve = ["serve", listen, any, "--data", data];
    let with_tls = [&serve[..], &["--tls-cert", &cert, "--tls-key", &tls_key]].concat();
    let with_client = [
        "ls",
        "--server",
        "https://127.0.0.1:9",
        "--client-cert",
        &cert,
        "--client-key",
        &tls_key,
    ];
    let backup = ["backup", &to, "--data", data, "--key-file", &backup_key];
    let ls = ["keys", "ls", "--data", data];
    let revoke = ["keys", "revoke", "ops", "--data", data];
    let asks = [
        "ls",
        "--server",
        "http://127.0.0.1:9",
        "--token",
        &from_token,
    ];
    for (path, command) in [
        (&keys, &serve[..]),
        (&keys, &ls[..]),
        (&keys, &revoke[..]),
        (&tls_key, &with_tls[..]),
        (&tls_key, &with_client[..]),
        (&token, &asks[..]),
        (&backup_key, &backup[..]),
    ] {
        for mode in [0o644, 0o640, 0o604] {
            set_mode(Path::new(path), mode);
            let (_, errors, code) = said(command, &[]).await;
            assert_ne!(code, Some(0), "{command:?}");
            let mend = format!("chmod 600 {path}");
            let mode = format!("{mode:04o}");
            assert!(
                errors.contains(&mode) && errors.contains(&mend),
                "{command:?}: {errors}"
            );
        }
        set_mode(Path::new(path), 0o600);
    }
    assert_eq!(said(&ls, &[]).await.2, Some(0));

    // A running server keeps its keys, and loads the file once it is repaired.
    let server = Server::start(&folder).await;
    let asks = ["ls", "--server", &server.url];
    let agent = key(data, &["agent", "--role", "reader"]).await;
    assert_eq!(said(&asks, &[("TREERING_TOKEN", &agent)]).await.2, Some(0));
    let kept = fs::read(&keys).unwrap();
    said(&["keys", "revoke", "agent", "--data", data], &[]).await;
    assert_eq!(said(&asks, &[("TREERING_TOKEN", &agent)]).await.2, Some(4));
    set_mode(Path::new(&keys), 0o644);
    fs::write(&keys, &kept).unwrap();
    assert_eq!(said(&asks, &[("TREERING_TOKEN", &agent)]).await.2, Some(4));
    set_mode(Path::new(&keys), 0o600);
    assert_eq!(said(&asks, &[("TREERING_TOKEN", &agent)]).await.2, Some(0));
    server.kill().await;
}

// `config check` must report what a start would refuse.
#[tokio::test(flavor = "multi_thread")]
async fn config_check_reports_what_serve_would_refuse() {
    let dir = tempfile::tempdir().unwrap();
    let file = text(&dir.path().join("treering.toml"));
    for (config, wanted) in [
        ("listen = \"0.0.0.0:7171\"", "there is no TLS"),
        ("tls-cert = \"/none.pem\"\ntls-key = \"/none.key\"", "/none"),
        ("quota = [\"a=1GiB\", \"a=2GiB\"]", "a"),
    ] {
        fs::write(&file, config).unwrap();
        let (_, errors, code) = said(&["config", "check", &file], &[]).await;
        assert_eq!(code, Some(2), "{config}: {errors}");
        assert!(errors.contains(wanted), "{config}: {errors}");
    }
    let secret = [("TREERING_TOKEN", "tr_live_hidden")];
    let (shown, _, _) = said(&["config", "print"], &secret).await;
    assert!(!shown.contains("tr_live_hidden"), "{shown}");
}

// A killed restore must not leave a folder in which the next server creates a new store. The
// restore must be repeatable.
#[tokio::test(flavor = "multi_thread")]
async fn serve_refuses_a_folder_with_an_unfinished_restore() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(".restoring")).unwrap();
    let data = text(dir.path());
    let serve = ["serve", "--listen", "127.0.0.1:0", "--data", &data];
    let (_, errors, code) = said(&serve, &[]).await;
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("treering restore"), "{errors}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

// Connections that send nothing must not block those of real clients.
#[tokio::test(flavor = "multi_thread")]
async fn silent_tls_handshakes_do_not_block_others() {
    const SILENT: usize = 400;
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    let ours = Authority::new(dir.path(), "ours");
    let (cert, tls_key) = ours.sign("server");
    let tls = [
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        &cert,
        "--tls-key",
        &tls_key,
    ];
    let server = Server::start_with(&folder, &tls).await;
    let address = server.url.trim_start_matches("https://").to_owned();
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    let ca = ours.ca();
    let (_, errors, code) = said(&["ls", "--server", &server.url, "--ca", &ca], &[]).await;
    assert_eq!(code, Some(0), "{errors}");
    // The oldest ones were ended for later ones, long before their timeout.
    let mut ended = 0;
    for one in &silent {
        let read = tokio::time::timeout(Duration::from_millis(5), one.readable()).await;
        ended += usize::from(read.is_ok());
    }
    assert!((100..SILENT).contains(&ended), "{ended}");
    server.kill().await;
}

// An invalid certificate ends the start. The error names its file.
#[tokio::test(flavor = "multi_thread")]
async fn start_fails_with_an_invalid_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let data = text(&dir.path().join("store"));
    let (ours, theirs) = (
        Authority::new(dir.path(), "a"),
        Authority::new(dir.path(), "b"),
    );
    let (cert, key) = ours.sign("server");
    let (_, other) = theirs.sign("server");
    let nowhere = text(&dir.path().join("nowhere"));
    for (cert, key, word) in [
        (&nowhere, &key, "no such file"),
        (&key, &key, "the file has no certificate"),
        (&cert, &cert, "the file has no private key"),
        (&cert, &other, "do not match"),
    ] {
        let line = [
            "serve",
            "--data",
            &data,
            "--tls-cert",
            cert,
            "--tls-key",
            key,
        ];
        let output = run(&line).await;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(word), "{word}: {errors}");
    }
}
