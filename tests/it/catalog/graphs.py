#!/usr/bin/env python3
"""Random channels, and the head of each as operator-registry's model finds it: written from alpha/model/model.go.

graphs.py SEED COUNT DIRECTORY: writes DIRECTORY/catalog.json, and prints a line of JSON for each channel:
{"channel": …, "heads": […]}. One head is an answer, none or several are errors there too.
"""

import json
import random
import sys


def heads(entries):
    incoming = {}
    for entry in entries:
        if entry.get("replaces", "") != "":
            incoming[entry["replaces"]] = incoming.get(entry["replaces"], 0) + 1
        for skip in entry.get("skips", []):
            incoming[skip] = incoming.get(skip, 0) + 1
    return sorted(entry["name"] for entry in entries if entry["name"] not in incoming)


def channel(rng):
    size = rng.choice([1, 1, 2, 3, 5, 8, 20])
    names = ["b.v%d" % number for number in range(size)]
    kind = rng.choice(["chain", "chain", "random", "skips", "cycle", "none"])
    entries = []
    for number, name in enumerate(names):
        entry = {"name": name}
        if kind in ("chain", "cycle") and number > 0:
            entry["replaces"] = names[number - 1]
        if kind == "random" and rng.random() < 0.7:
            entry["replaces"] = rng.choice(names + ["b.gone", ""])
        if kind == "skips" and number == size - 1:
            entry["skips"] = names[:-1]
        if rng.random() < 0.3:
            entry["skips"] = entry.get("skips", []) + rng.sample(names[:number] + ["b.gone"], 1)
        if rng.random() < 0.3:
            entry["skipRange"] = rng.choice([">=0.0.0", "<1.0.0"])
        entries.append(entry)
    if kind == "cycle":
        entries[0]["replaces"] = names[-1]
    rng.shuffle(entries)
    return entries


def main():
    seed, count, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rng = random.Random(seed)
    documents = [{"schema": "olm.package", "name": "p", "defaultChannel": "c0"}]
    names = set()
    for number in range(count):
        entries = channel(rng)
        names.update(entry["name"] for entry in entries)
        documents.append({"schema": "olm.channel", "package": "p", "name": "c%d" % number, "entries": entries})
        print(json.dumps({"channel": "c%d" % number, "heads": heads(entries)}))
    for name in names:
        documents.append({"schema": "olm.bundle", "package": "p", "name": name, "image": "quay.io/p/%s:1" % name})
    rng.shuffle(documents)
    with open(directory + "/catalog.json", "w") as file:
        for document in documents:
            fields = list(document.items())
            rng.shuffle(fields)
            json.dump(dict(fields), file, indent=rng.choice([None, 4]))
            file.write(rng.choice(["", "\n"]))


main()
