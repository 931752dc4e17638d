"""What the hub's scripts make of a version spec, rewritten from talm-contract.md, sections 2, 3, 7 and 8.

Usage: scripts.py DIR, which holds `config/` with the keys, `image-references` if there is a release, and for each index image
`catalogs/N/{pullspec,catalog.json}`. Prints what would be pulled as JSON: {"platform": [...], "additional": [...], "fails": bool}.
jq and grep are the programs themselves, as in the scripts.
"""

import json
import pathlib
import subprocess
import sys

top = pathlib.Path(sys.argv[1])


def key(name):
    path = top / "config" / name
    return path.read_text() if path.exists() else ""


def release():
    """jq, then grep, then cut; what fails on the way leaves nothing, and nobody notices (bug 7)."""
    references = top / "image-references"
    if not key("platform.image").strip() or not references.exists():
        return []
    jq = subprocess.run(["jq", '.spec.tags[] | "\\(.name)$\\(.from.name)"', str(references)], capture_output=True, text=True)
    patterns = top / "patterns"
    patterns.write_text("".join(line.strip(" \t") + "\n" for line in key("excludePrecachePatterns").split("\n") if line))
    grep = subprocess.run(["grep", "-vG", "-f", str(patterns)], input=jq.stdout, capture_output=True, text=True)
    return [line.rstrip('"').split("$")[1] for line in grep.stdout.splitlines()]


def wanted_packages():
    """One colon or the line is dropped; of two channels of a package the last wins (bug 5)."""
    packages = {}
    for line in key("operators.packagesAndChannels").splitlines():
        if len(parts := line.split(":")) == 2:
            packages[parts[0].strip()] = parts[1].strip()
    return packages


def operators():
    """The last entry that none replaces is the head, `skips` does not count (bug 4); what is not there is nothing (bug 3)."""
    images, packages = [], wanted_packages()
    indexes = dict.fromkeys(line for line in key("operators.indexes").split("\n") if line)
    catalogs = {path.joinpath("pullspec").read_text(): path / "catalog.json" for path in (top / "catalogs").glob("*")}
    for index in indexes:
        documents = [json.loads(line) for line in catalogs[index.strip()].read_text().splitlines()]
        found = []
        for channel in documents:
            if channel["schema"] != "olm.channel" or packages.get(channel["package"]) != channel["name"]:
                continue
            replaced = {entry.get("replaces") for entry in channel["entries"]}
            heads = [entry["name"] for entry in channel["entries"] if entry["name"] not in replaced]
            for bundle in documents:
                if bundle["schema"] == "olm.bundle" and heads and bundle["name"] == heads[-1]:
                    # Without related images the scripts crash here (bug 6).
                    found += [related["image"] for related in bundle["relatedImages"]]
        # A blank line if there are none (bug 2).
        images += list(dict.fromkeys(found)) or [""]
    return images


def additional():
    """`read` loses a last line that does not end (bug 1)."""
    lines = key("additionalImages").split("\n")[:-1]
    return [line.removeprefix('"').removesuffix('"') for line in lines]


def pulled(images):
    """A blank line ends the script (bug 2)."""
    if "" in images:
        return images[: images.index("")], True
    return images, False


answer = {"platform": [], "additional": [], "fails": False}
try:
    named = release() + operators()
    # In the order of bash's hash: the additional images first, and their failure is the end (bug 9).
    answer["additional"], answer["fails"] = pulled(additional())
    if not answer["fails"]:
        answer["platform"], answer["fails"] = pulled(named)
except TypeError:
    answer["fails"] = True
print(json.dumps(answer))
