"""The environment variables passed to commands: evert's, and a few of the trainer's.

``harmless`` selects the variables that specify where programs are, how text is encoded and which
certificates to trust. No other variables are passed on, because any of them might contain a key.
Use ``env=`` to add what a command needs.
"""

import os
import site
from collections.abc import Mapping
from pathlib import Path

from evert.bridge.clients.http.server import Address
from evert.bridge.redaction import is_secret

HARMLESS = """
PATH SHELL USER LOGNAME LANG LANGUAGE TZ TERM COLORTERM
LD_LIBRARY_PATH DYLD_LIBRARY_PATH DYLD_FALLBACK_LIBRARY_PATH
SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PIP_CERT GIT_SSL_CAINFO
NIX_SSL_CERT_FILE NODE_EXTRA_CA_CERTS
VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV PYENV_VERSION NODE_PATH NVM_DIR JAVA_HOME GOROOT
PYTHONPATH PYTHONHOME PYTHONUTF8 PYTHONIOENCODING PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE
CUDA_VISIBLE_DEVICES OMP_NUM_THREADS
"""
"""The trainer's variables to pass on, in addition to ``LC_*`` and proxies without a login."""

PROGRAMS = {
    "PYTHONUSERBASE": site.getuserbase(),
    "PYENV_ROOT": "~/.pyenv",
    "RUSTUP_HOME": "~/.rustup",
    "ASDF_DATA_DIR": "~/.asdf",
    "MISE_DATA_DIR": "~/.local/share/mise",
    "VOLTA_HOME": "~/.volta",
}
"""Variables that keep programs from searching the home folder, with their default folders. A
variable is set only if its folder exists."""

PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "NO_PROXY"})


def harmless(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the trainer's variables that contain no secrets, and those in ``PROGRAMS``."""
    environment = {name: value for name, value in variables.items() if _is_harmless(name, value)}
    for name, usual in PROGRAMS.items():
        folder = Path(variables.get(name) or usual).expanduser()
        if folder.is_dir():
            environment[name] = str(folder)
    return environment


def _is_harmless(name: str, value: str) -> bool:
    if name.upper() in PROXIES:
        return "@" not in value
    return name in HARMLESS.split() or (name.startswith("LC_") and not is_secret(name, value))


def addresses(address: Address, model: str, host: str) -> dict[str, str]:
    """Return environment variables that make common SDKs and programs call the policy."""
    return {
        "OPENAI_BASE_URL": address.base_url,
        "OPENAI_API_KEY": address.api_key,
        "ANTHROPIC_BASE_URL": address.root_url,
        "ANTHROPIC_API_KEY": address.api_key,
        "ANTHROPIC_MODEL": model,
        "GOOGLE_GEMINI_BASE_URL": address.root_url,
        "GEMINI_API_KEY": address.api_key,
        "GOOGLE_API_KEY": address.api_key,  # takes precedence over GEMINI_API_KEY
        "GEMINI_MODEL": model,
        "EVERT_MODEL": model,
        # a proxy cannot reach this machine's own addresses
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), host])),
        "no_proxy": ",".join(filter(None, [os.environ.get("no_proxy"), host])),
    }
