"""Real servers of buckets for tests, each in a process of its own on a free port of the loopback interface.

``python -m tests.helpers.bucket_servers s3`` is such a process; it prints its address and ends with its standard input. "s3" is moto's
server of S3, "gs" gcp-storage-emulator's of Google Cloud Storage. Both have an empty bucket.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

SECRET = "a-secret-that-no-file-holds"
BUCKET = "shop"


def s3_server() -> AbstractContextManager[str]:
    """A server of S3, as ``_served`` runs it."""
    return _served(
        "s3",
        "AWS_ENDPOINT_URL",
        AWS_ACCESS_KEY_ID="tests",
        AWS_SECRET_ACCESS_KEY=SECRET,
        AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true",
        AWS_CONFIG_FILE="/dev/null",
        AWS_SHARED_CREDENTIALS_FILE="/dev/null",
    )


def gs_server() -> AbstractContextManager[str]:
    """A server of Google Cloud Storage, as ``_served`` runs it."""
    # Whether a bucket has folders is asked through gRPC, which the emulator does not speak.
    return _served("gs", "STORAGE_EMULATOR_HOST", GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT="false")


@contextmanager
def _served(kind: str, variable: str, **environment: str) -> Iterator[str]:
    """Runs a server, which this process and its children find by their environment; its address."""
    command = [sys.executable, "-m", "tests.helpers.bucket_servers", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            with pytest.MonkeyPatch.context() as patch:
                for name, value in {variable: address, **environment}.items():
                    patch.setenv(name, value)
                yield address
        finally:
            server.stdin.close()
            server.wait()


def _serve_s3() -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "tests", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=address, **keys).create_bucket(Bucket=BUCKET)
    _say(address)
    server.stop()


def _serve_gs() -> None:
    from functools import partial
    from http.server import HTTPServer
    from threading import Thread

    from gcp_storage_emulator.handlers.buckets import create_bucket
    from gcp_storage_emulator.server import RequestHandler
    from gcp_storage_emulator.storage import Storage

    storage = Storage(use_memory_fs=True)
    create_bucket(BUCKET, storage)
    with HTTPServer(("127.0.0.1", 0), partial(RequestHandler, storage)) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        _say(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


def _say(address: str) -> None:
    """Prints the address, and waits for the end of the standard input."""
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    {"s3": _serve_s3, "gs": _serve_gs}[sys.argv[1]]()
