"""A stand-in for the Hugging Face hub on this machine, for uploads and downloads of models."""

import base64
import hashlib
import http.server
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from servers import Quiet, running

TOKEN = "hf_of_the_test"


@dataclass
class Hub:
    """Repositories in memory.

    ``breaks_off``: the server ends the connection in the middle of a large file.
    """

    address: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    private: set[str] = field(default_factory=set)
    uploaded: dict[str, bytes] = field(default_factory=dict)
    cards: dict[str, dict[str, str]] = field(default_factory=dict)
    breaks_off: bool = False


class Handler(Quiet):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def answer(self, content, *, status=200, headers=None):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(data), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def missing(self, code):
        self.answer({"error": code}, status=404, headers={"X-Error-Code": code})

    def do_HEAD(self):  # noqa: N802
        self.do_GET()

    def do_GET(self):  # noqa: N802
        hub, parts = self.hub, self.path.partition("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        if name not in hub.files:
            return self.missing("RepoNotFound")
        files = hub.files[name]
        if not api:
            data = files.get("/".join(parts[4:]))
            if data is None:
                return self.missing("EntryNotFound")
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            return self.answer(data, headers={"X-Repo-Commit": sha_of(files), "ETag": etag})
        if parts[4:5] == ["tree"]:
            entries = [
                {"type": "file", "path": path, "size": len(data), "oid": "0" * 40}
                for path, data in files.items()
            ]
            return self.answer(entries)
        siblings = [{"rfilename": path} for path in files]
        info = {"id": name, "sha": sha_of(files), "siblings": siblings}
        card = {"cardData": hub.cards.get(name)}
        return self.answer({**info, **card, "private": name in hub.private})

    def do_POST(self):  # noqa: N802
        hub, body = self.hub, self.rfile.read(int(self.headers["Content-Length"]))
        path = self.path.partition("?")[0]
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.answer({"error": "Invalid username or password."}, status=401)
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path.endswith("/info/lfs/objects/batch"):
            return self.answer({"objects": [self.action(o) for o in json.loads(body)["objects"]]})
        name = "/".join(path.split("/")[3:5])
        if "/preupload/" in path:
            modes = {True: "lfs", False: "regular"}
            files = [
                {
                    "path": file["path"],
                    "uploadMode": modes[file["path"].endswith(".safetensors")],
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                data = base64.b64decode(line["value"]["content"])
                hub.files[name][line["value"]["path"]] = data
            elif line["key"] == "lfsFile":
                value = line["value"]
                hub.files[name][value["path"]] = hub.uploaded[value["oid"]]
        hub.commits.append(name)
        url = f"{hub.address}/{name}/commit/{sha_of(hub.files[name])}"
        return self.answer({"commitUrl": url, "commitOid": sha_of(hub.files[name])})

    def create(self, wanted):
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.hub.files:
            return self.answer({"error": "You already created this model repo"}, status=409)
        self.hub.files[name] = {}
        if wanted.get("visibility") == "private" or wanted.get("private"):
            self.hub.private.add(name)
        return self.answer({"url": f"{self.hub.address}/{name}"})

    def action(self, wanted):
        href = f"{self.hub.address}/lfs/{wanted['oid']}"
        return {**wanted, "actions": {"upload": {"href": href}}}

    def do_PUT(self):  # noqa: N802
        if self.hub.breaks_off:
            self.rfile.read(1000)
            self.close_connection = True
            self.connection.close()
            return
        self.hub.uploaded[self.path[5:]] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b"")


def sha_of(files):
    """The commit of a repository: it changes with the content."""
    content = repr({path: hashlib.sha256(data).hexdigest() for path, data in files.items()})
    return hashlib.sha1(content.encode()).hexdigest()


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that answers inside the block."""
    hub = Hub()
    handler = type("HubHandler", (Handler,), {"hub": hub})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_port}"
    with running(server):
        yield hub
