"""A proxy on loopback for a cluster before Kubernetes 1.21: it offers `batch/v1` CronJobs, which such a cluster calls `batch/v1beta1`.

The fields are the same. What differs is deletion: by `batch/v1` jobs go with their CronJob, by `batch/v1beta1` they stay.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import urllib3
import yaml

from tests.fakes.kubernetes import client as k8s

CRON_JOBS = ("/apis/batch/v1/", "/apis/batch/v1beta1/")
VERSIONS = (b'"batch/v1"', b'"batch/v1beta1"')
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "host"}


def has_cron_jobs(api: k8s.ApiClient) -> bool:
    """Return whether the cluster itself knows CronJobs of `batch/v1`."""
    return any(resource.name == "cronjobs" for resource in k8s.BatchV1Api(api).get_api_resources().resources)


@contextlib.contextmanager
def translated(kubeconfig: Path, folder: Path) -> Iterator[Path]:
    """Yield a kubeconfig like this one whose current cluster is the proxy."""
    config = yaml.safe_load(kubeconfig.read_text())
    [context] = [entry["context"] for entry in config["contexts"] if entry["name"] == config["current-context"]]
    [entry] = [entry for entry in config["clusters"] if entry["name"] == context["cluster"]]
    behind = entry["cluster"]
    with _Proxy(behind["server"], behind["certificate-authority"]) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        entry["cluster"] = {"server": f"http://127.0.0.1:{proxy.server_port}"}
        file = folder / "translated-kubeconfig"
        file.write_text(yaml.safe_dump(config))
        yield file
        proxy.shutdown()
        thread.join()


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, url: str, certificates: str) -> None:
        self.url = url
        self.cluster = urllib3.PoolManager(ca_certs=certificates, retries=False, maxsize=8)
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Proxy

    def _forward(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        path, body, (new, old) = self.path, self.rfile.read(length), CRON_JOBS
        of_cron_jobs = path.startswith(new) and "/cronjobs" in path
        if of_cron_jobs:
            path, body = path.replace(new, old, 1), body.replace(*VERSIONS)
            if self.command == "DELETE" and b"propagationPolicy" not in body and "propagationPolicy" not in path:
                path += ("&" if "?" in path else "?") + "propagationPolicy=Background"
        answer = self.server.cluster.request(
            self.command,
            self.server.url + path,
            body=body or None,
            headers={name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP},
            preload_content=False,
            decode_content=True,
        )
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.end_headers()
        if of_cron_jobs:
            self.wfile.write(answer.read().replace(*reversed(VERSIONS)))
        else:  # logs and watches end when the cluster says so
            for chunk in answer.stream(None):
                self.wfile.write(chunk)
        answer.release_conn()

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _forward

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test output quiet."""
