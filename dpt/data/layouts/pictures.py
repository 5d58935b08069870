"""Images beside masks or depth maps: a table of words, equal names, one constant prefix or suffix.

The words in names of folders and files say which files are images, labels or depth maps. Labels
belong to the image of the same name, or of the same name but for a prefix and a suffix that all
labels of a folder have.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from itertools import combinations, takewhile
from typing import Literal, NamedTuple

from dpt.data.layouts.base import Folder, Layout, Row, by_folder, shown
from dpt.data.layouts.values import PairMatch
from dpt.data.splits import SPLITS, split_word
from dpt.files import DataError, missing_path, plain_name, plural

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
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TOKEN = re.compile(r"\d+|[^\W\d_]+|[\W_]")
_MAX_TOKENS = 24  # of a name
_MAX_ENDS = 4


class Pictures(Layout):
    """Images and labels in folders of their own, or with words in their names."""

    def match(self, folder: Folder) -> PairMatch | None:
        if folder.given.get("annotations"):
            return None
        rows = rows_of(folder)
        labels = {row.image: [row.labels] for row in rows if row.labels}
        key = (
            f"data.labels={next(iter(_places(labels))).folder or '.'}" if labels else "data.depth="
        )
        return PairMatch.of(rows, title="pairs by names", key=key)


def _files_of_kinds(folder: Folder) -> dict[Kind, list[str]]:
    """Returns the pictures of each kind, as words and the user's choice tell."""
    by_words = _kinds_by_words(folder.pictures)
    kinds: dict[str, Kind] = {path: k for path, k in by_words.items() if k != "unused"}
    chosen = _chosen_kinds(folder, folder.pictures)  # excludes other files of a chosen kind
    given = {kind for kind in KINDS if {kind, f"{kind}_name"} & folder.given.keys()}
    kinds = {path: kind for path, kind in kinds.items() if kind not in given} | chosen
    files: dict[Kind, list[str]] = defaultdict(list)
    for path, kind in kinds.items():
        files[kind].append(path)
    return files


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


def _chosen_kinds(folder: Folder, pictures: Sequence[str]) -> dict[str, Kind]:
    """Returns the kinds of files that keys of ``data`` name; the longest folder decides.

    Such keys are ``images``, ``labels`` and ``depth`` with a folder, in whose path ``%split``
    stands for any folders, and ``labels_name`` etc. with a name that holds ``%stem``. Files in the
    folder itself count before those in folders below it.
    """
    kinds: dict[str, Kind] = {}
    length_of: dict[str, int] = {}  # of the folders that name them
    for kind in reversed(KINDS):
        for path, length in _chosen_files(folder, pictures, kind).items():
            if length > length_of.get(path, -1):
                kinds[path], length_of[path] = kind, length
    return kinds


def _chosen_files(folder: Folder, pictures: Sequence[str], kind: Kind) -> dict[str, int]:
    """Returns the files that the keys of a kind name, and the length of their folder's path."""
    keys = [key for key in (kind, f"{kind}_name") if folder.given.get(key)]
    if not keys:
        return {}
    pattern = _pattern(folder, kind)
    matches = {path: match for path in pictures if (match := pattern.fullmatch(path))}
    if not matches:
        given = " ".join(f"data.{key}={folder.given[key]}" for key in keys)
        raise DataError(f"{given}: no such file below {folder.root}: correct it")
    has_direct = any(match["folder"] and not match["below"] for match in matches.values())
    return {
        path: len(match["folder"])
        for path, match in matches.items()
        if not match["below"] or not has_direct
    }


def _pattern(folder: Folder, kind: Kind) -> re.Pattern[str]:
    """Returns what the paths of the files match that the user has chosen."""
    name = str(folder.given.get(kind) or ".")
    start, _, end = str(folder.given.get(f"{kind}_name") or "%stem").partition("%stem")
    if "%split" not in name:
        path = folder.root / name
        if not path.is_dir():
            raise missing_path(path, what="folder", remedy=f"check data.{kind}")
        below = os.path.relpath(path, folder.root)
        if below.startswith(".."):
            remedy = "give the folder that holds images and labels"
            raise DataError(f"data.{kind}={name} is not below {folder.root}: {remedy}")
        name = below
    place = "" if name == "." else re.escape(name.strip("/")).replace("%split", ".+") + "/"
    stem = f"{re.escape(start)}[^/]*{re.escape(end)}"
    return re.compile(rf"(?P<folder>{place})(?P<below>.*/)?{stem}\.[^./]*", re.DOTALL)


def kind_of_word(name: str) -> Kind | Literal[""]:
    """Returns the kind for which a word in a name stands."""
    return next((kind for kind in KINDS if WORDS[kind].search(_spaced(name))), "")


def _spaced(name: str) -> str:
    """Returns ``Ground_Truth`` for ``GroundTruth``."""
    return _CAMEL.sub("_", name)


def _kinds_by_words(pictures: Sequence[str]) -> dict[str, Kind]:
    """Returns the kinds that words in the names of folders and files tell; otherwise images.

    A word of a file's name counts where no folder's name tells the kind, or where only some files
    in a folder of images have it, and there is no other folder of that kind.
    """
    folders = _kinds_of_folders({os.path.dirname(path) for path in pictures})
    names = {path: _kind_of_name(path) for path in pictures}
    without_word = {os.path.dirname(path) for path, kind in names.items() if not kind}
    present = {*folders.values()}
    kinds: dict[str, Kind] = {}
    for path in pictures:
        directory, name_kind = os.path.dirname(path), names[path]
        kind = folders[directory]
        is_among_images = kind == "images" and directory in without_word
        if name_kind == "unused" or not kind or (is_among_images and name_kind not in present):
            kind = name_kind or kind
        kinds[path] = kind or "images"
    return kinds


def _kinds_of_folders(directories: set[str]) -> dict[str, Kind | Literal[""]]:
    """Returns the kind of the files in each folder; "" if no word tells.

    The word of a folder that holds both images and labels in folders of their own does not count.
    """
    inner: dict[str, set[str]] = defaultdict(set)
    for directory in directories:
        for outer, _, below in _levels(directory):
            inner[outer].update(map(kind_of_word, below))
    kinds: dict[str, Kind | Literal[""]] = {}
    for directory in directories:
        kind: Kind | Literal[""] = ""
        for outer, part, _ in _levels(directory):
            if _is_unused(part):
                kind = "unused"
                break
            is_container = "images" in inner[outer] and bool({"labels", "depth"} & inner[outer])
            part_kind = "" if is_container else kind_of_word(part)
            if part_kind and not (kind and part_kind == "images"):
                kind = part_kind
        kinds[directory] = kind
    return kinds


def _levels(directory: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yields the path of each folder on the way to a directory, its name, and the names below."""
    parts = directory.split("/")
    for k, part in enumerate(parts, 1):
        yield "/".join(parts[:k]), part, parts[k:]


def _is_unused(name: str) -> bool:
    """Returns whether the first or the last word of a name says that it is no data."""
    pattern = WORDS["unused"]
    return any(
        _is_outer(match) for text in (name, _spaced(name)) for match in pattern.finditer(text)
    )


def _is_outer(match: re.Match[str]) -> bool:
    """Returns whether a word stands at the beginning or, but for a number, at the end."""
    return match.start() == 0 or bool(re.fullmatch(r"[\W\d_]*", match.string[match.end() :]))


def _kind_of_name(path: str) -> Kind | Literal[""]:
    """Returns what the first or the last word of a file's name says, unless that is an image."""
    stem = os.path.splitext(os.path.basename(path))[0]
    if _is_unused(stem):
        return "unused"
    for kind in ("labels", "depth"):
        if any(_is_outer(match) for match in WORDS[kind].finditer(_spaced(stem))):
            return kind
    return ""


def names_like_labels(pictures: Sequence[str]) -> list[str]:
    """Returns templates of names that are those of other pictures with an end."""
    stems = {os.path.splitext(path)[0] for path in pictures}
    ends = Counter(
        stem[match.start() :]
        for stem in stems
        for match in re.finditer(r"[-_. ]", stem)
        if stem[: match.start()] in stems
    )
    return [f"%stem{end}" for end, count in ends.most_common(_MAX_ENDS) if 2 * count > len(ends)]


# ------------------------------------------------------------------------------------- pairing


def pair(images: Sequence[str], labels: Sequence[str], kind: Kind) -> dict[str, str]:
    """Returns the image of each label file that has one.

    Raises:
        DataError: two images fit label files equally well.
    """
    image_of: dict[str, str] = {}
    for key in (_whole_key, _key_without_kind):
        keys = _unique(images, partial(key, kind="images"))
        for path in labels:
            image = keys.get(key(path, kind))
            if image is not None:
                image_of.setdefault(path, image)
    partners: dict[str, set[str]] = defaultdict(set)  # folders of images by those of labels
    for path, image in image_of.items():
        partners[os.path.dirname(path)].add(os.path.dirname(image))
    left = by_folder(path for path in labels if path not in image_of)
    for directory, members in sorted(left.items(), key=lambda item: -len(item[1])):
        labelled = {*image_of.values()}
        near = [*images]
        if directory in partners:  # further labels in a folder that has pairs
            near = [path for path in images if os.path.dirname(path) in partners[directory]]
            near = [path for path in near if path not in labelled]
        levels = _levels_of_likeness(near, _Place.of(members[0], kind))
        image_of |= _pair_folder(levels, members, labelled)
    return image_of


def _pair_folder(
    levels: Sequence[Sequence[str]], labels: Sequence[str], labelled: set[str]
) -> dict[str, str]:
    """Returns the image of label files of a folder, in the first level of images that has pairs.

    Args:
        labelled: images that have labels; few further ones of them are stray.
    """
    for images in levels:
        pairs = _pair_by_affixes(images, labels)
        if 2 * len(pairs) < len(images):
            pairs = {path: image for path, image in pairs.items() if image not in labelled}
        if pairs:
            return pairs
    return {}


def _levels_of_likeness(images: Sequence[str], labels: "_Place") -> list[list[str]]:
    """Returns the images whose folders are equally like that of label files, the most like ones
    first, without those of another split."""
    levels: dict[_Likeness, list[str]] = defaultdict(list)
    for members in by_folder(images).values():
        place = _Place.of(members[0], "images")
        if len({place.split, labels.split} - {""}) < 2:
            levels[place.likeness(labels)] += members
    return [levels[likeness] for likeness in sorted(levels, reverse=True)]


_Likeness = tuple[bool, int, int]


class _Place(NamedTuple):
    """Where files lie, without the words for their kind."""

    folders: list[str]
    words: set[str]
    split: str
    is_named: bool  # whether a word in a folder's name tells the kind

    @classmethod
    def of(cls, path: str, kind: Kind) -> "_Place":
        place = os.path.dirname(_whole_key(path, kind))
        words = {*re.split(r"[-_. /]+", place)}
        is_named = bool(WORDS[kind].search(_spaced(os.path.dirname(path))))
        return cls(place.split("/"), words, split_word(place)[0], is_named)

    def likeness(self, labels: "_Place") -> _Likeness:
        """Returns whether the name of a place of images says so, how many folders at its beginning
        and end are those of a place of labels, and how many words anywhere."""
        parts, others = self.folders, labels.folders
        folders = _common_start(parts, others) + _common_start(parts[::-1], others[::-1])
        return self.is_named, folders, len(self.words & labels.words)


def _unique(paths: Iterable[str], key: Callable[[str], str]) -> dict[str, str]:
    """Returns the paths by keys, without those whose key another one has."""
    paths_of: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        paths_of[key(path)].append(path)
    return {name: members[0] for name, members in paths_of.items() if len(members) == 1}


def _whole_key(path: str, kind: Kind) -> str:
    """Returns the path without suffix and without the words for its kind in folders' names."""
    *folders, stem = os.path.splitext(plain_name(path))[0].split("/")
    names = [_without_words(_spaced(name), kind).strip("-_. ") for name in folders]
    return "/".join([*(SPLITS.get(name.lower(), name) for name in names if name), stem])


def _without_words(name: str, kind: Kind) -> str:
    """Returns the name of a folder without words for the kind; ``GT_color`` and ``label_images``
    lose both words."""
    if kind != "images" and WORDS[kind].search(name):
        name = WORDS["images"].sub("", name)
    return WORDS[kind].sub("", name)


def _key_without_kind(path: str, kind: Kind) -> str:
    """Returns the whole key with the word for the kind in the file's name as ``*``."""
    folders, _, stem = _whole_key(path, kind).rpartition("/")
    return f"{folders}/{WORDS[kind].sub('*', _spaced(stem))}"


def _pair_by_affixes(images: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """Returns the image of label files of a folder: names are equal but for the beginning and the
    end that all images share, and those that the labels of most images have.

    Raises:
        DataError: two images fit most of the label files.
    """
    prefix, suffix = _common_affixes({_stem(path) for path in images})
    images_of: dict[str, list[str]] = defaultdict(list)
    for path in images:
        stem = _stem(path)
        images_of[stem[len(prefix) : len(stem) - len(suffix)]].append(path)
    image_of: dict[str, str] = {}
    for cores in _cores(images_of, labels, prefix):  # several: those of a second annotator
        if 2 * len(cores) < min(len(images_of), len(labels)):
            break
        pairs = {path: images_of[core] for path, core in cores.items()}
        ambiguous = [path for path in pairs if len(pairs[path]) > 1]
        if 2 * len(ambiguous) > len(pairs):
            first, second, *_ = pairs[ambiguous[0]]
            remedy = "set data.images to the folder of one (train.py reads bands of several)"
            raise DataError(f"{first} and {second} are both images of {ambiguous[0]}: {remedy}")
        certain = {path: images[0] for path, images in pairs.items() if len(images) == 1}
        image_of = certain | image_of
    return image_of


def _cores(
    images_of: Mapping[str, Sequence[str]], labels: Sequence[str], prefix: str
) -> list[dict[str, str]]:
    """Returns the key of ``images_of`` in the name of each label file, for each beginning and end
    of such names, the commonest and the shortest ones first.

    Args:
        prefix: that of the images; only there may the beginning of labels hold a number.
    """
    numbers_of_images = re.findall(r"\d+", prefix)
    cores_of: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for path in labels:
        tokens = _TOKEN.findall(_stem(path))
        for i, j in combinations(range(min(len(tokens), _MAX_TOKENS) + 1), 2):
            before, core = "".join(tokens[:i]), "".join(tokens[i:j])
            numbers = re.findall(r"\d+", before)
            if core in images_of and (not numbers or numbers == numbers_of_images):
                cores_of[before, "".join(tokens[j:])][path] = core
    ranking = sorted(cores_of.items(), key=lambda item: (-len(item[1]), len("".join(item[0]))))
    return [cores for _, cores in ranking]


def _stem(path: str) -> str:
    return os.path.splitext(plain_name(os.path.basename(path)))[0]


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


class _LabelPlace(NamedTuple):
    """Where the label files of one kind of content lie, relative to the images."""

    folder: str
    name: str  # a template with %stem


def _one_for_each_image(folder: Folder, image_of: Mapping[str, str], kind: Kind) -> dict[str, str]:
    """Returns the label file of each image; DataError if an image has several: a question."""
    labels_of: dict[str, list[str]] = defaultdict(list)
    for label, image in image_of.items():
        labels_of[image].append(label)
    several = {image: labels for image, labels in labels_of.items() if len(labels) > 1}
    if not several:
        return {image: labels[0] for image, labels in labels_of.items()}
    image, labels = next(iter(several.items()))
    places = _places(labels_of)
    contested = [place for place, members in places.items() if {*labels} & {*members}]
    are_folders = len({place.folder for place in contested}) == len(contested)
    choices = []
    for place in contested:
        setting = f"{kind}={place.folder or '.'}" if are_folders else f"{kind}_name={place.name}"
        choices.append(f"data.{setting} ({len(places[place])} files)")
    fault = f"{plural(len(several), 'image')} with several {kind}, such as {image}"
    remedy = f"set {' or '.join(sorted(choices))}"
    raise DataError(f"{folder.root}: {fault} with {shown(sorted(labels), 4)}: {remedy}")


def _places(labels_of: Mapping[str, Sequence[str]]) -> dict[_LabelPlace, list[str]]:
    """Returns the label files by their place; with ``%split`` for folders that differ."""
    by_place: dict[_LabelPlace, dict[str, str]] = defaultdict(dict)
    for image, labels in labels_of.items():
        for label in labels:
            shared, inner = _folders(image, label)
            by_place[_LabelPlace(inner, _template(image, label))][label] = shared
    places: dict[_LabelPlace, list[str]] = defaultdict(list)
    for (inner, name), shared_of in by_place.items():
        starts = {*shared_of.values()}
        start = starts.pop() if len(starts) == 1 else "%split"
        places[_LabelPlace("/".join(filter(None, (start, inner))), name)] += shared_of
    return places


def _folders(image: str, label: str) -> tuple[str, str]:
    """Returns the folders that a label file shares with its image, and its others after them."""
    of_image, of_label = image.split("/")[:-1], label.split("/")[:-1]
    head = _common_start(of_image, of_label)
    inner, other = of_label[head:], of_image[head:]
    while inner and ((other and inner[-1] == other[-1]) or inner[-1].lower() in SPLITS):
        inner, other = inner[:-1], other[:-1]
    return "/".join(of_label[:head]), "/".join(inner)


def _template(image: str, label: str) -> str:
    """Returns the name of a label file without suffix, with ``%stem`` for what is its image's."""
    of_image, stem = _stem(image), _stem(label)
    match = SequenceMatcher(None, of_image, stem, autojunk=False).find_longest_match()
    return f"{stem[: match.b]}%stem{stem[match.b + match.size :]}"
