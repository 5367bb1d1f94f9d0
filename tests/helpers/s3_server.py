"""A real S3 server for tests: moto's, in a process of its own on a free port of the loopback interface.

``python -m tests.helpers.s3_server`` is that process; it prints its address and ends with its standard input.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SECRET = "a-secret-that-no-file-holds"
BUCKET = "shop"


@contextmanager
def s3_server() -> Iterator[str]:
    """Runs a server with an empty bucket, which this process and its children find by their environment; its address."""
    command = [sys.executable, "-m", "tests.helpers.s3_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AWS_ENDPOINT_URL", address)
                patch.setenv("AWS_ACCESS_KEY_ID", "tests")
                patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
                patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
                patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
                patch.setenv("AWS_CONFIG_FILE", "/dev/null")
                patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
                yield address
        finally:
            server.stdin.close()
            server.wait()


def main() -> None:
    """Serves until the standard input ends."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "tests", "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=address, **keys).create_bucket(Bucket=BUCKET)
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
