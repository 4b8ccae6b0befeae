//! Tests which server a command contacts when another process has the folder open.

use std::{
    convert::Infallible,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Bytes, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::net::TcpListener;

use crate::{
    ClientError, Common, Connection, args::CredentialArgs, connect::FolderOptions, pb,
    serve::RunningServer, web::WebOptions,
};
use treering_access::{Grant, KeyToken};
use treering_engine::{Engine, OpenMode, OpenOptions, PackingMode};
use treering_server::FOLDER_PROOF;

type CapturedHeaders = Arc<Mutex<Vec<HeaderMap>>>;

/// An untrusted server that answers every request and records it. `proof` is its answer to a
/// question about a folder.
async fn stranger(proof: String) -> (String, CapturedHeaders) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = CapturedHeaders::default();
    let remembered = Arc::clone(&seen);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (seen, proof) = (Arc::clone(&remembered), proof.clone());
            let answer = service_fn(move |request: http::Request<_>| {
                seen.lock().unwrap().push(request.headers().clone());
                let _: &hyper::body::Incoming = request.body();
                // A complete response: an empty message, then the status. A response without a
                // message fails before its proof is checked.
                let status = HeaderMap::from_iter([(
                    HeaderName::from_static("grpc-status"),
                    HeaderValue::from_static("0"),
                )]);
                let body = Full::new(Bytes::from_static(&[0; 5]));
                let answer = Response::builder()
                    .header("content-type", "application/grpc")
                    .header(FOLDER_PROOF, &proof)
                    .body(body.with_trailers(async { Some(Ok(status)) }));
                async move { Ok::<_, Infallible>(answer.unwrap()) }
            });
            tokio::spawn(async move {
                let http = auto::Builder::new(TokioExecutor::new());
                let _ = http.serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    (url, seen)
}

fn common(dir: &Path, key: &str) -> Common {
    Common {
        data: Some(dir.to_owned()),
        wait: Duration::from_millis(200),
        credentials: CredentialArgs {
            token: Some(key.to_owned().into()),
            ..CredentialArgs::default()
        },
        ..Common::for_tests()
    }
}

async fn opened(common: &Common) -> Result<Connection, ClientError> {
    let opening = FolderOptions {
        with_meaning: false,
        mode: OpenMode::Read,
        packing: PackingMode::Never,
        fresh_projections: false,
    };
    Connection::open(&common.connect_options()?, opening).await
}

/// A store whose lock is held, with this text in the lock file.
async fn held(text: &str) -> (tempfile::TempDir, fs::File) {
    let dir = tempfile::tempdir().unwrap();
    let store = Engine::open(OpenOptions::new(dir.path())).await.unwrap();
    store.close().await;
    let path: PathBuf = dir.path().join("LOCK");
    let lock = treering_base::disk::file_options().open(&path).unwrap();
    lock.lock().unwrap();
    fs::write(path, text).unwrap();
    (dir, lock)
}

fn were_told(seen: &CapturedHeaders, key: &str) -> bool {
    let seen = seen.lock().unwrap();
    let shown = format!("{:?}", seen.iter().flatten().collect::<Vec<_>>());
    shown.contains(key) || shown.contains("authorization")
}

// The folder may come from somebody else's archive, or another user may have taken over the port.
// `treering ls --data` sent the key to any server that the lock file named.
#[tokio::test(flavor = "multi_thread")]
async fn key_is_not_sent_without_proof_of_holding_the_folder() {
    let key = KeyToken::generate().unwrap().reveal().to_owned();
    let secret = "07".repeat(32);
    for proof in [String::new(), "00".repeat(32), secret.clone()] {
        let (url, seen) = stranger(proof).await;
        for text in [
            format!("pid 1\naddress {url}\n"),
            format!("pid 1\naddress {url}\nsecret {secret}\n"),
        ] {
            let (dir, _lock) = held(&text).await;
            let error = opened(&common(dir.path(), &key)).await.unwrap_err();
            assert!(matches!(error, ClientError::Locked { .. }), "{error}");
            assert!(!were_told(&seen, &key), "{seen:?}");
        }
    }
}

// The lock file of another user, or a remote address, is untrusted: no request is sent to it, and
// the error says how to use it anyway.
#[tokio::test(flavor = "multi_thread")]
async fn remote_or_untrusted_lock_address_is_not_contacted() {
    let key = KeyToken::generate().unwrap().reveal().to_owned();
    let (dir, _lock) = held("pid 1\naddress http://192.0.2.1:7171\n").await;
    let error = opened(&common(dir.path(), &key)).await.unwrap_err();
    let hint = error.hint().unwrap();
    assert!(
        error.to_string().contains("not a loopback address"),
        "{error}"
    );
    assert!(hint.contains("--server http://192.0.2.1:7171"), "{hint}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let (url, seen) = stranger(String::new()).await;
        let (dir, _lock) = held(&format!("pid 1\naddress {url}\n")).await;
        let all = fs::Permissions::from_mode(0o666);
        fs::set_permissions(dir.path().join("LOCK"), all).unwrap();
        let error = opened(&common(dir.path(), &key)).await.unwrap_err();
        assert!(
            error.to_string().contains("accessible to other users"),
            "{error}"
        );
        assert!(seen.lock().unwrap().is_empty());
    }
}

// The folder's own server must be found, and only callers with access to the whole store may see
// the path of the folder.
#[tokio::test(flavor = "multi_thread")]
async fn key_is_sent_to_the_server_of_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str, role: &str| {
        let (role, namespace) = role.split_once(':').unwrap();
        let new = treering_access::NewKey {
            name: name.into(),
            roles: vec![Grant {
                role: role.parse().unwrap(),
                namespace: namespace.to_owned().try_into().unwrap(),
            }],
            expires_in: None,
            limits: treering_access::KeyLimits::default(),
            by: String::new(),
        };
        let made = treering_access::create(dir.path(), new).unwrap();
        made.token.reveal().to_owned()
    };
    let (admin, reader) = (made("ops", "admin:*"), made("reader", "reader:default"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let served = RunningServer::start(
        OpenOptions::new(dir.path()),
        listener,
        WebOptions::default(),
    )
    .await
    .unwrap();
    for (key, tells) in [(admin, true), (reader, false)] {
        let store = opened(&common(dir.path(), &key)).await.unwrap();
        let stats = store.admin().stats(pb::StatsRequest {}).await.unwrap();
        let told = stats.into_inner().data_dir;
        assert_eq!(!told.is_empty(), tells, "{told}");
    }
    served.stop().await.unwrap();
}
