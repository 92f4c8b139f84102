"""Is what was drawn believable? Chi-square of counts against a law."""

import torch


def p_value(seen: torch.Tensor, law: torch.Tensor) -> float:
    """Of counts and a law in tensors of one shape; unlikely cells are pooled until 5 are expected."""
    seen, law = seen.flatten().double(), law.flatten().double()
    assert not bool(seen[law == 0].any()), "drew what has no probability"
    order, cells = law.argsort(descending=True), [[0.0, 0.0]]
    for observed, expected in zip(seen[order].tolist(), (law * seen.sum())[order].tolist(), strict=True):
        if cells[-1][1] >= 5:
            cells.append([0.0, 0.0])
        cells[-1] = [cells[-1][0] + observed, cells[-1][1] + expected]
    if len(cells) > 1 and cells[-1][1] < 5:
        observed, expected = cells.pop()
        cells[-1] = [cells[-1][0] + observed, cells[-1][1] + expected]
    chi = sum((observed - expected) ** 2 / expected for observed, expected in cells)
    half = torch.tensor([len(cells) - 1, chi], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(*half)) if len(cells) > 1 else 1.0


def p_value_of_lines(tokens_nL: torch.Tensor, law: torch.Tensor) -> float:
    """Of drawn lines against the probability of every line, in the order of `torch.cartesian_prod`."""
    L = tokens_nL.shape[1]
    V = round(law.numel() ** (1 / L))
    place_n = (tokens_nL * V ** torch.arange(L - 1, -1, -1)).sum(1)
    return p_value(torch.bincount(place_n, minlength=V**L), law)
