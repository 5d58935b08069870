"""dpt: Dense Prediction Transformers

Usage
  dpt fit DIR [--time 15m] [KEY=VALUE ...]         find out what a folder holds, and train on it
  dpt train [GROUP=CHOICE ...] [KEY=VALUE ...]     train; the same as python train.py
  dpt find-lr data=NAME task=NAME [...]            suggest a learning rate
  dpt evaluate RUN [data=NAME] [...]               score a checkpoint, or predictions on disk
  dpt compare A B [--out DIR]                      say which of two evaluations is better
  dpt data check data=NAME [...]                   look for faults in a data set
  dpt data download data=NAME                      download a data set
  dpt data pack data=NAME out=DIR                  write a data set as shards
  dpt data convert DIR OUT --to FORMAT             write labels as coco, yolo, labelme, voc or masks
  dpt predict CKPT INPUTS ... --out DIR            depth and masks of images, folders, videos
  dpt calibrate CKPT --points FILE --out FOLDER    fit predicted depth to known metres
  dpt export CKPT OUT.onnx|OUT.pt2                 write one file for other programs, and check it
  dpt convert SRC DST --to FORMAT                  write a checkpoint in another project's format
  dpt merge A B ... --out FOLDER                   join models trained on one frozen encoder
  dpt push RUN USER/NAME --license NAME            publish a model on the Hugging Face hub
  dpt inspect CKPT IMAGE [--out sheet.png]         show attention, tokens and readout of an image
  dpt demo CKPT                                    serve a web page that predicts uploaded images
  dpt --version

dpt COMMAND --help explains a command.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper

from dpt import __version__, process
from dpt.commands import configured, data_folders, export, models, predict
from dpt.config.run_folder import MISTAKES, fail
from dpt.plugins import load_plugins

HELP = str(__doc__)

COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "fit": configured.fit,
    "compare": configured.compare,
    "data convert": data_folders.convert,
    "predict": predict.run,
    "calibrate": models.calibrate,
    "export": export.run,
    "convert": models.convert,
    "merge": models.merge,
    "push": models.push,
    "inspect": models.inspect,
    "demo": models.demo,
}
COMMANDS |= {name: partial(configured.run, name) for name in configured.FUNCTIONS}

LESS_MEMORY = (
    "reduce data.batch_size, data.num_workers, data.image_size or the model's sizes, or set "
    "trainer.precision=bf16-mixed, model.checkpoint_activations=true, or "
    "trainer.accumulate_grad_batches=N for the same step"
)
SMALLER = "use smaller images or a smaller model, or end other programs"


def main(command: str | None = None) -> None:
    """Runs a command; without one, the first argument names it.

    Exit codes: 0 success, 1 a mistake in the input or an output that cannot be written, 2 an
    unknown command, 128 + N stopped by signal N.
    """
    with _written_output():
        name, arguments = _command_of(command, _with_home(sys.argv[1:]))
        with _endings_in_one_line(name):
            _prepare_process()
            has_flags = any(argument[:1] == "-" for argument in arguments)
            if name in configured.FUNCTIONS and process.is_first_rank() and not has_flags:
                process.say(f"dpt {name}: loading libraries")
            COMMANDS[name](arguments)


@contextmanager
def _written_output() -> Iterator[None]:
    """Makes an output that cannot be written a mistake, as on a full disk."""
    if sys.stdout is None:  # closed, as by >&-
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):  # file names may not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    end: SystemExit | None = None
    try:
        yield
    except SystemExit as stop:
        end = stop
    fault = process.flush_output()
    if fault and not (end and end.code):
        fail(fault)
    if end:
        raise end


@contextmanager
def _endings_in_one_line(command: str) -> Iterator[None]:
    """Ends the process by one line where a signal stops it, the user made a mistake or memory is
    short; requeues a job of SLURM."""
    with process.stoppable():
        try:
            yield
        except process.Stopped as reason:
            if command == "train" and reason.name == "SIGUSR1":  # of SLURM, before training
                reason.message += f"; {process.requeue() or 'nothing was trained yet'}"
            raise
        except MISTAKES as error:
            fail(error)
        except Exception as error:
            fault = process.lack_of_memory(error)
            if fault:
                fail(f"{fault}: {LESS_MEMORY if command in configured.FUNCTIONS else SMALLER}")
            raise


def _with_home(arguments: list[str]) -> list[str]:
    """Expands ~ in --out=~/FOLDER and in KEY=~/FOLDER, which the shell leaves."""
    home = os.path.expanduser("~")
    return [
        re.sub(r"^([^=]+=)?~(?=/|$)", lambda match: f"{match[1] or ''}{home}", argument)
        for argument in arguments
    ]


def _command_of(command: str | None, arguments: list[str]) -> tuple[str, list[str]]:
    """Returns a command's name and its arguments; prints help or version, and ends the process."""
    if command is None:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(HELP, end="")
            raise SystemExit
        if arguments[0] == "--version":
            print(f"dpt {__version__}")
            raise SystemExit
        command, *arguments = arguments
    if arguments and f"{command} {arguments[0]}" in COMMANDS:  # two words: dpt data check
        command, *arguments = f"{command} {arguments[0]}", *arguments[1:]
    if command not in COMMANDS:
        names = ", ".join(COMMANDS)
        print(f"error: there is no command {command!r}; choose from {names}", file=sys.stderr)
        raise SystemExit(2)
    return command, arguments


def _prepare_process() -> None:
    """Checks the working folder and the ranks, and loads the user's plugins."""
    os.getcwd()  # fails if the folder was removed
    if os.environ.get("LOCAL_RANK", "0") != "0":  # started by Lightning's first rank
        process.end_with_parent()
    process.check_ranks()
    process.raise_file_limit()
    load_plugins()
