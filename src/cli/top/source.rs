//! Where the numbers of a server come from: its metrics' listener, or what every server says
//! by gRPC.

use std::time::Duration;

use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use super::{
    super::{args::Common, connect::Connection, error::CliError, pb},
    scrape::Scrape,
};
use crate::server::{LIVE, READY};

/// The longest that an answer is waited for.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Largest scrape that is read, in bytes: fifty times what a server has.
const SCRAPE_BYTES_MAX: usize = 4 << 20;
/// Of an answer that is no scrape, so much is told, in characters.
const TOLD_CHARS_MAX: usize = 120;
const METRICS_PATH: &str = "/metrics";
/// What every scrape of a server has.
const SIGN: &str = "treering_build_info";

/// A server that can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerPlace {
    /// Its metrics' listener.
    Metrics(MetricsUrl),
    /// Its services.
    Services(String),
}

/// Where metrics are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsUrl {
    authority: String,
    path: String,
}

impl MetricsUrl {
    /// `http://HOST:PORT`, with a path or without, or HOST:PORT.
    ///
    /// # Errors
    /// [`CliError::Usage`].
    pub fn read(text: &str) -> Result<Self, CliError> {
        let wrong = |what: String| CliError::Usage {
            what,
            hint: "give the address that `serve --metrics` has, for example \
                   http://127.0.0.1:9464; a server's gRPC address goes to --server"
                .into(),
        };
        let with_scheme = match text.contains("://") {
            true => text.to_owned(),
            false => format!("http://{text}"),
        };
        let uri = with_scheme.parse::<Uri>();
        let uri = uri.map_err(|_| wrong(format!("`{text}` is no address")))?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong(format!("`{text}`: metrics are served by http only")));
        }
        let authority = uri.authority().map(|it| it.as_str().to_owned());
        let has_port = uri.port().is_some();
        let authority = authority.filter(|_| has_port);
        let authority = authority.ok_or_else(|| wrong(format!("`{text}` has no port")))?;
        let path = match uri.path() {
            "" | "/" => METRICS_PATH,
            path => path,
        };
        Ok(Self {
            authority,
            path: path.to_owned(),
        })
    }
}

impl std::fmt::Display for ServerPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Metrics(url) => write!(f, "http://{}", url.authority),
            Self::Services(url) => f.write_str(url),
        }
    }
}

/// Somebody who asks a server again and again.
#[derive(Debug)]
pub struct Asker {
    common: Common,
    store: Option<(String, Connection)>,
}

impl Asker {
    /// As whom the options say.
    #[must_use]
    pub fn new(common: Common) -> Self {
        Self {
            common,
            store: None,
        }
    }

    /// What the server says now, within [`ANSWER_WAIT`].
    ///
    /// # Errors
    /// [`CliError::Connect`] when it does not answer, or not so; what it refuses.
    pub async fn ask(&mut self, source: &ServerPlace) -> Result<Scrape, CliError> {
        let unreached = |cause: String| CliError::Connect {
            url: source.to_string(),
            cause,
        };
        let asked = async {
            match source {
                ServerPlace::Metrics(url) => scrape(url).await.map_err(unreached),
                ServerPlace::Services(url) => self.services(url).await,
            }
        };
        let late = || unreached(format!("no answer within {} s", ANSWER_WAIT.as_secs()));
        timeout(ANSWER_WAIT, asked).await.map_err(|_| late())?
    }

    async fn services(&mut self, url: &str) -> Result<Scrape, CliError> {
        let store = match self.store.take().filter(|(of, _)| of == url) {
            Some((_, store)) => store,
            None => {
                let (namespace, credentials) = (&self.common.namespace, &self.common.credentials);
                Connection::to_server_as(url, namespace, credentials).await?
            }
        };
        let stats = store.admin().stats(pb::StatsRequest {}).await?.into_inner();
        let mut scrape = of_stats(&stats);
        for (name, service) in [("treering_live", LIVE), ("treering_ready", READY)] {
            scrape.set(
                name,
                f64::from(u8::from(is_serving(&store, service).await?)),
            );
        }
        self.store = Some((url.to_owned(), store));
        Ok(scrape)
    }
}

async fn is_serving(store: &Connection, service: &str) -> Result<bool, CliError> {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer = HealthClient::new(store.transport()).check(request).await?;
    Ok(answer.into_inner().status() == ServingStatus::Serving)
}

/// Under the names that the metrics have.
#[allow(clippy::cast_precision_loss)] // Glance to three digits.
fn of_stats(stats: &pb::StatsResponse) -> Scrape {
    let mut scrape = Scrape::default();
    let mut put = |name: &str, value: u64| scrape.set(name, value as f64);
    let head = stats.head.map_or(0, |at| at.offset);
    let behind = |at: Option<pb::Position>| head.saturating_sub(at.map_or(0, |at| at.offset));
    put("treering_head_position", head);
    put("treering_index_lag_events", behind(stats.index_reached));
    put("treering_log_segments", stats.log_segments);
    put(
        "treering_damaged_conversations",
        stats.damaged_conversations,
    );
    put("treering_damaged_reads_total", stats.damaged_reads);
    // All that was appended is in the log, and nobody else appends.
    put("treering_events_appended_total", head);
    for (part, bytes) in [
        ("log", stats.log_bytes),
        ("views", stats.views_bytes),
        ("index", stats.index_bytes),
    ] {
        scrape.set_of("treering_store_bytes", &[("part", part)], bytes as f64);
    }
    scrape.set_of(SIGN, &[("version", &stats.version)], 1.0);
    if let Some(at) = &stats.started_at {
        let seconds = at.seconds as f64 + f64::from(at.nanos) / 1e9;
        scrape.set("treering_start_time_seconds", seconds);
    }
    scrape
}

async fn scrape(url: &MetricsUrl) -> Result<Scrape, String> {
    let text = get(url).await?;
    let no_metrics = |why: String| format!("what answers there has no metrics of Treering: {why}");
    let scrape = Scrape::read(&text).map_err(no_metrics)?;
    if scrape.all(SIGN).is_empty() {
        return Err(no_metrics(format!("{SIGN} is missing")));
    }
    Ok(scrape)
}

async fn get(url: &MetricsUrl) -> Result<String, String> {
    let told = |error: hyper::Error| format!("no answer by HTTP ({error})");
    let stream = TcpStream::connect(&url.authority).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(told)?;
    // Ends with this call, whatever becomes of it.
    let mut carrying = JoinSet::new();
    carrying.spawn(connection);
    let request = Request::get(&url.path)
        .header(header::HOST, &url.authority)
        .header(header::ACCEPT, "application/openmetrics-text, text/plain")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(told)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), SCRAPE_BYTES_MAX).collect();
    let body = body
        .await
        .map_err(|error| format!("the answer broke off ({error})"))?;
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    if status == StatusCode::OK {
        return Ok(text);
    }
    let first = text.lines().next().unwrap_or_default();
    let first: String = first.chars().take(TOLD_CHARS_MAX).collect();
    Err(format!("it answers {status}: {first}"))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    // Whoever copies the address from the server's own line, or types as little as can be,
    // means the same.
    #[test]
    fn addresses_are_read_as_they_are_typed() {
        for text in [
            "http://127.0.0.1:9464",
            "http://127.0.0.1:9464/",
            "http://127.0.0.1:9464/metrics",
            "127.0.0.1:9464",
        ] {
            let url = MetricsUrl::read(text).unwrap();
            assert_eq!(
                ServerPlace::Metrics(url.clone()).to_string(),
                "http://127.0.0.1:9464"
            );
            assert_eq!(url.path, "/metrics", "{text}");
        }
        let far = MetricsUrl::read("http://[::1]:80/a/b").unwrap();
        assert_eq!(
            (far.authority.as_str(), far.path.as_str()),
            ("[::1]:80", "/a/b")
        );
        for wrong in [
            "",
            "https://h:1",
            "h",
            "http://h",
            "http://a b:1",
            "ftp://h:1",
        ] {
            assert!(MetricsUrl::read(wrong).is_err(), "{wrong:?}");
        }
    }

    /// Answers one connection with some bytes, and leaves it open if told.
    async fn answering(bytes: Vec<u8>, stays: bool) -> MetricsUrl {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 1024];
            let _read = stream.read(&mut asked).await.unwrap();
            let _sent = stream.write_all(&bytes).await;
            if stays {
                std::future::pending::<()>().await;
            }
        });
        MetricsUrl::read(&address).unwrap()
    }

    // Another program listens there, or a proxy that has lost its server: each is told in
    // one line, and none is waited for without end or read without bound.
    #[tokio::test]
    async fn answers_that_are_no_metrics_are_told() {
        let http = |status: &str, body: &str| {
            format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let huge = "treering_x 1\n".repeat(SCRAPE_BYTES_MAX / 12);
        for (answer, told) in [
            ("SSH-2.0-OpenSSH_9.6\r\n".to_owned(), "no answer by HTTP"),
            (String::new(), "no answer by HTTP"),
            (
                http("200 OK", "<html>hello</html>"),
                "its line 1 is no metric",
            ),
            (http("200 OK", "up 1\n"), "treering_build_info is missing"),
            (
                http("502 Bad Gateway", "no upstream\n"),
                "it answers 502 Bad Gateway: no upstream",
            ),
            (
                http("200 OK", "up 1\n").replace(": 5", ": 500"),
                "the answer broke off",
            ),
            (http("200 OK", &huge), "the answer broke off"),
        ] {
            let url = answering(answer.into_bytes(), false).await;
            let said = scrape(&url).await.unwrap_err();
            assert!(said.contains(told), "{told}: {said}");
        }
    }

    // A listener that takes the connection and says nothing must not hold anybody up.
    #[tokio::test(start_paused = true)]
    async fn silence_is_not_waited_for() {
        let url = answering(
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nup".to_vec(),
            true,
        )
        .await;
        let mut asker = Asker::new(Common::for_tests());
        let error = asker.ask(&ServerPlace::Metrics(url)).await.unwrap_err();
        assert!(
            error.to_string().ends_with("no answer within 5 s"),
            "{error}"
        );
    }
}
