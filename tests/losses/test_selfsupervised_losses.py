"""Losses between views, against the formulas of the papers written as loops."""

import math

import pytest
import torch

from dpt.losses import dino_loss, ibot_loss, nt_xent


def naive_nt_xent(projections, temperature):
    """Chen et al. 2020, equation 1, over all ordered pairs of different views of an image."""
    views = [view.tolist() for image in projections for view in image]
    count = projections.shape[1]

    def similarity(a, b):
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))

    terms = []
    for i, view in enumerate(views):
        compared = [k for k in range(len(views)) if k != i]
        powers = {k: math.exp(similarity(view, views[k]) / temperature) for k in compared}
        positive = [k for k in compared if k // count == i // count]
        terms += [-math.log(powers[k] / sum(powers.values())) for k in positive]
    return sum(terms) / len(terms)


@pytest.mark.parametrize(("views", "temperature"), [(2, 0.5), (2, 0.1), (3, 0.2)])
def test_nt_xent_equals_its_formula(views, temperature):
    torch.manual_seed(0)
    projections = torch.randn(4, views, 6, dtype=torch.float64)
    loss = float(nt_xent(projections, temperature=temperature))
    assert loss == pytest.approx(naive_nt_xent(projections, temperature), rel=1e-12)


def naive_sinkhorn_knopp(scores):
    """Caron et al. 2020, section 3.1, on a list of rows; in the end each row sums to 1."""
    rows = [[math.exp(v) for v in row] for row in scores]
    for _ in range(3):
        columns = [sum(row[k] for row in rows) for k in range(len(rows[0]))]
        rows = [[v / column for v, column in zip(row, columns, strict=True)] for row in rows]
        rows = [[v / sum(row) for v in row] for row in rows]
    return rows


@pytest.mark.parametrize("views", [2, 5])
def test_dino_loss_equals_its_algorithm(views):
    """Caron et al. 2021, algorithm 1 and equation 3; the student sees more views."""
    torch.manual_seed(0)
    student = torch.randn(3, views, 7, dtype=torch.float64)
    teacher = torch.randn(3, 2, 7, dtype=torch.float64)
    targets = naive_sinkhorn_knopp((teacher / 0.5).flatten(0, 1).tolist())
    terms = []
    for image in range(3):
        for i in range(2):
            target = targets[2 * image + i]
            for j in range(views):
                if i != j:
                    logs = (student[image, j] / 0.1).softmax(0).log()
                    terms.append(-float(torch.tensor(target, dtype=torch.float64) @ logs))
    loss = dino_loss(student, teacher, temperature=0.1, teacher_temperature=0.5)
    assert float(loss) == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_ibot_loss_equals_its_formula():
    """Zhou et al. 2022, equation 2, with the targets of DINOv2."""
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 5, 7, dtype=torch.float64).unbind()
    targets = torch.tensor(naive_sinkhorn_knopp((teacher / 0.5).tolist()), dtype=torch.float64)
    expected = -(targets * (student / 0.1).softmax(1).log()).sum() / 5
    loss = ibot_loss(student, teacher, temperature=0.1, teacher_temperature=0.5)
    assert float(loss) == pytest.approx(float(expected), rel=1e-12)


def test_a_student_in_double_precision_has_a_teacher_in_single():
    """The average of the weights stays float32 with ``trainer.precision=64-true``."""
    torch.manual_seed(0)
    student, teacher = torch.randn(3, 4, 7, dtype=torch.float64), torch.randn(3, 2, 7)
    loss, expected = (
        dino_loss(student, values, temperature=0.1, teacher_temperature=0.5)
        for values in (teacher, teacher.double())
    )
    assert loss.dtype == torch.float64
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
