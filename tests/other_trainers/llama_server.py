"""Runs llama.cpp's server in its own process: ``python llama_server.py FILE.gguf``.

It prints its address. It exits when stdin is closed, or after ten minutes.
"""

import os
import sys
import threading

import xllamacpp


def main() -> None:
    """Serve until the parent process closes stdin."""
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.model_alias = {"evert-tiny"}
    params.hostnames = ["127.0.0.1"]
    params.n_ctx, params.n_parallel = 32768, 16
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    # Use float32 everywhere, because half precision would cause an error of 0.01 nats.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.warmup = False
    server = xllamacpp.Server(params)
    threading.Timer(600, os._exit, [1]).start()
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
