use std::{fs, net::TcpListener};

use treering_log_postgres::{PostgresError, PostgresLog};

use crate::server::{Server, open, single_copy};

// Encryption without authentication protects against nobody: the certificate must be issued by the
// given authority, for the host in the URL.
#[tokio::test(flavor = "multi_thread")]
async fn tls_is_used_and_the_certificate_checked() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let Some(mut server) = Server::single(&[]).await else {
        return;
    };
    let database = server.new_log().await;
    let signed = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    server.write("server.crt", &signed.cert.pem());
    server.write("server.key", &signed.signing_key.serialize_pem());
    server.stop();
    server.listen(port);
    server.start().await;
    let folder = tempfile::tempdir().unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let url = |name: &str, host: &str, certificate: &str| {
        let file = folder.path().join(name);
        fs::write(&file, certificate).unwrap();
        format!(
            "postgres://treering@{host}:{port}/{database}?sslmode=verify-full&sslrootcert={}",
            file.display()
        )
    };
    let right = url("right.pem", "localhost", &signed.cert.pem());
    let log = open(&right, single_copy()).await;
    let encrypted = "select count(*) > 0 from pg_stat_ssl join pg_stat_activity using (pid) \
                     where application_name = 'treering' and ssl";
    assert_eq!(server.sql(encrypted).await, "t");
    drop(log);
    for wrong in [
        url("other.pem", "localhost", &other.cert.pem()),
        url("right.pem", "127.0.0.1", &signed.cert.pem()),
    ] {
        let error = PostgresLog::open(&wrong, single_copy())
            .await
            .err()
            .unwrap();
        assert!(matches!(error, PostgresError::Connect { .. }), "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
    }
}
