"""Throw-away certificates for trying mutual TLS on one machine."""

import subprocess
from pathlib import Path

DAYS = 365


def make(folder: Path) -> None:
    """Write, if missing, an authority (`ca`), a server (`tls`), a client (`client`), and a `stranger`.

    Each is a pair of `.crt` and `.key`. The stranger's certificate is signed by itself: what a server must refuse.
    """
    if (folder / "stranger.crt").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    _sign_itself(folder, "ca")
    _issue(
        folder, "tls", "subjectAltName=DNS:localhost,DNS:gateway,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth"
    )
    _issue(folder, "client", "extendedKeyUsage=clientAuth")
    _sign_itself(folder, "stranger")


def _sign_itself(folder: Path, name: str) -> None:
    _openssl(folder, f"req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days {DAYS}", name)


def _issue(folder: Path, name: str, extensions: str) -> None:
    _openssl(folder, "req -new -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1", name, suffix="csr")
    (folder / f"{name}.ext").write_text(extensions)
    subprocess.run(
        [*f"openssl x509 -req -days {DAYS} -CA ca.crt -CAkey ca.key -CAcreateserial".split(),
         "-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", f"{name}.ext"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


def _openssl(folder: Path, request: str, name: str, suffix: str = "crt") -> None:
    command = ["openssl", *request.split(), "-subj", f"/CN=trainspan {name}", "-keyout", f"{name}.key"]
    subprocess.run([*command, "-out", f"{name}.{suffix}"], cwd=folder, check=True, capture_output=True)
