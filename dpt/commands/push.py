"""Publishes a model on the Hugging Face hub: weights, configuration and a model card with task,
data, scores, training command and licence, in one commit. Log in before: hf auth login.

The scores are those of the run, or those in --scores. A README.md in the model's folder that states
a licence is published as it is, unless --license or --scores asks for a new one.
"""

import tempfile
from pathlib import Path

from dpt.commands import command_parser
from dpt.process import say


def run(arguments: list[str]) -> None:
    parser = command_parser("push", __doc__, checkpoint="RUN")
    add = parser.add_argument
    add("name", metavar="USER/NAME", help="on the hub; if it exists, it gets a new commit")
    text = "licence of the model, as the hub names it: apache-2.0, cc-by-nc-4.0, other, ..."
    add("--license", "--licence", metavar="NAME", help=text)
    add("--scores", type=Path, metavar="DIR", help="what dpt evaluate RUN run_dir=DIR wrote")
    add("--private", action="store_true", help="create a private repository")
    options = parser.parse_args(arguments)

    from dpt.model import DPT
    from dpt.training.card_facts import scores_of, training_of
    from dpt.weights.card import Card, is_generated, license_in, read_card, write_card
    from dpt.weights.hub import is_hub_name, require_token, upload

    if not is_hub_name(options.name):
        raise ValueError(f"{options.name}: must have the form user/name")
    source = Path(options.checkpoint).expanduser()
    text = read_card(source)
    wants_card = bool(options.license or options.scores or not license_in(text))
    if wants_card and text and not is_generated(text):
        raise ValueError(
            f"{source / 'README.md'}: dpt did not write it, so it is published as it is: state "
            "licence and scores there (license: NAME in its first lines), and leave --license and "
            "--scores out; or remove it"
        )
    if wants_card and not options.license:
        raise ValueError(f"{source}: states no licence: give --license NAME, such as apache-2.0")
    require_token()
    model = DPT.from_pretrained(options.checkpoint)
    with tempfile.TemporaryDirectory(prefix="dpt-push-") as temporary:
        folder = Path(temporary)
        model.save_pretrained(folder)
        if wants_card:
            training = training_of(source)
            scores = scores_of(source, model, options.scores)
            text = Card(options.name, options.license, training, scores).text(model, model.config)
        write_card(folder, text)
        say(f"{options.name}: uploading")
        say(upload(folder, options.name, private=options.private))
