//! Serves containers' logs to the API server at the kubelet's port, with TLS.

use std::sync::Arc;

use jiff::Timestamp;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::KubeletState;
use super::http::{request, respond};

/// Returns a TLS acceptor with a self-signed certificate. The API server of a test accepts any certificate, because no
/// certificate authority for kubelets is configured.
pub(super) fn acceptor() -> TlsAcceptor {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["kubelet".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    TlsAcceptor::from(Arc::new(config.with_single_cert(vec![cert.der().clone()], key).unwrap()))
}

/// Answers `/containerLogs/NAMESPACE/POD/CONTAINER[?tailLines=N&timestamps=true]` for all nodes. Never returns.
pub(super) async fn serve(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<KubeletState>) {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, acceptor.clone(), shared.clone()));
        }
    }
}

async fn answer(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<KubeletState>) -> std::io::Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    let request = request(&mut stream).await?;
    let (path, query) = request.split_once('?').unwrap_or((&request, ""));
    let mut parts = path.trim_start_matches("/containerLogs/").split('/');
    let (namespace, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Some(pod) = shared.started(namespace, name) else {
        return respond(stream, "404 Not Found", "text/plain", "no such pod").await;
    };
    shared.reachable(&pod.view.node).await;
    let text = String::from_utf8_lossy(&std::fs::read(&pod.log).unwrap_or_default()).into_owned();
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    if query.split('&').any(|pair| pair == "timestamps=true") {
        let times = pod.log_times.lock().unwrap().clone();
        // only the lines that the test wrote have known times; the lines of a real command get the current time
        let times = times.into_iter().chain(std::iter::repeat(Timestamp::now()));
        lines = lines.into_iter().zip(times).map(|(line, at)| format!("{at} {line}")).collect();
    }
    let asked = query.split('&').find_map(|pair| pair.strip_prefix("tailLines=")?.parse::<usize>().ok());
    let from = lines.len().saturating_sub(asked.unwrap_or(usize::MAX));
    respond(stream, "200 OK", "text/plain", &lines[from..].concat()).await
}
