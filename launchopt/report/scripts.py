"""The scripts of the page, and the policy that lets them run and nothing else.

In: our own script, and the bundle of Vega, Vega-Lite and Vega-Embed that vl-convert carries. Out: texts to put between
script tags, and a Content-Security-Policy that names their hashes. No expression of a figure is compiled: Vega-Embed
interprets them (`ast`), so that 'unsafe-eval' is not needed. Styles are inline, as Vega sets some on what it draws.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from typing import Any

from markupsafe import Markup

_NOT_IN_JSON = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


@functools.cache
def vega_bundle() -> str:
    """Vega and its kin as one script, of the Vega-Lite that Altair writes for; no network."""
    import altair
    import vl_convert

    major_minor = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    same_major = [version for version in known if version.split(".")[0] == major_minor.split(".")[0]]
    version = major_minor if major_minor in known else same_major[-1]
    # vegaEmbed is all that the page calls.
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


def inline(script: str) -> Markup:
    """`script` so that no text in it ends its script tag, and so that its hash is that of what a browser reads."""
    text = script.replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"<(?=/script|!--|script)", r"\\x3c", text, flags=re.IGNORECASE)
    return Markup(text)  # our own, and the bundle's: nothing of a run is in it


def inline_json(value: Any) -> Markup:
    """JSON that holds nothing HTML would read, whatever its texts are."""
    return Markup(json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_NOT_IN_JSON))


def policy(*scripts: str) -> str:
    """No network at all, and only these scripts."""
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    rules = [
        "default-src 'none'",
        f"script-src {hashes}",
        "style-src 'unsafe-inline'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join(rules)


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
