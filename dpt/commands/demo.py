"""Serves a web page: upload an image, see the predictions beside it, download them."""

import sys
from pathlib import Path

from dpt.commands import command_parser
from dpt.process import say


def run(arguments: list[str]) -> None:
    parser = command_parser("demo", __doc__)
    add = parser.add_argument
    text = "address to listen on (default: this computer only; 0.0.0.0: anyone)"
    add("--host", default="127.0.0.1", help=text)
    add("--port", type=int, default=7860, help="0 uses a free one (default: 7860)")
    add("--device", help="default: a GPU if there is one")
    options = parser.parse_args(arguments)

    from dpt.demo import Demo, is_local, make_server
    from dpt.model import DPT
    from dpt.predict import Predictor

    model = DPT.from_pretrained(options.checkpoint)
    name = f"{model.config.name} ({Path(options.checkpoint).name})"
    host = options.host
    demo = Demo(Predictor(model, device=options.device), name=name)
    server = make_server(demo, host=host, port=options.port)
    if not is_local(host):
        risk = "anyone who can reach this computer can use the page: it has no password"
        print(f"warning: --host {host}: {risk}", file=sys.stderr)
    url_host = f"[{host}]" if ":" in host else host
    say(f"http://{url_host}:{server.server_port}/  (stop with Ctrl-C)")
    with server:
        server.serve_forever()
