"""Scripts of the page, and the policy that allows these scripts only.

In: our own script, and the bundle of Vega, Vega-Lite and Vega-Embed in vl-convert. Out: texts to put between script
tags, and a Content-Security-Policy with their hashes. Vega-Embed interprets the expressions of figures (`ast`) instead
of compiling them, so 'unsafe-eval' is not needed. Styles are inline, since Vega sets some on its drawings.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re

from markupsafe import Markup

_NOT_IN_JSON = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


@functools.cache
def vega_bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, in Altair's version of Vega-Lite; no network."""
    import altair
    import vl_convert

    major_minor = ".".join(altair.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    same_major = [version for version in known if version.split(".")[0] == major_minor.split(".")[0]]
    version = major_minor if major_minor in known else same_major[-1]
    # The page calls vegaEmbed only.
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version))


def inline(script: str) -> Markup:
    """Return `script` without any text that ends its script tag, and with the hash that a browser computes."""
    text = script.replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"<(?=/script|!--|script)", r"\\x3c", text, flags=re.IGNORECASE)
    return Markup(text)  # safe without escaping: neither script contains data of a run


def inline_json(value: object) -> Markup:
    """Return JSON without a character that HTML would interpret."""
    return Markup(json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_NOT_IN_JSON))


def policy(*scripts: str) -> str:
    """Return a policy without network that allows these scripts only."""
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
