"""How the Python that runs this was built, as one JSON object; needs nothing but that Python.

Optimised means guided by a profile: twenty per cent for triton-lb. A build from source says so in
its arguments. Distributions (their Pythons live in /usr) do it in their own build rules, which
leaves no trace in the interpreter.
"""

import json
import platform
import sys
import sysconfig

print(
    json.dumps(
        {
            "version": platform.python_version(),
            "is_optimised": sys.base_prefix == "/usr"
            or "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
            "tag": sys.implementation.cache_tag,
        }
    )
)
