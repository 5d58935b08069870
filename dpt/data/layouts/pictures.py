"""Images beside masks or depth maps: a table of words, equal names, one constant prefix or suffix.

The words in names of folders and files say which files are images, labels or depth maps. Labels
belong to the image of the same name, or of the same name but for a prefix and a suffix that all
labels of a folder have.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import combinations, takewhile
from typing import Literal

from dpt.data.formats import io
from dpt.data.layouts.base import Folder, Row, by_folder
from dpt.data.layouts.values import PairMatch
from dpt.data.splits import SPLITS, split_word
from dpt.files import DataError, few, plain_name, plural

Kind = Literal["unused", "objects", "depth", "labels", "images"]
KINDS: tuple[Kind, ...] = ("objects", "depth", "labels", "images")
"""Also keys of ``data``; a word that may mean several kinds means the first."""
_WORDS: dict[Kind, str] = {
    "unused": "aug(?:ment(?:ed|ations?)?)?|pred(?:s|ict(?:ed|ions?)?)?|results?|outputs?|overlays?"
    "|viz|visuali[sz](?:ed|ations?)|colou?rmaps?|thumb(?:nail)?s?|@eadir|__macosx",
    "objects": "(?:segmentation_)?objects?",
    "depth": "depths?|depthmaps?|disps?|disparit(?:y|ies)",
    "labels": "masks?|msks?|lbls?|labels?(?:tr|ts)?|labell?ed|annot(?:ation)?s?|anns?|segs?|"
    "segment(?:ed|ations?)|semantics?|trimaps?|targets?|gts?|gtfine|ground[-_. ]?truths?|ids|"
    "class|classes|alphas?|mattes?|manual",
    "images": "rgb|colou?rs?|(?:jpe?g)?images?(?:tr|ts)?|jpe?gs?|imgs?|im|leftimg8bit|photos?|"
    "pictures?|frames?|inputs?",
}
WORDS: dict[Kind, re.Pattern[str]] = {
    kind: re.compile(rf"(?i)(?<![^\W\d_])(?:{words})(?![^\W\d_])") for kind, words in _WORDS.items()
}
_DISCARDED = {"discard", "discards", "discarded", "reject", "rejects", "rejected", "bad"}
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TOKEN = re.compile(r"\d+|[^\W\d_]+|[\W_]")
_MOST_COMPARED = 100  # names of label files, from which beginnings and ends are derived
_MAX_ENDS = 4


def match_pictures(folder: Folder) -> PairMatch | None:
    """Pairs images and labels in folders of their own, or with words in their names."""
    if folder.given.get("annotations") or not folder.pictures:  # a table has taken them
        return None
    rows = rows_of(folder)
    key = next((_key("labels", row.image, row.labels) for row in rows if row.labels), "")
    return PairMatch.of(rows, title="pairs by names", key=key or "data.depth=FOLDER")


def rows_of(folder: Folder) -> list[Row]:
    """Returns a row for each image, with its labels if they pair.

    Raises:
        DataError: an image has several labels.
    """
    files = _files_of_kinds(folder)
    maps: dict[Kind, dict[str, str]] = {}
    for kind in ("labels", "depth", "objects"):
        image_of = pair(files["images"], files[kind], kind)
        maps[kind] = _one_for_each_image(folder, image_of, kind)
    rows = []
    for image in files["images"]:
        row = Row(image, **{kind: paths.get(image, "") for kind, paths in maps.items()})
        splits = [split_word(os.path.dirname(path))[0] for path in row]
        rows.append(row._replace(split=next(filter(None, splits), "")))
    return rows


# --------------------------------------------------------------------------------------- kinds


def _files_of_kinds(folder: Folder) -> dict[Kind, list[str]]:
    """Returns the pictures of each kind, as words and the user's choice tell."""
    kinds = _kinds_by_words(folder.pictures)
    given = {kind for kind in KINDS if {kind, f"{kind}_name"} & folder.given.keys()}
    kinds = {path: kind for path, kind in kinds.items() if kind not in given}
    files: dict[Kind, list[str]] = defaultdict(list)
    for path, kind in (kinds | _chosen_kinds(folder)).items():
        files[kind].append(path)
    return files


def _chosen_kinds(folder: Folder) -> dict[str, Kind]:
    """Returns the kinds of files that keys of ``data`` name; the longest folder decides.

    Such keys are ``images``, ``labels`` and ``depth`` with a folder, in whose path ``%split``
    stands for any folders, and ``labels_name`` etc. with a name that holds ``%stem``. Files in the
    folder itself count before those in folders below it.
    """
    chosen = [k for k in KINDS if folder.given.get(k) or folder.given.get(f"{k}_name")]
    folders = {kind: _folder_of(folder, kind) for kind in chosen}
    kinds: dict[str, Kind] = {}
    for kind in sorted(chosen, key=lambda kind: len(folders[kind])):
        template = str(folder.given.get(f"{kind}_name") or "%stem")
        stem = re.escape(template).replace("%stem", "[^/]*")
        place = re.escape(folders[kind]).replace("%split", ".+")
        pattern = re.compile(rf"({place})(?P<below>.*/)?{stem}\.[^./]*", re.DOTALL)
        matches = [match for match in map(pattern.fullmatch, folder.pictures) if match]
        if not matches:
            keys = f"data.{kind}={folder.given.get(kind)}, data.{kind}_name={template}"
            raise DataError(f"{keys}: no such file below {folder.root}: correct them")
        direct = [match for match in matches if place and not match["below"]]
        kinds |= {match.string: kind for match in direct or matches}
    return kinds


def _folder_of(folder: Folder, kind: Kind) -> str:
    """Returns the beginning of the paths in the folder that the user has chosen for a kind."""
    name = os.path.relpath(folder.root / str(folder.given.get(kind) or "."), folder.root)
    return "" if name == "." else f"{name}/"


def kind_of_word(name: str) -> Kind | Literal[""]:
    """Returns the kind for which a word in a name stands."""
    return next((kind for kind in KINDS if WORDS[kind].search(_spaced(name))), "")


def _spaced(name: str) -> str:
    """Returns ``Ground_Truth`` for ``GroundTruth``."""
    return _CAMEL.sub("_", name)


def _kinds_by_words(pictures: Sequence[str]) -> dict[str, Kind]:
    """Returns the kinds that words in the names of folders and files tell; otherwise images.

    A word of a file's name counts where no folder's name tells the kind, or in a folder of images
    if there is no other folder of that kind. A picture beside a JPEG of its name has labels.
    """
    folders = _kinds_of_folders({os.path.dirname(path) for path in pictures})
    beside = _beside_jpegs(pictures)
    kinds: dict[str, Kind] = {}
    for path in pictures:
        kind = folders[os.path.dirname(path)]
        name_kind = _kind_of_name(path) or beside.get(path, "")
        is_open = not kind or (kind == "images" and name_kind not in folders.values())
        if name_kind == "unused" or is_open:
            kind = name_kind or kind
        kinds[path] = kind or "images"
    return kinds


def _beside_jpegs(pictures: Sequence[str]) -> dict[str, Kind]:
    """Returns the kind of the files with the name of a JPEG beside them."""
    jpegs = {os.path.splitext(p)[0] for p in pictures if p.lower().endswith(io.JPEG_SUFFIXES)}
    others = [path for path in pictures if path.lower().endswith((".png", ".bmp", ".gif"))]
    return {path: "labels" for path in others if os.path.splitext(path)[0] in jpegs}


def _kinds_of_folders(directories: set[str]) -> dict[str, Kind | Literal[""]]:
    """Returns the kind of the files in each folder, by the last word; "" if no word tells."""
    kinds: dict[str, Kind | Literal[""]] = {}
    for directory in directories:
        names = directory.split("/")
        is_unused = any(_has_outer("unused", n) or n.lower() in _DISCARDED for n in names)
        told: list[Kind | Literal[""]] = [kind for kind in map(kind_of_word, names) if kind]
        kinds[directory] = "unused" if is_unused else ["", *told][-1]
    return kinds


def _has_outer(kind: Kind, name: str) -> bool:
    """Returns whether a word of a kind stands, but for numbers, at the beginning or the end of a
    name."""
    matches = [m for text in (name, _spaced(name)) for m in WORDS[kind].finditer(text)]
    rests = [rest for m in matches for rest in (m.string[: m.start()], m.string[m.end() :])]
    return not all(re.search(r"[^\W\d_]", rest) for rest in rests)


def _kind_of_name(path: str) -> Kind | Literal[""]:
    """Returns what the first or the last word of a file's name says, unless that is an image."""
    stem = os.path.splitext(os.path.basename(path))[0]
    if stem.lower().endswith("depth_mask"):  # see io.mask_of_depth
        return "unused"
    kinds: tuple[Kind, ...] = ("unused", "labels", "depth")
    return next((kind for kind in kinds if _has_outer(kind, stem)), "")


def names_like_labels(pictures: Sequence[str]) -> list[str]:
    """Returns settings for names that are those of other pictures with an end: of labels, or of
    images where the others are labels."""
    kinds = {_core(_stem(path)): kind for path, kind in _kinds_by_words(pictures).items()}
    ends: Counter[tuple[str, str]] = Counter()
    for stem in map(_stem, pictures):
        for match in re.finditer(r"[-_. ]", stem):
            kind = kinds.get(_core(stem[: match.start()]))
            if kind:
                ends["images" if kind == "labels" else "labels", stem[match.start() :]] += 1
    common = ends.most_common(_MAX_ENDS)
    return [f"data.{kind}_name=%stem{end}" for (kind, end), n in common if 2 * n > len(ends)]


# ------------------------------------------------------------------------------------- pairing


def pair(images: Sequence[str], labels: Sequence[str], kind: Kind) -> dict[str, str]:
    """Returns the image of each label file that has one.

    Raises:
        DataError: two images fit label files equally well.
    """
    keys = {path: _whole_key(path, "images") for path in images}
    counts = Counter(keys.values())
    image_of_key = {key: path for path, key in keys.items() if counts[key] == 1}
    keys_of = {path: _whole_key(path, kind) for path in labels}
    image_of = {p: image_of_key[key] for p, key in keys_of.items() if key in image_of_key}
    paired = {os.path.dirname(path) for path in image_of}
    for directory, members in by_folder(labels).items():
        if directory in paired:  # its further labels are not used
            continue
        levels = _levels_of_likeness(images, members[0], kind)
        attempts = (_pair_by_affixes(level, members) for level in levels)
        image_of |= next(filter(None, attempts), {})
    return image_of


def _levels_of_likeness(images: Sequence[str], label: str, kind: Kind) -> list[list[str]]:
    """Returns the images whose folders are equally like that of a label file, the most like ones
    first, without those of another split.

    Likeness is whether a folder's name says that it holds images, and how many folders at the
    beginning and the end of the paths are the same.
    """
    folders = os.path.dirname(_whole_key(label, kind)).split("/")
    levels: dict[tuple[bool, int], list[str]] = defaultdict(list)
    for directory, members in by_folder(images).items():
        others = os.path.dirname(_whole_key(members[0], "images")).split("/")
        if len({split_word(label)[0], split_word(directory)[0]} - {""}) < 2:
            alike = _common_start(folders, others) + _common_start(folders[::-1], others[::-1])
            levels[bool(WORDS["images"].search(_spaced(directory))), alike] += members
    return [levels[likeness] for likeness in sorted(levels, reverse=True)]


def _whole_key(path: str, kind: Kind) -> str:
    """Returns the path without suffix and without the words for its kind in folders' names."""
    *folders, stem = os.path.splitext(plain_name(path))[0].split("/")
    names = [WORDS[kind].sub("", _spaced(name)).strip("-_. ") for name in folders]
    return "/".join([*(SPLITS.get(name.lower(), name) for name in names if name), stem])


def _pair_by_affixes(images: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """Returns the image of label files of a folder: names are equal but for the beginning and the
    end that all images share, and those that the labels of most images have.

    Raises:
        DataError: two images fit most of the label files.
    """
    prefix, suffix = _common_affixes({_core(_stem(path)) for path in images})
    images_of: dict[str, list[str]] = defaultdict(list)
    for path in images:
        images_of[_core(_stem(path)).removeprefix(prefix).removesuffix(suffix)].append(path)
    image_of: dict[str, str] = {}
    for before, after in _affixes(images_of.keys(), labels, prefix):
        images_of_stem = {f"{before}{core}{after}": images_of[core] for core in images_of}
        stems = {path: _core(_stem(path)) for path in labels}
        pairs = {p: images_of_stem[stem] for p, stem in stems.items() if stem in images_of_stem}
        if 2 * len(pairs) < min(len(images_of), len(labels)):
            continue
        ambiguous = [path for path in pairs if len(pairs[path]) > 1]
        if 2 * len(ambiguous) > len(pairs):
            first, second, *_ = pairs[ambiguous[0]]
            remedy = "set data.images to the folder of one, or save the bands in one file"
            raise DataError(f"{first} and {second} are both images of {ambiguous[0]}: {remedy}")
        certain = {path: images[0] for path, images in pairs.items() if len(images) == 1}
        image_of = certain | image_of  # further affixes are those of a second annotator
    return image_of


def _affixes(cores: Collection[str], labels: Sequence[str], prefix: str) -> list[tuple[str, str]]:
    """Returns the beginnings and ends around ``cores`` in names of label files, the commonest and
    the shortest ones first.

    Args:
        prefix: that of the images; only there may the beginning of labels hold a number.
    """
    numbers_of_images = re.findall(r"\d+", prefix)
    counts: Counter[tuple[str, str]] = Counter()
    for path in labels[:: len(labels) // _MOST_COMPARED + 1]:
        tokens = _TOKEN.findall(_core(_stem(path)))
        for i, j in combinations(range(len(tokens) + 1), 2):
            before = "".join(tokens[:i])
            numbers = re.findall(r"\d+", before)
            if "".join(tokens[i:j]) in cores and (not numbers or numbers == numbers_of_images):
                counts[before, "".join(tokens[j:])] += 1
    return sorted(counts, key=lambda affixes: (-counts[affixes], len("".join(affixes))))


def _stem(path: str) -> str:
    return os.path.splitext(plain_name(os.path.basename(path)))[0]


def _core(stem: str) -> str:
    """Returns a name without zeros before its numbers: 5.jpg may belong to 00005.png."""
    return re.sub(r"(?<!\d)0+(?=\d)", "", stem)


def _common_affixes(names: set[str]) -> tuple[str, str]:
    """Returns the beginning and the end that all names share; none of a single name."""
    if len(names) < 2:
        return "", ""
    lists = [_TOKEN.findall(name) for name in names]
    head = _common_start(min(lists), max(lists))
    ends = [tokens[head:][::-1] for tokens in lists]
    tail = _common_start(min(ends), max(ends))
    return "".join(lists[0][:head]), "".join(ends[0][:tail][::-1])


def _common_start(first: Sequence[str], second: Sequence[str]) -> int:
    """Returns how many items at the beginning of two lists are the same."""
    pairs = zip(first, second, strict=False)
    return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])


# ------------------------------------------------------------------- several labels of one image


def _one_for_each_image(folder: Folder, image_of: Mapping[str, str], kind: Kind) -> dict[str, str]:
    """Returns the label file of each image; DataError if an image has several: a question."""
    labels_of: dict[str, list[str]] = defaultdict(list)
    for label, image in image_of.items():
        labels_of[image].append(label)
    several = {image: labels for image, labels in labels_of.items() if len(labels) > 1}
    if several:
        image, labels = next(iter(several.items()))
        are_folders = len({*map(os.path.dirname, labels)}) == len(labels)
        keys = Counter(_key(kind, i, path, by_name=not are_folders) for path, i in image_of.items())
        contested = {_key(kind, image, path, by_name=not are_folders) for path in labels}
        choices = [f"{key} ({count} files)" for key, count in keys.items() if key in contested]
        fault = f"{plural(len(several), 'image')} with several {kind}, such as {image}"
        remedy = f"set {' or '.join(sorted(choices))}"
        raise DataError(f"{folder.root}: {fault} with {few(sorted(labels), 4)}: {remedy}")
    return {image: labels[0] for image, labels in labels_of.items()}


def _key(kind: Kind, image: str, label: str, *, by_name: bool = False) -> str:
    """Returns the setting that names label files like this one: their folder, in which ``%split``
    stands for the folders that they share with images, or their names."""
    of_image, of_label = image.split("/")[:-1], label.split("/")[:-1]
    head = _common_start(of_image, of_label)
    inner = of_label[head:]
    while inner and (inner[-1] in of_image or inner[-1].lower() in SPLITS):
        inner.pop()
    if inner and not by_name:
        return f"data.{kind}={'/'.join(['%split'] * bool(head) + inner)}"
    stem = _core(_stem(label))
    match = SequenceMatcher(None, _core(_stem(image)), stem, autojunk=False).find_longest_match()
    return f"data.{kind}_name={stem[: match.b]}%stem{stem[match.b + match.size :]}"
