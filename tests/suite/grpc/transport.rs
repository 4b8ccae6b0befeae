//! Reflection, health, deadlines of streams, compression, pipes.

use std::time::Duration;

use futures::StreamExt;
use tonic::{Code, Request, codec::CompressionEncoding, transport::Endpoint};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::{v1, v1alpha};
use treering::{domain::*, engine::Engine, proto::pb, server};

use super::harness::*;

const SERVICES: [&str; 7] = [
    "treering.v1.Admin",
    "treering.v1.Backups",
    "treering.v1.Contexts",
    "treering.v1.Conversations",
    "treering.v1.Events",
    "treering.v1.Search",
    "treering.v1.Tools",
];

macro_rules! reflect {
    ($version:ident, $server:expr) => {{
        use $version::{
            ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
            server_reflection_request::MessageRequest as Ask,
            server_reflection_response::MessageResponse as Told,
        };
        let asks = [
            Ask::ListServices(String::new()),
            Ask::FileContainingSymbol("treering.v1.NewEvent".into()),
        ];
        let requests = asks.map(|ask| ServerReflectionRequest {
            host: String::new(),
            message_request: Some(ask),
        });
        let mut client = ServerReflectionClient::new($server.channel.clone());
        let answers = client.server_reflection_info(futures::stream::iter(requests));
        let answers: Vec<_> = answers.await.unwrap().into_inner().collect().await;
        let mut services = Vec::new();
        let mut files = Vec::new();
        for answer in answers {
            match answer.unwrap().message_response.unwrap() {
                Told::ListServicesResponse(list) => {
                    services.extend(list.service.into_iter().map(|service| service.name));
                }
                Told::FileDescriptorResponse(file) => files.extend(file.file_descriptor_proto),
                other => panic!("{other:?}"),
            }
        }
        (services, files)
    }};
}

// Clients in other languages get the API by reflection. It must describe the arms of an event as
// messages, though our generated code has bytes there.
#[tokio::test(flavor = "multi_thread")]
async fn reflection_describes_the_written_api() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    for (services, files) in [reflect!(v1, server), reflect!(v1alpha, server)] {
        for service in SERVICES.into_iter().chain(["grpc.health.v1.Health"]) {
            assert!(services.iter().any(|s| s == service), "{services:?}");
        }
        let file: prost_types::FileDescriptorProto =
            prost::Message::decode(files[0].as_slice()).unwrap();
        let event = file.message_type.iter().find(|m| m.name() == "NewEvent");
        let arms = event.unwrap().field.iter();
        let arm = arms
            .clone()
            .find(|f| f.name() == "message_appended")
            .unwrap();
        assert_eq!(arm.type_name(), ".treering.v1.MessageAppended");
    }
    server.stop().done().await;
}

// A load balancer checks health by service. A server that is stopping must report it to watchers
// first.
#[tokio::test(flavor = "multi_thread")]
async fn health_follows_start_and_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut health = HealthClient::new(server.channel.clone());
    let ask = |service: &str| HealthCheckRequest {
        service: service.into(),
    };
    for service in SERVICES.into_iter().chain([""]) {
        let status = health.check(ask(service)).await.unwrap().into_inner();
        assert_eq!(status.status, 1, "{service} serves");
    }
    let status = health.check(ask("nope")).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    let mut watch = health.watch(ask("")).await.unwrap().into_inner();
    assert_eq!(watch.next().await.unwrap().unwrap().status, 1);
    let stopping = server.stop();
    assert_eq!(
        watch.next().await.unwrap().unwrap().status,
        2,
        "not serving"
    );
    let end = watch.next().await.unwrap().unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    stopping.done().await;
}

// A deadline applies to streams, too, also while they are silent.
#[tokio::test(flavor = "multi_thread")]
async fn deadline_ends_a_stream() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    let mut request = Request::new(pb::SubscribeRequest {
        source: Some(pb::subscribe_request::Source::Log(pb::LogSource {})),
        ..Default::default()
    });
    let metadata = request.metadata_mut();
    metadata.insert("grpc-timeout", "2S".parse().unwrap());
    let mut items = server
        .events()
        .subscribe(request)
        .await
        .unwrap()
        .into_inner();
    let end = loop {
        match items.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::DeadlineExceeded);

    let mut request = Request::new(futures::stream::pending::<pb::AppendRequest>());
    let metadata = request.metadata_mut();
    metadata.insert("grpc-timeout", "2S".parse().unwrap());
    let mut answers = server
        .events()
        .append_stream(request)
        .await
        .unwrap()
        .into_inner();
    let end = tokio::time::timeout(Duration::from_secs(20), answers.message());
    let end = end.await.unwrap().unwrap_err();
    assert_eq!(end.code(), Code::DeadlineExceeded);
    server.stop().done().await;
}

// Clients on slow links compress their requests.
#[tokio::test(flavor = "multi_thread")]
async fn compressed_requests_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path()).await;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Zstd] {
        let mut client = server.events().send_compressed(encoding);
        let text = "again and again ".repeat(1_000);
        let request = batch("", [created("c"), message(Role::User, &text)]);
        let response = client.append(request).await.unwrap().into_inner();
        assert_eq!(response.events.len(), 2);
    }
    server.stop().done().await;
}

// The command line uses a folder in the same way as a server: through a pipe in its own process.
#[tokio::test(flavor = "multi_thread")]
async fn in_memory_pipe_serves_like_a_port() {
    let engine = Engine::in_memory(Limits::default()).await.unwrap();
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let incoming = server::ConnectionStream::pipes(futures::stream::iter([Ok(theirs)]));
    let shutdown = async {
        let _gone = stopped.await;
    };
    let options = server::ServeOptions::default();
    let serving = tokio::spawn(server::serve_on(
        engine.into(),
        incoming,
        Box::pin(shutdown),
        options,
    ));
    let mut ours = Some(hyper_util::rt::TokioIo::new(ours));
    let connector = tower::service_fn(move |_: http::Uri| {
        let pipe = ours.take();
        async move { pipe.ok_or_else(|| std::io::Error::other("the pipe is in use")) }
    });
    let endpoint = Endpoint::from_static("http://pipe");
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    let mut client = pb::events_client::EventsClient::new(channel);
    let response = client
        .append(batch("", opening()))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(response.events.len(), 5);
    stop.send(()).unwrap();
    let done = tokio::time::timeout(Duration::from_secs(5), serving);
    done.await.unwrap().unwrap().unwrap();
}
